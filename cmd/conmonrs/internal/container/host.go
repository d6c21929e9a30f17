// Package container is the life of one container and of one exec: from the request through the runtime to the exit.
//
// A Container's order of events is a contract with engines, and each step says why it is where it is. The package
// composes the parts that do the work: streams, logs, attach clients, the runtime, the reaper. It knows nothing of the
// RPC, of other containers, or of the end of the monitor; package pod does.
package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/exitfile"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/logging"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/oci"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/output"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/reaper"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/waiter"
	"github.com/conmonrs/conmonrs/io/console"
	"github.com/conmonrs/conmonrs/io/pump"
	"github.com/conmonrs/conmonrs/oom"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// terminalGrace is how long a console socket is waited for after the runtime has ended well.
const terminalGrace = time.Second

// runtimeGrace is how long a runtime whose work is not wanted any more may take to end by itself.
const runtimeGrace = time.Second

// Host is what all containers of a pod share. Its fields are set once.
type Host struct {
	Runtime oci.Runtime
	Reaper  *reaper.Reaper
	Waiter  *waiter.Set
	Pool    *pump.Pool
	Budget  *output.Budget
	Exits   *exitfile.Publisher
	OOM     *oom.Watcher
	Log     *logging.Logger
	// RuntimeDir is where pid files of execs are written.
	RuntimeDir string
	// ConsoleDir is where console sockets are bound; the shorter the better.
	ConsoleDir string
	// Environ is the environment that runtimes inherit.
	Environ []string
	// RuntimeTimeout limits one run of the runtime.
	RuntimeTimeout time.Duration
	// ContainerTimeout limits the life of a container from its create on; 0: it is not limited.
	ContainerTimeout time.Duration
	// JournalSocket is where logs of the journald driver go.
	JournalSocket string
	// Pod returns what is known of the pod.
	Pod func() Pod
	// Creates and Execs bound how many runtimes start at the same time; how many processes run is not bounded.
	Creates, Execs Slots
}

// Pod is what people call a pod. Both are empty as long as the engine has not told.
type Pod struct{ Namespace, Name string }

// Slots bounds how many of something happen at the same time.
type Slots chan struct{}

// take waits for a slot and returns what gives it back.
func (s Slots) take(ctx context.Context) (release func(), err error) {
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for other runtimes: %w", context.Cause(ctx))
	}
}

// launch is one run of the runtime that leaves a process behind.
type launch struct {
	slots   Slots
	args    []string
	env     []string
	files   []*os.File // from descriptor 0 on
	extra   []int      // descriptors that follow
	pidFile string
	// started is called when the runtime has been started, or will not be, to close the ends of pipes that are its own.
	started func()
	// console, if not nil, is the socket on which the runtime hands over a terminal, to onTerminal.
	console    *console.Socket
	onTerminal func(*os.File) error
	// messageOnTerminal: crun may print on the terminal why it failed, so onTerminal gets it in that case as well.
	messageOnTerminal bool
}

// remains says what a failed launch may have left.
type remains struct {
	ran    bool // the runtime ended well: its container or process is there
	killed bool // it was killed: what is there is not known
	// process is what the runtime had started before it failed or was killed, nil if nothing is known of it.
	process *reaper.Process
}

// launch runs the runtime and returns the process that it left, already registered. An error is a
// *conmon.RuntimeError, without the runtime's message, if the runtime failed.
func (h *Host) launch(ctx context.Context, l launch) (process *reaper.Process, left remains, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.RuntimeTimeout,
		fmt.Errorf("runtime did not end within %v: %w", h.RuntimeTimeout, context.DeadlineExceeded))
	defer cancel()
	started := sync.OnceFunc(l.started)
	defer started()
	give, err := l.slots.take(ctx)
	if err != nil {
		return nil, remains{}, err
	}
	defer give()
	if err := os.Remove(l.pidFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, remains{}, fmt.Errorf("remove old pid file: %w", err)
	}
	release := h.Reaper.Hold()
	defer release()
	runtime, err := h.Reaper.Start(ctx, reaper.Command{
		Path: h.Runtime.Path, Args: l.args, Env: l.env, Files: l.files, Extra: l.extra, OwnGroup: true,
	})
	started()
	if err != nil {
		return nil, remains{}, fmt.Errorf("spawn child process: %w", err)
	}
	terminal := receive(ctx, l.console)
	if err := waitRuntime(ctx, runtime); err != nil {
		left.killed = true
		left.process = h.leftBehind(l.pidFile)
		terminal.discard()
		return nil, left, err
	}
	if status := runtime.Status(); status.Code != 0 {
		if l.messageOnTerminal {
			_ = terminal.hand(0, l.onTerminal)
		} else {
			terminal.discard()
		}
		left.process = h.leftBehind(l.pidFile)
		return nil, left, runtimeError(status, "")
	}
	left.ran = true
	if err := terminal.hand(terminalGrace, l.onTerminal); err != nil {
		left.process = h.leftBehind(l.pidFile)
		return nil, left, err
	}
	pid, err := oci.ReadPidFile(l.pidFile)
	if err != nil {
		return nil, left, err
	}
	process, err = h.Reaper.Adopt(pid)
	return process, left, err
}

// leftBehind returns the process that a runtime had written to its pid file when it failed, if it is a child now. It is
// to be killed: nobody asks for it any more.
func (h *Host) leftBehind(pidFile string) *reaper.Process {
	pid, err := oci.ReadPidFile(pidFile)
	if err != nil {
		return nil
	}
	p, err := h.Reaper.Adopt(pid)
	if err != nil {
		h.Log.Debug("process of a failed runtime not found", "error", err)
		return nil
	}
	return p
}

// waitRuntime waits for the runtime to end. When ctx ends first, the runtime is killed, with what it started.
func waitRuntime(ctx context.Context, p *reaper.Process) error {
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		// Its container has ended, or the monitor is to: it fails by itself, and cleans up. Killed, runc leaves mounts
		// that keep the id from being used again.
		select {
		case <-p.Done():
			return nil
		case <-time.After(runtimeGrace):
		}
	}
	p.KillGroup()
	select {
	case <-p.Done():
	case <-time.After(time.Second): // in uninterruptible sleep: the reaper gets it some day
	}
	return fmt.Errorf("wait for runtime (process %d): %w", p.Pid, context.Cause(ctx))
}

func runtimeError(status reaper.Status, stderr string) error {
	code := status.Code
	if status.Signal != 0 {
		code = -1
	}
	return &conmon.RuntimeError{ExitCode: code, Stderr: stderr}
}

// pendingTerminal is a terminal that the runtime is about to hand over.
type pendingTerminal struct {
	cancel context.CancelFunc
	result chan terminalResult
}

type terminalResult struct {
	file *os.File
	err  error
}

func receive(ctx context.Context, socket *console.Socket) *pendingTerminal {
	if socket == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &pendingTerminal{cancel: cancel, result: make(chan terminalResult, 1)}
	go func() {
		file, err := socket.Receive(ctx)
		p.result <- terminalResult{file, err}
	}()
	return p
}

// discard ends the wait and closes what may have come. p may be nil.
func (p *pendingTerminal) discard() {
	if p == nil {
		return
	}
	p.cancel()
	if r := <-p.result; r.err == nil {
		r.file.Close()
	}
}

// hand passes the terminal on. The runtime has ended: what it sent is there by now, or within the grace, or never comes.
func (p *pendingTerminal) hand(grace time.Duration, to func(*os.File) error) error {
	if p == nil {
		return nil
	}
	defer p.cancel()
	timer := time.AfterFunc(grace, p.cancel)
	defer timer.Stop()
	r := <-p.result
	if errors.Is(r.err, context.Canceled) {
		return errors.New("runtime did not set up a terminal")
	}
	if r.err != nil {
		return fmt.Errorf("create new terminal: %w", r.err)
	}
	return to(r.file)
}

// watchStream starts a stream that is read when the pod's waiter says so. ended is called once, when no more comes.
func (h *Host) watchStream(fd int, o pump.Options, ended func(error)) *pump.Stream {
	var s *pump.Stream
	w := h.Waiter.Watch(fd, func() { s.Ready() })
	o.Pool, o.Rearm, o.Unwatch, o.OnEnd = h.Pool, w.Arm, w.Close, ended
	s = pump.New(fd, o)
	if err := w.Arm(); err != nil {
		s.Ready() // it looks by itself
	}
	return s
}

// undo is a list of what to take back, in reverse order.
type undo []func()

func (u *undo) add(f func()) { *u = append(*u, f) }

func (u *undo) run() {
	for i := len(*u) - 1; i >= 0; i-- {
		(*u)[i]()
	}
	*u = nil
}

func envWords(vars []conmon.EnvVar) []string {
	words := make([]string, 0, len(vars))
	for _, v := range vars {
		words = append(words, v.Key+"="+v.Value)
	}
	return words
}
