package container

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/oci"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/output"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/proctree"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/reaper"
	"github.com/conmonrs/conmonrs/io/console"
	"github.com/conmonrs/conmonrs/io/pump"
	"github.com/conmonrs/conmonrs/io/stdio"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// Limits of the end of an exec.
const (
	// outputGrace is how long the end of output is waited for after the exit, when a background process holds it open.
	outputGrace = 200 * time.Millisecond
	// outputDrain bounds the delivery of what was written before the exit; only a lack of buffers can delay it.
	outputDrain = 10 * time.Second
	// killGrace is how long a killed process may take to be reaped before the exec is answered all the same.
	killGrace = time.Second
)

// markerName is the environment variable by which the processes of an exec are found again when it times out.
const markerName = "_CONMONRS_EXEC="

// Exec is one synchronous exec.
type Exec struct {
	host   *Host
	req    *conmon.ExecSyncRequest
	marker string

	account     *output.Account
	out, err    *output.Collector
	streams     []*pump.Stream
	streamsOpen sync.WaitGroup

	ctx    context.Context // ends with the deadline, Kill, or the monitor
	cancel context.CancelFunc
}

// Result is the outcome of an exec. The collectors belong to the receiver, who releases them.
type Result struct {
	ExitCode       int32
	TimedOut       bool
	Stdout, Stderr *output.Collector
}

// NewExec returns an exec that has not begun. Its time runs from now on.
func NewExec(ctx context.Context, h *Host, req *conmon.ExecSyncRequest) *Exec {
	e := &Exec{host: h, req: req, marker: markerName + randomName(), account: h.Budget.Open()}
	e.out = output.NewCollector(e.account, output.Max)
	e.err = output.NewCollector(e.account, output.Max)
	if req.Timeout > 0 {
		e.ctx, e.cancel = context.WithTimeout(ctx, req.Timeout)
	} else {
		e.ctx, e.cancel = context.WithCancel(ctx)
	}
	return e
}

// Run runs the command and returns when it has ended or the time is over. A command that cannot be started is a
// result, with the runtime's message on Stderr. Run is called once.
func (e *Exec) Run() *Result {
	defer e.cancel()
	var u undo
	r := e.run(&u)
	u.run() // nothing writes to the collectors any more
	if e.req.Terminal && r.ExitCode != conmon.ExitCodeRuntimeFailed {
		// What the runtime itself printed: all output of the command came from the terminal.
		e.err.Release()
	}
	e.reportCut(stdout, e.out)
	e.reportCut(stderr, e.err)
	return r
}

func (e *Exec) reportCut(stream string, c *output.Collector) {
	if c.Truncated() {
		e.host.Log.Warn("exec output cut", "container", e.req.ID, "stream", stream, "limit", output.Max)
	}
}

// Kill ends the exec before its time: its container has ended, or the monitor leaves.
func (e *Exec) Kill() { e.cancel() }

func (e *Exec) run(u *undo) *Result {
	process, left, err := e.start(u)
	if err != nil {
		return e.notStarted(err, left)
	}
	select {
	case <-process.Done():
	case <-e.ctx.Done():
		if !ended(process) { // an exit that came first counts
			return e.cutShort(process)
		}
	}
	e.finishOutput()
	return e.result(int32(process.Status().Code), false)
}

func ended(p *reaper.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

func (e *Exec) start(u *undo) (*reaper.Process, remains, error) {
	name := "exec_sync" + randomName() + "pid"
	pidFile := filepath.Join(e.host.RuntimeDir, name)
	u.add(func() {
		_ = os.Remove(pidFile)
		_ = os.Remove(filepath.Join(e.host.RuntimeDir, "."+name)) // runc's temporary file, if it was killed
	})
	pipes, err := stdio.OpenPipes(stdio.Options{})
	if err != nil {
		return nil, remains{}, err
	}
	u.add(func() { pipes.Close() })
	ends := pipes.Child()
	l := launch{
		slots: e.host.Execs, env: append(oci.Environ(e.host.Environ, envWords(e.req.Env)), e.marker),
		files: ends[:], pidFile: pidFile, started: func() { _ = pipes.CloseChild() },
	}
	if e.req.Terminal {
		socket, err := console.Listen(e.host.ConsoleDir)
		if err != nil {
			return nil, remains{}, fmt.Errorf("create new terminal: wait for listener to be ready: %w", err)
		}
		u.add(func() { socket.Close() })
		l.messageOnTerminal = true
		l.console, l.onTerminal = socket, func(t *os.File) error { return e.useTerminal(t, u) }
		e.addStream(pipes.TakeStdout(), e.err, false) // the runtime's own
	} else {
		e.addStream(pipes.TakeStdout(), e.out, false)
	}
	e.addStream(pipes.TakeStderr(), e.err, false)
	u.add(e.closeStreams)
	l.args = e.host.Runtime.ExecArgs(oci.Exec{
		ID: e.req.ID, PidFile: pidFile, ConsoleSocket: socketPath(l.console),
		SystemdCgroup: e.req.CgroupManager == conmon.CgroupManagerSystemd,
		Env:           e.host.Runtime.ExecEnv(e.marker), Command: e.req.Command,
	})
	return e.host.launch(e.ctx, l)
}

func (e *Exec) useTerminal(terminal *os.File, u *undo) error {
	u.add(func() { terminal.Close() })
	fd, err := console.Duplicate(terminal)
	if err != nil {
		return err
	}
	e.addStream(fd, e.out, true)
	return nil
}

func (e *Exec) addStream(fd int, c *output.Collector, terminal bool) {
	e.streamsOpen.Add(1)
	s := e.host.watchStream(fd, pump.Options{Sinks: []pump.Sink{c}, Terminal: terminal, Immediate: always},
		func(error) { e.streamsOpen.Done() })
	e.streams = append(e.streams, s)
}

// always leaves out the coalescing pause: the answer waits for the output.
func always() bool { return true }

// finishOutput waits for the output of a command that has ended.
func (e *Exec) finishOutput() {
	e.account.End()
	ctx, cancel := context.WithTimeout(context.Background(), outputDrain)
	defer cancel()
	for _, s := range e.streams {
		if err := s.Drain(ctx); err != nil {
			e.host.Log.Error("exec answered before all its output was read", "container", e.req.ID, "error", err)
		}
	}
	closed := make(chan struct{})
	go func() { e.streamsOpen.Wait(); close(closed) }() // ends with closeStreams at the latest
	timer := time.NewTimer(outputGrace)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
	}
}

// closeStreams ends the reading. What a process left behind writes later fails with EPIPE.
func (e *Exec) closeStreams() {
	e.account.Stop() // a stream that waits for the budget
	for _, s := range e.streams {
		_ = s.Close()
	}
}

// timedOut tells whether the deadline has passed, and not something else ended the exec.
func (e *Exec) timedOut() bool { return errors.Is(e.ctx.Err(), context.DeadlineExceeded) }

// notStarted is the result of an exec whose process was not started, or not in time.
func (e *Exec) notStarted(err error, left remains) *Result {
	if p := left.process; p != nil {
		e.kill(p)
	} else if left.killed || left.ran {
		// What the runtime had begun, in the container or on its way there. The runtime itself has been reaped.
		proctree.Kill(proctree.Target{Marker: e.marker})
	}
	e.finishOutput()
	if e.timedOut() {
		return e.result(conmon.ExitCodeTimedOut, true)
	}
	e.host.Log.Info("exec not started", "container", e.req.ID, "error", err)
	text := withMessage(err, e.message()).Error()
	e.out.Release()
	e.err.Release()
	e.out, e.err = output.NewText(e.account, ""), output.NewText(e.account, text)
	return e.result(conmon.ExitCodeRuntimeFailed, false)
}

// message returns what the runtime printed, on its own streams or on the terminal.
func (e *Exec) message() string {
	for _, c := range []*output.Collector{e.err, e.out} {
		b := make([]byte, min(c.Len(), 2*oci.MaxErrorText))
		if text := oci.ErrorText(b[:c.CopyTo(b)]); text != "" {
			return text
		}
	}
	return ""
}

// cutShort ends all that the exec started: its time is over, or its container or the monitor ends. The container is
// not touched.
func (e *Exec) cutShort(p *reaper.Process) *Result {
	e.kill(p)
	e.finishOutput()
	switch {
	case e.timedOut():
		return e.result(conmon.ExitCodeTimedOut, true)
	case ended(p):
		return e.result(int32(p.Status().Code), false)
	default:
		return e.result(conmon.ExitCodeUnknown, false)
	}
}

// kill ends all that belongs to the process, and waits for its end for a moment.
func (e *Exec) kill(p *reaper.Process) {
	proctree.Kill(proctree.Target{Root: p.Pid, Marker: e.marker, Within: proctree.GroupOf(p.Pid)})
	timer := time.NewTimer(killGrace)
	defer timer.Stop()
	select {
	case <-p.Done():
	case <-timer.C: // in uninterruptible sleep
	}
}

func (e *Exec) result(code int32, timedOut bool) *Result {
	return &Result{ExitCode: code, TimedOut: timedOut, Stdout: e.out, Stderr: e.err}
}

// randomName returns 128 random bits. They need not be secret.
func randomName() string {
	return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
}
