package client_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// options start the fake in a mode.
func options(t *testing.T, dir, mode string) client.StartOptions {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return client.StartOptions{
		Binary: exe, Runtime: "/usr/bin/true", RuntimeDir: dir,
		// A binary with the race detector otherwise sleeps for a second when it exits.
		Env: append(os.Environ(), fakeEnv+"="+mode, "GORACE=atexit_sleep_ms=0"),
	}
}

func start(t *testing.T, dir, mode string) *client.Client {
	t.Helper()
	c, err := client.Start(t.Context(), options(t, dir, mode))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if pid := c.PID(); pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		c.Close()
	})
	return c
}

func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != "args" {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestStartUseShutdown(t *testing.T) {
	for name, dir := range map[string]string{
		"short": filepath.Join(t.TempDir(), "new", "dir"),
		"long":  filepath.Join(t.TempDir(), strings.Repeat("d", 120), strings.Repeat("e", 120)),
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			c := start(t, dir, "")
			v, err := c.Version(t.Context(), &conmon.VersionRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if int(v.ProcessID) != c.PID() || c.PID() == 0 {
				t.Errorf("pid %d, version says %d", c.PID(), v.ProcessID)
			}
			if names := leftovers(t, dir); len(names) != 1 || names[0] != "conmon.sock" {
				t.Errorf("files %q", names)
			}

			again := start(t, dir, "fail") // would fail if it started anything
			if again.PID() != c.PID() {
				t.Errorf("second client uses %d instead of %d", again.PID(), c.PID())
			}
			for _, c := range []*client.Client{again, c, again} {
				if err := c.Shutdown(t.Context()); err != nil {
					t.Errorf("shutdown: %v", err)
				}
			}
			if names := leftovers(t, dir); len(names) != 0 {
				t.Errorf("left %q", names)
			}
			if _, err := c.Version(t.Context(), &conmon.VersionRequest{}); !errors.Is(err, syscall.ENOENT) && !errors.Is(err, client.ErrDisconnected) {
				t.Errorf("call after shutdown: %v", err)
			}
		})
	}
}

func TestStartArguments(t *testing.T) {
	dir := t.TempDir()
	opts := options(t, dir, "")
	opts.RuntimeRoot, opts.LogLevel, opts.LogDriver = "/root", "debug", "systemd"
	opts.EnableTracing, opts.TracingEndpoint = true, "http://x"
	opts.ExtraArgs = []string{"--extra"}
	c, err := client.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer c.Shutdown(t.Context())
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	if err != nil {
		t.Fatal(err)
	}
	want := "--runtime /usr/bin/true --runtime-dir " + dir +
		" --runtime-root /root --log-level debug --log-driver systemd --enable-tracing --tracing-endpoint http://x --extra"
	if string(args) != want {
		t.Errorf("arguments\n%s\nwant\n%s", args, want)
	}
}

// The driver stdout hands over files, which may be nil pointers.
func TestStartStdout(t *testing.T) {
	opts := options(t, t.TempDir(), "")
	opts.LogDriver = "stdout"
	var err error
	if opts.Stderr, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	}
	defer opts.Stderr.Close()
	c, err := client.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStartFailures(t *testing.T) {
	for _, tc := range []struct{ mode, want string }{
		{"fail", "runtime does not exist"},
		{"newline", `is not a process id`},
		{"other", "answers"},
		{"die", "ended"},
		{"hang", "not ready after"},
	} {
		t.Run(tc.mode, func(t *testing.T) {
			checkLeaks(t)
			opts := options(t, t.TempDir(), tc.mode)
			opts.Timeout = 5 * time.Second
			if tc.mode == "hang" {
				opts.Timeout = 200 * time.Millisecond
			}
			c, err := client.Start(t.Context(), opts)
			if err == nil {
				c.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), opts.RuntimeDir) {
				t.Errorf("got %v, want something about %q", err, tc.want)
			}
		})
	}
	opts := options(t, t.TempDir(), "")
	opts.Binary = filepath.Join(opts.RuntimeDir, "none")
	if _, err := client.Start(t.Context(), opts); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing binary: %v", err)
	}
}

// A monitor that died by itself leaves its socket. Shutdown is about making sure that it is gone.
func TestShutdownOfDeadMonitor(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	c := start(t, dir, "")
	dialled, err := client.Dial(t.Context(), filepath.Join(dir, "conmon.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	if err := os.WriteFile(filepath.Join(dir, "conmon-fd.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(c.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*client.Client{c, c, dialled, dialled} {
		if err := c.Shutdown(t.Context()); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	}
	if names := leftovers(t, dir); len(names) != 0 {
		t.Errorf("left %q", names)
	}
}

// A client that did not start the monitor finds its process by asking.
func TestShutdownAfterDial(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	starter := start(t, dir, "")
	c, err := client.Dial(t.Context(), filepath.Join(dir, "conmon.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.PID() != 0 {
		t.Errorf("pid %d is known too early", c.PID())
	}
	if err := c.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := starter.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// Shutdown waits for the end and not for ever.
func TestShutdownTimeout(t *testing.T) {
	c := start(t, t.TempDir(), "deaf")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Version(t.Context(), &conmon.VersionRequest{}); err != nil {
		t.Errorf("monitor is gone: %v", err)
	}
}
