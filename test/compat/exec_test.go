package compat

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containers/conmon-rs/pkg/client"
)

// exec runs a command as the pod's setting says.
func (p *pod) exec(t *testing.T, config *client.ExecSyncConfig) *client.ExecContainerResult {
	t.Helper()
	config.ID, config.Terminal = p.id, p.terminal
	result, err := p.client.ExecSyncContainer(t.Context(), config)
	if err != nil {
		t.Errorf("exec %q: %v", config.Command, err)
		return &client.ExecContainerResult{}
	}
	return result
}

// execHello runs the numbered command of the suite and checks all of its result.
func (p *pod) execHello(t *testing.T, n int, timeout uint64) {
	t.Helper()
	r := p.exec(t, &client.ExecSyncConfig{
		Command: []string{"echo", "-n", "hello", "world", strconv.Itoa(n)}, Timeout: timeout,
	})
	if want := fmt.Sprintf("hello world %d", n); string(r.Stdout) != want || len(r.Stderr) > 0 || r.ExitCode != 0 || r.TimedOut {
		t.Errorf("stdout %q, stderr %q, code %d, timed out %v; want %q", r.Stdout, r.Stderr, r.ExitCode, r.TimedOut, want)
	}
}

func TestExecSync(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "sleep", "600")
		p.running()
		p.execHello(t, 1, 0)
		p.execHello(t, 2, 10)
		// The container printed nothing: what execs print is none of its log's.
		if err := p.client.ReopenLogContainer(t.Context(), &client.ReopenLogContainerConfig{ID: p.id}); err != nil {
			t.Error(err)
		}
		if got := p.read("log"); got != "" {
			t.Errorf("log %q", got)
		}
	})
}

func TestExecSyncResults(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "sleep", "600")
		p.running()
		for _, test := range []struct {
			name    string
			command []string
			code    int32
			// stdout and stderr without a terminal, where both are stdout with CR LF
			stdout, stderr string
		}{
			{"success", []string{"true"}, 0, "", ""},
			{"exit code", []string{"sh", "-c", "exit 42"}, 42, "", ""},
			{"largest exit code", []string{"sh", "-c", "exit 255"}, 255, "", ""},
			{"applet not found", []string{"busybox", "invalid"}, 127, "", "invalid: applet not found\n"},
			{"killed", []string{"sh", "-c", "kill -KILL $$"}, 137, "", ""},
			{"stdout and stderr", []string{"sh", "-c", "echo to one; echo to two >&2"}, 0, "to one\n", "to two\n"},
		} {
			t.Run(test.name, func(t *testing.T) {
				stdout, stderr := test.stdout, test.stderr
				if s.terminal {
					stdout, stderr = strings.ReplaceAll(stdout+stderr, "\n", "\r\n"), ""
				}
				r := p.exec(t, &client.ExecSyncConfig{Command: test.command})
				if r.ExitCode != test.code || string(r.Stdout) != stdout || string(r.Stderr) != stderr || r.TimedOut {
					t.Errorf("code %d, stdout %q, stderr %q, timed out %v; want %d, %q, %q",
						r.ExitCode, r.Stdout, r.Stderr, r.TimedOut, test.code, stdout, stderr)
				}
			})
		}
	})
}

func TestExecSyncTimeout(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "sleep", "600")
		p.running()
		begin := time.Now()
		r := p.exec(t, &client.ExecSyncConfig{Command: []string{"sleep", "60"}, Timeout: 1})
		if !r.TimedOut {
			t.Errorf("not timed out: code %d, stdout %q, stderr %q", r.ExitCode, r.Stdout, r.Stderr)
		}
		if took := time.Since(begin); took < time.Second || took > 10*time.Second {
			t.Errorf("took %v with a limit of 1 s", took)
		}
		if got := p.status(); got != "running" {
			t.Errorf("container is %q", got)
		}
		p.execHello(t, 3, 10)
	})
}

func TestExecSyncParallel(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "sleep", "600")
		p.running()
		var calls sync.WaitGroup
		for n := range 10 {
			calls.Go(func() { p.execHello(t, n, 0) })
		}
		calls.Wait()
	})
}

// TestExecSyncMemory subtracts unsigned numbers as the suite does: memory that falls meanwhile is as bad as a leak.
func TestExecSyncMemory(t *testing.T) {
	const execs, limit = 25, 2000
	forEachTerminal(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "sleep", "600")
		p.running()
		before := p.rss()
		for n := range execs {
			p.execHello(t, n, 0)
		}
		after := p.rss()
		t.Logf("VmRSS %d KiB before %d execs, %d after", before, execs, after)
		if maxRSS(t) > 0 && after-before >= limit {
			t.Errorf("VmRSS went from %d to %d KiB over %d execs", before, after, execs)
		}
	})
}
