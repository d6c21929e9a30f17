package integration

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// systemdVariants runs f with each runtime and the systemd manager.
func systemdVariants(t *testing.T, f func(t *testing.T, v variant)) {
	t.Helper()
	needSystemd(t)
	each(t, func(t *testing.T, v variant) {
		if v.manager == conmon.CgroupManagerSystemd {
			f(t, v)
		}
	})
}

// podUnits are the units of a pod as CRI-O names them.
type podUnits struct{ id, slice, scope string }

func (p *pod) units() podUnits {
	id := strings.ReplaceAll(p.name, "-", "")
	return podUnits{id: id, slice: "kubepods-burstable-pod" + id + ".slice", scope: "conmonrs-" + id + ".scope"}
}

// inPod is a container of a pod that the engine has described.
func (p *pod) inPod(id, script string) *conmon.CreateContainerRequest {
	u := p.units()
	return p.request(id, bundle.Options{
		Args: []string{"sh", "-c", script}, CgroupsPath: u.slice + ":crio:" + p.name + "-" + id,
		Annotations: map[string]string{
			"io.kubernetes.cri-o.SandboxID": u.id, "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": "web",
		},
	})
}

// show returns a property of a unit.
func show(t *testing.T, unit, property string) string {
	t.Helper()
	out, err := exec.Command("systemctl", "show", "--value", "-p", property, unit).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// wantNoUnit checks that nothing is left of a unit, not even a failure.
func wantNoUnit(t *testing.T, unit string) {
	t.Helper()
	eventually(t, exitLimit, unit+" is forgotten", func() bool { return show(t, unit, "LoadState") == "not-found" })
}

const obedient = "trap 'echo got TERM; sleep 1; exit 7' TERM; echo ready; while :; do usleep 10000; done"

// R095, R096: the monitor is a scope in the pod's slice, which says what it is for, and is gone with it.
func TestScope(t *testing.T) {
	systemdVariants(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		u := p.units()
		p.runRequest(p.inPod("a", "exec sleep 1000"))
		for property, want := range map[string]string{
			"ActiveState": "active", "Slice": u.slice, "Description": "shop/web: 1 container", "CollectMode": "inactive-or-failed", "TimeoutStopUSec": "30s",
		} {
			if got := show(t, u.scope, property); got != want {
				t.Errorf("%s is %q, want %q", property, got, want)
			}
		}
		p.runRequest(p.inPod("b", "exec sleep 1000"))
		eventually(t, exitLimit, "description is current", func() bool { return show(t, u.scope, "Description") == "shop/web: 2 containers" })
		status, _ := exec.Command("systemctl", "status", u.scope).Output()
		if !strings.Contains(string(status), fmt.Sprint(p.pid)) || !strings.Contains(string(status), "shop/web: 2 containers") {
			t.Errorf("status:\n%s", status)
		}
		p.mustCommand("kill", "b", "KILL")
		p.wantExit("b", 137)
		eventually(t, exitLimit, "description is current", func() bool { return show(t, u.scope, "Description") == "shop/web: 1 container" })
		eventually(t, exitLimit, "nothing is left of the helper", func() bool { return len(p.helpers()) == 0 })
		p.mustCommand("kill", "a", "KILL")
		p.wantExit("a", 137)
		p.shutdown()
		wantNoUnit(t, u.scope)
	})
}

// helpers are the processes of conmonrs-helper, and connections of the monitor to a service manager.
func (p *pod) helpers() (found []string) {
	for _, proc := range p.children() {
		if strings.HasPrefix(proc.name, "conmonrs-help") {
			found = append(found, proc.String())
		}
	}
	return found
}

// adopt moves the monitor into a scope as CRI-O does.
func (p *pod) adopt() (unit string) {
	p.t.Helper()
	u := p.units()
	unit = "crio-conmon-" + u.id + ".scope"
	out, err := exec.Command("busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager",
		"StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "replace", "5",
		"PIDs", "au", "1", fmt.Sprint(p.pid), "Slice", "s", u.slice, "KillSignal", "i", fmt.Sprint(int(unix.SIGPIPE)),
		"Delegate", "b", "true", "DefaultDependencies", "b", "false", "0").CombinedOutput()
	if err != nil {
		p.t.Fatalf("busctl: %v: %s", err, out)
	}
	eventually(p.t, exitLimit, "monitor is moved", func() bool {
		return strings.Contains(readFile(p.t, fmt.Sprintf("/proc/%d/cgroup", p.pid)), unit)
	})
	return unit
}

// The engine has made a scope: it is described, and nothing else. Its stop is SIGPIPE: the monitor leaves when its last
// container has ended, long before systemd would kill it.
func TestAdoptedScope(t *testing.T) {
	systemdVariants(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		unit := p.adopt()
		p.runRequest(p.inPod("c", obedient))
		if got := show(t, unit, "Description"); got != "shop/web: 1 container" {
			t.Errorf("description %q", got)
		}
		if got := show(t, p.units().scope, "LoadState"); got != "not-found" {
			t.Errorf("a scope of our own is %s", got)
		}
		p.signal(unix.SIGPIPE) // not a stop
		p.waitOutput("c", "ready")
		p.alive()
		begin := time.Now()
		stopped := make(chan error, 1)
		go func() { stopped <- exec.Command("systemctl", "stop", unit).Run() }()
		eventually(t, exitLimit, "monitor notices", func() bool { return len(p.reported("leaving")) > 0 })
		if p.exited("c") {
			t.Error("the container has ended")
		}
		p.mustCommand("kill", "c", "TERM")
		p.wantExit("c", 7)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		if d := time.Since(begin); d > 30*time.Second {
			t.Errorf("the stop took %v", d)
		}
		p.waitGone(exitLimit)
		wantNoUnit(t, unit)
	})
}

// systemctl stop of the monitor's own scope is the graceful path.
func TestScopeStop(t *testing.T) {
	systemdVariants(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.runRequest(p.inPod("c", obedient))
		p.waitOutput("c", "ready")
		systemctl(t, "stop", p.units().scope)
		p.waitGone(exitLimit)
		p.wantExit("c", 7)
		if out := p.output("c"); strings.Count(out, "got TERM") != 1 {
			t.Errorf("output %q", out)
		}
		wantNoUnit(t, p.units().scope)
	})
}

// R085: with the slice all that is in it is stopped. Each container gets one signal, and its exit is recorded.
func TestSliceStop(t *testing.T) {
	systemdVariants(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		for _, id := range []string{"a", "b"} {
			p.runRequest(p.inPod(id, obedient))
			p.waitOutput(id, "ready")
		}
		systemctl(t, "stop", p.units().slice)
		p.waitGone(exitLimit)
		for _, id := range []string{"a", "b"} {
			p.wantExit(id, 7)
			if out := p.output(id); strings.Count(out, "got TERM") != 1 {
				t.Errorf("output of %s: %q", id, out)
			}
		}
		wantNoUnit(t, p.units().scope)
	})
}

// R096: nothing is left of a monitor that was killed, and the next one gets the same scope.
func TestScopeAfterCrash(t *testing.T) {
	systemdVariants(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.runRequest(p.inPod("a", "exec sleep 1000"))
		if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wantNoUnit(t, p.units().scope)
		if err := p.startMonitor(podOptions{}); err != nil {
			t.Fatal(err)
		}
		p.runRequest(p.inPod("b", "exec sleep 1000"))
		if got := show(t, p.units().scope, "ActiveState"); got != "active" {
			t.Errorf("scope is %s", got)
		}
	})
}

// R099: a scope that must be there, in a given slice, is there when the monitor serves; one that cannot be is the error
// of the start.
func TestScopeAlways(t *testing.T) {
	systemdVariants(t, func(t *testing.T, v variant) {
		slice := "conmonrs_test-always.slice"
		p := newPod(t, v, podOptions{args: []string{"--scope=always", "--slice=" + slice}})
		cgroup := readFile(t, fmt.Sprintf("/proc/%d/cgroup", p.pid))
		if !strings.Contains(cgroup, "/"+slice+"/conmonrs-") {
			t.Errorf("the monitor is in %s", cgroup)
		}
	})
}

func TestScopeWithoutSystemd(t *testing.T) {
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		t.Skip("there is a systemd; the native run may have none")
	}
	p := preparePod(t, anyVariant(), podOptions{})
	if err := p.startMonitor(podOptions{args: []string{"--scope=always", "--slice=x.slice"}}); err == nil || len(p.reported("no systemd here")) != 1 {
		t.Errorf("got %v", err)
	}
}
