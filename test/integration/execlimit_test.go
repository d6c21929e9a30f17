package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// R023: the command ends with all that it started, and nothing else does.
func TestExecTimeoutEndsTree(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		for _, share := range []bool{false, true} {
			t.Run(fmt.Sprintf("SharePID=%v", share), func(t *testing.T) {
				p := newPod(t, v, podOptions{})
				o := bundle.Options{Args: []string{"sh", "-c", "sleep 1000 & sleep 1000"}, SharePID: share}
				pid := p.runOptions("c", o)
				other := p.runOptions("other", o)
				var bystander sync.WaitGroup
				bystander.Go(func() {
					r, err := p.client.ExecSync(p.ctx(), p.execRequest("c", 0, "sleep", "2000"))
					if err != nil || r.ExitCode != 137 {
						t.Errorf("other exec: %+v, %v", r, err)
					}
				})
				eventually(t, exitLimit, "other exec runs", func() bool { return p.hasProcess("c", "sleep 2000") })
				begin := time.Now()
				r := p.exec("c", time.Second, "sh", "-c",
					"echo before; setsid sleep 1001 & (sleep 1002 &); (setsid sleep 1003 &); setsid env -i /bin/sleep 1004 & sleep 1005")
				if d := time.Since(begin); d > 3*time.Second || d < 900*time.Millisecond {
					t.Errorf("answer after %v", d)
				}
				if !r.TimedOut || r.ExitCode != conmon.ExitCodeTimedOut || !strings.HasPrefix(string(r.Stdout), "before") {
					t.Errorf("answer %+v", r)
				}
				for n := 1001; n <= 1005; n++ {
					if n == 1003 && v.isCrun() {
						continue // crun cannot mark what it starts: what has left parent, session and group is not found
					}
					if command := fmt.Sprint("sleep ", n); p.hasProcess("c", command) {
						t.Errorf("%s is alive", command)
					}
				}
				if !alivePID(pid) || !alivePID(other) || !p.hasProcess("c", "sleep 2000") || len(p.containerProcesses("other")) != 2 {
					t.Errorf("others were touched: %v %v", p.containerProcesses("c"), p.containerProcesses("other"))
				}
				p.wantExec("c", 0, "true")
				p.mustCommand("kill", "c", "KILL")
				p.wantExit("c", 137)
				bystander.Wait()
				p.killRest("c", "other")
			})
		}
	})
}

// killRest ends what containers leave that share the pid namespace of the host: here the engine would do it.
func (p *pod) killRest(ids ...string) {
	for _, id := range ids {
		for _, proc := range p.containerProcesses(id) {
			_ = unix.Kill(proc.pid, unix.SIGKILL)
		}
	}
}

// R024: near the deadline an answer says either or, never a bit of both.
func TestExecTimeoutRace(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.run("c", "sleep", "1000")
		for range scaled(1) {
			parallel(16, func(i int) {
				r, err := p.client.ExecSync(p.ctx(), p.execRequest("c", time.Second, "usleep", fmt.Sprint(780_000+i*14_000)))
				if err != nil || r.TimedOut != (r.ExitCode == conmon.ExitCodeTimedOut) || r.ExitCode != 0 && !r.TimedOut {
					t.Errorf("answer %+v, %v", r, err)
				}
			})
		}
	})
}

// R151: output is bounded for each stream, and for the pod.
func TestExecOutputBounds(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.run("c", "sleep", "1000")
		r := p.exec("c", 30*time.Second, "sh", "-c", "head -c 17000000 /dev/zero; head -c 16777216 /dev/zero >&2; exit 4")
		if len(r.Stdout) != conmon.MaxExecOutput || len(r.Stderr) != conmon.MaxExecOutput || r.ExitCode != 4 || r.TimedOut {
			t.Errorf("%d and %d bytes, code %d, timed out %v", len(r.Stdout), len(r.Stderr), r.ExitCode, r.TimedOut)
		}
		if n := strings.Count(string(tail(p.log, 1<<20)), "exec output cut"); n != 1 {
			t.Errorf("cut output was logged %d times", n)
		}
		parallel(20, func(int) {
			r, err := p.client.ExecSync(p.ctx(), p.execRequest("c", 3*time.Second, "yes"))
			if err != nil || !r.TimedOut || len(r.Stdout) > conmon.MaxExecOutput || !bytes.HasPrefix(r.Stdout, []byte("y\n")) && len(r.Stdout) > 0 {
				t.Errorf("answer with %d bytes, code %d, timed out %v, %v", len(r.Stdout), r.ExitCode, r.TimedOut, err)
			}
		})
		// The budget of 64 MiB may be exceeded by one exec's two streams; and answers are copied once.
		if peak := statusNumber(p.pid, "VmHWM") / 1024; peak > 160 && os.Getenv("CONMONRS_RACE") == "" {
			t.Errorf("the monitor took %d MiB", peak)
		} else {
			t.Logf("peak of the monitor's memory: %d MiB", peak)
		}
		p.wantExec("c", 0, "true")
	})
}

// R152: children that hold the output open delay the answer by a moment, and tie up nothing.
func TestExecBackgroundChildren(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.run("c", "sleep", "1000")
		p.wantExec("c", 0, "true")
		fds, before := openCount(p.pid), threads(p.pid)
		for range scaled(4) {
			parallel(5, func(int) {
				begin := time.Now()
				r, err := p.client.ExecSync(p.ctx(), p.execRequest("c", 5*time.Second, "sh", "-c", "trap '' HUP; sleep 100000 & echo x"))
				if err != nil || r.ExitCode != 0 || !strings.HasPrefix(string(r.Stdout), "x") || time.Since(begin) > 4*time.Second {
					t.Errorf("after %v: %+v, %v", time.Since(begin), r, err)
				}
			})
		}
		p.settled(fds)
		if n := threads(p.pid); n > before+6 {
			t.Errorf("%d threads, before %d", n, before)
		}
		if !p.hasProcess("c", "sleep 100000") {
			t.Error("background children were killed")
		}
		p.mustCommand("kill", "c", "KILL")
		p.wantExit("c", 137)
		eventually(t, exitLimit, "children end with the container", func() bool { return len(p.containerProcesses("c")) == 0 })
	})
}

// R043: a frozen container does not hang the caller, or anybody else.
func TestExecPaused(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.run("c", "sleep", "1000")
		if _, err := p.command("pause", "c"); err != nil {
			unable(t, "no freezer: "+err.Error())
		}
		begin := time.Now()
		r := p.exec("c", 2*time.Second, "sleep", "1001")
		if d := time.Since(begin); d > 5*time.Second || r.ExitCode >= 0 {
			t.Errorf("after %v: %+v", d, r)
		}
		p.alive()
		p.mustCommand("resume", "c")
		p.wantExec("c", 0, "true")
		eventually(t, exitLimit, "no process of the exec is left", func() bool { return len(p.containerProcesses("c")) == 1 })
	})
}

// Execs that print without end and use up the budget of the pod keep nobody from a short answer, nor from a time-out.
func TestExecBesideLoudExecs(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{args: []string{"--exec-output-budget=65536"}})
		p.run("c", "sleep", "1000")
		var loud sync.WaitGroup
		for range 3 {
			loud.Go(func() {
				if _, err := p.client.ExecSync(p.ctx(), p.execRequest("c", 0, "yes")); err != nil {
					t.Errorf("loud exec: %v", err)
				}
			})
		}
		eventually(t, exitLimit, "the budget is used up", func() bool { return p.sleeping("c", "yes") >= 2 })
		begin := time.Now()
		for range 3 {
			r := p.exec("c", 0, "echo", "hello")
			if r.ExitCode != 0 || strings.TrimSpace(string(r.Stdout)) != "hello" {
				t.Errorf("short exec: %+v", r)
			}
		}
		r := p.exec("c", time.Second, "sh", "-c", "yes >&2")
		if !r.TimedOut || len(r.Stderr) == 0 {
			t.Errorf("exec that is cut off: code %d, %d bytes", r.ExitCode, len(r.Stderr))
		}
		if d := time.Since(begin); d > 8*time.Second {
			t.Errorf("all took %v", d)
		}
		p.mustCommand("kill", "c", "KILL")
		p.wantExit("c", 137)
		loud.Wait()
	})
}

// sleeping returns how many processes of that name wait for something, such as somebody to read their output.
func (p *pod) sleeping(id, name string) (n int) {
	for _, proc := range p.containerProcesses(id) {
		if proc.name == name && proc.state == "S" {
			n++
		}
	}
	return n
}

// A runtime that fails, or is cut off, after it has started the process leaves nothing behind.
func TestExecOfFailingRuntime(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		script := "#!/bin/sh\ncase \" $* \" in *' exec '*) %[1]s \"$@\"; %[2]s;; *) exec %[1]s \"$@\";; esac\n"
		for name, after := range map[string]string{"fails": "exit 1", "hangs": "sleep 1003"} {
			path := writeScript(t, filepath.Base(v.runtime), fmt.Sprintf(script, v.runtime, after))
			p := newPod(t, v, podOptions{runtime: path})
			p.run("c", "sleep", "1000")
			r := p.exec("c", 3*time.Second, "sleep", "1001")
			if r.ExitCode >= 0 {
				t.Errorf("%s: %+v", name, r)
			}
			eventually(t, exitLimit, name+": no process of the exec is left", func() bool {
				return len(p.containerProcesses("c")) == 1
			})
			p.mustCommand("kill", "c", "KILL")
			p.wantExit("c", 137)
		}
	})
}
