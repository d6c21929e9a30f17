package integration

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// With no descriptor left, creates fail with a clear error, exits are published all the same, and the monitor recovers.
func TestDescriptorExhaustion(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{conditions: conditions{NoFile: [2]uint64{64, 64}}})
		pid := p.run("c", "sleep", "1000")
		fds := openCount(p.pid)
		conns := p.exhaust()
		_, err := p.client.CreateContainer(p.ctx(), p.request("late", bundle.Options{Args: []string{"true"}}))
		if err == nil || !strings.Contains(err.Error(), "too many open files") {
			t.Errorf("create: %v", err)
		}
		r := p.exec("late", 5*time.Second, "true")
		if r.ExitCode >= 0 || !strings.Contains(string(r.Stderr), "too many open files") {
			t.Errorf("exec: %+v", r)
		}
		// The end of the container frees some descriptors, and waiting connections take them.
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for _, conn := range conns {
			conn.Close()
		}
		p.wantExit("c", 137)
		// Connections that were still waiting come and go before one that is made now.
		last, err := client.Dial(p.ctx(), filepath.Join(p.runDir, "conmon.sock"))
		if err != nil {
			t.Fatal(err)
		}
		last.Close()
		eventually(t, exitLimit, "descriptors are free", func() bool { return openCount(p.pid) <= fds })
		p.run("after", "sh", "-c", "exit 3")
		p.wantExit("after", 3)
		p.remove("after")
	})
}

// exhaust connects until the monitor has no descriptor left.
func (p *pod) exhaust() (conns []net.Conn) {
	p.t.Helper()
	for range 100 {
		conns = append(conns, p.connect())
	}
	last := 0
	eventually(p.t, exitLimit, "monitor has no descriptor left", func() bool {
		n := len(descriptors(p.pid))
		same := n == last
		last = n
		return same && n >= 60
	})
	return conns
}

// R065: the ends of many short execs do not disturb the long ones.
func TestLongAndShortExecs(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.run("c", "sleep", "1000")
		codes := make(chan int32, 10)
		for i := range 10 {
			go func() {
				r, err := p.client.ExecSync(p.ctx(), p.execRequest("c", 0, "sleep", fmt.Sprint(2000+i)))
				if err != nil {
					t.Errorf("long exec: %v", err)
					codes <- 0
					return
				}
				codes <- r.ExitCode
			}()
		}
		eventually(t, exitLimit, "long execs run", func() bool { return len(p.containerProcesses("c")) == 11 })
		for range scaled(5) {
			parallel(10, func(int) {
				if r, err := p.client.ExecSync(p.ctx(), p.execRequest("c", 0, "true")); err != nil || r.ExitCode != 0 {
					t.Errorf("short exec: %+v, %v", r, err)
				}
			})
		}
		if n := len(p.containerProcesses("c")); n != 11 {
			t.Errorf("%d processes in the container", n)
		}
		p.mustCommand("kill", "c", "KILL")
		p.wantExit("c", 137)
		for range 10 {
			if code := <-codes; code != 137 {
				t.Errorf("a long exec ended with %d", code)
			}
		}
		eventually(t, exitLimit, "monitor has no children", func() bool { return len(p.children()) == 0 })
	})
}

// R069: what execs leave behind in a container without a pid namespace of its own is reaped.
func TestOrphansOfExecs(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.runOptions("c", bundle.Options{Args: []string{"sleep", "1000"}, SharePID: true})
		for range scaled(4) {
			parallel(10, func(int) {
				r, err := p.client.ExecSync(p.ctx(), p.execRequest("c", 0, "sh", "-c", "(sleep 0.1 >/dev/null 2>&1 &) ; exit 0"))
				if err != nil || r.ExitCode != 0 {
					t.Errorf("exec: %+v, %v", r, err)
				}
			})
		}
		eventually(t, 5*time.Second, "orphans are reaped", func() bool { return len(p.children()) == 1 })
	})
}
