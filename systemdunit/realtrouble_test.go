package systemdunit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Many pods start at once (R092), and nothing is left of them after SIGKILL (R096).
func TestRealManyAtOnce(t *testing.T) {
	m := realManager(t)
	const count = 300
	ctx := timeout(t, 60*time.Second)
	base := unique()
	pids := make([]int, count)
	errs := make([]error, count)
	for i := range pids {
		pids[i] = sleeper(t)
	}
	var all sync.WaitGroup
	start := time.Now()
	for i, pid := range pids {
		all.Go(func() {
			unit := fmt.Sprintf("conmonrs-%s-%d.scope", base, i)
			_, errs[i] = m.Register(ctx, Request{Unit: unit, PID: pid, Slice: "conmonrsmany.slice"})
		})
	}
	all.Wait()
	t.Logf("%d registrations in %v", count, time.Since(start))
	for i, pid := range pids {
		if errs[i] != nil {
			t.Error(errs[i])
		} else if want := fmt.Sprintf("/conmonrsmany.slice/conmonrs-%s-%d.scope", base, i); group(t, pid) != want {
			t.Errorf("process is in %s", group(t, pid))
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	left := func() string {
		units := "conmonrs-" + base + "-*"
		out, err := exec.Command("systemctl", "list-units", "--all", "--plain", "--no-legend", units).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if !eventually(func() bool { return left() == "" }) {
		t.Errorf("left behind:\n%s", left())
	}
}

func TestRealRace(t *testing.T) {
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("same process %v", same), func(t *testing.T) {
			m := realManager(t)
			for range 10 {
				unit := scope(t, unique())
				pids := [2]int{sleeper(t), sleeper(t)}
				if same {
					pids[1] = pids[0]
				}
				var errs [2]error
				var both sync.WaitGroup
				for i, pid := range pids {
					both.Go(func() { _, errs[i] = register(t, m, Request{Unit: unit, PID: pid}) })
				}
				both.Wait()
				won, lost := 0, errs[1]
				if errs[0] != nil {
					won, lost = 1, errs[0]
				}
				if errs[won] != nil || same && lost != nil || !same && !errors.Is(lost, ErrUnitTaken) {
					t.Fatalf("%v", errs)
				}
				if got := filepath.Base(group(t, pids[won])); got != unit {
					t.Fatalf("process is in %s", got)
				}
			}
		})
	}
}

// runtimeUnit writes a unit file that lasts until the end of the test.
func runtimeUnit(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("/run/systemd/system", name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "daemon-reload")
	t.Cleanup(func() {
		systemctl(t, "stop", name)
		os.Remove(path)
		systemctl(t, "daemon-reload")
		_ = exec.Command("systemctl", "reset-failed", name).Run()
	})
}

func TestRealJobFails(t *testing.T) {
	t.Run("slice that cannot start", func(t *testing.T) {
		m := realManager(t)
		id := unique()
		runtimeUnit(t, "no"+id+".service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")
		runtimeUnit(t, "s"+id+".slice", "[Unit]\nRequires=no"+id+".service\nAfter=no"+id+".service\n")
		unit, pid := scope(t, id), sleeper(t)
		_, err := register(t, m, Request{Unit: unit, PID: pid, Slice: "s" + id + ".slice"})
		var job *JobError
		if !errors.As(err, &job) || job.Result != "dependency" {
			t.Errorf("%v", err)
		}
		gone(t, unit)
	})
	t.Run("slice that takes too long", func(t *testing.T) {
		m := realManager(t)
		id := unique()
		runtimeUnit(t, "slow"+id+".service", "[Service]\nType=oneshot\nExecStart=/bin/sleep 600\n")
		runtimeUnit(t, "s"+id+".slice", "[Unit]\nRequires=slow"+id+".service\nAfter=slow"+id+".service\n")
		unit, pid := scope(t, id), sleeper(t)
		short := timeout(t, time.Second)
		_, err := m.Register(short, Request{Unit: unit, PID: pid, Slice: "s" + id + ".slice"})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		gone(t, unit) // the job was taken back
	})
	t.Run("masked slice", func(t *testing.T) {
		m := realManager(t)
		id := unique()
		systemctl(t, "mask", "--runtime", "s"+id+".slice")
		t.Cleanup(func() { systemctl(t, "unmask", "--runtime", "s"+id+".slice") })
		unit := scope(t, id)
		_, err := register(t, m, Request{Unit: unit, PID: sleeper(t), Slice: "s" + id + ".slice"})
		if err == nil || !strings.Contains(err.Error(), "masked") {
			t.Errorf("%v", err)
		}
		gone(t, unit)
	})
	t.Run("process that is gone", func(t *testing.T) {
		m := realManager(t)
		cmd := exec.Command("true")
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		unit := scope(t, unique())
		if result, err := register(t, m, Request{Unit: unit, PID: cmd.Process.Pid}); err == nil {
			t.Errorf("%+v", result)
		}
		gone(t, unit)
	})
}

func TestRealBusRestarts(t *testing.T) {
	m := disturbing(t)
	bus := New(DefaultInstance)
	bus.sockets = []endpoint{{path: systemBus, bus: true}}
	register := func(m *Manager) error {
		_, err := register(t, m, Request{Unit: scope(t, unique()), PID: sleeper(t)})
		return err
	}
	if err := register(bus); err != nil {
		t.Errorf("by bus: %v", err)
	}
	systemctl(t, "stop", "dbus.socket", "dbus.service")
	t.Cleanup(func() { systemctl(t, "start", "dbus.socket") })
	if err := register(m); err != nil {
		t.Errorf("without bus: %v", err)
	}
	if err := register(bus); err == nil {
		t.Error("bus is still there")
	}
	var starting sync.WaitGroup
	starting.Go(func() { time.Sleep(300 * time.Millisecond); systemctl(t, "start", "dbus.socket") })
	if err := register(bus); err != nil {
		t.Errorf("bus that comes back: %v", err)
	}
	starting.Wait()
}

// properties returns what systemctl shows of a unit, without what is counted.
func properties(t *testing.T, unit string) map[string]string {
	t.Helper()
	out, err := exec.Command("systemctl", "show", unit).Output()
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		words := strings.Fields(value) // lists of units have no order
		slices.Sort(words)
		m[name] = strings.Join(words, " ")
	}
	maps.DeleteFunc(m, func(name, _ string) bool {
		return strings.HasPrefix(name, "CPUUsage") || strings.HasPrefix(name, "Memory") ||
			strings.HasPrefix(name, "IO") || strings.HasPrefix(name, "IP") || name == "TasksCurrent"
	})
	return m
}

// The manager executes itself anew while registrations are under way, and afterwards our scope is what it was (R100).
func TestRealReexec(t *testing.T) {
	m := disturbing(t)
	unit, pid := scope(t, unique()), sleeper(t)
	request := Request{Unit: unit, PID: pid, Description: "ns/pod", StopTimeout: time.Minute}
	if _, err := register(t, m, request); err != nil {
		t.Fatal(err)
	}
	before := properties(t, unit)
	const workers, each = 4, 10
	errs := make(chan error, workers*each)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range each {
				_, err := register(t, m, Request{Unit: scope(t, unique()), PID: sleeper(t)})
				errs <- err
			}
		})
	}
	for range 3 {
		systemctl(t, "daemon-reexec")
		systemctl(t, "daemon-reload")
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	after := properties(t, unit)
	for name := range after {
		if after[name] != before[name] {
			t.Errorf("%s was %q, is %q", name, before[name], after[name])
		}
	}
	if filepath.Base(group(t, pid)) != unit {
		t.Errorf("process is in %s", group(t, pid))
	}
}
