package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/logging"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/oci"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/proctree"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/reaper"
	"github.com/conmonrs/conmonrs/io/attach"
	"github.com/conmonrs/conmonrs/io/console"
	"github.com/conmonrs/conmonrs/io/pump"
	"github.com/conmonrs/conmonrs/io/stdio"
	"github.com/conmonrs/conmonrs/oom"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// thawAfter is how long a killed container may take to end before it is taken for a paused one.
const thawAfter = 200 * time.Millisecond

// messageDrain limits the wait for the rest of a failed runtime's message.
const messageDrain = time.Second

// Container is a container whose process this monitor watches.
type Container struct {
	host *Host
	log  *logging.Logger
	req  conmon.CreateContainerRequest
	gone func() // called once, when the id is free again

	// Set by Create, not changed afterwards.
	process *reaper.Process
	group   proctree.Cgroup
	logs    *logs
	hub     *attach.Hub
	out     *pump.Stream
	err     *pump.Stream   // nil with a terminal
	leaked  Descriptors    // closed at the exit
	oom     *oom.Container // nil if nobody counts
	notify  *notifier      // nil if the engine wants no notifications
	streams sync.WaitGroup
	settled chan struct{} // closed when the exit has been published

	mu       sync.Mutex
	state    State
	limit    *time.Timer // of its life; nil: there is none
	terminal *os.File    // nil without one, and after the exit
	sockets  map[string]*attachSocket
}

// New returns a container in state Creating. gone is called once when its id may be used again.
func New(h *Host, req *conmon.CreateContainerRequest, gone func()) *Container {
	return &Container{
		host: h, log: h.Log.With("container", req.ID), req: *req, gone: gone, settled: make(chan struct{}),
	}
}

// Create runs the runtime. On error nothing is left, and the container is Gone. The request has been validated.
func (c *Container) Create(ctx context.Context, files Files) error {
	var u undo
	c.leaked = files.Leaked
	var process *reaper.Process
	created := false
	defer release(files.Additional)
	defer func() { // also when a mistake in this program ends it early: the id must not stay taken
		if created {
			return
		}
		if process != nil {
			_ = process.Signal(syscall.SIGKILL)
		}
		u.run()
		release(c.leaked)
		c.Abandon()
	}()
	c.forgetPredecessor()
	process, err := c.create(ctx, files, &u)
	if err != nil {
		return err
	}
	troubles := c.adopt(process)
	created = true
	process.OnExit(c.exited)
	// Whoever reads the log may hold up what follows.
	c.log.Info("container created", "pid", process.Pid)
	for _, err := range troubles {
		c.log.Warn("container not fully observed", "error", err)
	}
	return nil
}

// forgetPredecessor makes sure that no exit code or OOM mark of an earlier container of this id is taken for this one's.
func (c *Container) forgetPredecessor() {
	for _, paths := range [][]string{c.req.ExitPaths, c.req.OOMExitPaths} {
		c.host.Exits.Forget(paths)
	}
	for _, path := range c.req.OOMExitPaths {
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			_ = os.Remove(path)
		}
	}
}

// adopt prepares for the process to end. Nothing here waits for anybody.
func (c *Container) adopt(process *reaper.Process) (troubles []error) {
	group := proctree.CgroupOf(process.Pid, c.req.ID)
	var err error
	if c.oom, err = c.watchOOM(process.Pid); err != nil {
		troubles = append(troubles, fmt.Errorf("no OOM kills will be seen: %w", err))
	}
	if err := c.logs.attribute(process.Pid, c.host.Pod()); err != nil {
		troubles = append(troubles, fmt.Errorf("entries in the journal do not belong to the container's unit: %w", err))
	}
	c.mu.Lock()
	c.process, c.group = process, group
	if d := c.host.ContainerTimeout; d > 0 {
		c.limit = time.AfterFunc(d, c.timeIsOver)
	}
	c.mu.Unlock()
	c.move(Created)
	return troubles
}

// Abandon takes the place of Create for a container that is not to be.
func (c *Container) Abandon() {
	c.move(CreateFailed)
	c.gone()
	close(c.settled)
}

func (c *Container) create(ctx context.Context, files Files, u *undo) (process *reaper.Process, err error) {
	if c.logs, err = c.host.openLogs(c.req.ID, c.req.LogDrivers, c.log); err != nil {
		return nil, err
	}
	u.add(c.logs.close)
	if err := c.openNotify(u); err != nil {
		return nil, err
	}
	l := launch{
		slots: c.host.Creates, env: oci.Environ(c.host.Environ, envWords(c.req.Env)),
		pidFile: filepath.Join(c.req.BundlePath, "pidfile"),
	}
	pipes, err := stdio.OpenPipes(stdio.Options{Stdin: c.req.Stdin && !c.req.Terminal})
	if err != nil {
		return nil, err
	}
	u.add(func() { pipes.Close() })
	ends := pipes.Child()
	l.files, l.extra = ends[:], numbers(files.Additional)
	l.started = func() {
		_ = pipes.CloseChild()
		release(files.Additional) // whoever reads from the container is to see when it closes them
	}
	var message *messageReader
	if c.req.Terminal {
		message, err = c.openTerminal(&l, pipes, u)
	} else {
		message = c.openPipes(pipes, u)
	}
	if err != nil {
		l.started()
		return nil, err
	}
	l.args = c.host.Runtime.CreateArgs(oci.Create{
		ID: c.req.ID, Bundle: c.req.BundlePath, PidFile: l.pidFile, ConsoleSocket: socketPath(l.console),
		SystemdCgroup: c.systemdCgroup(), GlobalArgs: c.req.GlobalArgs, CommandArgs: c.req.CommandArgs,
	})
	process, left, err := c.host.launch(ctx, l)
	if err != nil {
		err = message.explain(err)
		if p := left.process; p != nil { // the runtime may not know it, or could not end it
			_ = p.Signal(syscall.SIGKILL)
		}
		if left.ran || left.killed {
			c.deleteRemains()
		}
		return nil, err
	}
	if text := message.done(); text != "" { // the container has printed nothing before its start
		c.log.Info("runtime said", "text", text)
	}
	return process, nil
}

// openPipes connects the container's own streams. What comes on stderr before the runtime has done its work is the
// runtime's message.
func (c *Container) openPipes(pipes *stdio.Pipes, u *undo) *messageReader {
	o := attach.Options{Logger: c.log}
	if stdin := pipes.TakeStdin(); stdin != nil {
		o.Stdin = stdin
	}
	c.hub = attach.NewHub(o)
	u.add(func() { c.hub.Close() })
	g := &gate{sinks: append(c.logs.sinks[stderr], c.hub.Stderr())}
	c.streams.Add(2)
	c.out = c.stream(pipes.TakeStdout(), stdout, append(c.logs.sinks[stdout], c.hub.Stdout()))
	u.add(func() { c.out.Close() })
	c.err = c.stream(pipes.TakeStderr(), stderr, []pump.Sink{g})
	u.add(func() { c.err.Close() })
	return &messageReader{gate: g, streams: []*pump.Stream{c.err}}
}

func (c *Container) stream(fd int, name string, sinks []pump.Sink) *pump.Stream {
	return c.host.watchStream(fd, pump.Options{
		Sinks: sinks, Terminal: c.req.Terminal,
		Immediate: func() bool { return c.hub.Clients() > 0 },
	}, func(err error) {
		if err != nil && !errors.Is(err, os.ErrClosed) {
			c.log.Error("output stream broken", "stream", name, "error", err)
		}
		c.logs.end(name)
		c.streams.Done()
	})
}

// openTerminal prepares for a terminal to be received. The runtime's own streams are collected for its message.
func (c *Container) openTerminal(l *launch, pipes *stdio.Pipes, u *undo) (*messageReader, error) {
	socket, err := console.Listen(c.host.ConsoleDir)
	if err != nil {
		return nil, fmt.Errorf("create new terminal: wait for listener to be ready: %w", err)
	}
	u.add(func() { socket.Close() })
	l.console = socket
	m := &messageReader{gate: &gate{}, close: func() { socket.Close() }}
	for _, fd := range []int{pipes.TakeStdout(), pipes.TakeStderr()} {
		s := c.host.watchStream(fd, pump.Options{Sinks: []pump.Sink{m.gate}}, nil)
		u.add(func() { s.Close() })
		m.streams = append(m.streams, s)
	}
	l.onTerminal = func(terminal *os.File) error { return c.useTerminal(terminal, u) }
	return m, nil
}

func (c *Container) useTerminal(terminal *os.File, u *undo) error {
	fd, err := console.Duplicate(terminal)
	if err != nil {
		terminal.Close()
		return err
	}
	u.add(func() { terminal.Close() })
	o := attach.Options{Logger: c.log, Terminal: true}
	if c.req.Stdin {
		o.Stdin = keepOpen{terminal}
	}
	c.hub = attach.NewHub(o)
	u.add(func() { c.hub.Close() })
	c.streams.Add(1)
	c.out = c.stream(fd, stdout, append(c.logs.sinks[stdout], c.hub.Stdout()))
	u.add(func() { c.out.Close() })
	c.mu.Lock()
	c.terminal = terminal
	c.mu.Unlock()
	return nil
}

// keepOpen is a terminal as standard input: closing that input does not close the terminal.
type keepOpen struct{ *os.File }

func (keepOpen) Close() error { return nil }

// messageReader reads what the runtime prints.
type messageReader struct {
	gate    *gate
	streams []*pump.Stream
	close   func() // nil where the streams become the container's
}

// explain adds the runtime's message to the error of a launch.
func (m *messageReader) explain(err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), messageDrain)
	defer cancel()
	for _, s := range m.streams {
		_ = s.Drain(ctx)
	}
	return withMessage(err, m.gate.message())
}

func withMessage(err error, text string) error {
	var failed *conmon.RuntimeError
	switch {
	case errors.As(err, &failed):
		return &conmon.RuntimeError{ExitCode: failed.ExitCode, Stderr: text}
	case text != "":
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// done is called when the runtime has left a process. It returns what the runtime has printed.
func (m *messageReader) done() (text string) {
	ctx, cancel := context.WithTimeout(context.Background(), messageDrain)
	defer cancel()
	for _, s := range m.streams {
		_ = s.Drain(ctx)
	}
	text = m.gate.pass()
	if m.close == nil {
		return text
	}
	m.close()
	for _, s := range m.streams {
		_ = s.Close()
	}
	return text
}

// deleteRemains removes the container that a runtime may have left.
func (c *Container) deleteRemains() {
	ctx, cancel := context.WithTimeout(context.Background(), c.host.RuntimeTimeout)
	defer cancel()
	args := c.host.Runtime.DeleteArgs(c.req.ID, c.systemdCgroup(), c.req.GlobalArgs)
	if _, err := c.host.run(ctx, args); err != nil {
		c.log.Warn("remains of a failed create not removed", "error", err)
	}
}

func (c *Container) systemdCgroup() bool {
	return c.req.CgroupManager == conmon.CgroupManagerSystemd
}

func socketPath(s *console.Socket) string {
	if s == nil {
		return ""
	}
	return s.Path()
}

// move changes the state. An event that the state does not allow is a mistake in this program; it is logged, and the
// state stays.
func (c *Container) move(e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := next(c.state, e)
	if err != nil {
		c.log.Error(err.Error())
		return
	}
	c.state = s
}

// State returns the present state.
func (c *Container) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Ended tells whether the container's process has ended, also if nobody has been told yet.
func (c *Container) Ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state > Running || c.process != nil && c.process.Ended()
}

// ID returns the container's id.
func (c *Container) ID() string { return c.req.ID }

// PID returns the pid of the container's first process, after Create.
func (c *Container) PID() int { return c.process.Pid }

// Settled is closed when the exit has been published, or the create has failed, and the id is free.
func (c *Container) Settled() <-chan struct{} { return c.settled }

// ReopenLog opens the log files again. It shares no lock with anything else that the container does.
func (c *Container) ReopenLog() error {
	if c.State() != Running {
		return conmon.ErrContainerNotFound
	}
	err := c.logs.reopen()
	if errors.Is(err, os.ErrClosed) { // it has ended meanwhile
		return conmon.ErrContainerNotFound
	}
	return err
}

// Resize sets the size of the terminal.
func (c *Container) Resize(width, height uint16) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.state != Running:
		return conmon.ErrContainerNotFound
	case !c.req.Terminal:
		return conmon.ErrNoTerminal
	case c.terminal == nil:
		return errors.New("resize terminal: terminal not connected")
	}
	if width == 0 || height == 0 {
		c.log.Warn("size of terminal ignored", "width", width, "height", height)
		return nil // a client that has no size yet; programs would see a terminal without columns
	}
	return console.Resize(c.terminal, width, height)
}

// timeIsOver kills the container: its exit says so as of any other that was killed.
func (c *Container) timeIsOver() {
	if c.State() != Running {
		return
	}
	c.log.Warn("container killed at its time limit", "limit", c.host.ContainerTimeout)
	c.Kill()
}

// Kill ends all processes of the container with SIGKILL. The exit is handled as any other.
func (c *Container) Kill() {
	if c.State() != Running {
		return
	}
	if err := c.process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.log.Error("container not killed", "error", err)
	}
	c.group.Kill()
	select {
	case <-c.process.Done():
	case <-time.After(thawAfter):
		c.thaw()
	}
}

// thaw lets a signal take effect that waits for a paused container: in a frozen cgroup of version 1 SIGKILL does.
func (c *Container) thaw() {
	ctx, cancel := context.WithTimeout(context.Background(), messageDrain)
	defer cancel()
	args := c.host.Runtime.ResumeArgs(c.req.ID, c.systemdCgroup(), c.req.GlobalArgs)
	if _, err := c.host.run(ctx, args); err != nil {
		c.log.Debug("container not resumed", "error", err)
	}
}
