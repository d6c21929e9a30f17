package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/config"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/container"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/daemon"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/exitfile"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/helper"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/logging"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/namespace"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/oci"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/output"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/pod"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/reaper"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/waiter"
	"github.com/conmonrs/conmonrs/cmd/internal/pages"
	"github.com/conmonrs/conmonrs/cmd/internal/podns"
	"github.com/conmonrs/conmonrs/cmd/internal/sockpath"
	"github.com/conmonrs/conmonrs/io/pump"
	"github.com/conmonrs/conmonrs/journald"
	"github.com/conmonrs/conmonrs/oom"
	"github.com/conmonrs/conmonrs/rpc/server"
)

const (
	// socketName is where clients look in the runtime directory.
	socketName = "conmon.sock"
	socketMode = 0o700
	// poolSize is how many streams are read at the same time before others wait for buffers.
	poolSize = 4
	// startSlots is how many runtimes create, and how many exec, at the same time.
	startSlots = 8
	// exitsGrace is how long the end waits for exit files that could not be written before.
	exitsGrace = time.Second
	// serverGrace is how long calls that are being answered may take at the end.
	serverGrace = time.Second
)

// monitor is the daemon with all its parts.
type monitor struct {
	cfg    *config.Config
	log    *logging.Logger
	reaper *reaper.Reaper
	exits  *exitfile.Publisher
	scope  *helper.Scope
	trim   daemon.Trimmer
	// stopping is sent to when systemd stops the scope that an engine has made.
	stopping chan struct{}
	spaces   *namespace.Set
	pod      *pod.Pod
	server   *server.Server
	served   chan error
	// manager waits for READY=1; nil if none does.
	manager *serviceManager
	crash   *daemon.CrashOutput // set before the monitor serves
}

// serve is the life of the daemon. It returns the exit status.
func serve(cfg *config.Config, in *daemon.Inherited) int {
	log, closeLog, err := logging.New(logging.Options{Driver: cfg.LogDriver, Level: cfg.LogLevel})
	if err != nil {
		return notServing(in, err)
	}
	defer func() { _ = closeLog() }()
	caught := catchSignals()
	m, err := newMonitor(cfg, log)
	if err != nil {
		return notServing(in, err)
	}
	m.spaces.CleanUp() // before there is a scope: what was left is in the last one's
	if err := m.enterScope(); err != nil {
		return notServing(in, err)
	}
	if err := daemon.Detach(in.Foreground || cfg.LogDriver == config.DriverStdout); err != nil {
		return notServing(in, err)
	}
	if m.crash, err = daemon.ReportCrashes(journald.DefaultStdout); err != nil {
		log.Debug("tracebacks go to standard error only", "error", err)
	}
	if unit := m.scope.Unit(); unit != "" {
		m.inUnit(unit)
	}
	if err := m.listen(); err != nil {
		return notServing(in, err)
	}
	if err := in.Ready(); err != nil { // the starter has gone: so has whoever would use this monitor
		m.unlisten()
		log.Error("starter not told", "error", err)
		return failure
	}
	own := pages.Own()
	own.Drop()
	log.Info("serving", "pid", os.Getpid(), "runtime", cfg.Runtime, "runtime_dir", cfg.RuntimeDir)
	m.manager = findManager(in.Foreground, log)
	m.manager.tell("READY=1")
	m.run(caught)
	return 0
}

func notServing(in *daemon.Inherited, err error) int {
	if in.Foreground {
		return complain(err)
	}
	in.Fail(err)
	return failure
}

// signals are those that the monitor catches. A channel that is full drops: those that are sent in numbers have their own.
type signals struct {
	children chan os.Signal // SIGCHLD
	requests chan os.Signal // to leave
	others   chan os.Signal
}

// catchSignals has all signals caught that concern the monitor, or that its starter left ignored: what is ignored stays
// so in children, what is caught does not.
func catchSignals() signals {
	s := signals{make(chan os.Signal, 1), make(chan os.Signal, 8), make(chan os.Signal, 1)}
	signal.Notify(s.children, syscall.SIGCHLD)
	signal.Notify(s.requests, syscall.SIGINT, syscall.SIGTERM)
	signal.Notify(s.others, syscall.SIGPIPE, syscall.SIGHUP)
	for _, sig := range daemon.Ignored() {
		if sig != syscall.SIGINT && sig != syscall.SIGTERM && sig != syscall.SIGCHLD {
			signal.Notify(s.others, sig)
		}
	}
	return s
}

func newMonitor(cfg *config.Config, log *logging.Logger) (*monitor, error) {
	if err := daemon.Prepare(); err != nil {
		return nil, err
	}
	score, err := reaper.ProtectFromOOM()
	if err != nil {
		log.Debug("not protected from the OOM killer", "error", err)
	}
	set, err := waiter.New()
	if err != nil {
		return nil, err
	}
	m := &monitor{cfg: cfg, log: log, reaper: reaper.New(set, score), exits: exitfile.New(), served: make(chan error, 1)}
	m.openScope()
	host := &container.Host{
		Runtime: oci.Runtime{Path: cfg.Runtime, Root: cfg.RuntimeRoot, LogLevel: string(cfg.LogLevel)},
		Reaper:  m.reaper, Waiter: set, Pool: pump.NewPool(poolSize),
		Budget: output.NewBudget(cfg.ExecOutputBudget), Exits: m.exits, OOM: oom.New(pollWith(set)), Log: log,
		RuntimeDir: cfg.RuntimeDir, ConsoleDir: consoleDir(), Environ: os.Environ(),
		RuntimeTimeout: cfg.RuntimeTimeout, ContainerTimeout: cfg.ContainerTimeout, JournalSocket: journald.DefaultSocket,
		Creates: make(container.Slots, startSlots), Execs: make(container.Slots, startSlots),
	}
	m.openNamespaces()
	m.pod = pod.New(host, m.scope, m.spaces, m.trim.Touch)
	host.Pod = m.pod.Name
	m.server = server.New(server.Options{Service: m.pod, Logger: log, Activity: m.trim.Touch})
	return m, nil
}

// openScope prepares for a scope, which is entered later.
func (m *monitor) openScope() {
	m.stopping = make(chan struct{}, 1)
	o := helper.ScopeOptions{
		Log: m.log, Mode: helper.Mode(m.cfg.Scope), Slice: m.cfg.Slice, StopTimeout: m.cfg.StopTimeout,
		OnUnit: m.inUnit, OnStop: func() { m.stopping <- struct{}{} },
	}
	if m.cfg.Scope != config.ScopeNever {
		h, err := helper.Open(m.reaper, os.Environ(), helper.Name)
		if err == nil {
			o.Runner = h
		} else {
			m.log.Debug("no helper", "error", err)
		}
	}
	m.scope = helper.NewScope(o)
}

// openNamespaces prepares for namespaces of the pod, which are created when an engine asks for them.
func (m *monitor) openNamespaces() {
	o := namespace.Options{Reaper: m.reaper, Log: m.log, Dir: m.cfg.RuntimeDir}
	pause, err := helper.Open(m.reaper, nil, podns.Name)
	if err == nil {
		o.Runner = pause
	} else {
		o.Missing = err
		m.log.Debug("no namespaces for the pod", "error", err)
	}
	m.spaces = namespace.New(o)
}

// inUnit says where a traceback belongs. A scope that is entered before tracebacks are reported is told then.
func (m *monitor) inUnit(unit string) {
	if m.crash == nil {
		return
	}
	if err := m.crash.Renew(unit); err != nil {
		m.log.Debug("tracebacks will not name the unit", "error", err)
	}
}

// enterScope enters the scope before the monitor serves, if it must have one and is told where.
func (m *monitor) enterScope() error {
	if m.cfg.Scope != config.ScopeAlways || m.cfg.Slice == "" {
		return nil
	}
	return m.pod.EnterScope(context.Background())
}

// pollWith has the OOM watcher's descriptors watched with all others.
func pollWith(set *waiter.Set) oom.Poll {
	return func(fd int, priority bool, ready func()) (arm func() error, cancel func()) {
		watch := set.Watch
		if priority {
			watch = set.WatchPriority
		}
		w := watch(fd, ready)
		return w.Arm, w.Close
	}
}

// consoleDir returns a directory for console sockets: short, since runtimes connect to them by path, and out of reach
// of other users.
func consoleDir() string {
	if os.Geteuid() == 0 {
		return "/run"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return dir
	}
	return os.TempDir()
}

// listener adapts a socket to what the server wants.
type listener struct{ *sockpath.Listener }

func (l listener) Accept() (io.ReadWriteCloser, error) { return l.Listener.Accept() }

func (m *monitor) listen() error {
	if err := removeSocket(filepath.Join(m.cfg.RuntimeDir, pod.FDSocketName)); err != nil {
		return err
	}
	l, err := sockpath.ListenReplacingStale(filepath.Join(m.cfg.RuntimeDir, socketName), syscall.SOCK_STREAM, socketMode)
	if err != nil {
		return fmt.Errorf("bind server socket: %w", err)
	}
	go func() { m.served <- m.server.Serve(context.Background(), listener{l}) }()
	return nil
}

// removeSocket removes what a monitor that was killed has left. The lock says that none is alive.
func removeSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && info.Mode().Type() != os.ModeSocket {
		err = fmt.Errorf("%q is in the way and is not a socket", path)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("remove old socket: %w", err)
	}
	return nil
}

// run handles signals until the pod has ended.
func (m *monitor) run(caught signals) {
	hurry := make(chan struct{})
	hasten := sync.OnceFunc(func() { close(hurry) })
	var ended chan struct{}
	leave := func(why string, wait func()) {
		m.log.Info("leaving", "signal", why)
		m.manager.tell("STOPPING=1")
		ended = make(chan struct{})
		go m.shutdown(wait, ended)
	}
	for {
		select {
		case <-caught.children:
			m.reaper.Sweep()
			m.crash.Check()
		case <-ended:
			return
		case <-m.manager.asks():
			m.manager.tell("WATCHDOG=1")
		case <-m.stopping:
			if ended == nil {
				leave("stop of the unit", func() { m.pod.Drain(hurry) })
			}
		case sig := <-caught.others:
			if sig == syscall.SIGPIPE {
				m.scope.CheckStop()
			} else {
				m.log.Debug("signal without effect", "signal", fmt.Sprint(sig))
			}
		case sig := <-caught.requests:
			switch {
			case ended != nil: // do not wait any longer
				hasten()
			case sig == syscall.SIGTERM:
				leave(fmt.Sprint(sig), func() { m.pod.Stop(m.cfg.StopTimeout, hurry) })
			default:
				leave(fmt.Sprint(sig), func() {})
			}
		}
	}
}

// shutdown ends the pod when wait has returned.
func (m *monitor) shutdown(wait func(), ended chan struct{}) {
	defer close(ended)
	wait()
	if left := m.pod.Kill(); left > 0 {
		m.log.Error("containers left behind", "count", left)
	}
	m.spaces.Close()
	ctx, cancel := context.WithTimeout(context.Background(), exitsGrace)
	defer cancel()
	m.exits.Close(ctx)
	m.scope.Close()
	m.trim.Close()
	m.pod.CloseFDSocket()
	m.unlisten()
}

// unlisten ends the server and removes its socket.
func (m *monitor) unlisten() {
	ctx, cancel := context.WithTimeout(context.Background(), serverGrace)
	defer cancel()
	if err := m.server.Shutdown(ctx); err != nil {
		m.log.Warn("calls cut off", "error", err)
	}
	if err := <-m.served; err != nil {
		m.log.Warn("socket not removed", "error", err)
	}
}
