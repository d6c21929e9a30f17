package integration

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// In the foreground the monitor keeps its pid and its standard streams, for a service manager, and nothing else.
func TestSkipFork(t *testing.T) {
	p := preparePod(t, anyVariant(), podOptions{})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := p.byHand(podOptions{args: []string{"--skip-fork"}, conditions: conditions{Copies: []int{3, 7, 100}}})
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	eventually(t, exitLimit, "monitor listens", func() bool {
		conn, err := net.Dial("unix", p.path("run", "conmon.sock"))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	p.dial()
	if p.pid != cmd.Process.Pid {
		t.Errorf("process %d serves, %d was started", p.pid, cmd.Process.Pid)
	}
	if exists(p.path("run", "pidfile")) {
		t.Error("there is a pid file")
	}
	p.checkInherited(1)
	p.run("c", "sh", "-c", "sleep 1000")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit status: %v", err)
	}
	p.wantExit("c", 137)
}

// checkInherited looks for pipes among the monitor's descriptors.
func (p *pod) checkInherited(allowed ...int) {
	p.t.Helper()
	for fd, target := range descriptors(p.pid) {
		if (strings.HasPrefix(target, "pipe:") || fd >= 100) && !slices.Contains(allowed, fd) {
			p.t.Errorf("descriptor %d is %s", fd, target)
		}
	}
}

// R133: no descriptor of the starter is kept, so that whoever reads from its pipes sees the end.
func TestInheritedDescriptors(t *testing.T) {
	p := preparePod(t, anyVariant(), podOptions{})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := p.byHand(podOptions{conditions: conditions{Copies: []int{3, 7, 100}}})
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := r.SetReadDeadline(time.Now().Add(exitLimit)); err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(r); err != nil || len(out) > 0 {
		t.Errorf("read %q, %v", out, err)
	}
	p.dial()
	p.checkInherited()
	if err := os.Remove(p.path("run", "pidfile")); err != nil {
		t.Error(err)
	}
}

// R144: paths longer than a socket address work, for the monitor's socket and for attach.
func TestLongRuntimeDir(t *testing.T) {
	for _, length := range []int{60, 90, 107, 108, 150, 250} {
		for _, terminal := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/terminal=%v", length, terminal), func(t *testing.T) {
				v := anyVariant()
				v.terminal = terminal
				p := preparePod(t, v, podOptions{})
				p.runDir = longPath(p.dir, length)
				if err := p.startMonitor(podOptions{}); err != nil {
					t.Fatal(err)
				}
				p.run("c", "sleep", "1000")
				p.wantExec("c", 0, "true")
				for _, path := range []string{p.runDir + "/c/attach", longPath(p.dir+"/attach", length), longPath(p.dir+"/attach", 300)} {
					if err := p.attachSocket("c", path); err != nil {
						t.Errorf("attach at %d bytes: %v", len(path), err)
					}
					if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSocket {
						t.Errorf("attach socket of %d bytes: %v, %v", len(path), info, err)
					}
				}
				names := []string{}
				entries, _ := os.ReadDir(p.runDir)
				for _, e := range entries {
					names = append(names, e.Name())
				}
				if !slices.Equal(names, []string{"c", "conmon.sock"}) {
					t.Errorf("the directory has %q", names)
				}
				p.shutdown()
				p.wantExit("c", 137)
				if _, err := os.Lstat(p.runDir + "/conmon.sock"); err == nil {
					t.Error("the socket is still there")
				}
			})
		}
	}
}

// longPath returns a path of this many bytes below dir.
func longPath(dir string, length int) string {
	path := dir + "/"
	for len(path) < length {
		n := min(length-len(path), 50)
		path += strings.Repeat("x", n)
		if len(path) < length-1 {
			path += "/"
		} else if len(path) == length-1 {
			path += "x"
		}
	}
	return path
}

// R053: the pod's processes are the monitor's, whoever is its parent.
func TestMonitorBelowSubreaper(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	p := newPod(t, anyVariant(), podOptions{})
	p.run("c", "sh", "-c", "exit 3")
	p.wantExit("c", 3)
	if parent := statusNumber(p.pid, "PPid"); parent != os.Getpid() {
		t.Errorf("parent of the monitor is %d", parent)
	}
	if err := p.client.Shutdown(p.ctx()); err != nil {
		t.Error(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(p.pid, &status, 0, nil); err != nil || status.ExitStatus() != 0 {
		t.Errorf("exit status %v, %v", status, err)
	}
}
