package namespace

import (
	"context"
	"errors"
	"fmt"
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

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/reaper"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/waiter"
	"github.com/conmonrs/conmonrs/cmd/internal/podns"
)

// log keeps what is logged.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) add(msg string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintln(&l.text, append([]any{msg}, args...)...)
}
func (l *log) Info(msg string, args ...any) { l.add(msg, args...) }
func (l *log) Warn(msg string, args ...any) { l.add(msg, args...) }

func (l *log) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// runner stands for conmonrs-pause: it binds nothing, and starts a process that looks like the one that stays.
type runner struct {
	t     *testing.T
	calls int
	err   error
	// quiet: no pid file is written.
	quiet bool
	pid   int
}

func (r *runner) Run(_ context.Context, args ...string) (map[string]string, error) {
	r.calls++
	req, err := podns.Parse(args[1:])
	if err != nil || args[0] != podns.Pin {
		r.t.Errorf("run with %q: %v", args, err)
	}
	if req.Has(podns.PID) && !r.quiet {
		r.pid = startHolder(r.t, req.PodID)
		if err := errors.Join(os.MkdirAll(req.StateDir(), 0o755), os.WriteFile(req.PIDFile(), []byte(strconv.Itoa(r.pid)), 0o600)); err != nil {
			r.t.Error(err)
		}
	}
	return nil, r.err
}

// startHolder starts a process with the command line of the one that holds a pid namespace.
func startHolder(t *testing.T, pod string) int {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no shell")
	}
	script := filepath.Join(t.TempDir(), podns.Hold)
	if err := os.WriteFile(script, []byte("trap '' TERM\nwhile read line; do :; done\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	t.Cleanup(func() { w.Close() })
	pid, err := syscall.ForkExec(sh, []string{podns.Name, podns.Hold, pod}, &syscall.ProcAttr{Dir: filepath.Dir(script), Files: []uintptr{r.Fd(), 1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func newSet(t *testing.T, o Options) (*Set, *log) {
	t.Helper()
	checkLeaks(t)
	set, err := waiter.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	l := &log{}
	o.Reaper, o.Log = reaper.New(set, nil), l
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	return New(o), l
}

// checkLeaks fails the test if goroutines or descriptors are left at its end.
func checkLeaks(t *testing.T) {
	t.Helper()
	fds := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	goroutines, files := runtime.NumGoroutine(), fds()
	t.Cleanup(func() {
		eventually(t, "nothing is leaked", func() bool { return runtime.NumGoroutine() <= goroutines && fds() <= files })
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so: %s", what)
		}
	}
}

func gone(pid int) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

func (s *Set) recorded() bool {
	_, err := os.Lstat(s.path())
	return err == nil
}

func request(t *testing.T, kinds ...podns.Kind) *podns.Request {
	t.Helper()
	return &podns.Request{Base: t.TempDir(), PodID: "pod", Unshare: kinds}
}

func TestCreateAndClose(t *testing.T) {
	r := &runner{t: t}
	s, _ := newSet(t, Options{Runner: r})
	req := request(t, podns.PID, podns.Net)
	for range 2 {
		if err := s.Create(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if r.calls != 1 || !s.recorded() || s.o.Reaper.Known() != 1 {
		t.Errorf("%d calls, recorded %v, %d processes", r.calls, s.recorded(), s.o.Reaper.Known())
	}
	if s.Holder() != r.pid {
		t.Errorf("held by %d, want %d", s.Holder(), r.pid)
	}
	other := *req
	other.PodID = "other"
	if err := s.Create(t.Context(), &other); !errors.Is(err, ErrExists) {
		t.Errorf("other pod: %v", err)
	}
	if err := s.Create(t.Context(), request(t, podns.PID, podns.Net)); !errors.Is(err, ErrExists) {
		t.Errorf("other base path: %v", err)
	}
	s.Close()
	s.Close()
	if _, err := os.Lstat(req.PIDFile()); err == nil || s.recorded() || !gone(r.pid) {
		t.Errorf("left behind: pid file %v, record %v, process gone %v", err == nil, s.recorded(), gone(r.pid))
	}
	if err := s.Create(t.Context(), req); !errors.Is(err, errClosed) {
		t.Errorf("%v", err)
	}
}

func TestFailedCreate(t *testing.T) {
	broken := errors.New("no luck")
	for _, test := range []struct {
		name   string
		runner runner
		want   error
	}{
		{"refused", runner{quiet: true, err: broken}, broken},
		{"killed in the end", runner{err: broken}, broken},
		{"no pid file", runner{quiet: true}, os.ErrNotExist},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := test.runner
			r.t = t
			s, l := newSet(t, Options{Runner: &r})
			if err := s.Create(t.Context(), request(t, podns.PID)); !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
			if s.recorded() || l.has("not removed") {
				t.Errorf("recorded %v; log: %s", s.recorded(), l.text.String())
			}
			if r.pid > 0 {
				eventually(t, "process is reaped", func() bool { s.o.Reaper.Sweep(); return gone(r.pid) })
			}
			s.Close()
		})
	}
}

func TestMissing(t *testing.T) {
	missing := errors.New("find it yourself")
	s, _ := newSet(t, Options{Missing: missing})
	if err := s.Create(t.Context(), request(t)); !errors.Is(err, missing) || s.recorded() {
		t.Errorf("%v, recorded %v", err, s.recorded())
	}
}

// What is somebody else's is not touched, nor is anything run.
func TestBoundAlready(t *testing.T) {
	r := &runner{t: t}
	s, _ := newSet(t, Options{Runner: r})
	base := t.TempDir()
	if err := os.Symlink("/proc/self/ns", filepath.Join(base, "netns")); err != nil {
		t.Fatal(err)
	}
	req := &podns.Request{Base: base, PodID: "net", Unshare: []podns.Kind{podns.Net}}
	if err := s.Create(t.Context(), req); !errors.Is(err, ErrExists) || r.calls != 0 || s.recorded() {
		t.Errorf("%v, %d calls, recorded %v", err, r.calls, s.recorded())
	}
}

func TestHolderDies(t *testing.T) {
	r := &runner{t: t}
	s, l := newSet(t, Options{Runner: r})
	if err := s.Create(t.Context(), request(t, podns.PID)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(r.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is logged", func() bool { return l.has("has ended") })
	s.Close()
	if s.recorded() || s.Holder() != 0 {
		t.Errorf("recorded %v, held by %d", s.recorded(), s.Holder())
	}
}

func TestCleanUp(t *testing.T) {
	r := &runner{t: t}
	first, _ := newSet(t, Options{Runner: r})
	req := request(t, podns.PID)
	if err := first.write(req); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Run(t.Context(), append([]string{podns.Pin}, req.Args()...)...); err != nil {
		t.Fatal(err)
	}
	holds := func() bool { return holds(r.pid, req) }
	eventually(t, "process has executed", holds)
	second, l := newSet(t, Options{Runner: r, Dir: first.o.Dir})
	second.CleanUp()
	if second.recorded() || holds() || l.has("not removed") {
		t.Errorf("recorded %v, held %v; log: %s", second.recorded(), holds(), l.text.String())
	}
	second.CleanUp() // nothing to do
	eventually(t, "process is reaped", func() bool { second.o.Reaper.Sweep(); return gone(r.pid) })
}

// A stranger that has the pid lives on; a broken record harms nothing.
func TestCleanUpOfNonsense(t *testing.T) {
	s, l := newSet(t, Options{})
	req := request(t, podns.PID)
	pid := startHolder(t, "another pod")
	if err := errors.Join(s.write(req), os.MkdirAll(req.StateDir(), 0o755), os.WriteFile(req.PIDFile(), []byte(strconv.Itoa(pid)), 0o600)); err != nil {
		t.Fatal(err)
	}
	s.CleanUp()
	if s.recorded() || gone(pid) {
		t.Errorf("recorded %v, stranger gone %v; log: %s", s.recorded(), gone(pid), l.text.String())
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "process is reaped", func() bool { s.o.Reaper.Sweep(); return gone(pid) })
	for _, content := range []string{"", "x", "--pod-id=p\x00", "--base-path=relative\x00--pod-id=p\x00"} {
		if err := os.WriteFile(s.path(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		s.CleanUp()
		if !l.has("not found") {
			t.Errorf("%q: nothing said", content)
		}
	}
}
