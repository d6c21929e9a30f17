package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// pidFileScript sets PIDFILE to where the runtime is to write the pid, for both ways to say it.
const pidFileScript = "#!/bin/sh\nfor w; do case $w in --pid-file=*) PIDFILE=${w#*=};; esac; " +
	"[ \"$last\" != --pid-file ] || PIDFILE=$w; last=$w; done\n"

// brokenRuntime is a script in the place of a runtime, and what the error of a create has to contain.
type brokenRuntime struct {
	name, script, want string
	code               int    // of a *conmon.RuntimeError; 0: none
	terminal           string // what the error has to contain with a terminal, if not the same
	slow               bool   // takes seconds: done once, with pipes only
}

var brokenRuntimes = []brokenRuntime{
	{name: "hangs", script: "#!/bin/sh\nsleep 1000\n", want: "did not end within 1s"},
	{name: "hangs with a deaf child", script: "#!/bin/sh\ntrap '' HUP INT TERM\nsleep 1000 &\nsleep 1000\n", want: "did not end within 1s", slow: true},
	{name: "no pid file", script: "#!/bin/sh\nexit 0\n", want: "grandchild pid read error", terminal: "did not set up a terminal"},
	{name: "empty pid file", script: pidFileScript + ": >\"$PIDFILE\"\n", want: "grandchild pid", slow: true},
	{name: "bad pid file", script: pidFileScript + "echo 12x >\"$PIDFILE\"\n", want: "grandchild pid parse error", slow: true},
	{name: "pid of init", script: pidFileScript + "echo 1 >\"$PIDFILE\"\n", want: "grandchild pid parse error", slow: true},
	{name: "pid of nobody", script: pidFileScript + "sh -c 'echo $$' >\"$PIDFILE\"\n", want: "process", slow: true},
	{name: "fails without a word", script: "#!/bin/sh\nexit 3\n", want: "child command exited with: 3", code: 3},
	{name: "fails", script: "#!/bin/sh\necho \"it's \\\"broken\\\"\" >&2; exit 4\n", want: "child command exited with: 4: it's \"broken\"", code: 4},
	{name: "odd bytes", script: "#!/bin/sh\nprintf '\\377\\376\\000\\001\"\\033[1m' >&2; exit 5\n", want: "child command exited with: 5: ", code: 5},
	{name: "long text", script: "#!/bin/sh\nhead -c 1048576 /dev/zero | tr '\\0' x >&2; exit 6\n", want: "xxxxx", code: 6},
	{name: "holds stderr", script: "#!/bin/sh\necho held >&2; sleep 3 & exit 7\n", want: "held", code: 7, slow: true},
	{name: "killed", script: "#!/bin/sh\necho dying >&2; kill -9 $$\n", want: "child command exited with signal: dying", code: -1},
	{name: "no program", script: "not a script\n", want: "spawn child process"},
}

// R060, R061: whatever a runtime does, a create ends in time, with an error that says what happened, and leaves nothing.
func TestBrokenRuntimes(t *testing.T) {
	for _, broken := range brokenRuntimes {
		for _, terminal := range []bool{false, true} {
			if terminal && broken.slow {
				continue
			}
			t.Run(fmt.Sprintf("%s/terminal=%v", broken.name, terminal), func(t *testing.T) {
				t.Parallel()
				v, want := anyVariant(), broken.want
				v.terminal = terminal
				if terminal && broken.terminal != "" {
					want = broken.terminal
				}
				o := podOptions{runtime: writeScript(t, "runc", broken.script)}
				if strings.HasPrefix(broken.name, "hangs") {
					o.args = []string{"--runtime-timeout=1"}
				}
				p := newPod(t, v, o)
				p.checkBroken(want, broken.code)
				r := p.exec("c", 0, "true")
				if r.ExitCode != conmon.ExitCodeRuntimeFailed || r.TimedOut || len(r.Stderr) == 0 || !utf8.Valid(r.Stderr) || len(r.Stderr) > 70<<10 {
					t.Errorf("exec: code %d, %d bytes of text: %.200q", r.ExitCode, len(r.Stderr), r.Stderr)
				}
			})
		}
	}
}

// checkBroken creates twice, if that is fast, since the id has to be free again.
func (p *pod) checkBroken(want string, code int) {
	p.t.Helper()
	fds := openCount(p.pid)
	req := p.request("c", bundle.Options{Args: []string{"true"}})
	for range 2 {
		begin := time.Now()
		_, err := p.client.CreateContainer(p.ctx(), req)
		took := time.Since(begin)
		if took > 4*time.Second {
			p.t.Errorf("the create took %v", took)
		}
		if err == nil || !strings.Contains(err.Error(), want) || !utf8.ValidString(err.Error()) || len(err.Error()) > 70<<10 {
			p.t.Fatalf("error %.300q, want %q", fmt.Sprint(err), want)
		}
		var failed *conmon.RuntimeError
		if code != 0 && (!errors.As(err, &failed) || failed.ExitCode != code) {
			p.t.Errorf("error %.300q, want exit code %d", fmt.Sprint(err), code)
		}
		if took > time.Second {
			break
		}
	}
	p.alive()
	p.settled(fds)
	if _, err := os.Stat(p.path("exits", "c")); err == nil {
		p.t.Error("an exit was published")
	}
}

// A pid file that names a process which is none of the runtime's does not get that process killed.
func TestForeignPid(t *testing.T) {
	victim := exec.Command("sleep", "1000")
	victim.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = victim.Process.Kill(); _ = victim.Wait() })
	script := pidFileScript + fmt.Sprintf("printf %d >\"$PIDFILE\"\n", victim.Process.Pid)
	p := newPod(t, anyVariant(), podOptions{runtime: writeScript(t, "runc", script)})
	id := p.name // part of no other cgroup's name
	_, err := p.client.CreateContainer(p.ctx(), p.request(id, bundle.Options{Args: []string{"true"}}))
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint(victim.Process.Pid)) {
		t.Errorf("create: %v", err)
	}
	if r := p.exec(id, time.Second, "true"); r.ExitCode != conmon.ExitCodeRuntimeFailed {
		t.Errorf("exec: %+v", r)
	}
	p.shutdown()
	if !alivePID(victim.Process.Pid) {
		t.Error("the process was killed")
	}
}

// A runtime that cannot be executed is an error of the create: the check at start-up does not look that far.
func TestUnusableRuntime(t *testing.T) {
	notExecutable := writeScript(t, "runc", "#!/bin/sh\n")
	if err := os.Chmod(notExecutable, 0o644); err != nil {
		t.Fatal(err)
	}
	removed := writeScript(t, "runc", "#!/bin/sh\n")
	for name, path := range map[string]string{"not executable": notExecutable, "removed": removed} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t, anyVariant(), podOptions{runtime: path})
			if name == "removed" {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			p.checkBroken("spawn child process", 0)
			r := p.exec("c", 0, "true")
			if r.ExitCode != conmon.ExitCodeRuntimeFailed || !strings.Contains(string(r.Stderr), "spawn child process") {
				t.Errorf("exec: %+v", r)
			}
		})
	}
}

// The limit of an exec covers a runtime that hangs, and what it has started.
func TestExecWithHangingRuntime(t *testing.T) {
	script := "#!/bin/sh\ncase \" $* \" in *' exec '*) sleep 1000 & setsid sleep 1001 & sleep 1002;; esac\n"
	p := newPod(t, anyVariant(), podOptions{runtime: writeScript(t, "runc", script)})
	begin := time.Now()
	r := p.exec("c", time.Second, "true")
	if d := time.Since(begin); !r.TimedOut || r.ExitCode != conmon.ExitCodeTimedOut || d > 3*time.Second {
		t.Errorf("after %v: %+v", d, r)
	}
	eventually(t, 3*time.Second, "only the monitor is left", func() bool { return len(p.processes()) == 1 })
}

// R147: the runtime's file may be replaced while the monitor lives, as a package update does.
func TestRuntimeReplaced(t *testing.T) {
	v := anyVariant()
	path := filepath.Join(t.TempDir(), filepath.Base(v.runtime))
	copyFile := func(to string) {
		b, err := os.ReadFile(v.runtime)
		if err == nil {
			err = os.WriteFile(to, b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	copyFile(path)
	p := newPod(t, v, podOptions{runtime: path})
	p.run("old", "sleep", "1000")
	copyFile(path + ".new")
	if err := unix.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	p.wantExec("old", 0, "true")
	p.run("new", "sh", "-c", "exit 3")
	p.wantExit("new", 3)
}

// What a runtime prints although it succeeds is in the monitor's log, and not in the container's.
func TestRuntimeWarning(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *' create '*) echo 'a warning' >&2;; esac\nexec %s \"$@\"\n", v.runtime)
		p := newPod(t, v, podOptions{runtime: writeScript(t, filepath.Base(v.runtime), script)})
		p.run("c", "sh", "-c", "echo first >&2; exit 3")
		p.wantExit("c", 3)
		if out := p.output("c"); out != "first\n" {
			t.Errorf("the container's log has %q", out)
		}
		if lines := p.reported("a warning"); len(lines) != 1 || !strings.Contains(lines[0], "runtime said") {
			t.Errorf("the monitor's log has %q", lines)
		}
	})
}
