package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/logcheck"
)

// cpuTime is what all threads of a process have used so far.
func cpuTime(t *testing.T, pid int) (total time.Duration) {
	t.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		ns, _, _ := strings.Cut(string(b), " ")
		n, err := strconv.ParseInt(ns, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		total += time.Duration(n)
	}
	return total
}

// idle checks that the monitor uses no processor time in the state it is in now.
func (p *pod) idle(state string) {
	p.t.Helper()
	measure := func(d time.Duration) time.Duration {
		before, end := cpuTime(p.t, p.pid), time.Now().Add(d)
		poll(d, func() bool { return time.Now().After(end) })
		return cpuTime(p.t, p.pid) - before
	}
	// Buffers are given back and threads end within about a second after the last work.
	if !poll(5*time.Second, func() bool { return measure(200*time.Millisecond) < 2*time.Millisecond }) {
		p.t.Fatalf("%s: never idle", state)
	}
	if used := measure(time.Second); used > 20*time.Millisecond {
		p.t.Errorf("%s: %v in a second", state, used)
	}
}

// R137, R052: no state of a container or of its clients keeps the monitor busy.
func TestIdle(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.interactive("closed", "exec >&- 2>&- <&-; touch /mnt/closed; "+await("end")+"exit 9")
		eventually(t, exitLimit, "streams are closed", func() bool { return fileSize(p.path("shared/closed")) >= 0 })
		clients := []*rawClient{p.attachRaw("closed", p.path("attach")), p.attachRaw("closed", p.path("attach"))}
		_ = clients[1].conn.CloseWrite()
		clients[0].send("nobody reads this\n")

		p.interactive("c", await("end")+"exit 8")
		half := p.attachRaw("c", p.path("attach-c"))
		_ = half.conn.CloseWrite()
		p.attachRaw("c", p.path("attach-c")).conn.Close()
		p.attachRaw("c", p.path("attach-c")).send("waits\n")
		if err := os.Remove(p.path("attach-c")); err != nil {
			t.Fatal(err)
		}
		held := p.script("(" + await("end") + ") & exit 7") // its streams are held by a process that it left
		held.SharePID = true
		p.runOptions("held", held)
		p.wantExit("held", 7)

		p.interactive("stuck", await("end")+"exit 6") // does not read its input
		stuck := p.attachRaw("stuck", p.path("attach-stuck"))
		for {
			_ = stuck.conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			if _, err := stuck.conn.Write(make([]byte, 30_000)); err != nil {
				break
			}
		}
		p.idle("all")
		p.release("end")
		for id, code := range map[string]int{"closed": 9, "c": 8, "stuck": 6} {
			p.wantExit(id, code)
		}
		eventually(t, exitLimit, "held streams end", func() bool { return len(p.containerProcesses("held")) == 0 })
		p.idle("after the end")
	})
}

// R136: a container that makes its streams non-blocking changes nothing for the monitor.
func TestNonBlockingStreams(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		n := numbered{spec: logcheck.Spec{Min: 1, Max: 8192, Seed: 136}, bytes: 1 << 20, both: !v.terminal}
		req := p.request("c", p.script("echo ready; "+await("go")+n.command()+"; echo status $? >/mnt/status"))
		req.Stdin = true
		pid := p.runRequest(req)
		p.waitOutput("c", "ready")
		for fd := range 3 {
			setNonBlocking(t, pid, fd)
		}
		p.idle("before output")
		if err := os.Truncate(p.path("logs/c"), 0); err != nil { // without "ready"
			t.Fatal(err)
		}
		p.release("go")
		p.wantExit("c", 0)
		if status := readFile(t, p.path("shared/status")); status != "status 0\n" {
			t.Errorf("loggen: %q", status)
		}
		n.verify(t, v.format(conmon.LogDriverCRI), p.path("logs/c"))
	})
}

// setNonBlocking sets O_NONBLOCK on the open file that is another process's descriptor.
func setNonBlocking(t *testing.T, pid, number int) {
	t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, number, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
}
