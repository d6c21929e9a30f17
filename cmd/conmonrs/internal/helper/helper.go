// Package helper runs conmonrs-helper, which does what is too rare or too heavy for a resident process, and keeps what
// the monitor knows through it: its place among the units of systemd.
//
// The helper is started by the reaper, as any other child. Nothing of it is left when a call returns.
package helper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/reaper"
	"github.com/conmonrs/conmonrs/io/stdio"
)

const (
	// Name is the helper's, as a file and as a process.
	Name = "conmonrs-helper"
	// packaged is where packages put it.
	packaged = "/usr/libexec/conmonrs"
	// maxOutput bounds what is read of its output: it prints a line.
	maxOutput = 16 << 10
	// minRead is enough for a line.
	minRead = 256
	// statusNoSystemd is its exit status where there is no systemd.
	statusNoSystemd = 3
	// killGrace is how long a helper that has been killed is waited for.
	killGrace = time.Second
)

// ErrNoSystemd means that the machine was not booted with systemd.
var ErrNoSystemd = errors.New("no systemd here")

// environment lists the variables that the helper gets: they say where buses are.
var environment = []string{"XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS"}

// Helper is the executable, or another that is run in the same way. It is opened once, so that a monitor that is months old runs the helper that it was
// installed with, whatever an update has put in its place.
type Helper struct {
	name   string // as a file and as a process
	reaper *reaper.Reaper
	file   *os.File // O_PATH
	env    []string
}

// Open finds the helper, or another executable of that name, see Find. environ is the environment that the monitor was
// started with.
func Open(r *reaper.Reaper, environ []string, name string) (*Helper, error) {
	return open(r, environ, name, places())
}

func open(r *reaper.Reaper, environ []string, name string, dirs []string) (*Helper, error) {
	file, err := find(name, dirs)
	if err != nil {
		return nil, err
	}
	return &Helper{name: name, reaper: r, file: file, env: pick(environ)}, nil
}

// Find opens the executable of that name, with O_PATH: beside the monitor's own executable, in ../libexec/conmonrs from
// there, or where packages put it. The caller closes it.
func Find(name string) (*os.File, error) { return find(name, places()) }

func places() []string {
	self, err := os.Executable()
	if err != nil {
		return []string{packaged}
	}
	dir := filepath.Dir(self)
	return []string{dir, filepath.Join(dir, "../libexec/conmonrs"), packaged}
}

func find(name string, dirs []string) (*os.File, error) {
	var errs []error
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		file, err := openExecutable(path)
		if err == nil {
			return file, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	return nil, fmt.Errorf("find %s: %w", name, errors.Join(errs...))
}

func openExecutable(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	err = unix.Fstat(fd, &stat)
	if err == nil && (stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Mode&0o111 == 0) {
		err = unix.EACCES
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func pick(environ []string) []string {
	// It does one thing after the other.
	env := []string{"GOMAXPROCS=1"}
	for _, word := range environ {
		key, _, _ := strings.Cut(word, "=")
		for _, wanted := range environment {
			if key == wanted {
				env = append(env, word)
			}
		}
	}
	return env
}

// Close gives up the executable.
func (h *Helper) Close() error { return h.file.Close() }

// Run runs the helper with arguments and returns the words that it prints, KEY=VALUE each. If ctx ends first, it is
// killed. The error carries what it says on its standard error; ErrNoSystemd is told apart.
func (h *Helper) Run(ctx context.Context, args ...string) (map[string]string, error) {
	pipes, err := stdio.OpenPipes(stdio.Options{})
	if err != nil {
		return nil, err
	}
	defer pipes.Close()
	child := pipes.Child()
	p, err := h.reaper.Start(ctx, reaper.Command{
		// Descriptors of the child below those that it is given may be others by the time it executes.
		Path: "/proc/self/fd/3", File: fmt.Sprintf("/proc/self/fd/%d", h.file.Fd()), Args: append([]string{h.name}, args...),
		Env:   h.env,
		Files: []*os.File{child[0], child[1], child[2], h.file}, OwnGroup: true,
	})
	_ = pipes.CloseChild()
	if err != nil {
		return nil, err
	}
	if err := wait(ctx, p); err != nil {
		return nil, fmt.Errorf("wait for %s: %w", h.name, err)
	}
	// What it has printed is in the pipes: it prints less than they hold, and nobody else has them.
	out, message := contents(pipes.TakeStdout()), contents(pipes.TakeStderr())
	if err := h.outcome(p.Status(), message); err != nil {
		return nil, err
	}
	return words(out), nil
}

func wait(ctx context.Context, p *reaper.Process) error {
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
	}
	p.KillGroup()
	timer := time.NewTimer(killGrace)
	defer timer.Stop()
	select {
	case <-p.Done():
	case <-timer.C: // in uninterruptible sleep: the reaper gets it some day
	}
	return context.Cause(ctx)
}

// killedError means that somebody else has killed the helper. It is in the monitor's unit: whoever stops that signals
// all processes in it.
type killedError struct {
	name    string
	signal  syscall.Signal
	message string
}

func (e *killedError) Error() string {
	return fmt.Sprintf("%s was killed by signal %d: %s", e.name, int(e.signal), e.message)
}

func (h *Helper) outcome(status reaper.Status, message string) error {
	message = strings.Join(strings.Fields(message), " ")
	switch {
	case status.Code == 0:
		return nil
	case status.Code == statusNoSystemd && status.Signal == 0:
		return ErrNoSystemd
	case status.Signal != 0:
		return &killedError{h.name, status.Signal, message}
	}
	return fmt.Errorf("%s: %s (status %d)", h.name, message, status.Code)
}

// contents returns what is in a pipe, and takes ownership of its non-blocking descriptor.
func contents(fd int) string {
	defer unix.Close(fd)
	var b []byte
	for len(b) < maxOutput {
		b = slices.Grow(b, minRead) // garbage stays in the memory of an idle pod
		n, err := unix.Read(fd, b[len(b):min(cap(b), maxOutput)])
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		b = b[:len(b)+n]
	}
	return strings.ToValidUTF8(string(b), "\ufffd")
}

func words(line string) map[string]string {
	m := make(map[string]string)
	for word := range strings.FieldsSeq(line) {
		if key, value, ok := strings.Cut(word, "="); ok {
			m[key] = value
		}
	}
	return m
}
