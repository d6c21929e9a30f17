package integration

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/conmonrs/conmonrs/test/bundle"
)

// The monitor itself as a service: ready when it serves, stopping when it leaves, and in time for its watchdog.
func TestSkipForkUnit(t *testing.T) {
	needSystemd(t)
	p := preparePod(t, anyVariant(), podOptions{})
	options, command := p.monitorCommand("--skip-fork", "--stop-timeout=1")
	// Returns when the service is active.
	u := startUnit(t, p.name+"-monitor.service", append(options, "--service-type=notify", "-pWatchdogSec=2", "sh", "-c", command)...)
	p.dial()
	if state, pid := u.property("ActiveState"), u.property("MainPID"); state != "active" || pid == "0" {
		t.Errorf("%s, main process %s", state, pid)
	}
	p.run("c", "sleep", "1000")
	if env := p.wantExec("c", 0, "env"); strings.Contains(env, "NOTIFY_SOCKET") || strings.Contains(env, "WATCHDOG") {
		t.Errorf("environment of the container: %q", env)
	}
	last, seen := u.property("WatchdogTimestampMonotonic"), 0
	eventually(t, exitLimit, "the watchdog has been answered three times", func() bool {
		if now := u.property("WatchdogTimestampMonotonic"); now != last {
			last, seen = now, seen+1
		}
		return seen == 3
	})
	if out, err := exec.Command("systemctl", "stop", u.name).CombinedOutput(); err != nil {
		t.Errorf("systemctl stop: %v: %s", err, out)
	}
	p.wantExit("c", 137)
	log := journal(t, "-u", u.name, "-o", "cat", "--no-pager")
	if !strings.Contains(log, "Deactivated successfully") || strings.Contains(log, "Failed") {
		t.Errorf("journal of the service: %s", log)
	}
}

// The same with a manager that is not systemd. A monitor in the background, or below the process that is the service,
// says nothing: its environment is the engine's.
func TestSkipForkNotifies(t *testing.T) {
	for name, c := range map[string]struct {
		args, env []string
		notifies  bool
	}{
		"foreground":      {[]string{"--skip-fork"}, []string{"SYSTEMD_EXEC_PID="}, true},
		"below a service": {[]string{"--skip-fork"}, []string{"SYSTEMD_EXEC_PID=1"}, false},
		"background":      {nil, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := preparePod(t, anyVariant(), podOptions{})
			m := newManager(t, p.path("host.sock"))
			cmd := p.byHand(podOptions{args: c.args, env: append(c.env, "NOTIFY_SOCKET="+p.path("host.sock"))})
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if c.notifies {
				m.want(callLimit, "READY=1") // and it serves: dial does not wait
			} else {
				eventually(t, exitLimit, "monitor listens", func() bool { return exists(p.path("run/conmon.sock")) })
			}
			if c.args == nil { // the starter ends when the monitor serves
				if err := cmd.Wait(); err != nil {
					t.Error(err)
				}
			}
			p.dial()
			p.create(p.request("c", bundle.Options{Args: []string{"sleep", "1000"}}))
			m.wantNothing()
			_ = os.Remove(p.path("run/pidfile"))
			if err := syscall.Kill(p.pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if c.notifies {
				m.want(callLimit, "STOPPING=1")
			}
			p.wantExit("c", 137)
			_ = cmd.Wait() // again, in the background
			m.wantNothing()
		})
	}
}
