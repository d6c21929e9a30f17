package compat

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containers/conmon-rs/pkg/client"
)

// TestLogSize has a limit with room for one line.
func TestLogSize(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		finish(t, s, twoLines, func(_ *pod, c *client.CreateContainerConfig) {
			c.LogDrivers[0].MaxSize = 50
		}, func(p *pod) error {
			if got := p.now("log"); strings.Contains(got, "hello") || !strings.Contains(got, "world") {
				return fmt.Errorf("log %q, want the second line only", got)
			}
			return nil
		})
	})
}

func TestJSONLog(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		finish(t, s, twoLines, func(p *pod, c *client.CreateContainerConfig) {
			c.LogDrivers[0] = client.ContainerLogDriver{Type: client.LogDriverTypeJSONLogger, Path: p.path("json")}
		}, func(p *pod) error {
			got := strings.TrimSpace(p.now("json"))
			if !strings.HasPrefix(got, "{") || !strings.HasSuffix(got, "}") || !strings.Contains(got, "world") {
				return fmt.Errorf("log %q", got)
			}
			return nil
		})
	})
}

var twoLines = []string{"sh", "-c", "echo hello && echo world"}

// TestReopenLog renames the log as the kubelet does.
func TestReopenLog(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "sh", "-c", "echo before; read line; echo after")
		config := p.config()
		p.createContainer(config)
		p.start()
		if !eventually(5*time.Second, func() bool { return strings.Contains(p.read("log"), "before") }) {
			t.Fatalf("log %q", p.read("log"))
		}
		if err := os.Rename(p.path("log"), p.path("log.1")); err != nil {
			t.Fatal(err)
		}
		if err := p.client.ReopenLogContainer(t.Context(), &client.ReopenLogContainerConfig{ID: p.id}); err != nil {
			t.Fatal(err)
		}
		if got := p.read("log"); got != "" {
			t.Errorf("new log has %q", got)
		}
		stdin, typed := pipe()
		done := p.attach(&client.AttachConfig{
			StopAfterStdinEOF: true, Streams: client.AttachStreams{Stdin: &client.In{ReadCloser: stdin}},
		})
		typed.write(t, "\n")
		typed.Close()
		if err := await(t, done); err != nil {
			t.Errorf("attach: %v", err)
		}
		p.awaitStatus("stopped")
		if got := p.read("log"); !strings.Contains(got, "after") || strings.Contains(got, "before") {
			t.Errorf("new log has %q", got)
		}
		if got := p.read("log.1"); strings.Contains(got, "after") {
			t.Errorf("renamed log has %q", got)
		}
	})
}
