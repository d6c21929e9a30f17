package helper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Mode says whether the monitor wants a scope.
type Mode string

// Auto takes the scope that an engine has made, or makes one; without one the monitor goes on. Always makes one in any
// case, and not having it is an error. Never makes none.
const (
	Auto   Mode = "auto"
	Always Mode = "always"
	Never  Mode = "never"
)

const (
	// callLimit bounds a call of systemd, runMargin is what the start and end of the helper may take besides.
	callLimit = 10 * time.Second
	// maxAttempts is how often a helper is run that is killed before it can ignore the signals of a stop.
	maxAttempts = 5
	runMargin   = 2 * time.Second
	// describePause and stopPause are between two updates of the description, and between two questions.
	describePause = 3 * time.Second
	stopPause     = 500 * time.Millisecond
	// retryPause is how long creates after one that got no scope do without instead of waiting again.
	retryPause = 30 * time.Second
)

// Logger takes a message and keys, each followed by its value.
type Logger interface {
	Debug(message string, args ...any)
	Info(message string, args ...any)
	Warn(message string, args ...any)
}

// Runner is what a Scope needs of a Helper.
type Runner interface {
	Run(ctx context.Context, args ...string) (map[string]string, error)
}

// ScopeOptions are fixed for the life of a monitor.
type ScopeOptions struct {
	Runner Runner
	Log    Logger
	Mode   Mode // empty is Auto
	// Slice overrides the one of the containers. After names the engine's unit; empty for the service that the monitor
	// was started in.
	Slice, After string
	// StopTimeout is how long the monitor may take to end when its unit is stopped.
	StopTimeout time.Duration
	// OnUnit is called once, when the unit is known.
	OnUnit func(unit string)
	// OnStop is called once, when the unit is found to be stopping. It must neither block nor call Close.
	OnStop func()
}

// Scope is the monitor's place among the units of systemd. It has no goroutine but while something is asked of systemd,
// and no connection.
type Scope struct {
	o        ScopeOptions
	work     context.Context // ends with Close
	cancel   context.CancelFunc
	describe throttle
	stop     throttle

	ensuring sync.Mutex // held while the helper registers; before mu

	mu       sync.Mutex
	unit     string // empty while there is none
	slice    string // that the containers' units are in, empty if it is not known
	final    bool   // there will be no other outcome
	err      error  // of the last attempt, with Always
	retry    time.Time
	want     string // the description
	sent     string
	fixed    bool // the description cannot be changed
	stopping bool
	// unanswered is how often in a row it could not be learnt whether the unit is being stopped.
	unanswered int
}

// NewScope returns a scope that has not been asked for.
func NewScope(o ScopeOptions) *Scope {
	if o.Mode == "" {
		o.Mode = Auto
	}
	s := &Scope{o: o, final: o.Mode == Never || o.Runner == nil}
	if o.Runner == nil && o.Mode == Always {
		s.err = errors.New("no helper to register the scope with")
	}
	s.work, s.cancel = context.WithCancel(context.Background())
	s.describe.f, s.describe.pause = s.sendDescription, describePause
	s.stop.f, s.stop.pause = s.ask, stopPause
	return s
}

// Mode returns whether a scope is wanted.
func (s *Scope) Mode() Mode { return s.o.Mode }

// Wanted tells whether Ensure would make an attempt.
func (s *Scope) Wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wantedLocked()
}

func (s *Scope) wantedLocked() bool { return s.unit == "" && !s.final && !time.Now().Before(s.retry) }

// Place is where a scope is registered.
type Place struct {
	// PodID makes its name. CgroupsPath is linux.cgroupsPath of a container, in the form slice:prefix:name.
	PodID, CgroupsPath string
	// Description is what people see.
	Description string
}

// Ensure sees to it that the monitor is in a scope, before a runtime is run for the first container. It may be called
// before each: once there is a scope it does nothing. Callers at the same time wait for the first.
//
// There is an error in mode Always only; in mode Auto what goes wrong is logged. Either way no further attempt is made
// for some time, so that not every create waits.
func (s *Scope) Ensure(ctx context.Context, p Place) error {
	s.ensuring.Lock()
	defer s.ensuring.Unlock()
	s.mu.Lock()
	done := !s.wantedLocked()
	err := s.err
	s.mu.Unlock()
	if done {
		return err
	}
	result, err := s.register(ctx, p)
	if err == nil {
		s.registered(result, p)
		return nil
	}
	return s.notRegistered(err)
}

func (s *Scope) registered(result map[string]string, p Place) {
	s.mu.Lock()
	s.err = nil
	s.slice = sliceOf(s.o.Slice, p.CgroupsPath)
	s.unit, s.sent, s.fixed = result["unit"], p.Description, result["described"] == "no"
	unit := s.unit
	if s.want == "" {
		s.want = p.Description
	}
	if s.want != s.sent {
		s.describe.kick()
	}
	s.mu.Unlock()
	// Without the lock: whoever reads the log may hold that up.
	if s.o.OnUnit != nil {
		s.o.OnUnit(unit)
	}
	s.o.Log.Info("scope "+result["action"], "unit", unit, "properties_unknown", result["dropped"])
}

func (s *Scope) notRegistered(cause error) error {
	final := errors.Is(cause, ErrNoSystemd)
	var err error
	if s.o.Mode == Always {
		err = fmt.Errorf("register scope: %w", cause)
	}
	s.mu.Lock()
	s.retry = time.Now().Add(retryPause)
	s.final, s.err = final, err
	s.mu.Unlock()
	switch {
	case err != nil:
	case final:
		s.o.Log.Debug("no scope", "error", cause)
	default:
		s.o.Log.Warn("scope not registered", "error", cause)
	}
	return err
}

func (s *Scope) register(ctx context.Context, p Place) (map[string]string, error) {
	args := []string{
		"register", "--pid=" + strconv.Itoa(os.Getpid()), "--pod=" + p.PodID, "--mode=" + string(s.o.Mode),
		"--description=" + p.Description, "--stop-timeout=" + s.o.StopTimeout.String(),
	}
	if s.o.Slice != "" {
		args = append(args, "--slice="+s.o.Slice)
	} else if p.CgroupsPath != "" {
		args = append(args, "--cgroups-path="+p.CgroupsPath)
	}
	if s.o.After != "" {
		args = append(args, "--after="+s.o.After)
	}
	result, err := s.run(ctx, args...)
	if err == nil && result["unit"] == "" {
		err = errors.New("internal error: helper names no unit")
	}
	return result, err
}

func (s *Scope) run(ctx context.Context, args ...string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit+runMargin)
	defer cancel()
	args = append([]string{"scope"}, append(args, "--timeout="+callLimit.String())...)
	for attempts := 1; ; attempts++ {
		result, err := s.o.Runner.Run(ctx, args...)
		if !errors.As(err, new(*killedError)) || attempts == maxAttempts || ctx.Err() != nil {
			return result, err
		}
	}
}

// Unit returns the name of the unit, empty if there is none.
func (s *Scope) Unit() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unit
}

// Describe sets the description. It does not block: systemd is told some time later, at most every few seconds, and
// always of the last one.
func (s *Scope) Describe(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want = text
	if s.unit != "" && !s.fixed && s.want != s.sent {
		s.describe.kick()
	}
}

func (s *Scope) sendDescription() {
	s.mu.Lock()
	unit, text := s.unit, s.want
	done := text == s.sent
	s.mu.Unlock()
	if done {
		return
	}
	_, err := s.run(s.work, "describe", "--unit="+unit, "--description="+text)
	if err != nil && s.work.Err() == nil { // the next change tries again
		s.o.Log.Debug("unit not described", "unit", unit, "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = text
	if err != nil {
		s.sent = ""
	}
}

// CheckStop is called at SIGPIPE, by which engines have the scopes that they make stopped: if the unit is being
// stopped, OnStop is called. It does not block, and the question is asked at most twice a second, since SIGPIPE has
// other causes.
func (s *Scope) CheckStop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unit != "" && !s.stopping {
		s.unanswered = 0
		s.stop.kick()
	}
}

// askAgain asks once more a question that could not be answered, some times: a stop sends one signal only.
func (s *Scope) askAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unanswered++; s.unanswered < maxAttempts {
		s.stop.kick()
	}
}

func (s *Scope) ask() {
	s.mu.Lock()
	unit, done := s.unit, s.stopping
	s.mu.Unlock()
	if done {
		return
	}
	result, err := s.run(s.work, "stopping", "--unit="+unit)
	if err != nil && s.work.Err() != nil {
		return
	}
	if err != nil {
		s.o.Log.Warn("not known whether the unit is being stopped", "unit", unit, "error", err)
		s.askAgain()
		return
	}
	if result["stopping"] != "yes" {
		return
	}
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	if s.o.OnStop != nil {
		s.o.OnStop()
	}
}

// SliceStopping tells whether the slice of the containers is being stopped, or the whole machine: then systemd has told the
// containers itself. It is false where that cannot be learnt.
func (s *Scope) SliceStopping(ctx context.Context) bool {
	s.mu.Lock()
	unit, slice := s.unit, s.slice
	s.mu.Unlock()
	if unit == "" || slice == "" {
		return false
	}
	result, err := s.run(ctx, "stopping", "--unit="+slice)
	if err != nil {
		s.o.Log.Warn("not known whether the slice is being stopped", "slice", slice, "error", err)
	}
	return result["stopping"] == "yes"
}

// sliceOf returns the slice of units of containers: what linux.cgroupsPath begins with, else what was given.
func sliceOf(given, cgroupsPath string) string {
	if slice, _, ok := strings.Cut(cgroupsPath, ":"); ok && strings.HasSuffix(slice, ".slice") {
		return slice
	}
	return given
}

// Close takes back what is to be told to systemd later, and ends what is being told.
func (s *Scope) Close() {
	s.cancel()
	s.describe.close()
	s.stop.close()
}

// Description returns what people see of a pod: its namespace and name, or its id if the engine has told neither, and
// how many containers run.
func Description(namespace, name, id string, containers int) string {
	pod := id
	if name != "" {
		pod = name
		if namespace != "" {
			pod = namespace + "/" + name
		}
	}
	if containers == 1 {
		return pod + ": 1 container"
	}
	return pod + ": " + strconv.Itoa(containers) + " containers"
}
