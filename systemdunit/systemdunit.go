// Package systemdunit makes systemd the keeper of a process: it registers the process in a transient scope of its own
// (systemd.scope(5)), or finds that an engine has done so and only describes the scope that there is.
//
// It wraps the part of the Manager interface of org.freedesktop.systemd1(5) that this takes. Each call connects, does its
// work and disconnects; nothing stays open. An empty file, conmonrs-scope.lock in /run or $XDG_RUNTIME_DIR, keeps the
// calls of many processes from being made all at once. The package does not start or stop anything, and does not touch
// control groups itself.
package systemdunit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"
)

var (
	// ErrNoSystemd means that this machine was not booted with systemd (sd_booted(3)).
	ErrNoSystemd = errors.New("systemd is not running here")
	// ErrUnitTaken means that a unit of that name is there and belongs to other processes.
	ErrUnitTaken = errors.New("unit belongs to other processes")
)

// FieldError says which value is no good.
type FieldError struct {
	// Field is the name of the value, such as "linux.cgroupsPath" or "slice"; Value is what it was.
	Field, Value string
	// Reason completes a sentence that begins with the field.
	Reason string
}

func (e *FieldError) Error() string { return fmt.Sprintf("%s %q %s", e.Field, e.Value, e.Reason) }

// JobError is the outcome of a systemd job other than success.
type JobError struct {
	Unit string
	// Result is the word of the JobRemoved signal: canceled, timeout, failed, dependency, skipped and others.
	Result string
}

func (e *JobError) Error() string {
	return fmt.Sprintf("job of unit %q ended with %q", e.Unit, e.Result)
}

// Instance says which service manager is meant.
type Instance int

// The service managers. By default root talks to the system's, other users to their own. Who is root in a user
// namespace only, and does not get through to the system's, talks to that of the user outside.
const (
	DefaultInstance Instance = iota
	SystemInstance
	UserInstance
)

// Manager is a service manager. It holds no resources, and may be used by several goroutines.
type Manager struct {
	instance Instance
	getenv   func(string) string
	// booted is the directory that exists when systemd runs, and sockets, if not empty, stand for the usual ones.
	booted  string
	sockets []endpoint
	// locks is the directory of the lock file, empty for the usual one, and slotWait how long a slot is waited for.
	locks    string
	slotWait time.Duration
}

// New returns the manager of an instance. Nothing is connected yet.
func New(instance Instance) *Manager {
	return &Manager{instance: instance, getenv: os.Getenv, booted: "/run/systemd/system", slotWait: slotLimit}
}

const (
	// callLimit bounds a call whose context has no deadline.
	callLimit = 30 * time.Second
	// connectGrace is how long a manager that does not answer is looked for: it executes itself anew (daemon-reexec),
	// or the bus restarts.
	connectGrace = 3 * time.Second
	// firstPause and maxPause are between attempts; each is drawn at random from the upper half, so that many starts at
	// once do not stay in step.
	firstPause = 10 * time.Millisecond
	maxPause   = 400 * time.Millisecond
)

// again wraps what may be gone at the next attempt.
type again struct{ error }

func (e again) Unwrap() error { return e.error }

// do connects and calls f until the outcome is final, or ctx ends.
func (m *Manager) do(ctx context.Context, f func(context.Context, *session) error) error {
	if _, err := os.Stat(m.booted); err != nil {
		return ErrNoSystemd
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	start := time.Now()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := m.attempt(ctx, f)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			unreachable := errors.As(err, new(*unreachableError))
			if !transient(err) || unreachable && time.Since(start) > connectGrace {
				return err
			}
			if sleep(ctx, pause/2+rand.N(pause/2)) {
				continue
			}
		}
		if cause := context.Cause(ctx); !errors.Is(err, cause) { // a connection that was closed for it says less
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return err
	}
}

func (m *Manager) attempt(ctx context.Context, f func(context.Context, *session) error) error {
	defer m.takeSlot(ctx)()
	s, err := m.connect(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	return f(ctx, s)
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Describe changes the description of a unit, at run time only. Text is brought into the form that unit files want: one
// line of at most 200 bytes.
func (m *Manager) Describe(ctx context.Context, unit, text string) error {
	err := m.do(ctx, func(ctx context.Context, s *session) error { return s.describe(ctx, unit, text) })
	if err != nil {
		return fmt.Errorf("describe unit %q: %w", unit, err)
	}
	return nil
}

// Stopping tells whether a unit is being stopped, or is about to be: by itself, with a slice around it, or with the
// machine.
func (m *Manager) Stopping(ctx context.Context, unit string) (stopping bool, err error) {
	err = m.do(ctx, func(ctx context.Context, s *session) (err error) {
		stopping, err = s.stopping(ctx, unit)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("ask for unit %q: %w", unit, err)
	}
	return stopping, nil
}

// maxDescription bounds a description, in bytes.
const maxDescription = 200

// description makes text one line that a unit file can hold: systemd writes it into one, where a backslash at the end
// would join it with the next line.
func description(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\ufffd"))
	if len(text) > maxDescription {
		text = strings.ToValidUTF8(text[:maxDescription], "")
	}
	return strings.Trim(text, " \\")
}
