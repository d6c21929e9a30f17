package oom

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// memory is the limit in these tests, in bytes.
const memory = 32 << 20

// The test binary plays the processes of containers.
const roleEnv = "CONMONRS_TEST_OOM_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		play(role)
	}
	os.Exit(m.Run())
}

// play takes memory until it is killed ("hog"); or has a child do so and says how that ended ("parent"); or has a child
// do so and ends with its status, as a shell does ("shell"); or does nothing ("idle"); or is a "parent" whose first thread has ended ("headless"). It begins when it is told to, and
// what has nothing to do ends with its input.
func play(role string) {
	in := bufio.NewReader(os.Stdin)
	if role != "child" {
		_, _ = in.ReadString('\n')
	}
	switch role {
	case "hog", "child":
		var all [][]byte
		for {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = 1
			}
			all = append(all, b)
			runtime.KeepAlive(all)
		}
	case "parent", "shell", "headless":
		if role == "headless" {
			endFirstThread()
		}
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), roleEnv+"=child")
		err := child.Run()
		if role == "shell" {
			os.Exit(killedStatus)
		}
		fmt.Println(err)
	}
	_, _ = io.Copy(io.Discard, in)
	os.Exit(3)
}

// endFirstThread ends the thread that this process began with, but nothing else.
func endFirstThread() {
	for ended := false; !ended; {
		found := make(chan bool)
		go func() { // it keeps its thread, so that the next one gets another
			runtime.LockOSThread()
			first := unix.Gettid() == os.Getpid()
			found <- first
			if first {
				_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
			}
			select {}
		}()
		ended = <-found
	}
	for { // until it has
		stat, err := os.ReadFile("/proc/self/stat")
		if _, rest, _ := strings.Cut(string(stat), ") "); err != nil || strings.HasPrefix(rest, "Z") {
			return
		}
		runtime.Gosched()
	}
}

// hierarchy is where the tests make groups.
type hierarchy struct {
	root    string
	unified bool
}

func realHierarchy(t *testing.T) hierarchy {
	t.Helper()
	for _, h := range []hierarchy{{"/sys/fs/cgroup", true}, {"/sys/fs/cgroup/memory", false}} {
		probe := map[bool]string{true: "cgroup.controllers", false: "memory.oom_control"}[h.unified]
		b, err := os.ReadFile(filepath.Join(h.root, probe))
		if err != nil || h.unified && !strings.Contains(string(b), "memory") {
			continue
		}
		dir, err := os.MkdirTemp(h.root, "conmonrs-oom-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		if h.unified && os.WriteFile(dir+"/cgroup.subtree_control", []byte("+memory"), 0) != nil {
			continue
		}
		return hierarchy{dir, h.unified}
	}
	if os.Getenv("CONMONRS_REQUIRE_ALL") != "" {
		t.Fatal("no memory controller to work with")
	}
	t.Skip("no memory controller to work with")
	return hierarchy{}
}

// group makes a group, with a limit unless that is 0.
func (h hierarchy) group(t *testing.T, name string, limit int64) Group {
	t.Helper()
	g := Group{Dir: filepath.Join(h.root, name), Unified: h.unified}
	if err := os.Mkdir(g.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(10 * time.Second); os.Remove(g.Dir) != nil && exists(g.Dir) && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	})
	if limit > 0 {
		h.limit(t, g.Dir, limit)
	}
	return g
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (h hierarchy) limit(t *testing.T, dir string, limit int64) {
	t.Helper()
	files := []string{"memory.limit_in_bytes"}
	if h.unified {
		files = []string{"memory.max", "memory.swap.max"}
	}
	for i, file := range files {
		value := limit
		if i > 0 {
			value = 0
		}
		if err := os.WriteFile(filepath.Join(dir, file), strconv.AppendInt(nil, value, 10), 0); err != nil && i == 0 {
			t.Fatal(err)
		}
	}
}

// container is a process in a group of its own that is watched.
type container struct {
	*Container
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	kills chan Kill
}

func runIn(t *testing.T, w *Watcher, g Group, role string) *container {
	t.Helper()
	c := &container{t: t, cmd: exec.Command(os.Args[0]), kills: make(chan Kill, 100)}
	c.cmd.Env = append(os.Environ(), roleEnv+"="+role, "GOMAXPROCS=1")
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.cmd.Process.Kill(); _, _ = c.cmd.Process.Wait() })
	pid := c.cmd.Process.Pid
	if err := os.WriteFile(g.Dir+"/cgroup.procs", strconv.AppendInt(nil, int64(pid), 10), 0); err != nil {
		t.Fatal(err)
	}
	if c.Container, err = w.Add(g, pid, func(k Kill) { c.kills <- k }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close) // of a test that has failed: what waits for its descriptors would wait for ever
	return c
}

// start has it play its role.
func (c *container) start() {
	c.t.Helper()
	if _, err := io.WriteString(c.in, "\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *container) wait() Verdict {
	c.t.Helper()
	state, err := c.cmd.Process.Wait()
	if err != nil {
		c.t.Fatal(err)
	}
	ws := state.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return c.Exited(128+int(ws.Signal()), ws.Signal())
	}
	return c.Exited(ws.ExitStatus(), 0)
}

func (c *container) nextKill() Kill {
	c.t.Helper()
	select {
	case k := <-c.kills:
		return k
	case <-time.After(20 * time.Second):
		c.t.Fatal("no kill was reported")
		return Kill{}
	}
}

// poll is the waiter of these tests: a goroutine for each time that a descriptor is armed.
func poll(t *testing.T) Poll {
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	return func(fd int, priority bool, ready func()) (arm func() error, cancel func()) {
		event := int16(unix.POLLIN)
		if priority {
			event = unix.POLLPRI
		}
		end, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		var users sync.WaitGroup
		arm = func() error {
			users.Add(1)
			all.Go(func() {
				fds := []unix.PollFd{{Fd: int32(fd), Events: event}, {Fd: int32(end), Events: unix.POLLIN}}
				n, err := unix.Poll(fds, -1)
				for errors.Is(err, unix.EINTR) {
					n, err = unix.Poll(fds, -1)
				}
				users.Done()
				if n > 0 && fds[1].Revents == 0 {
					ready()
				}
			})
			return nil
		}
		return arm, func() {
			_, _ = unix.Write(end, []byte{1, 0, 0, 0, 0, 0, 0, 0})
			all.Go(func() { users.Wait(); unix.Close(end) })
		}
	}
}

// R071: the limit of the container.
func TestOOMOverTheLimit(t *testing.T) {
	h := realHierarchy(t)
	w := New(poll(t))
	for i := range 5 {
		c := runIn(t, w, h.group(t, fmt.Sprint("c", i), memory), "hog")
		c.start()
		v := c.wait()
		v.Explain()
		if !v.Killed || v.Kill.Count != 1 || v.Kill.Limit != LimitContainer {
			t.Errorf("%+v", v)
		}
		if kmsgReadable() && (v.Kill.VictimPID == 0 || v.Kill.Victim == "") {
			t.Errorf("victim %q, pid %d", v.Kill.Victim, v.Kill.VictimPID)
		}
	}
	w.checkEmpty(t)
}

func kmsgReadable() bool {
	f, err := os.Open(kmsg)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

func (w *Watcher) checkEmpty(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.parents) != 0 {
		t.Errorf("%d parents left", len(w.parents))
	}
}

// R073: the container goes on after a child was killed. Its own end, whatever it is, is not the OOM killer's.
func TestOOMChildKilled(t *testing.T) {
	h := realHierarchy(t)
	w := New(poll(t))
	for name, end := range map[string]func(c *container){
		"exit": func(c *container) { c.in.Close() },
		"kill": func(c *container) { _ = c.cmd.Process.Kill() },
	} {
		c := runIn(t, w, h.group(t, name, memory), "parent")
		c.start()
		if line, err := c.out.ReadString('\n'); err != nil || line != "signal: killed\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if k := c.nextKill(); k.Count != 1 || k.Limit != LimitContainer {
			t.Errorf("%+v", k)
		}
		end(c)
		if v := c.wait(); v.Killed {
			t.Errorf("%s: %+v", name, v)
		}
	}
	w.checkEmpty(t)
}

// Kills that follow each other closely are told together: of none is there more than one report, and none is lost.
func TestOOMReportsAreFew(t *testing.T) {
	h := realHierarchy(t)
	w := New(unheard)
	kills := make(chan Kill, 100)
	c, err := w.Add(h.group(t, "c", 0), os.Getpid(), func(k Kill) { kills <- k })
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 50
	for range rounds {
		w.mu.Lock()
		c.pending++
		c.reportLocked()
		w.mu.Unlock()
	}
	c.Close()
	reports := 0
	for told := int64(0); told < rounds; reports++ {
		select {
		case k := <-kills:
			told += k.Count
		case <-time.After(20 * time.Second):
			t.Fatalf("%d of %d kills were reported", told, rounds)
		}
	}
	if reports > rounds/2 {
		t.Errorf("%d reports of %d kills", reports, rounds)
	}
	w.checkEmpty(t)
}

// A shell whose command was killed, and that passes it on.
func TestOOMPassedOn(t *testing.T) {
	h := realHierarchy(t)
	w := New(poll(t))
	c := runIn(t, w, h.group(t, "c", memory), "shell")
	c.start()
	if v := c.wait(); !v.Killed {
		t.Errorf("%+v", v)
	}
	w.checkEmpty(t)
}

// A container is not blamed for the kill of its sibling, though killed itself at the same time by somebody else.
func TestOOMSibling(t *testing.T) {
	h := realHierarchy(t)
	w := New(poll(t))
	for i := range 5 {
		quiet := runIn(t, w, h.group(t, fmt.Sprint("q", i), memory), "idle")
		loud := runIn(t, w, h.group(t, fmt.Sprint("l", i), memory), "hog")
		loud.start()
		if v := loud.wait(); !v.Killed {
			t.Errorf("%+v", v)
		}
		_ = quiet.cmd.Process.Kill()
		if v := quiet.wait(); v.Killed {
			t.Errorf("%+v", v)
		}
	}
	w.checkEmpty(t)
}

// The limit of the group above is hit.
func TestOOMPodLimit(t *testing.T) {
	h := realHierarchy(t)
	h.limit(t, h.root, memory)
	w := New(poll(t))
	quiet := runIn(t, w, h.group(t, "quiet", 0), "idle")
	loud := runIn(t, w, h.group(t, "loud", 0), "hog")
	loud.start()
	v := loud.wait()
	v.Explain()
	if !v.Killed || v.Kill.Limit != LimitPod {
		t.Errorf("%+v", v)
	}
	_ = quiet.cmd.Process.Kill()
	if v := quiet.wait(); v.Killed {
		t.Errorf("the other one: %+v", v)
	}
	w.checkEmpty(t)
}

// memory.oom.group: all processes of the group are killed.
func TestOOMGroup(t *testing.T) {
	h := realHierarchy(t)
	g := h.group(t, "c", memory)
	if err := os.WriteFile(g.Dir+"/memory.oom.group", []byte("1"), 0); err != nil {
		t.Skip("no memory.oom.group in this hierarchy")
	}
	w := New(poll(t))
	c := runIn(t, w, g, "parent")
	c.start()
	if v := c.wait(); !v.Killed || v.Kill.Count < 2 {
		t.Errorf("%+v", v)
	}
	w.checkEmpty(t)
}

// R072: the group has gone before it can be read.
func TestOOMGroupGone(t *testing.T) {
	h := realHierarchy(t)
	w := New(func(int, bool, func()) (arm func() error, cancel func()) { // nobody looks before the end
		return func() error { return nil }, func() {}
	})
	for _, role := range []string{"hog", "idle"} {
		g := h.group(t, role, memory)
		c := runIn(t, w, g, role)
		c.start()
		if role == "idle" {
			_ = c.cmd.Process.Kill()
		}
		if _, err := c.cmd.Process.Wait(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); exists(g.Dir); time.Sleep(time.Millisecond) {
			if _ = os.Remove(g.Dir); time.Now().After(end) {
				t.Fatal("the group cannot be removed")
			}
		}
		want := role == "hog" && h.unified // version 1 does not count above, and is not asked for
		if v := c.Exited(killedStatus, unix.SIGKILL); v.Killed != want {
			t.Errorf("%s: %+v", role, v)
		}
	}
	w.checkEmpty(t)
}

// R076: no inotify instance, however many containers there are, and nothing is left of them.
func TestOOMManyWatches(t *testing.T) {
	h := realHierarchy(t)
	watches := 0
	w := New(func(int, bool, func()) (arm func() error, cancel func()) {
		watches++
		return func() error { return nil }, func() { watches-- }
	})
	var all []*container
	for i := range 10 {
		all = append(all, runIn(t, w, h.group(t, fmt.Sprint("c", i), 0), "idle"))
	}
	if watches > len(all) {
		t.Errorf("%d descriptors to poll", watches)
	}
	for _, c := range all {
		_ = c.cmd.Process.Kill()
		c.wait()
	}
	if watches != 0 {
		t.Errorf("%d descriptors left", watches)
	}
	w.checkEmpty(t)
}

func TestAddWithoutController(t *testing.T) {
	w := New(nil)
	for _, unified := range []bool{true, false} {
		if _, err := w.Add(Group{Dir: t.TempDir(), Unified: unified}, os.Getpid(), nil); !errors.Is(err, ErrNoController) {
			t.Errorf("unified=%v: %v", unified, err)
		}
	}
	w.checkEmpty(t)
	var none *Container
	if v := none.Exited(killedStatus, unix.SIGKILL); v.Killed {
		t.Error("a container of which nothing is known is blamed")
	}
	none.Close()
}

// The group above counted a kill, and ours has gone: if the kernel's log can be read and does not name our process, the
// victim was somebody else's.
func TestKillOfSomebodyElse(t *testing.T) {
	pod := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, exit := range map[string]struct {
		status int
		sig    unix.Signal
	}{"killed": {killedStatus, unix.SIGKILL}, "passed on": {killedStatus, 0}, "ordinary": {3, 0}} {
		write(pod+"/memory.events", "oom 0\noom_kill 0\n")
		dir := filepath.Join(pod, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(dir+"/memory.events", "oom 0\noom_kill 0\n")
		w := New(func(int, bool, func()) (arm func() error, cancel func()) {
			return func() error { return nil }, func() {}
		})
		c, err := w.Add(Group{Dir: dir, Unified: true}, os.Getpid(), nil)
		if err != nil {
			t.Fatal(err)
		}
		write(pod+"/memory.events", "oom 1\noom_kill 1\n")
		write(dir+"/memory.events", "") // as good as gone
		v := c.Exited(exit.status, exit.sig)
		if want := !logReadable() && exit.status == killedStatus; v.Killed != want {
			t.Errorf("%s: %v, want %v", name, v.Killed, want)
		}
		w.checkEmpty(t)
	}
}

// logReadable tells whether the kernel's log names our processes.
func logReadable() bool {
	ns, _ := os.Readlink("/proc/self/ns/pid")
	return kmsgReadable() && ns == firstPIDNamespace && readLog(logTime(), func([]byte) {})
}
