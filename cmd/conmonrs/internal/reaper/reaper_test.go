package reaper

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/waiter"
)

func TestMain(m *testing.M) {
	if pid := os.Getenv(tracerEnv); pid != "" {
		trace(pid)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// newReaper returns a reaper that sweeps at SIGCHLD, as the daemon does.
func newReaper(t testing.TB) *Reaper {
	t.Helper()
	set, err := waiter.New()
	if err != nil {
		t.Fatal(err)
	}
	r := New(set, nil)
	r.noPidfd = os.Getenv(oldKernelEnv) != ""
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGCHLD)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range c {
			r.Sweep()
		}
	}()
	t.Cleanup(func() {
		signal.Stop(c)
		close(c)
		<-done
		if n := r.Known(); n != 0 {
			t.Errorf("%d processes left", n)
		}
		if n := set.Len(); n != 0 {
			t.Errorf("%d watches left", n)
		}
		set.Close()
	})
	return r
}

func shell(script string) Command {
	return Command{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: os.Environ(),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}}
}

// Extra descriptors follow the files, in order, whatever their numbers are.
func TestExtraDescriptors(t *testing.T) {
	r := newReaper(t)
	pipes := make([]int, 4)
	for i := 0; i < len(pipes); i += 2 {
		if err := unix.Pipe2(pipes[i:i+2], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(pipes[i])
	}
	c := shell("echo three >&3; echo four >&4; ! { true >&5; } 2>&-")
	c.Extra = []int{pipes[3], pipes[1]}
	p, err := r.Start(t.Context(), c)
	unix.Close(pipes[1])
	unix.Close(pipes[3])
	if err != nil {
		t.Fatal(err)
	}
	if status := waitDone(t, p); status.Code != 0 {
		t.Errorf("status %+v: there is a descriptor 5", status)
	}
	for fd, want := range map[int]string{pipes[2]: "three\n", pipes[0]: "four\n"} {
		b := make([]byte, 10)
		n, err := unix.Read(fd, b)
		if err != nil || string(b[:n]) != want {
			t.Errorf("%q, %v, want %q", b[:max(n, 0)], err, want)
		}
		if n, err := unix.Read(fd, b); n != 0 || err != nil { // ours are closed
			t.Errorf("end: %d, %v", n, err)
		}
	}
}

func waitDone(t testing.TB, p *Process) Status {
	t.Helper()
	select {
	case <-p.Done():
		return p.Status()
	case <-time.After(20 * time.Second):
		t.Fatalf("process %d does not end", p.Pid)
		return Status{}
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// children returns the pids whose parent is this process.
func children(t testing.TB) (pids []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if fields[1] == strconv.Itoa(os.Getpid()) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestStatus(t *testing.T) {
	r := newReaper(t)
	for _, c := range []struct {
		script string
		code   int
		signal syscall.Signal
	}{
		{"exit 0", 0, 0}, {"exit 1", 1, 0}, {"exit 255", 255, 0},
		{"kill -KILL $$", 137, syscall.SIGKILL}, {"kill -TERM $$", 143, syscall.SIGTERM},
		{"ulimit -c 0; kill -SEGV $$", 139, syscall.SIGSEGV}, {"kill -64 $$", 192, 64},
	} {
		p, err := r.Start(t.Context(), shell(c.script))
		if err != nil {
			t.Fatal(err)
		}
		if s := waitDone(t, p); s.Code != c.code || s.Signal != c.signal || !s.Known {
			t.Errorf("%s: %+v", c.script, s)
		}
		if err := p.Signal(syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("signal after the end: %v", err)
		}
	}
}

func TestStartError(t *testing.T) {
	r := newReaper(t)
	_, err := r.Start(t.Context(), Command{Path: "/nonexistent/runtime", Args: []string{"x"}})
	if !errors.Is(err, syscall.ENOENT) {
		t.Fatalf("got %v", err)
	}
}

func TestOnExitBeforeAndAfterTheEnd(t *testing.T) {
	r := newReaper(t)
	p, err := r.Start(t.Context(), shell("read x <&0; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	called := make(chan int, 2)
	p.OnExit(func() { called <- p.Status().Code })
	if code := <-called; code != 3 && code != 0 {
		t.Fatalf("code %d", code)
	}
	p.OnExit(func() { called <- p.Status().Code })
	<-called
}

// leave runs a shell that leaves script behind as an orphan, and returns the orphan's pid. The orphan waits until the
// shell is gone: else the shell may reap it.
func leave(t testing.TB, r *Reaper, script string) int {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pid")
	p, err := r.Start(t.Context(), shell(fmt.Sprintf(`parent=$$; (while kill -0 $parent 2>/dev/null; do :; done; %s) & echo $! >%s`, script, path)))
	if err != nil {
		t.Fatal(err)
	}
	if s := waitDone(t, p); s.Code != 0 {
		t.Fatalf("shell: %+v", s)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestAdopt(t *testing.T) {
	r := newReaper(t)
	for i := range 50 {
		release := r.Hold()
		pid := leave(t, r, "exit 42")
		if i%2 == 0 { // adopted as a zombie
			eventually(t, "orphan is a zombie", func() bool { return peek() == pid })
		}
		p, err := r.Adopt(pid)
		if err != nil {
			t.Fatal(err)
		}
		release()
		release()
		if s := waitDone(t, p); s.Code != 42 || !s.Known {
			t.Fatalf("%+v", s)
		}
	}
}

func TestAdoptTwiceAndStranger(t *testing.T) {
	r := newReaper(t)
	defer r.Hold()()
	p, err := r.Adopt(leave(t, r, "exec sleep 100"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Adopt(p.Pid); err == nil {
		t.Error("adopted twice")
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitDone(t, p)
	for _, pid := range []int{1 << 22, os.Getppid(), 1} {
		if _, err := r.Adopt(pid); !errors.Is(err, ErrNotChild) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
}

func TestStraysAreReapedButHeldOnesAreNot(t *testing.T) {
	r := newReaper(t)
	leave(t, r, "exit 1")
	eventually(t, "stray reaped", func() bool { return len(children(t)) == 0 })

	older := r.Hold()
	pid := leave(t, r, "exit 2")
	eventually(t, "stray is a zombie", func() bool { return peek() == pid })
	r.Sweep()
	newer := r.Hold() // begun after the zombie was seen: it cannot be this start's
	older()
	eventually(t, "stray reaped", func() bool { return len(children(t)) == 0 })
	newer()
	if len(r.strays) != 0 {
		t.Errorf("strays left: %v", r.strays)
	}
}

func TestManyAtOnceAmongStrays(t *testing.T) {
	r := newReaper(t)
	var wg sync.WaitGroup
	for lane := range 8 {
		wg.Go(func() {
			for i := range 20 {
				want := (lane*20 + i) % 256
				release := r.Hold()
				pid := leave(t, r, fmt.Sprintf("(exit 1)& exit %d", want))
				p, err := r.Adopt(pid)
				release()
				if err != nil {
					t.Error(err)
					return
				}
				if s := waitDone(t, p); s.Code != want {
					t.Errorf("got %+v, want code %d", s, want)
				}
			}
		})
	}
	wg.Wait()
	eventually(t, "no zombie left", func() bool { return len(children(t)) == 0 })
}

func TestKillGroup(t *testing.T) {
	r := newReaper(t)
	c := shell("sleep 1000 & wait")
	c.OwnGroup = true
	p, err := r.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	p.KillGroup()
	if s := waitDone(t, p); s.Code != 137 {
		t.Fatalf("%+v", s)
	}
	eventually(t, "group is gone", func() bool { return len(children(t)) == 0 })
}

// Raising the adjustment and taking that back needs no privilege, unlike the value that the monitor sets.
func TestChildrenDoNotInheritTheOOMScore(t *testing.T) {
	const own = "777"
	before, err := os.ReadFile(scorePath)
	if err != nil {
		t.Fatal(err)
	}
	score, err := adjust(own)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		score.lend()
		score.Close()
	}()
	r := newReaper(t)
	r.score = score
	out := filepath.Join(t.TempDir(), "score")
	p, err := r.Start(t.Context(), shell("cat /proc/self/oom_score_adj >"+out))
	if err != nil {
		t.Fatal(err)
	}
	waitDone(t, p)
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(before) {
		t.Errorf("child has %q, want %q", got, before)
	}
	if mine, _ := os.ReadFile(scorePath); strings.TrimSpace(string(mine)) != own {
		t.Errorf("monitor has %q", mine)
	}
}

// A process that another one traces has ended for whoever looks at its pidfd, but only its tracer can wait for it.
func TestTracedProcessIsReapedAfterItsTracer(t *testing.T) {
	r := newReaper(t)
	p, err := r.Start(t.Context(), shell("kill -STOP $$; exit 5"))
	if err != nil {
		t.Fatal(err)
	}
	tracer := startTracer(t, p.Pid)
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end is seen", func() bool { return looks(p) > 0 })
	time.Sleep(200 * time.Millisecond) // not to wait for something: to count how often it looks meanwhile
	if n := looks(p); n > lastLook {
		t.Errorf("pause %v", n)
	}
	var before, after unix.Rusage
	begin := time.Now()
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
	time.Sleep(500 * time.Millisecond)
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
	used := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	if used > time.Since(begin)/2 {
		t.Errorf("%v of processor time in %v", used, time.Since(begin))
	}
	tracer()
	if s := waitDone(t, p); s.Signal != syscall.SIGKILL || !s.Known {
		t.Errorf("%+v", s)
	}
}

func looks(p *Process) time.Duration {
	p.reaper.mu.Lock()
	defer p.reaper.mu.Unlock()
	return p.pause
}

const tracerEnv = "CONMONRS_TEST_TRACE"

// startTracer has another process attach to pid. It lets go when end is called.
func startTracer(t *testing.T, pid int) (end func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), tracerEnv+"="+strconv.Itoa(pid))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "attached\n" {
		t.Skipf("no process can be traced here: %q, %v", line, err)
	}
	return func() { stdin.Close() } // the reaper of the test takes its status
}

// trace is the life of the tracer: it never waits for the process that it traces.
func trace(text string) {
	runtime.LockOSThread()
	pid, err := strconv.Atoi(text)
	if err == nil {
		err = unix.PtraceSeize(pid)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("attached")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// A write lease on the executable delays execve(2) as a slow file system does. Nothing else may stand still meanwhile.
func TestExecutableThatDoesNotOpen(t *testing.T) {
	r := newReaper(t)
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 4\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	lease, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close()
	breaking := make(chan os.Signal, 1)
	signal.Notify(breaking, syscall.SIGIO)
	defer signal.Stop(breaking)
	if _, err := unix.FcntlInt(lease.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("no leases here: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	c := Command{Path: path, Args: []string{"script"}}
	result := make(chan error, 1)
	go func() {
		_, err := r.Start(ctx, c)
		result <- err
	}()
	<-breaking
	other, err := r.Start(t.Context(), shell("exit 6"))
	if err != nil {
		t.Fatal(err)
	}
	if s := waitDone(t, other); s.Code != 6 {
		t.Errorf("the other process: %+v", s)
	}
	for range 20 { // one after the other gives up; they share one who waits
		short, stop := context.WithTimeout(t.Context(), time.Millisecond)
		if _, err := r.Start(short, c); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		stop()
	}
	r.probes.mu.Lock()
	if n := len(r.probes.running); n != 1 {
		t.Errorf("%d wait", n)
	}
	r.probes.mu.Unlock()
	late := errors.New("too late")
	cancel(late)
	if err := <-result; !errors.Is(err, late) || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
	lease.Close()
	p, err := r.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if s := waitDone(t, p); s.Code != 4 {
		t.Errorf("%+v", s)
	}
}

func TestExecutableThatIsNoFile(t *testing.T) {
	r := newReaper(t)
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(t.Context(), Command{Path: path, Args: []string{"x"}}); !errors.Is(err, unix.EACCES) {
		t.Errorf("got %v", err)
	}
}

// Others see that a process has ended before it is reaped.
func TestEndedBeforeReaped(t *testing.T) {
	r := newReaper(t)
	p, err := r.Start(t.Context(), shell("exec sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	if p.Ended() {
		t.Error("it has ended too early")
	}
	r.mu.Lock() // nothing is reaped meanwhile
	if err := syscall.Kill(p.Pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	eventually(t, "it is a zombie", func() bool { return peekAt(unix.P_PID, p.Pid) == p.Pid })
	r.mu.Unlock()
	if !p.Ended() {
		t.Error("it has not ended")
	}
	waitDone(t, p)
	if !p.Ended() {
		t.Error("it has not ended for good")
	}
}

const oldKernelEnv = "CONMONRS_TEST_NO_PIDFD"

// All tests pass as well on a kernel that has no pidfds.
func TestWithoutPidfd(t *testing.T) {
	if os.Getenv(oldKernelEnv) != "" {
		t.Skip("this is that run")
	}
	cmd := exec.Command(os.Args[0], "-test.skip=TestTracedProcess|TestWithoutPidfd", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), oldKernelEnv+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}
