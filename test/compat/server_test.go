package compat

import (
	"testing"
	"time"

	"github.com/containers/conmon-rs/pkg/client"
)

func TestNewUsesRunningServer(t *testing.T) {
	forEach(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "true")
		second := p.connect(p.create("second.log"))
		if first := p.client.PID(); first == 0 || second.PID() != first {
			t.Errorf("second client of the directory: process %d, the first has %d", second.PID(), first)
		}
		if got := p.read("second.log"); got != "" {
			t.Errorf("a second monitor ran: %s", got)
		}
	})
}

// TestRestartAfterShutdown starts again in a directory that has been used.
func TestRestartAfterShutdown(t *testing.T) {
	forEach(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "true")
		first := p.client.PID()
		p.shutdown()
		p.client = p.connect(p.create("second.log"))
		adopt(p.client.PID())
		if second := p.client.PID(); second == 0 || second == first {
			t.Errorf("process %d after a restart, %d before", second, first)
		}
	})
}

func TestVersion(t *testing.T) {
	forEach(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "true")
		for name, verbose := range map[string]bool{"plain": false, "verbose": true} {
			t.Run(name, func(t *testing.T) {
				v, err := p.client.Version(t.Context(), &client.VersionConfig{Verbose: verbose})
				if err != nil {
					t.Fatal(err)
				}
				if v.ProcessID == 0 || v.ProcessID != p.client.PID() {
					t.Errorf("process %d, the monitor is %d", v.ProcessID, p.client.PID())
				}
				checkVersion(t, v.Version, map[string]string{
					"commit": v.Commit, "build date": v.BuildDate, "target": v.Target,
					"rust version": v.RustVersion, "cargo version": v.CargoVersion,
				})
				if (v.CargoTree != "") != verbose {
					t.Errorf("verbose %v: list of modules %q", verbose, v.CargoTree)
				}
			})
		}
	})
}

// TestVersionOfBinary is what an engine calls before it starts a monitor.
func TestVersionOfBinary(t *testing.T) {
	v, err := client.Version(monitorBinary(t))
	if err != nil {
		t.Fatal(err)
	}
	checkVersion(t, v.Version, map[string]string{
		"commit": v.Commit, "build date": v.BuildDate, "target": v.Target,
		"rust version": v.RustVersion, "cargo version": v.CargoVersion,
	})
}

func checkVersion(t *testing.T, version string, others map[string]string) {
	t.Helper()
	if version == "" {
		t.Error("no version")
	}
	for name, value := range others {
		if value == "" {
			t.Errorf("no %s", name)
		}
	}
}

func TestShutdownEndsContainers(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		for name, started := range map[string]bool{"created": false, "running": true} {
			t.Run(name, func(t *testing.T) {
				p := newPod(t, s, "sh", "-c", "trap '' TERM INT HUP; sleep 600 & wait; wait")
				p.createContainer(p.config())
				if started {
					p.start()
				}
				p.shutdown()
				if !eventually(5*time.Second, func() bool { got := p.status(); return got != "created" && got != "running" }) {
					t.Errorf("container is %q after the shutdown", p.status())
				}
			})
		}
	})
}
