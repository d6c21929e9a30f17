package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/test/bundle"
)

// R107: systemd-notify sends a barrier and waits five seconds for the answer, or fails.
func TestNotifySystemdNotify(t *testing.T) {
	if _, err := exec.LookPath("systemd-notify"); err != nil {
		t.Skip("the run under systemd has one:", err)
	}
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		m := newManager(t, p.path("host.sock"))
		p.runRequest(p.notifying("c", p.path("host.sock"), "exec sleep 1000", p.withSystemdNotify("c")))
		const within = "timeout 4 /usr/bin/systemd-notify "
		p.wantExec("c", 0, "sh", "-c", within+"--ready --status='up and running'")
		m.want(time.Millisecond, "READY=1\nSTATUS=up and running")
		m.conn.Close() // and with nobody there
		p.wantExec("c", 0, "sh", "-c", within+"STOPPING=1")
	})
}

// withSystemdNotify returns options of a container that has the machine's systemd-notify.
func (p *pod) withSystemdNotify(id string) bundle.Options {
	p.t.Helper()
	root := p.path("bundles", id, "rootfs")
	if err := os.MkdirAll(root, 0o755); err != nil {
		p.t.Fatal(err)
	}
	for _, name := range []string{"lib", "lib64"} {
		if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
			p.t.Fatal(err)
		}
	}
	return bundle.Options{Mounts: []bundle.Mount{{Source: "/usr", Destination: "/usr"}}}
}

// unit is a service of the machine's systemd.
type unit struct {
	t    *testing.T
	name string
}

func needSystemd(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		t.Skip("no systemd; the run under systemd has one")
	}
}

// startUnit starts a service. It is stopped at the end of the test.
func startUnit(t *testing.T, name string, args ...string) unit {
	t.Helper()
	u := unit{t, name}
	t.Cleanup(func() {
		_ = exec.Command("systemctl", "stop", name).Run()
		_ = exec.Command("systemctl", "reset-failed", name).Run()
	})
	if out, err := exec.Command("systemd-run", append([]string{"--unit=" + name}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("systemd-run: %v: %s", err, out)
	}
	return u
}

func (u unit) property(name string) string {
	u.t.Helper()
	out, err := exec.Command("systemctl", "show", "--value", "-p", name, u.name).Output()
	if err != nil {
		u.t.Fatal(err)
	}
	return strings.TrimSuffix(string(out), "\n")
}

func (u unit) await(name, want string) {
	u.t.Helper()
	eventually(u.t, exitLimit, name+" is "+want, func() bool { return u.property(name) == want })
}

// monitorCommand is a shell command that becomes the pod's monitor, and what else systemd-run needs for it.
func (p *pod) monitorCommand(args ...string) (options []string, command string) {
	// It is to stay in the service, where the manager takes notifications from it.
	env := []string{markVariable + "=" + p.name, "CONMON_SCOPE=never", "PATH=" + os.Getenv("PATH")}
	for _, word := range env {
		options = append(options, "--setenv="+word)
	}
	words := p.byHand(podOptions{args: args}).Args
	return options, "exec " + strings.Join(words, " ") + " >>" + p.log + " 2>&1"
}

// A service whose container notifies becomes active by that, and only by that: NotifyAccess=all, since the monitor is not
// the main process. What could do harm to the service does not get through.
func TestNotifyUnit(t *testing.T) {
	needSystemd(t)
	eachRuntime(t, func(t *testing.T, v variant) {
		p := preparePod(t, v, podOptions{})
		options, command := p.monitorCommand()
		u := startUnit(t, p.name+"-notify.service", append(options, "--no-block", "--service-type=notify", "-pNotifyAccess=all",
			"-pFileDescriptorStoreMax=8", "sh", "-c", "("+command+") && exec sleep 1000")...)
		eventually(t, exitLimit, "monitor runs", func() bool { return exists(p.path("run/pidfile")) })
		p.dial()
		if err := os.Remove(p.path("run/pidfile")); err != nil {
			t.Fatal(err)
		}
		p.runRequest(p.notifying("c", "/run/systemd/notify", "exec sleep 1000", p.withSystemdNotify("c")))
		p.wantExec("c", 0, "/mnt/notifier", "-barrier=60s", "STATUS=not yet")
		u.await("StatusText", "not yet")
		if state := u.property("ActiveState"); state != "activating" {
			t.Errorf("%s before the container is ready", state)
		}
		main := u.property("MainPID")
		p.wantExec("c", 0, "/mnt/notifier", "-fds=1", "MAINPID=1", `FDSTORE=1\nFDNAME=x`)
		p.wantExec("c", 0, "/usr/bin/systemd-notify", "--ready", "--status=up")
		u.await("ActiveState", "active")
		u.await("StatusText", "up")
		if pid, stored := u.property("MainPID"), u.property("NFileDescriptorStore"); pid != main || stored != "0" {
			t.Errorf("main process %s, was %s; %s descriptors stored", pid, main, stored)
		}
		p.shutdown()
	})
}
