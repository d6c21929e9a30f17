package systemdunit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
)

// The tests whose names begin with TestReal need a systemd, and root.
func realManager(t *testing.T) *Manager {
	t.Helper()
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		t.Skip("no systemd here")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	checkLeaks(t)
	return New(DefaultInstance)
}

// disturbing skips tests that restart services, which root of a machine for tests may do.
func disturbing(t *testing.T) *Manager {
	t.Helper()
	m := realManager(t)
	if os.Getenv("CONMONRS_TEST_RESTART_SYSTEMD") == "" {
		t.Skip("CONMONRS_TEST_RESTART_SYSTEMD is not set")
	}
	return m
}

// checkLeaks fails the test if goroutines or descriptors are left at its end.
func checkLeaks(t *testing.T) {
	t.Helper()
	goroutines, fds := runtime.NumGoroutine(), countFDs(t)
	t.Cleanup(func() {
		if !eventually(func() bool { return runtime.NumGoroutine() <= goroutines && countFDs(t) <= fds }) {
			stacks := make([]byte, 1<<16)
			t.Errorf("%d goroutines before, %d after; %d descriptors before, %d after\n%s", goroutines,
				runtime.NumGoroutine(), fds, countFDs(t), stacks[:runtime.Stack(stacks, true)])
		}
	})
}

func countFDs(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

func eventually(f func() bool) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if f() {
			return true
		}
	}
	return f()
}

func timeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// process starts a shell command that is killed at the end of the test, and returns its pid.
func process(t *testing.T, command string) int {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", command)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	t.Cleanup(func() { once.Do(func() { end(cmd) }) })
	return cmd.Process.Pid
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// stubborn does not end when it is asked to.
const stubborn = "trap '' PIPE TERM; while :; do sleep 1; done"

func sleeper(t *testing.T) int { t.Helper(); return process(t, "exec sleep 600") }

// unique is a name that no earlier test of this systemd has used.
func unique() string { return fmt.Sprintf("%x", time.Now().UnixNano()) }

// register gives systemd all the time that it may need.
func register(t *testing.T, m *Manager, r Request) (Result, error) {
	t.Helper()
	return m.Register(timeout(t, 20*time.Second), r)
}

func scope(t *testing.T, id string) string {
	t.Helper()
	name, err := ScopeName(id)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func show(t *testing.T, unit, property string) string {
	t.Helper()
	out, err := exec.Command("systemctl", "show", "-P", property, unit).Output()
	if err != nil {
		t.Fatalf("show %s of %s: %v", property, unit, err)
	}
	return strings.TrimSpace(string(out))
}

func systemctl(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil {
		t.Fatalf("systemctl %v: %v\n%s", args, err, out)
	}
}

// group returns the control group of a process in the unified hierarchy.
func group(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(path)
		}
	}
	t.Fatalf("no unified hierarchy: %s", b)
	return ""
}

// startScope starts a unit as an engine would.
func startScope(t *testing.T, unit string, pids []int, more ...sd.Property) {
	t.Helper()
	conn, err := sd.NewSystemdConnectionContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var list []uint32
	for _, pid := range pids {
		list = append(list, uint32(pid))
	}
	done := make(chan string, 1)
	more = append(more, sd.PropPids(list...), property("Delegate", true), property("DefaultDependencies", false))
	if _, err := conn.StartTransientUnitContext(t.Context(), unit, "replace", more, done); err != nil {
		t.Fatal(err)
	}
	select {
	case result := <-done:
		if result != "done" {
			t.Fatalf("start %s: %s", unit, result)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("start %s: not done", unit)
	}
}

func gone(t *testing.T, unit string) {
	t.Helper()
	if !eventually(func() bool { return show(t, unit, "LoadState") == "not-found" }) {
		t.Errorf("%s is still there: %s", unit, show(t, unit, "ActiveState"))
	}
	left, err := filepath.Glob("/run/systemd/*/" + unit + "*")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

func TestRealRegister(t *testing.T) {
	for _, test := range []struct{ name, path, slice, group string }{
		{"like cri-o", "kubepods-besteffort-pod1f2e.slice:crio:0123", "kubepods-besteffort-pod1f2e.slice",
			"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1f2e.slice/"},
		{"nested", "conmonrsa-b-c.slice:p:n", "conmonrsa-b-c.slice",
			"/conmonrsa.slice/conmonrsa-b.slice/conmonrsa-b-c.slice/"},
		{"top level", "conmonrstop.slice:p:n", "conmonrstop.slice", "/conmonrstop.slice/"},
		{"root", "-.slice:p:n", "-.slice", "/"},
		{"escaped", `conmonrs\x2de.slice:p:n`, `conmonrs\x2de.slice`, `/conmonrs\x2de.slice/`},
		{"none", ":p:n", "system.slice", "/system.slice/"},
		{"empty", "", "system.slice", "/system.slice/"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := realManager(t)
			slice, err := SliceOf(test.path)
			if err != nil {
				t.Fatal(err)
			}
			unit := scope(t, "pod-"+unique())
			pid := sleeper(t)
			before := show(t, unit, "LoadState")
			result, err := register(t, m, Request{
				Unit: unit, PID: pid, Slice: slice, Description: "default/web: 1 container",
				StopTimeout: 100 * time.Second,
			})
			if err != nil {
				t.Fatal(err)
			}
			if before != "not-found" || result.Unit != unit || result.Action != Registered || !result.Described {
				t.Errorf("%s before, result %+v", before, result)
			}
			if got := group(t, pid); got != test.group+unit {
				t.Errorf("control group %s", got)
			}
			want := map[string]string{
				"Slice": test.slice, "Description": "default/web: 1 container", "Delegate": "yes",
				"DefaultDependencies": "no", "CollectMode": "inactive-or-failed", "TimeoutStopUSec": "2min",
				"ActiveState": "active", "Transient": "yes", "ManagedOOMPreference": "avoid", "OOMPolicy": "continue",
			}
			for _, name := range result.Dropped {
				if name != "OOMPolicy" && name != "ManagedOOMPreference" {
					t.Errorf("%s is not known here", name)
				}
				delete(want, name)
			}
			for name, value := range want {
				if got := show(t, unit, name); got != value {
					t.Errorf("%s is %q", name, got)
				}
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			gone(t, unit)
		})
	}
}

// The engine's unit is stopped after the monitor (R085).
func TestRealAfterEngine(t *testing.T) {
	m := realManager(t)
	engine := "conmonrs-engine-" + unique() + ".service"
	file := filepath.Join(t.TempDir(), "pid")
	out, err := exec.Command("systemd-run", "--unit", engine, "/bin/sh", "-c",
		"sleep 600 & echo $! >"+file+".tmp; mv "+file+".tmp "+file+"; wait").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("systemctl", "stop", engine).Run() }) // it ends with its child
	var pid int
	if !eventually(func() bool {
		b, _ := os.ReadFile(file)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return pid > 0
	}) {
		t.Fatal("engine has not started its process")
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	for _, test := range []struct {
		id    string
		after []string
		want  string
	}{{"a", nil, engine}, {"b", []string{"network.target"}, "network.target"}} {
		unit := scope(t, test.id+unique())
		if _, err := register(t, m, Request{Unit: unit, PID: pid, After: test.after, Mode: Always}); err != nil {
			t.Fatal(err)
		}
		if after := strings.Fields(show(t, unit, "After")); !slices.Contains(after, test.want) {
			t.Errorf("After is %v", after)
		}
	}
}

func TestRealAdopt(t *testing.T) {
	for _, test := range []struct {
		name, unit string
		others     bool // strangers are in the scope too
		mode       Mode
		want       Action
	}{
		{"of cri-o", "crio-conmon-ID.scope", false, Auto, Adopted},
		{"of cri-o, with others", "crio-conmon-ID.scope", true, Auto, Adopted},
		{"for it alone", "engine-ID.scope", false, Auto, Adopted},
		{"for others too", "run-ID.scope", true, Auto, Registered},
		{"of a login", "session-ID.scope", false, Auto, Registered},
		{"of cri-o, always", "crio-conmon-ID.scope", false, Always, Registered},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := realManager(t)
			id := unique()
			theirs, ours := strings.ReplaceAll(test.unit, "ID", id), scope(t, id)
			pid := process(t, "sleep 600 & wait")
			pids := []int{pid}
			if test.others {
				pids = append(pids, sleeper(t))
			}
			startScope(t, theirs, pids, property("KillSignal", int32(syscall.SIGPIPE)))
			want := Result{Unit: ours, Action: Registered, Described: true}
			if test.want == Adopted {
				want = Result{Unit: theirs, Action: Adopted, Described: true}
			}
			for range 2 { // the second time nothing is to be done
				got, err := register(t, m, Request{Unit: ours, PID: pid, Description: "ns/pod", Mode: test.mode})
				if err != nil {
					t.Fatal(err)
				}
				got.Dropped = nil
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Fatalf("%+v", got)
				}
				want.Action = Adopted
			}
			if text := show(t, want.Unit, "Description"); text != "ns/pod" {
				t.Errorf("description %q", text)
			}
			if test.want == Adopted && show(t, theirs, "KillSignal") != strconv.Itoa(int(syscall.SIGPIPE)) {
				t.Errorf("kill signal has changed")
			}
			if got := filepath.Base(group(t, pid)); got != want.Unit {
				t.Errorf("process is in %s", got)
			}
		})
	}
}

// A unit of that name is there already (R095).
func TestRealUnitExists(t *testing.T) {
	t.Run("alive", func(t *testing.T) {
		m := realManager(t)
		unit, first, second := scope(t, unique()), sleeper(t), sleeper(t)
		if _, err := register(t, m, Request{Unit: unit, PID: first, Description: "first"}); err != nil {
			t.Fatal(err)
		}
		_, err := register(t, m, Request{Unit: unit, PID: second, Description: "second"})
		if !errors.Is(err, ErrUnitTaken) || !strings.Contains(err.Error(), unit) {
			t.Errorf("%v", err)
		}
		if a, b := filepath.Base(group(t, first)), filepath.Base(group(t, second)); a != unit || b == unit {
			t.Errorf("first in %s, second in %s", a, b)
		}
		if text := show(t, unit, "Description"); text != "first" {
			t.Errorf("description %q", text)
		}
	})
	t.Run("failed", func(t *testing.T) {
		m := realManager(t)
		unit, pid := scope(t, unique()), sleeper(t)
		startScope(t, unit, []int{sleeper(t)}, property("RuntimeMaxUSec", uint64(1000)))
		if !eventually(func() bool { return show(t, unit, "ActiveState") == "failed" }) {
			t.Fatal("has not failed")
		}
		result, err := register(t, m, Request{Unit: unit, PID: pid})
		if err != nil || result.Action != Registered || filepath.Base(group(t, pid)) != unit {
			t.Errorf("%+v, %v: in %s", result, err, group(t, pid))
		}
	})
	t.Run("stopping", func(t *testing.T) {
		m := realManager(t)
		unit, pid := scope(t, unique()), sleeper(t)
		startScope(t, unit, []int{process(t, stubborn)}, property("TimeoutStopUSec", uint64(700_000)))
		systemctl(t, "stop", "--no-block", unit)
		result, err := register(t, m, Request{Unit: unit, PID: pid})
		if err != nil || result.Action != Registered || filepath.Base(group(t, pid)) != unit {
			t.Errorf("%+v, %v: in %s", result, err, group(t, pid))
		}
	})
	t.Run("stopping for longer", func(t *testing.T) {
		m := realManager(t)
		unit, pid := scope(t, unique()), sleeper(t)
		startScope(t, unit, []int{process(t, stubborn)})
		systemctl(t, "stop", "--no-block", unit)
		_, err := m.Register(timeout(t, time.Second), Request{Unit: unit, PID: pid})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "deactivating") {
			t.Errorf("%v", err)
		}
	})
}

func TestRealDescribe(t *testing.T) {
	m := realManager(t)
	unit, pid := scope(t, unique()), sleeper(t)
	if _, err := register(t, m, Request{Unit: unit, PID: pid, Description: "first"}); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"ns/pod: 1 container", "ns/pod: 100% of %n", "two\nlines\\", "x [Unit]\nDescription=y", "\xff\x00z", "é",
	} {
		if err := m.Describe(timeout(t, 10*time.Second), unit, text); err != nil {
			t.Fatal(err)
		}
		systemctl(t, "daemon-reload")
		if got := show(t, unit, "Description"); got != strings.TrimSpace(description(text)) {
			t.Errorf("%q has become %q", text, got)
		}
	}
	if reload := show(t, unit, "NeedDaemonReload"); reload != "no" {
		t.Errorf("systemd asks for a reload: %s", reload)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	gone(t, unit)
	if err := m.Describe(timeout(t, 10*time.Second), unit, "late"); err == nil {
		t.Error("a unit that is gone was described")
	}
	gone(t, unit)
}

func TestRealStopping(t *testing.T) {
	ask := func(t *testing.T, m *Manager, unit string) bool {
		t.Helper()
		stopping, err := m.Stopping(timeout(t, 10*time.Second), unit)
		if err != nil {
			t.Fatal(err)
		}
		return stopping
	}
	for _, test := range []struct {
		name string
		stop func(id string) []string
	}{
		{"unit", func(id string) []string { return []string{"stop", "crio-conmon-" + id + ".scope"} }},
		{"slice", func(id string) []string { return []string{"stop", "p" + id + "-q.slice"} }},
		{"slice further up", func(id string) []string { return []string{"stop", "p" + id + ".slice"} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := realManager(t)
			id := unique()
			unit, slice := "crio-conmon-"+id+".scope", "p"+id+"-q.slice"
			startScope(t, unit, []int{process(t, stubborn)}, sd.PropSlice(slice),
				property("KillSignal", int32(syscall.SIGPIPE)), property("TimeoutStopUSec", uint64(5_000_000)))
			if ask(t, m, unit) {
				t.Error("stopping before it is")
			}
			systemctl(t, append([]string{"--no-block"}, test.stop(id)...)...)
			if !ask(t, m, unit) {
				t.Error("not stopping when it is")
			}
			systemctl(t, "kill", "--signal=KILL", unit)
			gone(t, unit)
		})
	}
	t.Run("waiting for others", func(t *testing.T) {
		m := realManager(t)
		id := unique()
		unit, later, slice := scope(t, id), "later"+id+".scope", "p"+id+".slice"
		pid := sleeper(t)
		if _, err := register(t, m, Request{Unit: unit, PID: pid, Slice: slice}); err != nil {
			t.Fatal(err)
		}
		// What comes after our scope is stopped first, and ours is active until it is gone.
		startScope(t, later, []int{process(t, stubborn)}, sd.PropSlice(slice), sd.PropAfter(unit),
			property("TimeoutStopUSec", uint64(5_000_000)))
		systemctl(t, "--no-block", "stop", slice)
		if state := show(t, unit, "ActiveState"); state != "active" || !ask(t, m, unit) {
			t.Errorf("unit is %s, stopping %v", state, ask(t, m, unit))
		}
		systemctl(t, "kill", "--signal=KILL", later)
		gone(t, unit)
	})
}
