package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

func TestLifecycle(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		pid := p.create(p.request("c", bundle.Options{Args: []string{"sh", "-c", "echo hello; exit 7"}}))
		if status := p.status("c"); status != "created" {
			t.Errorf("status after create is %q", status)
		}
		if parent := statusNumber(pid, "PPid"); parent != p.pid {
			t.Errorf("parent of the container is %d, want the monitor %d", parent, p.pid)
		}
		p.start("c")
		p.wantExit("c", 7)
		if code, err := waitExit(p.path("persist", "c"), 0); code != 7 || err != nil {
			t.Errorf("second exit file: %d, %v", code, err)
		}
		if out := p.output("c"); out != "hello\n" {
			t.Errorf("log is %q", out)
		}
		if _, err := os.Stat(p.path("bundles", "c", "pidfile")); err != nil {
			t.Error(err)
		}
	})
}

func TestExitCodes(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{conditions: conditions{Core: 1 << 20}})
		shells := map[string]int{"exit 0": 0, "exit 1": 1, "exit 255": 255, "nosuchcommand": 127, "exit 256": 0}
		for script, want := range shells {
			p.run("c", "sh", "-c", script)
			if code := p.exit("c"); code != want {
				t.Errorf("%q: code %d, want %d", script, code, want)
			}
			p.remove("c")
		}
		// R059. The first process of a pid namespace cannot kill itself, so it shares that of the host. The shell
		// ignores SIGQUIT.
		for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGABRT, unix.SIGSEGV, unix.SIGKILL, unix.SIGTERM, 34, 64} {
			p.runOptions("s", bundle.Options{Args: []string{"sh", "-c", fmt.Sprintf("kill -%d $$; exit 3", sig)}, SharePID: true})
			if code := p.exit("s"); code != 128+int(sig) {
				t.Errorf("signal %d: code %d, want %d", sig, code, 128+sig)
			}
			p.remove("s")
		}
		pid := p.run("k", "sleep", "1000")
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.wantExit("k", 137)
	})
}

// A container that is created and not started is ended by its signals as any other.
func TestNeverStarted(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.create(p.request("c", bundle.Options{Args: []string{"true"}}))
		p.mustCommand("kill", "c", "KILL")
		p.wantExit("c", 137)
		p.create(p.request("d", bundle.Options{Args: []string{"true"}}))
		p.mustCommand("delete", "--force", "d")
		p.wantExit("d", 137)
	})
}

func TestIDs(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		req := p.request("c", bundle.Options{Args: []string{"sh", "-c", "sleep 1000"}})
		pid := p.create(req)
		if _, err := p.client.CreateContainer(p.ctx(), req); !errors.Is(err, conmon.ErrContainerExists) {
			t.Errorf("second create: %v", err)
		}
		p.start("c")
		if !alivePID(pid) || p.status("c") != "running" {
			t.Error("the first container is gone")
		}
		p.mustCommand("kill", "c", "KILL")
		p.wantExit("c", 137)
		p.remove("c")
		p.create(req)
		p.mustCommand("kill", "c", "KILL")
		p.wantExit("c", 137)
		p.remove("c")
	})
}

// An id can be used again as soon as the process is seen to have gone, whether or not the exit has been published.
func TestIDIsFreeAfterTheEnd(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		req := p.request("c", bundle.Options{Args: []string{"sleep", "1000"}})
		for range scaled(10) {
			pid := p.runRequest(req)
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, exitLimit, "process is gone", func() bool { return !alivePID(pid) })
			p.mustCommand("delete", "--force", "c")
		}
		p.runRequest(req)
		p.mustCommand("kill", "c", "KILL")
		p.wantExit("c", 137)
	})
}

// R051: what a failed create began is taken back, and the id is free.
func TestFailedCreates(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		fds := openCount(p.pid)
		bad := p.request("c", bundle.Options{Args: []string{"/no/such/program"}})
		for range scaled(5) {
			_, err := p.client.CreateContainer(p.ctx(), bad)
			var failed *conmon.RuntimeError
			if !errors.As(err, &failed) || !strings.Contains(err.Error(), "/no/such/program") {
				t.Fatalf("create: %v", err)
			}
		}
		if left := p.mustCommand("list", "-q"); left != "" {
			t.Errorf("the runtime knows %q", left)
		}
		if len(p.containerProcesses("c")) > 0 {
			t.Errorf("processes left: %v", p.containerProcesses("c"))
		}
		p.settled(fds)
		p.run("c", "true")
		p.wantExit("c", 0)
	})
}

// settled waits until the monitor has no dead children and no more descriptors than before.
func (p *pod) settled(fds int) {
	p.t.Helper()
	if !poll(5*time.Second, func() bool { return len(p.zombies()) == 0 && openCount(p.pid) <= fds }) {
		p.t.Errorf("zombies %v; %d descriptors, before %d: %v", p.zombies(), openCount(p.pid), fds, descriptors(p.pid))
	}
}

// Exit files are complete when they appear, the last of the list first, and by rename only.
func TestExitFileOrder(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	dir := p.path("watched")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	req := p.request("c", bundle.Options{Args: []string{"sh", "-c", "exit 42"}})
	req.ExitPaths = []string{dir + "/first", p.path("no", "such", "directory"), dir + "/second", dir + "/third"}
	p.create(req)
	seen := watch(t, dir, func() { p.start("c") }, "first")
	var named []string
	for _, e := range seen {
		if !strings.HasPrefix(e.name, ".") {
			named = append(named, e.name)
			if e.mask&unix.IN_MOVED_TO == 0 || e.content != "42" {
				t.Errorf("%s appeared with event %#x and content %q", e.name, e.mask, e.content)
			}
		}
	}
	if want := []string{"third", "second", "first"}; !slices.Equal(named, want) {
		t.Errorf("order %q, want %q", named, want)
	}
	p.exitAt(dir+"/first", 42)
	if left, _ := filepath.Glob(dir + "/.*"); len(left) > 0 {
		t.Errorf("temporary files left: %q", left)
	}
}

func (p *pod) exitAt(path string, want int) {
	p.t.Helper()
	if code, err := waitExit(path, exitLimit); err != nil || code != want {
		p.t.Errorf("exit code %d, %v; want %d", code, err, want)
	}
}

// R057: a path that cannot be written for want of space does not hold back the others, and is written later.
func TestExitFileOnFullDisk(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	full := p.path("full")
	if err := os.Mkdir(full, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", full, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(full, unix.MNT_DETACH) })
	filler := full + "/filler"
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill: %v", err)
	}
	req := p.request("c", bundle.Options{Args: []string{"sh", "-c", "exit 5"}})
	req.ExitPaths = append(req.ExitPaths, full+"/exit")
	p.create(req)
	p.start("c")
	p.wantExit("c", 5)
	if _, err := os.Stat(full + "/exit"); err == nil {
		t.Fatal("the disk was not full")
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	p.exitAt(full+"/exit", 5)
	if n := strings.Count(string(tail(p.log, 1<<20)), "exit file not written"); n != 1 {
		t.Errorf("reported %d times", n)
	}
}

// R051, R052: no exit is lost or wrong, and nothing piles up.
func TestShortLived(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		bundles := []*conmon.CreateContainerRequest{
			p.request("a", bundle.Options{Args: []string{"sh", "-c", "exit 3"}}),
			p.request("b", bundle.Options{Args: []string{"sh", "-c", "exit 4"}, Terminal: true}),
		}
		fds, before := 0, 0
		for i := range scaled(40) / 2 {
			for j, req := range bundles {
				p.create(req)
				p.start(req.ID)
				p.wantExit(req.ID, 3+j)
				p.remove(req.ID)
			}
			if i == 2 { // warm
				fds, before = openCount(p.pid), threads(p.pid)
			}
		}
		p.settled(fds)
		if n := threads(p.pid); n > before+2 {
			t.Errorf("%d threads, before %d", n, before)
		}
	})
}

// R052: the end of the process is seen though it has closed its streams long before.
func TestExitAfterClosedStreams(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.run("c", "sh", "-c", "exec >&- 2>&- <&-; usleep 200000; exit 9")
		p.wantExit("c", 9)
	})
}

// A process that the container left holds its streams: the exit is not delayed, and its output still logged.
func TestExitWithHeldStreams(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.runOptions("c", bundle.Options{
			SharePID: true, Args: []string{"sh", "-c", "(usleep 1500000; echo late; sleep 1000) & echo early; exit 6"},
		})
		start := time.Now()
		p.wantExit("c", 6)
		if d := time.Since(start); d > 1200*time.Millisecond {
			t.Errorf("the exit came after %v", d)
		}
		p.waitOutput("c", "late")
		p.mustCommand("delete", "--force", "c")
		if left := p.containerProcesses("c"); len(left) > 0 {
			for _, proc := range left {
				_ = unix.Kill(proc.pid, unix.SIGKILL)
			}
		}
	})
}
