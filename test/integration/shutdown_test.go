package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// signal sends a signal to the monitor.
func (p *pod) signal(sig unix.Signal) {
	p.t.Helper()
	if err := unix.Kill(p.pid, sig); err != nil {
		p.t.Fatal(err)
	}
}

// waitGone waits until the monitor has ended, and returns how long that took.
func (p *pod) waitGone(limit time.Duration) time.Duration {
	p.t.Helper()
	begin := time.Now()
	eventually(p.t, limit, "monitor ends", func() bool { return !alivePID(p.pid) })
	return time.Since(begin)
}

// SIGINT: everything is killed at once, and every exit published.
func TestShutdown(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		const deaf = "trap '' TERM INT HUP; sleep 1000 & sleep 1001 & wait; sleep 1002"
		p.create(p.request("created", bundle.Options{Args: []string{"true"}}))
		p.run("running", "sh", "-c", deaf)
		p.runOptions("shared", bundle.Options{Args: []string{"sh", "-c", deaf}, SharePID: true})
		p.run("paused", "sleep", "1000")
		if _, err := p.command("pause", "paused"); err != nil {
			t.Logf("no freezer: %v", err)
		}
		p.signal(unix.SIGINT)
		if d := p.waitGone(10 * time.Second); d > 5*time.Second {
			t.Errorf("it took %v", d)
		}
		for _, id := range []string{"created", "running", "shared", "paused"} {
			if code, err := waitExit(p.path("exits", id), 0); code != 137 || err != nil {
				t.Errorf("exit of %s: %d, %v", id, code, err)
			}
			if left := p.containerProcesses(id); len(left) > 0 {
				t.Errorf("left of %s: %v", id, left)
			}
		}
	})
}

// SIGTERM: each container is asked once, in its own way, and exit files say what really happened.
func TestGracefulStop(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{args: []string{"--stop-timeout=2"}})
		script := "trap 'echo got TERM; exit 7' TERM; trap 'echo got USR1; exit 8' USR1; trap 'echo got 40; exit 9' 40; echo ready; while :; do usleep 10000; done"
		for id, signal := range map[string]string{"default": "", "name": "SIGUSR1", "number": "40", "nonsense": "SIGNONE"} {
			o := bundle.Options{Args: []string{"sh", "-c", script}}
			if signal != "" {
				o.Annotations = map[string]string{"org.opencontainers.image.stopSignal": signal}
			}
			p.runOptions(id, o)
		}
		p.run("deaf", "sh", "-c", "trap 'echo got TERM' TERM; echo ready; while :; do usleep 10000; done")
		p.create(p.request("created", bundle.Options{Args: []string{"true"}}))
		for _, id := range []string{"default", "name", "number", "nonsense", "deaf"} {
			p.waitOutput(id, "ready")
		}
		p.signal(unix.SIGTERM)
		begin := time.Now()
		p.wantExit("created", 137)
		if d := time.Since(begin); d > 1500*time.Millisecond {
			t.Errorf("the created one was killed after %v", d)
		}
		p.waitGone(10 * time.Second)
		if d := time.Since(begin); d < 1900*time.Millisecond || d > 5*time.Second {
			t.Errorf("it took %v", d)
		}
		for id, want := range map[string]int{"default": 7, "name": 8, "number": 9, "nonsense": 7, "deaf": 137} {
			if code, err := waitExit(p.path("exits", id), 0); code != want || err != nil {
				t.Errorf("exit of %s: %d, %v; want %d", id, code, err, want)
			}
			if out := p.output(id); strings.Count(out, "got ") != 1 {
				t.Errorf("output of %s: %q", id, out)
			}
		}
	})
}

// A second signal ends the waiting, and until then new work is refused.
func TestHurriedStop(t *testing.T) {
	for _, second := range []unix.Signal{unix.SIGTERM, unix.SIGINT} {
		t.Run(second.String(), func(t *testing.T) {
			p := newPod(t, anyVariant(), podOptions{args: []string{"--stop-timeout=600"}})
			p.run("c", "sh", "-c", "trap 'echo got TERM' TERM; echo ready; while :; do usleep 10000; done")
			p.waitOutput("c", "ready")
			req := p.request("late", bundle.Options{Args: []string{"true"}})
			p.signal(unix.SIGTERM)
			p.waitOutput("c", "got TERM")
			p.alive()
			if _, err := p.client.CreateContainer(p.ctx(), req); !errors.Is(err, conmon.ErrShuttingDown) {
				t.Errorf("create: %v", err)
			}
			if _, err := p.client.ExecSync(p.ctx(), p.execRequest("c", 0, "true")); !errors.Is(err, conmon.ErrShuttingDown) {
				t.Errorf("exec: %v", err)
			}
			p.signal(second)
			p.waitGone(5 * time.Second)
			p.wantExit("c", 137)
		})
	}
}

// The stop signal is read from the bundle. One that does not open, or is no file any more, holds up nothing.
func TestStopWithoutBundle(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{args: []string{"--stop-timeout=30"}})
	req := p.request("c", bundle.Options{Args: []string{"sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do usleep 10000; done"}})
	p.runRequest(req)
	p.waitOutput("c", "ready")
	config := filepath.Join(req.BundlePath, "config.json")
	if err := os.Remove(config); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(config, 0o600); err != nil {
		t.Fatal(err)
	}
	p.signal(unix.SIGTERM)
	p.waitGone(10 * time.Second)
	p.wantExit("c", 7)
}

// A create and an exec that are under way are given up: nothing is left unwatched.
func TestShutdownDuringWork(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		runtime, begun, _ := slowRuntime(t, v)
		p := newPod(t, v, podOptions{runtime: runtime})
		errs := make(chan error, 1)
		req := p.request("c", bundle.Options{Args: []string{"true"}})
		p.ids = append(p.ids, "c")
		go func() {
			_, err := p.client.CreateContainer(p.ctx(), req)
			errs <- err
		}()
		eventually(t, exitLimit, "create begins", func() bool { return exists(begun) })
		p.signal(unix.SIGINT)
		p.waitGone(10 * time.Second)
		if err := <-errs; err == nil {
			t.Error("the create went well")
		}
		if list := p.command0("list", "-q"); strings.TrimSpace(list) != "" {
			t.Errorf("the runtime knows %q", list)
		}
	})
}

// command0 is command for a runtime that may never have run.
func (p *pod) command0(args ...string) string {
	out, _ := p.command(args...)
	return out
}

// Execs that run when the monitor ends do not outlive it.
func TestShutdownEndsExecs(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	p.runOptions("c", bundle.Options{Args: []string{"sleep", "1000"}, SharePID: true})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = p.client.ExecSync(p.ctx(), p.execRequest("c", 0, "sleep", "1001"))
	}()
	eventually(t, exitLimit, "exec runs", func() bool { return p.hasProcess("c", "sleep 1001") })
	p.signal(unix.SIGINT)
	p.waitGone(10 * time.Second)
	<-done
	if left := p.containerProcesses("c"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Engines stop units by SIGPIPE, and terminals send SIGHUP: both mean nothing.
func TestHarmlessSignals(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	p.run("c", "sleep", "1000")
	for range 20 {
		p.signal(unix.SIGPIPE)
		p.signal(unix.SIGHUP)
	}
	p.alive()
	p.wantExec("c", 0, "true")
}

// A container is killed with its own cgroup, and not with one whose name merely looks alike.
func TestKillSparesOthers(t *testing.T) {
	v := anyVariant()
	if v.manager != conmon.CgroupManagerCgroupfs {
		v.manager = managers()[len(managers())-1]
	}
	if v.manager != conmon.CgroupManagerCgroupfs {
		unable(t, "needs the cgroupfs manager")
	}
	p := newPod(t, v, podOptions{})
	parent := "/" + p.name + "-x-pod-x"
	t.Cleanup(func() {
		for _, id := range []string{"x", "y"} {
			_, _ = p.command("delete", "--force", id)
		}
		removeCgroup(parent)
	})
	p.create(p.request("x", bundle.Options{Args: []string{"true"}, CgroupsPath: parent + "/first"}))
	p.runOptions("y", bundle.Options{
		Args: []string{"sh", "-c", "trap 'sleep 1; exit 7' TERM; echo ready; while :; do usleep 10000; done"}, CgroupsPath: parent + "/second",
	})
	p.waitOutput("y", "ready")
	p.signal(unix.SIGTERM)
	p.waitGone(10 * time.Second)
	p.wantExit("x", 137)
	p.wantExit("y", 7)
}

// removeCgroup removes an empty group from all hierarchies, as far as it is there.
func removeCgroup(path string) {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		_ = os.Remove(root + path)
	}
	entries, _ := os.ReadDir("/sys/fs/cgroup")
	for _, e := range entries {
		_ = os.Remove("/sys/fs/cgroup/" + e.Name() + path)
	}
}

// The cleanup command runs when the exit files are there, with their names' directory as it is.
func TestCleanupCommand(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		req := p.request("c", bundle.Options{Args: []string{"sh", "-c", "exit 5"}})
		req.CleanupCommand = []string{"sh", "-c", fmt.Sprintf("cat %s %s >%s", req.ExitPaths[0], req.ExitPaths[1], p.path("copy"))}
		p.create(req)
		p.start("c")
		p.wantExit("c", 5)
		eventually(t, time.Second, "cleanup command has run", func() bool {
			b, _ := os.ReadFile(p.path("copy"))
			return string(b) == "55"
		})
	})
}

// R063: a slow cleanup command holds back nothing.
func TestSlowCleanupCommand(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	req := p.request("c", bundle.Options{Args: []string{"sh", "-c", "exit 5"}})
	req.CleanupCommand = []string{"sleep", "2"}
	pid := p.create(req)
	p.start("c")
	p.wantExit("c", 5)
	eventually(t, time.Second, "the container's process is reaped", func() bool { return statusField(pid, "State") == "" })
	if left := p.zombies(); len(left) > 0 {
		t.Errorf("zombies: %v", left)
	}
	p.remove("c")
	p.create(req)
	p.mustCommand("kill", "c", "KILL")
	p.wantExit("c", 137)
	eventually(t, exitLimit, "cleanup commands are reaped", func() bool { return len(p.children()) == 0 })
}

// R064: what a cleanup command leaves running neither holds back the monitor nor is ended by it.
func TestDaemonOfCleanupCommand(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	req := p.request("c", bundle.Options{Args: []string{"true"}})
	req.CleanupCommand = []string{"sh", "-c", "setsid sleep 1000 & echo $! >" + p.path("pid.tmp") + "; mv " + p.path("pid.tmp") + " " + p.path("pid")}
	p.create(req)
	p.start("c")
	p.wantExit("c", 0)
	eventually(t, exitLimit, "cleanup command has run", func() bool { return exists(p.path("pid")) })
	pid, err := strconv.Atoi(strings.TrimSpace(readFile(t, p.path("pid"))))
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	p.shutdown()
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("the shutdown took %v", d)
	}
	if !alivePID(pid) {
		t.Error("the daemon of the cleanup command was ended")
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

// A cleanup command that cannot be started is reported.
func TestMissingCleanupCommand(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	req := p.request("c", bundle.Options{Args: []string{"true"}})
	req.CleanupCommand = []string{"no-such-command"}
	p.create(req)
	p.start("c")
	p.wantExit("c", 0)
	eventually(t, exitLimit, "it is reported", func() bool {
		return strings.Contains(string(tail(p.log, 1<<20)), "cleanup command not started")
	})
	p.alive()
}
