package integration

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/logcheck"
)

// R092: many pods at once. Each gets its scope in its own slice, and none is left.
func TestScopeManyPods(t *testing.T) {
	systemdVariants(t, func(t *testing.T, v variant) {
		var pods []*pod
		var requests []*conmon.CreateContainerRequest
		for range scaled(10) {
			p := newPod(t, v, podOptions{})
			pods = append(pods, p)
			requests = append(requests, p.inPod("c", "exec sleep 1000"))
			p.ids = append(p.ids, "c")
		}
		var all sync.WaitGroup
		for i, p := range pods {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), callLimit)
				defer cancel()
				if _, err := p.client.CreateContainer(ctx, requests[i]); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for _, p := range pods {
			if got := show(t, p.units().scope, "Slice"); got != p.units().slice {
				t.Errorf("%s is in %q", p.units().scope, got)
			}
		}
		for _, p := range pods {
			p.shutdown()
		}
		for _, p := range pods {
			wantNoUnit(t, p.units().scope)
		}
		if failed, _ := exec.Command("systemctl", "list-units", "--failed", "--plain", "--no-legend", "conmonrs-*").Output(); len(failed) > 0 {
			t.Errorf("failed units: %s", failed)
		}
	})
}

// R095: two monitors with the same pod id. The second is told whose the unit is, and the first is not touched.
func TestScopeTaken(t *testing.T) {
	systemdVariants(t, func(t *testing.T, v variant) {
		first := newPod(t, v, podOptions{})
		first.runRequest(first.inPod("c", "exec sleep 1000"))
		unit := first.units().scope
		group := readFile(t, fmt.Sprintf("/proc/%d/cgroup", first.pid))
		for _, mode := range []string{"auto", "always"} {
			second := newPod(t, v, podOptions{args: []string{"--scope=" + mode}})
			req := second.inPod("c", "exec sleep 1000")
			annotate(t, req, first.units().id)
			second.ids = append(second.ids, "c")
			_, err := second.client.CreateContainer(second.ctx(), req)
			if mode == "always" {
				if err == nil || !strings.Contains(err.Error(), unit) || !strings.Contains(err.Error(), "belongs to other processes") {
					t.Errorf("create: %v", err)
				}
			} else if lines := second.reported("scope not registered"); err != nil || len(lines) != 1 || !strings.Contains(lines[0], unit) {
				t.Errorf("create: %v, reported %q", err, lines)
			}
		}
		if now := readFile(t, fmt.Sprintf("/proc/%d/cgroup", first.pid)); now != group || show(t, unit, "ActiveState") != "active" {
			t.Errorf("the first is in %s, before %s", now, group)
		}
	})
}

// annotate gives a bundle the pod id of another pod.
func annotate(t *testing.T, req *conmon.CreateContainerRequest, id string) {
	t.Helper()
	path := req.BundlePath + "/config.json"
	out, err := exec.Command("sed", "-i", `s/\("io.kubernetes.cri-o.SandboxID": *\)"[^"]*"/\1"`+id+`"/`, path).CombinedOutput()
	if err != nil || !strings.Contains(readFile(t, path), `"`+id+`"`) {
		t.Fatalf("%v: %s", err, out)
	}
}

// R100: systemd, the bus and journald are started anew while a pod works. It does not notice.
func TestScopeDuringRestarts(t *testing.T) {
	systemdVariants(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		n := numbered{spec: logcheck.Spec{Min: 1, Max: 3000, Seed: 3}, bytes: 20_000_000, both: true}
		o := p.script(n.command() + "; " + await("go") + "exit 5")
		u := p.units()
		o.CgroupsPath = u.slice + ":crio:" + p.name + "-c"
		o.Annotations = map[string]string{"io.kubernetes.cri-o.SandboxID": u.id}
		p.runRequest(p.request("c", o))
		properties := func() string {
			out, _ := exec.Command("systemctl", "show", "-p", "Slice,Delegate,CollectMode,TimeoutStopUSec,Description,ControlGroup,OOMPolicy", u.scope).Output()
			return string(out)
		}
		before := properties()
		execs := 0
		end := p.inLoop(1, func(context.Context) {
			ctx, cancel := context.WithTimeout(context.Background(), callLimit) // the last one is to be answered as well
			defer cancel()
			r, err := p.client.ExecSync(ctx, p.execRequest("c", 0, "echo", "hello"))
			if err != nil || r.ExitCode != 0 || strings.TrimSpace(string(r.Stdout)) != "hello" {
				t.Errorf("exec: %+v, %v", r, err)
			}
			execs++
		})
		for _, args := range [][]string{{"daemon-reexec"}, {"daemon-reload"}, {"restart", "dbus.service"}, {"restart", "systemd-journald.service"}} {
			systemctl(t, args...)
		}
		end()
		if after := properties(); after != before {
			t.Errorf("properties are\n%s, before\n%s", after, before)
		}
		if execs == 0 {
			t.Error("no exec was made")
		}
		c := p.attachRaw("c", p.path("attach"))
		c.conn.Close()
		p.release("go")
		p.wantExit("c", 5)
		n.verify(t, v.format(conmon.LogDriverCRI), p.path("logs/c"))
	})
}

// What the registration needed is gone after it: helper, connection, threads, memory. The pods differ in nothing else.
func TestScopeCost(t *testing.T) {
	const allowed = 100 // KiB
	systemdVariants(t, func(t *testing.T, v variant) {
		without, with := measure(t, v, "--scope=never"), measure(t, v, "--scope=auto")
		if with.memory > without.memory+allowed || with.sockets != without.sockets || with.threads > without.threads+1 {
			t.Errorf("in a scope %+v, in none %+v", with, without)
		}
		t.Logf("in a scope %+v, in none %+v", with, without)
	})
}

// sockets counts the sockets that a process has open.
func sockets(pid int) (n int) {
	for _, target := range descriptors(pid) {
		if strings.HasPrefix(target, "socket:") {
			n++
		}
	}
	return n
}

type cost struct{ memory, sockets, threads int }

// measure returns what an idle pod costs, the median of several.
func measure(t *testing.T, v variant, args ...string) cost {
	t.Helper()
	var all [5]cost
	for i := range all {
		p := newPod(t, v, podOptions{args: args})
		p.runRequest(p.inPod("c", "exec sleep 1000"))
		eventually(t, exitLimit, "the container is all that is there", func() bool { return len(p.children()) == 1 })
		all[i] = cost{rss(p.pid), sockets(p.pid), threads(p.pid)}
		t.Log(all[i])
	}
	median := func(of func(cost) int) int {
		var values []int
		for _, c := range all {
			values = append(values, of(c))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return cost{
		median(func(c cost) int { return c.memory }), median(func(c cost) int { return c.sockets }),
		median(func(c cost) int { return c.threads }),
	}
}

// R088: the stop of the monitor's scope ends execs that run, and none of them is reported as a success.
func TestScopeStopDuringExec(t *testing.T) {
	systemdVariants(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{args: []string{"--stop-timeout=1"}})
		p.runRequest(p.inPod("c", "trap '' TERM; while :; do usleep 10000; done"))
		codes := make(chan int32, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), callLimit)
			defer cancel()
			r, err := p.client.ExecSync(ctx, p.execRequest("c", 0, "sleep", "1000"))
			if err != nil {
				codes <- -1
				return
			}
			codes <- r.ExitCode
		}()
		eventually(t, exitLimit, "exec runs", func() bool { return p.hasProcess("c", "sleep 1000") })
		systemctl(t, "stop", p.units().scope)
		p.waitGone(exitLimit)
		p.wantExit("c", 137)
		if code := <-codes; code == 0 {
			t.Error("the exec was reported as a success")
		}
	})
}
