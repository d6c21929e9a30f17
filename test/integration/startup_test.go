package integration

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// byHand returns the command that starts the pod's monitor.
func (p *pod) byHand(o podOptions) *exec.Cmd {
	args := []string{"--runtime", p.runtimePath, "--runtime-dir", p.runDir, "--runtime-root", p.root, "--log-driver=none"}
	cmd := exec.Command(o.binary(), append(args, o.args...)...)
	cmd.Env = p.environ(o)
	return cmd
}

// dial makes a client of the monitor that runs in the pod's directory.
func (p *pod) dial() {
	p.t.Helper()
	c, err := client.Start(p.ctx(), client.StartOptions{Binary: "/bin/false", Runtime: p.runtimePath, RuntimeDir: p.runDir})
	if err != nil {
		p.t.Fatal(err)
	}
	p.use(c)
}

// When the command returns the monitor serves, and the pid file is exact.
func TestStartByHand(t *testing.T) {
	for range scaled(3) {
		p := preparePod(t, anyVariant(), podOptions{})
		out, err := p.byHand(podOptions{}).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Fatalf("%v, printed %q", err, out)
		}
		conn, err := net.Dial("unix", p.path("run", "conmon.sock")) // at the first attempt
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		content := readFile(t, p.path("run", "pidfile"))
		checkModes(t, map[string]os.FileMode{p.path("run", "pidfile"): 0o644, p.runDir: os.ModeDir | 0o755})
		p.dial()
		if want := strconv.Itoa(p.pid); content != want {
			t.Errorf("pid file has %q, want %q", content, want)
		}
		if sid, err := unix.Getsid(p.pid); err != nil || sid != p.pid {
			t.Errorf("session of the monitor is %d, %v", sid, err)
		}
		if err := os.Remove(p.path("run", "pidfile")); err != nil {
			t.Fatal(err)
		}
	}
}

// A start that fails says why, ends with a status, and leaves no pid file.
func TestFailedStarts(t *testing.T) {
	v := anyVariant()
	for name, test := range map[string]struct {
		edit   func(p *pod)
		args   []string
		status int
		want   string
	}{
		"no such runtime":      {func(p *pod) { p.runtimePath = "/no/such/runtime" }, nil, 1, "--runtime '/no/such/runtime' does not exist"},
		"runtime is directory": {func(p *pod) { p.runtimePath = p.dir }, nil, 1, "--runtime"},
		"directory is a file":  {func(p *pod) { p.runDir = p.path("file") }, nil, 1, "file"},
		"directory below file": {func(p *pod) { p.runDir = p.path("file", "run") }, nil, 1, "file"},
		"root is a file":       {func(p *pod) { p.root = p.path("file") }, nil, 1, "--runtime-root"},
		"unknown option":       {func(*pod) {}, []string{"--xyz"}, 2, "error: unexpected argument '--xyz' found"},
		"bad value":            {func(*pod) {}, []string{"--log-level=loud"}, 2, "error: invalid value 'loud'"},
	} {
		t.Run(name, func(t *testing.T) {
			p := preparePod(t, v, podOptions{})
			if err := os.WriteFile(p.path("file"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			root, runDir := p.root, p.runDir
			test.edit(p)
			p.wantNoStart(podOptions{args: test.args}, test.status, test.want)
			p.root, p.runDir = root, runDir
		})
	}
}

func (p *pod) wantNoStart(o podOptions, status int, want string) {
	p.t.Helper()
	cmd := p.byHand(o)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != status || !strings.Contains(stderr.String(), want) || stdout.Len() > 0 {
		p.t.Errorf("status %d, stdout %q, stderr %q; want status %d and %q", got, stdout.String(), stderr.String(), status, want)
	}
	if _, err := os.Stat(filepath.Join(p.runDir, "pidfile")); err == nil {
		p.t.Error("there is a pid file")
	}
}

// R145: a second start fails and does not disturb the first, not even when they begin at the same time.
func TestSecondStart(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	p.run("c", "sleep", "1000")
	p.wantNoStart(podOptions{}, 1, "another server is running")
	p.alive()
	p.wantExec("c", 0, "true")
	q := preparePod(t, anyVariant(), podOptions{})
	var mu sync.Mutex
	pids := make(map[int]bool)
	parallel(4, func(int) {
		c, err := client.Start(q.ctx(), client.StartOptions{
			Binary: os.Getenv("CONMONRS_BINARY"), Runtime: q.runtimePath, RuntimeDir: q.runDir, LogDriver: "none", Env: q.environ(podOptions{}),
		})
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		mu.Lock()
		defer mu.Unlock()
		pids[c.PID()] = true
	})
	q.dial()
	if len(pids) != 1 || !pids[q.pid] {
		t.Errorf("clients have monitors %v, %d serves", pids, q.pid)
	}
}

// R145, and engines that return: a killed monitor's socket is no obstacle, and its containers live on.
func TestStartAfterKill(t *testing.T) {
	each(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		pid := p.run("c", "sleep", "1000")
		old := p.pid
		p.kill()
		if err := p.startMonitor(podOptions{}); err != nil {
			t.Fatal(err)
		}
		if p.pid == old || !alivePID(pid) {
			t.Errorf("monitor %d, before %d; container alive %v", p.pid, old, alivePID(pid))
		}
		p.wantExec("c", 4, "sh", "-c", "exit 4")
		p.run("d", "sh", "-c", "exit 3")
		p.wantExit("d", 3)
	})
}

// kill ends the monitor without a chance to clean up.
func (p *pod) kill() {
	p.t.Helper()
	if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	eventually(p.t, exitLimit, "monitor ends", func() bool { return !alivePID(p.pid) })
}

// R141: a client can shut down what is dead already.
func TestShutdownOfDead(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	p.kill()
	for range 2 {
		if err := p.client.Shutdown(p.ctx()); err != nil {
			t.Error(err)
		}
	}
	if left, _ := os.ReadDir(p.runDir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// R145: what is at the socket's path and is no socket is not touched.
func TestSocketPathTaken(t *testing.T) {
	for _, name := range []string{"conmon.sock", "conmon-fd.sock"} {
		for what, put := range map[string]func(path string) error{
			"file":      func(path string) error { return os.WriteFile(path, []byte("precious"), 0o644) },
			"link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
			"directory": func(path string) error { return os.Mkdir(path, 0o755) },
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				p := preparePod(t, anyVariant(), podOptions{})
				path := p.path("run", name)
				if err := errors.Join(os.Mkdir(p.runDir, 0o755), put(path)); err != nil {
					t.Fatal(err)
				}
				before, _ := os.Lstat(path)
				p.wantNoStart(podOptions{}, 1, name)
				if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() {
					t.Errorf("it was %v, is %v, %v", before, after, err)
				}
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// R149: a client finds out what it talks to.
func TestVersion(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	for _, verbose := range []bool{false, true} {
		v, err := p.client.Version(p.ctx(), &conmon.VersionRequest{Verbose: verbose})
		if err != nil || int(v.ProcessID) != p.pid || v.Version == "" || v.Commit == "" || v.BuildDate == "" || v.Target == "" ||
			v.RustVersion == "" || v.CargoVersion == "" || (v.CargoTree != "") != verbose {
			t.Errorf("verbose %v: %+v, %v", verbose, v, err)
		}
	}
}
