package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// Defaults of [StartOptions].
const (
	DefaultBinary       = "conmonrs"
	DefaultStartTimeout = 10 * time.Second
)

const (
	// maxStartError bounds what of the standard error of a failed start becomes part of the error.
	maxStartError = 16 << 10
	// minProbePause and maxProbePause bound the pause between attempts to reach a monitor that has just
	// been started. The first one is short, because the socket is there by then.
	minProbePause = time.Millisecond
	maxProbePause = 100 * time.Millisecond
	// abandonTimeout bounds the question which process has to be ended after a failed start.
	abandonTimeout = time.Second
	// maxPIDFile is more than a process id has digits.
	maxPIDFile = 32
)

// StartOptions say how to start a monitor. Runtime and RuntimeDir are required.
type StartOptions struct {
	// Binary is the monitor's executable; empty means DefaultBinary, looked for in PATH.
	Binary string
	// Runtime is the path of the OCI runtime.
	Runtime string
	// RuntimeDir is the directory of the monitor's sockets. It is created if need be, and names the monitor:
	// there is one per directory.
	RuntimeDir string
	// RuntimeRoot is the runtime's root directory; empty leaves the choice to the runtime.
	RuntimeRoot string
	// LogLevel and LogDriver are those of the monitor's own log; empty means its defaults.
	LogLevel, LogDriver string
	// EnableTracing and TracingEndpoint turn on trace export.
	EnableTracing   bool
	TracingEndpoint string
	// ExtraArgs are appended to the command line.
	ExtraArgs []string
	// Env is the environment of the monitor; nil means that of this process.
	Env []string
	// Stdout and Stderr are used with the log driver stdout only and may be nil. They are files because the
	// monitor keeps them open: copying from a pipe would never end.
	Stdout, Stderr *os.File
	// Timeout bounds the whole start; 0 means DefaultStartTimeout. The context may end it earlier.
	Timeout time.Duration
}

// How long a monitor that another client starts is waited for, and how often it is asked.
const (
	otherTimeout = 500 * time.Millisecond
	otherPause   = 5 * time.Millisecond
)

// Start returns a client of the monitor in opts.RuntimeDir. If one is running there it is used as it is;
// otherwise one is started, and Start returns when it answers.
//
// If the start fails, the error contains what the monitor printed, and nothing is left running.
func Start(ctx context.Context, opts StartOptions) (*Client, error) {
	if opts.Timeout <= 0 {
		opts.Timeout = DefaultStartTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, opts.Timeout, fmt.Errorf("not ready after %v: %w", opts.Timeout, context.DeadlineExceeded))
	defer cancel()

	if err := os.MkdirAll(opts.RuntimeDir, 0o755); err != nil {
		return nil, fmt.Errorf("start monitor: %w", err)
	}
	c := newClient(filepath.Join(opts.RuntimeDir, socketName))
	if err := c.start(ctx, &opts); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("start monitor in %q: %w", opts.RuntimeDir, err)
	}
	return c, nil
}

func (c *Client) start(ctx context.Context, opts *StartOptions) error {
	// 1. Use what is running.
	if c.learnProcess(ctx) == nil {
		return nil
	}
	// 2. Start. Another client may have been faster: its monitor holds the lock on the directory, so ours
	// failed, and theirs is as good.
	pidFile := filepath.Join(opts.RuntimeDir, pidFileName)
	stale, _ := os.Stat(pidFile)
	if err := run(ctx, opts); err != nil {
		if c.awaitOther(ctx) {
			return nil
		}
		return err
	}
	// 3. The pid file names the process, which has to be the one that answers.
	p, err := readPIDFile(pidFile, stale)
	if err != nil {
		return c.abandon(nil, err)
	}
	if err := c.awaitReady(ctx, p); err != nil {
		defer p.release()
		return c.abandon(p, err)
	}
	c.keepProcess(p)
	// 4. The client removes the file: it has served its purpose, and would mislead later.
	if err := os.Remove(pidFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return c.abandon(p, err)
	}
	return nil
}

// awaitOther tells whether a monitor that another client is starting comes to serve. It has the lock a moment before it
// listens.
func (c *Client) awaitOther(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, otherTimeout)
	defer cancel()
	tick := time.NewTicker(otherPause)
	defer tick.Stop()
	for c.learnProcess(ctx) != nil {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// abandon ends a monitor that cannot be used: the one that answers, or, if none does, the one in the pid file,
// which was written a moment ago.
func (c *Client) abandon(p *process, cause error) error {
	ctx, cancel := context.WithTimeout(context.Background(), abandonTimeout)
	defer cancel()
	if c.learnProcess(ctx) == nil {
		if answering, err := c.monitor(ctx); err == nil && answering != nil {
			defer answering.release()
			p = answering
		}
	}
	if p == nil {
		return cause
	}
	return errors.Join(cause, p.interrupt())
}

// args is the command line. The order is that of the upstream client.
func (o *StartOptions) args() []string {
	args := []string{"--runtime", o.Runtime, "--runtime-dir", o.RuntimeDir}
	for _, option := range []struct{ name, value string }{
		{"--runtime-root", o.RuntimeRoot},
		{"--log-level", o.LogLevel},
		{"--log-driver", o.LogDriver},
	} {
		if option.value != "" {
			args = append(args, option.name, option.value)
		}
	}
	if o.EnableTracing {
		args = append(args, "--enable-tracing")
		if o.TracingEndpoint != "" {
			args = append(args, "--tracing-endpoint", o.TracingEndpoint)
		}
	}
	return append(args, o.ExtraArgs...)
}

// run runs the foreground process, which exits when the monitor serves.
func run(ctx context.Context, opts *StartOptions) error {
	binary := opts.Binary
	if binary == "" {
		binary = DefaultBinary
	}
	cmd := exec.CommandContext(ctx, binary, opts.args()...)
	cmd.Env = opts.Env
	if opts.LogDriver == "stdout" {
		// Typed nils would not be taken for "none".
		if opts.Stdout != nil {
			cmd.Stdout = opts.Stdout
		}
		if opts.Stderr != nil {
			cmd.Stderr = opts.Stderr
		}
		return describe(ctx, cmd.Run(), "")
	}
	stderr, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe for standard error: %w", err)
	}
	defer stderr.Close()
	cmd.Stderr = w
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return describe(ctx, err, "")
	}
	// Read at the same time, so that much text does not block the process. What has been read is complete
	// when the process failed; if it succeeded the monitor may hold the pipe open, and nobody wants the text.
	text := make(chan string, 1)
	go func() { text <- readText(stderr) }()
	if err = cmd.Wait(); err == nil {
		_ = stderr.Close()
		<-text
		return nil
	}
	_ = stderr.SetReadDeadline(time.Now().Add(time.Second))
	return describe(ctx, err, <-text)
}

// readText reads to the end and keeps the first part.
func readText(r *os.File) string {
	var kept []byte
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		kept = append(kept, buf[:min(n, maxStartError-len(kept))]...)
		if err != nil {
			return strings.TrimSpace(string(kept))
		}
	}
}

// describe puts together why the foreground process failed.
func describe(ctx context.Context, err error, stderr string) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	if stderr != "" {
		return fmt.Errorf("run monitor: %w: %s", err, stderr)
	}
	return fmt.Errorf("run monitor: %w", err)
}

// readPIDFile returns the process named by the pid file, whose whole content has to be a decimal number, without
// sign, blanks or newline. A file that has not changed since stale was looked at is of an earlier monitor.
func readPIDFile(path string, stale os.FileInfo) (*process, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read pid file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read pid file: %w", err)
	}
	if stale != nil && os.SameFile(stale, info) && stale.ModTime().Equal(info.ModTime()) {
		return nil, fmt.Errorf("read pid file %q: monitor did not write it", path)
	}
	content, err := io.ReadAll(io.LimitReader(f, maxPIDFile))
	if err != nil {
		return nil, fmt.Errorf("read pid file: %w", err)
	}
	pid, err := strconv.ParseUint(string(content), 10, 31)
	if err != nil {
		return nil, fmt.Errorf("read pid file %q: content %q is not a process id", path, content)
	}
	p, err := openProcess(int(pid))
	if err == nil && p == nil {
		err = fmt.Errorf("monitor %d ended at once", pid)
	}
	return p, err
}

// awaitReady calls the monitor until it answers, or has ended.
func (c *Client) awaitReady(ctx context.Context, p *process) error {
	for pause := minProbePause; ; pause = min(2*pause, maxProbePause) {
		v, err := c.Version(ctx, &conmon.VersionRequest{})
		switch {
		case err == nil && int(v.ProcessID) != p.pid:
			return fmt.Errorf("pid file names process %d, but %d answers", p.pid, v.ProcessID)
		case err == nil:
			return nil
		case p.gone():
			return fmt.Errorf("monitor %d ended: %w", p.pid, err)
		case !sleep(ctx, pause):
			return err
		}
	}
}
