package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

func TestExec(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.run("c", "sleep", "1000")
		for _, test := range []struct {
			script         string
			code           int32
			stdout, stderr string
		}{
			{"echo out; echo err >&2", 0, "out\n", "err\n"},
			{"exit 3", 3, "", ""},
			{"printf partial; exit 255", 255, "partial", ""},
			{"exec 2>/dev/null; nosuchcommand", 127, "", ""},
			{"kill -9 $$", 137, "", ""},
			{"kill -34 $$", 162, "", ""},
		} {
			r := p.exec("c", 30*time.Second, "sh", "-c", test.script)
			stdout, stderr := test.stdout, test.stderr
			if v.terminal {
				stdout, stderr = strings.ReplaceAll(stdout+stderr, "\n", "\r\n"), ""
			}
			if r.ExitCode != test.code || string(r.Stdout) != stdout || string(r.Stderr) != stderr || r.TimedOut {
				t.Errorf("%q: %d %q %q %v, want %d %q %q",
					test.script, r.ExitCode, r.Stdout, r.Stderr, r.TimedOut, test.code, stdout, stderr)
			}
		}
		if v.terminal {
			if got := p.wantExec("c", 0, "tty"); got != "/dev/pts/0\n" && got != "/dev/pts/1\n" {
				t.Errorf("terminal is %q", got)
			}
		} else if got := p.wantExec("c", 0, "readlink", "/proc/self/fd/0"); got != "/dev/null\n" {
			t.Errorf("standard input is %q", got)
		}
		if p.status("c") != "running" {
			t.Error("the container has ended")
		}
	})
}

// Variables of the request are for the runtime, not for the command.
func TestExecEnvironment(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		runtime, record := spyRuntime(t, v)
		p := newPod(t, v, podOptions{runtime: runtime})
		p.run("c", "sleep", "1000")
		req := p.execRequest("c", 0, "env")
		req.Env = []conmon.EnvVar{envVar("OF_THE_RUNTIME", "x")}
		r, err := p.client.ExecSync(p.ctx(), req)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(r.Stdout), "OF_THE_RUNTIME") || !strings.Contains(string(r.Stdout), "PATH=/bin\n") {
			t.Errorf("environment of the command: %q", r.Stdout)
		}
		if env := record("exec", "environ"); !strings.Contains("\x00"+env, "\x00OF_THE_RUNTIME=x\x00") {
			t.Errorf("environment of the runtime: %q", env)
		}
	})
}

// parallel runs n functions at the same time.
func parallel(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

func TestParallelExecsWhileLogging(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		req := p.request("c", bundle.Options{Args: []string{"yes", strings.Repeat("x", 100)}})
		req.LogDrivers[0].MaxSize = 8 << 20
		p.create(req)
		p.start("c")
		p.wantExec("c", 0, "true")
		fds := openCount(p.pid)
		parallel(100, func(i int) {
			r, err := p.client.ExecSync(p.ctx(), p.execRequest("c", 0, "sh", "-c", fmt.Sprintf("echo number %d; exit %d", i, i)))
			if err != nil {
				t.Errorf("exec %d: %v", i, err)
				return
			}
			out := strings.TrimRight(string(r.Stdout), "\r\n")
			if out != fmt.Sprintf("number %d", i) || int(r.ExitCode) != i {
				t.Errorf("exec %d: code %d, %q, %q", i, r.ExitCode, r.Stdout, r.Stderr)
			}
		})
		p.settled(fds)
		p.mustCommand("kill", "c", "KILL")
		p.wantExit("c", 137)
	})
}

// R039: what the runtime could not start is told in its own words, as a result.
func TestExecNotStarted(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.run("c", "sleep", "1000")
		p.create(p.request("gone", bundle.Options{Args: []string{"true"}}))
		p.start("gone")
		p.wantExit("gone", 0)
		for id, text := range map[string]string{"c": "no/such/program", "unknown": "", "gone": ""} {
			r := p.exec(id, 10*time.Second, "/no/such/program")
			if r.ExitCode != conmon.ExitCodeRuntimeFailed || !strings.Contains(string(r.Stderr), text) || len(r.Stderr) < 40 || r.TimedOut || len(r.Stdout) > 0 {
				t.Errorf("exec in %s: %d %q %q", id, r.ExitCode, r.Stdout, r.Stderr)
			}
		}
	})
}

// Exec works in containers that the monitor does not know; the other calls do not.
func TestExecUnregistered(t *testing.T) {
	each(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		req := p.request("stranger", bundle.Options{Args: []string{"sleep", "1000"}})
		p.ids = append(p.ids, "stranger")
		args := []string{"--root=" + p.root, "run", "-d", "--bundle=" + req.BundlePath, "stranger"}
		if v.manager == conmon.CgroupManagerSystemd {
			args = append([]string{"--systemd-cgroup"}, args...)
		}
		if err := exec.Command(v.runtime, args...).Run(); err != nil {
			t.Fatal(err)
		}
		if got := p.wantExec("stranger", 6, "sh", "-c", "echo x; exit 6"); got != "x\n" {
			t.Errorf("output %q", got)
		}
		if err := p.client.ReopenLog(p.ctx(), &conmon.ReopenLogRequest{ID: "stranger"}); !errors.Is(err, conmon.ErrContainerNotFound) {
			t.Errorf("reopen: %v", err)
		}
	})
}

// R041, R056: execs that meet the end of the container neither delay it nor are forgotten.
func TestExecWhileContainerExits(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		for i := range scaled(5) {
			p.run("c", "sh", "-c", "while [ ! -e /tmp/end ]; do usleep 10000; done; exit 5")
			ctx, cancel := context.WithCancel(p.ctx())
			var workers sync.WaitGroup
			for range 8 {
				workers.Go(func() {
					for ctx.Err() == nil {
						r, err := p.client.ExecSync(p.ctx(), p.execRequest("c", 20*time.Second, "sh", "-c", "sleep 0.05"))
						if err != nil || r.TimedOut {
							t.Errorf("exec: %+v, %v", r, err)
						}
					}
				})
			}
			p.wantExec("c", 0, "usleep", fmt.Sprint(50000*(i%5)))
			end := filepath.Join(p.path("bundles", "c"), "rootfs/tmp/end")
			if err := os.WriteFile(end, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			p.wantExit("c", 5)
			if d := time.Since(begin); d > 1500*time.Millisecond {
				t.Errorf("the exit took %v", d)
			}
			cancel()
			workers.Wait()
			if r := p.exec("c", 5*time.Second, "true"); r.ExitCode != conmon.ExitCodeRuntimeFailed {
				t.Errorf("exec after the end: %+v", r)
			}
			p.remove("c")
			if err := os.Remove(end); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, exitLimit, "monitor has no children", func() bool { return len(p.children()) == 0 })
	})
}

// R040: where pid namespaces are shared, an exec ends with its own container.
func TestExecEndsWithContainer(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		o := bundle.Options{Args: []string{"sleep", "1000"}, SharePID: true}
		a := p.runOptions("a", o)
		p.runOptions("b", o)
		codes := make(map[string]int32)
		var mu sync.Mutex
		var execs sync.WaitGroup
		for _, id := range []string{"a", "b"} {
			execs.Go(func() {
				r, err := p.client.ExecSync(p.ctx(), p.execRequest(id, 0, "sleep", "1001"))
				if err != nil {
					t.Errorf("exec in %s: %v", id, err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				codes[id] = r.ExitCode
			})
			eventually(t, exitLimit, "exec runs in "+id, func() bool { return p.hasProcess(id, "sleep 1001") })
		}
		for _, proc := range p.containerProcesses("a") { // R049
			if proc.parent != p.pid {
				t.Errorf("parent of %v is %d, want the monitor", proc, proc.parent)
			}
		}
		if err := unix.Kill(a, unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		p.wantExit("a", 143)
		eventually(t, 3*time.Second, "exec ends", func() bool { mu.Lock(); defer mu.Unlock(); return codes["a"] == 137 })
		if p.hasProcess("a", "sleep") || !p.hasProcess("b", "sleep 1001") || !p.hasProcess("b", "sleep 1000") {
			t.Errorf("left: %v, %v", p.containerProcesses("a"), p.containerProcesses("b"))
		}
		p.mustCommand("kill", "b", "KILL")
		execs.Wait()
		if codes["b"] != 137 {
			t.Errorf("exec in b: code %d", codes["b"])
		}
	})
}

// A command goes on when the client that asked for it has gone.
func TestExecSurvivesClient(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	p.run("c", "sleep", "1000")
	ctx, cancel := context.WithCancel(p.ctx())
	var call sync.WaitGroup
	call.Go(func() {
		_, err := p.client.ExecSync(ctx, p.execRequest("c", 0, "sh", "-c", "touch /tmp/begun; usleep 300000; touch /tmp/done"))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("exec: %v", err)
		}
	})
	tmp := p.path("bundles", "c", "rootfs/tmp")
	eventually(t, exitLimit, "command begins", func() bool { _, err := os.Stat(tmp + "/begun"); return err == nil })
	cancel()
	call.Wait()
	eventually(t, exitLimit, "command ends", func() bool { _, err := os.Stat(tmp + "/done"); return err == nil })
}
