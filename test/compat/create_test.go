package compat

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containers/conmon-rs/pkg/client"
	"go.podman.io/common/pkg/resize"
)

func TestCreateContainer(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "ls")
		p.createContainer(p.config())
	})
}

func TestExitFile(t *testing.T) {
	for name, script := range map[string][2]string{"success": {"ls", "0"}, "failure": {"exit 7", "7"}} {
		t.Run(name, func(t *testing.T) {
			forEachTerminal(t, func(t *testing.T, s setting) {
				finish(t, s, []string{"sh", "-c", script[0]}, unchanged, func(p *pod) error {
					if _, err := os.Stat(p.path("oom_exit")); err == nil {
						t.Error("an exit for lack of memory is reported")
					}
					return p.expect("exit", script[1])
				})
			})
		})
	}
}

func TestCleanupCommand(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		finish(t, s, []string{"ls"}, func(p *pod, c *client.CreateContainerConfig) {
			c.Stdin = false
			c.CleanupCmd = []string{"touch", p.path("cleaned")}
		}, func(p *pod) error { return p.expect("cleaned", "") })
	})
}

func TestInvalidCommand(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "invalid")
		_, err := p.client.CreateContainer(t.Context(), &client.CreateContainerConfig{
			ID: p.id, BundlePath: p.dir, Terminal: s.terminal,
			LogDrivers: []client.ContainerLogDriver{{Path: p.path("log")}},
		})
		if err == nil || !strings.Contains(err.Error(), "not found in $PATH") {
			t.Errorf("create with an invalid command: %v", err)
		}
		if got := p.status(); got != "" {
			t.Errorf("container is %q", got)
		}
	})
}

func TestLongRunDir(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		dir := t.TempDir()
		for len(dir) < 300 {
			dir = filepath.Join(dir, strings.Repeat("long", 20))
		}
		p := newPodIn(t, s, dir, "sleep", "600")
		p.running()
		result := p.exec(t, &client.ExecSyncConfig{Command: []string{"echo", "-n", "far away"}})
		if got := string(result.Stdout); got != "far away" {
			t.Errorf("output %q", got)
		}
	})
}

func TestWindowSize(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "sh", "-c", "while ! [ -e /go ]; do usleep 10000; done; stty size")
		p.createContainer(p.config())
		err := p.client.SetWindowSizeContainer(t.Context(), &client.SetWindowSizeContainerConfig{
			ID: p.id, Size: &resize.TerminalSize{Width: 10, Height: 20},
		})
		if !s.terminal {
			if err == nil {
				t.Error("a container without a terminal was resized")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		p.start()
		if err := os.WriteFile(p.path("rootfs/go"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		// What was printed is in the log when the exit file is there.
		for end := time.Now().Add(10 * time.Second); p.now("exit") != "0"; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("exit file has %q", p.now("exit"))
			}
		}
		if got := p.read("log"); !strings.Contains(got, "stdout F 20 10\r") {
			t.Errorf("log %q, want a size of 20 10", got)
		}
	})
}

// TestGlobalArgs takes a failure for the runtime to log: not every version of crun has a word to say about a success.
func TestGlobalArgs(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		for name, command := range map[string]string{"success": "ls", "failure": "invalid"} {
			t.Run(name, func(t *testing.T) {
				p := newPod(t, s, command)
				p.create("runtime.log")
				config := p.config()
				config.GlobalArgs = []string{"--log", p.path("runtime.log"), "--debug"}
				if name == "success" {
					p.createContainer(config)
				} else if _, err := p.client.CreateContainer(t.Context(), config); err == nil {
					t.Error("a container with an invalid command was created")
				}
				if p.read("runtime.log") == "" && (name == "failure" || filepath.Base(s.runtime) != "crun") {
					t.Error("the runtime did not get the arguments: its log is empty")
				}
			})
		}
	})
}

// TestRefusals has an error for each call about a container that is not there, and a monitor that goes on.
func TestRefusals(t *testing.T) {
	forEach(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "sleep", "600")
		ctx := t.Context()
		size := &resize.TerminalSize{Width: 10, Height: 20}
		for name, err := range map[string]error{
			"reopen": p.client.ReopenLogContainer(ctx, &client.ReopenLogContainerConfig{ID: "other"}),
			"resize": p.client.SetWindowSizeContainer(ctx, &client.SetWindowSizeContainerConfig{ID: "other", Size: size}),
			"attach": p.client.AttachContainer(ctx, &client.AttachConfig{ID: "other", SocketPath: p.path("attach")}),
		} {
			if err == nil {
				t.Errorf("%s of an unknown container succeeds", name)
			}
		}
		p.running()
		if _, err := p.client.CreateContainer(ctx, p.config()); err == nil {
			t.Error("a container was created twice")
		}
		if _, err := p.client.Version(ctx, &client.VersionConfig{}); err != nil {
			t.Errorf("version after errors: %v", err)
		}
	})
}
