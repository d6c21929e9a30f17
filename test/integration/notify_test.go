package integration

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// manager stands for a service manager that waits for notifications.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

func newManager(t *testing.T, path string) *manager {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &manager{t, conn}
}

// next returns the next message that comes within limit; false if none does. One that is there already is found however
// busy the machine is.
func (m *manager) next(limit time.Duration) (message string, ok bool) {
	m.t.Helper()
	raw, err := m.conn.SyscallConn()
	if err != nil {
		m.t.Fatal(err)
	}
	text, control := make([]byte, 1<<16), make([]byte, 1<<10)
	n, controls := 0, 0
	ok = poll(limit, func() bool {
		received := false
		err := raw.Control(func(fd uintptr) {
			var err error
			n, controls, _, _, err = syscall.Recvmsg(int(fd), text, control, syscall.MSG_DONTWAIT)
			received = err == nil
		})
		return err != nil || received
	})
	if controls > 0 {
		m.t.Errorf("descriptors were relayed with %q", text[:n])
	}
	return string(text[:max(n, 0)]), ok
}

// want fails the test unless these messages are next, each within limit.
func (m *manager) want(limit time.Duration, messages ...string) {
	m.t.Helper()
	for _, want := range messages {
		if got, ok := m.next(limit); !ok || got != want {
			m.t.Fatalf("message is %.100q (%t), want %.100q", got, ok, want)
		}
	}
}

// wantNothing fails the test if a message is there already.
func (m *manager) wantNothing() {
	m.t.Helper()
	if got, ok := m.next(time.Millisecond); ok {
		m.t.Errorf("unexpected message %.100q", got)
	}
}

// notifying returns the create request for a container that runs a script and notifies through its monitor, as an engine
// sets it up. In the script "notifier" is test/cmd/notifier.
func (p *pod) notifying(id, socket, script string, o bundle.Options) *conmon.CreateContainerRequest {
	p.t.Helper()
	dir := p.path("bundles", id, "notify")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	o.Args = []string{"sh", "-c", "notifier() { /mnt/notifier \"$@\"; }; " + script}
	o.Env = append(o.Env, "NOTIFY_SOCKET=/run/notify/notify.sock")
	o.Mounts = append(o.Mounts, p.sharedTool("notifier"), bundle.Mount{Source: dir, Destination: "/run/notify"})
	req := p.request(id, o)
	req.SdNotifySocket = socket
	return req
}

// sharedTool is shared, with one of the programs of test/cmd more.
func (p *pod) sharedTool(name string) bundle.Mount {
	p.t.Helper()
	m := p.shared()
	b, err := os.ReadFile(tool(p.t, name))
	if err == nil && !exists(p.path("shared", name)) {
		err = os.WriteFile(p.path("shared", name), b, 0o755)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

// R105, R107, R109: what a container of any user says is relayed through the filter, in order, and to its last word.
func TestNotifyRelay(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		m := newManager(t, p.path("host.sock"))
		long := "STATUS=" + strings.Repeat("s", 4096)
		req := p.notifying("c", p.path("host.sock"), `set -e
			notifier READY=1 'STATUS=one\nMAINPID=1\n' MAINPID=1 FDSTORE=1 EXTEND_TIMEOUT_USEC=1 '\xff\x00\n' ''
			notifier -fds 10 'FDSTORE=1\nFDNAME=x' 'FDSTORE=1\nSTATUS=two'
			notifier 'RELOADING=1\nMONOTONIC_USEC=17' 'ERRNO=2\nBUSERROR=x' WATCHDOG=1 WATCHDOG=trigger `+long+`
			notifier -barrier 60s
			notifier BARRIER=1 'STATUS=last\nX=1' STOPPING=1
			exit 7`, bundle.Options{UID: 1000})
		p.runRequest(req)
		p.wantExit("c", 7)
		// The exit has been published: all is there by now.
		m.want(time.Millisecond, "READY=1", "STATUS=one", "STATUS=two", "RELOADING=1\nMONOTONIC_USEC=17",
			"ERRNO=2\nBUSERROR=x", "WATCHDOG=1", "WATCHDOG=trigger", long, "STATUS=last", "STOPPING=1")
		m.wantNothing()
		eventually(t, exitLimit, "socket is removed", func() bool { return !exists(p.path("bundles/c/notify/notify.sock")) })
	})
}

// What a container has said before its end is relayed, although the monitor learns of both at the same moment.
func TestNotifyLastWords(t *testing.T) {
	queue, err := strconv.Atoi(strings.TrimSpace(readFile(t, "/proc/sys/net/unix/max_dgram_qlen")))
	if err != nil {
		t.Fatal(err)
	}
	count := min(queue, 400) // is all that can wait for a monitor that does not run
	p := newPod(t, anyVariant(), podOptions{})
	m := newManager(t, p.path("host.sock"))
	script := await("go") + fmt.Sprintf("notifier -n %d STATUS=x", count)
	pid := p.runRequest(p.notifying("c", p.path("host.sock"), script, bundle.Options{}))
	if err := syscall.Kill(p.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p.release("go")
	ended := poll(exitLimit, func() bool { return strings.Contains(readFile(t, fmt.Sprintf("/proc/%d/stat", pid)), ") Z ") })
	if err := syscall.Kill(p.pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if !ended {
		t.Fatal("container does not end")
	}
	m.want(exitLimit, slices.Repeat([]string{"STATUS=x"}, count)...)
	m.wantNothing()
	p.wantExit("c", 0)
}

// R108: each container has a relay of its own, for as long as it lives.
func TestNotifyTwoContainers(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		abstract := fmt.Sprintf("conmonrs-%s", p.name)
		managers := map[string]*manager{"a": newManager(t, p.path("host.sock")), "b": newManager(t, "@"+abstract)}
		for id, socket := range map[string]string{"a": p.path("host.sock"), "b": "\x00" + abstract} {
			p.runRequest(p.notifying(id, socket, "notifier READY=1; for i in $(seq 10); do "+
				"until test -e /mnt/$i; do usleep 2000; done; notifier STATUS="+id+"$i; done; exec sleep 1000", bundle.Options{}))
		}
		for _, m := range managers {
			m.want(callLimit, "READY=1")
			m.wantNothing()
		}
		for i := range 10 {
			p.release(strconv.Itoa(i + 1))
			for id, m := range managers {
				m.want(callLimit, fmt.Sprintf("STATUS=%s%d", id, i+1))
			}
		}
		p.mustCommand("kill", "a", "KILL")
		p.wantExit("a", 137)
		p.wantExec("b", 0, "/mnt/notifier", "-barrier=60s", "STATUS=from an exec")
		managers["b"].want(callLimit, "STATUS=from an exec")
		managers["a"].wantNothing()
	})
}

// R109: descriptors that a container sends do not pile up in the monitor, whether its manager reads or not.
func TestNotifyDescriptors(t *testing.T) {
	v := anyVariant()
	p := newPod(t, v, podOptions{})
	p.run("warm-up", "true")
	p.wantExit("warm-up", 0)
	m := newManager(t, p.path("host.sock"))
	p.runRequest(p.notifying("c", p.path("host.sock"), "exec sleep 1000", bundle.Options{}))
	p.wantExec("c", 0, "/mnt/notifier", "-barrier=60s", "READY=1")
	m.want(callLimit, "READY=1")
	before := openCount(p.pid)
	p.wantExec("c", 0, "/mnt/notifier", "-n=1000", "-fds=10", "-barrier=60s", `FDSTORE=1\nFDNAME=x`, "UNKNOWN=1")
	m.wantNothing()
	m.conn.Close() // nobody is there
	p.wantExec("c", 0, "/mnt/notifier", "-n=1000", "-fds=10", "-barrier=60s", "STATUS=x")
	eventually(t, exitLimit, "descriptors are closed", func() bool { return openCount(p.pid) <= before })
	if log := string(tail(p.log, 1<<20)); strings.Count(log, "not relayed") != 1 {
		t.Errorf("%d reports of lost messages", strings.Count(log, "not relayed"))
	}
	if err := os.Remove(p.path("host.sock")); err != nil {
		t.Fatal(err)
	}
	m = newManager(t, p.path("host.sock"))
	p.wantExec("c", 0, "/mnt/notifier", "-barrier=60s", "STATUS=again")
	m.want(callLimit, "STATUS=again")
	p.mustCommand("kill", "c", "KILL")
	p.wantExit("c", 137)
	eventually(t, exitLimit, "socket is closed", func() bool { return openCount(p.pid) < before })
}

// A container that sends without end, to a manager that does not read, costs the other containers nothing.
func TestNotifyFlood(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	newManager(t, p.path("host.sock"))
	p.runRequest(p.notifying("flood", p.path("host.sock"), "while :; do notifier -n 1000 STATUS=x; done", bundle.Options{}))
	m := newManager(t, p.path("other.sock"))
	p.runRequest(p.notifying("c", p.path("other.sock"), "notifier READY=1; exec sleep 1000", bundle.Options{}))
	m.want(callLimit, "READY=1")
	for range 5 {
		p.wantExec("c", 0, "/mnt/notifier", "-barrier=60s", "STATUS=x")
		m.want(callLimit, "STATUS=x")
	}
	p.alive()
}

// R104: nothing waits for a container that never notifies, whatever NOTIFY_SOCKET says to the monitor or the runtime.
func TestNotifyNobodyWaits(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		m := newManager(t, filepath.Join(t.TempDir(), "n"))
		p := newPod(t, v, podOptions{env: []string{"NOTIFY_SOCKET=" + m.conn.LocalAddr().String()}})
		p.runRequest(p.notifying("c", p.path("nobody.sock"), "exec sleep 1000", bundle.Options{}))
		req := p.request("d", bundle.Options{Args: []string{"sleep", "1000"}})
		req.Env = append(req.Env, envVar("NOTIFY_SOCKET", m.conn.LocalAddr().String()))
		p.create(req)
		p.wantExec("c", 0, "true")
		m.wantNothing() // of the monitor either: it is not the service
	})
}

// What was made for a container that could not be created is removed, and a create that cannot make it says why.
func TestNotifyFailedCreate(t *testing.T) {
	v := anyVariant()
	p := newPod(t, v, podOptions{runtime: writeScript(t, filepath.Base(v.runtime), "#!/bin/sh\nexit 1\n")})
	p.wantNoContainer("exited with: 1", func(string) error { return nil })
	p.wantNoContainer("/notify/notify.sock", func(bundle string) error { return os.WriteFile(bundle+"/notify", nil, 0o644) })
}

// wantNoContainer tries to create a container with notifications in a bundle that is changed before.
func (p *pod) wantNoContainer(want string, change func(bundle string) error) {
	p.t.Helper()
	req := p.request("c", bundle.Options{Args: []string{"true"}})
	req.SdNotifySocket = p.path("host.sock")
	if err := change(req.BundlePath); err != nil {
		p.t.Fatal(err)
	}
	outside := func(path string) bool { return !strings.HasPrefix(path, req.BundlePath) } // a log may be left
	before, fds := slices.DeleteFunc(p.files(), outside), openCount(p.pid)
	if _, err := p.client.CreateContainer(p.ctx(), req); err == nil || !strings.Contains(err.Error(), want) {
		p.t.Errorf("error is %v, want something with %q", err, want)
	}
	if after := slices.DeleteFunc(p.files(), outside); !slices.Equal(after, before) {
		p.t.Errorf("files after it: %q, before: %q", after, before)
	}
	eventually(p.t, exitLimit, "descriptors are closed", func() bool { return openCount(p.pid) <= fds })
}
