package helper

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// realHelper returns the real helper where there is a real systemd.
func realHelper(t *testing.T) *Helper {
	t.Helper()
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		t.Skip("no systemd here")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	binary := os.Getenv("CONMONRS_HELPER")
	if binary == "" {
		t.Skip("CONMONRS_HELPER is not set")
	}
	h, err := open(newReaper(t), os.Environ(), Name, []string{filepath.Dir(binary)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	checkLeaks(t)
	return h
}

// realScope returns a scope of this test process.
func realScope(t *testing.T, o ScopeOptions) *Scope {
	t.Helper()
	o.Runner, o.Log = realHelper(t), slog.New(slog.NewTextHandler(t.Output(), nil))
	s := NewScope(o)
	s.describe.pause, s.stop.pause = 50*time.Millisecond, 50*time.Millisecond
	t.Cleanup(s.Close)
	return s
}

func show(t *testing.T, unit, property string) string {
	t.Helper()
	out, err := exec.Command("systemctl", "show", "-P", property, unit).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func ownGroup(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	_, path, _ := strings.Cut(string(b), "0::")
	path, _, _ = strings.Cut(path, "\n")
	return path
}

// rss returns VmRSS in KiB.
func rss(t *testing.T) (kib int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

func TestRealScope(t *testing.T) {
	id := fmt.Sprintf("%x", time.Now().UnixNano())
	s := realScope(t, ScopeOptions{Mode: Always, StopTimeout: 40 * time.Second})
	slice := "conmonrshelper-" + id + ".slice"
	before, start := rss(t), time.Now()
	err := s.Ensure(timeout(t, 20*time.Second), Place{
		PodID: id, CgroupsPath: slice + ":crio:c", Description: Description("ns", "pod", id, 1),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("registered in %v, VmRSS %d KiB before, %d after", time.Since(start), before, rss(t))
	unit := s.Unit()
	if want := "/conmonrshelper.slice/" + slice + "/conmonrs-" + id + ".scope"; ownGroup(t) != want {
		t.Errorf("in %s", ownGroup(t))
	}
	if got := show(t, unit, "TimeoutStopUSec"); got != "1min" {
		t.Errorf("TimeoutStopUSec is %s", got)
	}
	for n := range 20 {
		s.Describe(Description("ns", "pod", id, n))
	}
	if !eventually(func() bool { return show(t, unit, "Description") == "ns/pod: 19 containers" }) {
		t.Errorf("description is %q", show(t, unit, "Description"))
	}
	stopping := make(chan struct{})
	s.o.OnStop = func() { close(stopping) }
	s.CheckStop()
	asked := func() bool {
		s.stop.mu.Lock()
		defer s.stop.mu.Unlock()
		return !s.stop.waiting && !s.stop.running
	}
	if !eventually(asked) {
		t.Error("not asked")
	}
	select {
	case <-stopping:
		t.Error("is not stopping")
	default:
	}

	// A second monitor of the same pod finds the scope that there is; so does the same one.
	again := realScope(t, ScopeOptions{Mode: Always})
	err = again.Ensure(timeout(t, 20*time.Second), Place{PodID: id, Description: "again"})
	if err != nil || again.Unit() != unit {
		t.Errorf("%q, %v", again.Unit(), err)
	}
}

func TestRealScopeBadSlice(t *testing.T) {
	s := realScope(t, ScopeOptions{Mode: Always})
	err := s.Ensure(timeout(t, 20*time.Second), Place{PodID: "p", CgroupsPath: "a.scope:b:c"})
	if err == nil || !strings.Contains(err.Error(), "linux.cgroupsPath") {
		t.Errorf("%v", err)
	}
}

// Many monitors register at once, each with a helper of its own (R092).
func TestRealManyHelpers(t *testing.T) {
	h := realHelper(t)
	const count = 60
	base := fmt.Sprintf("%x", time.Now().UnixNano())
	errs := make(chan error, count)
	start := time.Now()
	for i := range count {
		sleeper := exec.Command("sleep", "600")
		if err := sleeper.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = sleeper.Process.Kill()
			_ = sleeper.Wait()
		})
		go func() {
			pod, began := fmt.Sprintf("%s-%d", base, i), time.Now()
			got, err := h.Run(timeout(t, 60*time.Second), "scope", "register", "--mode=always",
				fmt.Sprintf("--pid=%d", sleeper.Process.Pid), "--pod="+pod, "--timeout=50s")
			if err == nil && got["unit"] != "conmonrs-"+pod+".scope" {
				err = fmt.Errorf("%v", got)
			}
			if i == 0 && err == nil {
				t.Logf("the first took %v", time.Since(began))
			}
			errs <- err
		}()
	}
	for range count {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d registrations in %v", count, time.Since(start))
}
