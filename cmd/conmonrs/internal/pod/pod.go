// Package pod is the monitor's view of its pod: the containers it watches, the execs that run, and the end of both. It
// implements the service that the RPC server calls.
package pod

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/container"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/helper"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/oci"
	"github.com/conmonrs/conmonrs/cmd/internal/version"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/server"
)

// settleLimit bounds how long the end of the monitor waits for killed containers: clients wait 10 s in all.
const settleLimit = 7 * time.Second

// reuseLimit bounds how long a create waits for the exit of the last container of that id.
const reuseLimit = 5 * time.Second

// settlePause is how often the end of the monitor looks for containers that a create has finished meanwhile.
const settlePause = 20 * time.Millisecond

// Pod implements server.Service.
type Pod struct {
	host    *container.Host
	active  func() // called when a container has ended
	scope   *helper.Scope
	spaces  Namespaces
	version func() version.Info // parsed once, at the first call
	// work ends with the monitor: creates and execs under way are given up.
	work context.Context
	stop context.CancelFunc
	fds  *fdSocket

	mu         sync.Mutex
	closing    bool
	containers map[string]*container.Container
	execs      map[*container.Exec]string // to the id of its container
	info       oci.Pod                    // zero as long as nothing is known
}

// New returns a pod without containers. active is called when a container has ended.
func New(h *container.Host, scope *helper.Scope, spaces Namespaces, active func()) *Pod {
	work, stop := context.WithCancel(context.Background())
	return &Pod{
		host: h, scope: scope, spaces: spaces, active: active, work: work, stop: stop, fds: newFDSocket(h),
		version:    sync.OnceValue(func() version.Info { return version.Get(false) }),
		containers: make(map[string]*container.Container), execs: make(map[*container.Exec]string),
	}
}

// Version answers what this monitor is.
func (p *Pod) Version(_ context.Context, req *conmon.VersionRequest) (*conmon.VersionResponse, error) {
	v := p.version()
	if req.Verbose {
		v = version.Get(true)
	}
	return &conmon.VersionResponse{
		ProcessID: uint32(os.Getpid()), Version: v.Version, Tag: v.Tag, Commit: v.Commit, BuildDate: v.BuildDate,
		Target: v.Target, RustVersion: v.Compiler, CargoVersion: v.ModuleTool, CargoTree: v.Modules,
	}, nil
}

// CreateContainer creates a container and watches it. It runs to its end whatever becomes of the caller.
func (p *Pod) CreateContainer(
	_ context.Context, req *conmon.CreateContainerRequest,
) (*conmon.CreateContainerResponse, error) {
	if err := validateCreate(req); err != nil {
		return nil, err
	}
	c, err := p.reserve(req)
	if err != nil {
		return nil, err
	}
	if err := p.create(c, req); err != nil {
		return nil, err
	}
	return &conmon.CreateContainerResponse{ContainerPID: uint32(c.PID())}, nil
}

func (p *Pod) create(c *container.Container, req *conmon.CreateContainerRequest) error {
	files, err := p.fds.take(req)
	if err == nil {
		err = p.enterScope(req)
	}
	if err != nil {
		files.Close()
		c.Abandon()
		return err
	}
	p.followScope()
	if err := c.Create(p.work, files); err != nil {
		return err
	}
	p.describe()
	return nil
}

// reserve takes the id. It is free again when the container has ended or could not be created. An engine that has seen
// the exit file, or that the process has gone, may use the id at once, a moment before the exit has been dealt with:
// that moment is waited for.
func (p *Pod) reserve(req *conmon.CreateContainerRequest) (*container.Container, error) {
	timer := time.NewTimer(reuseLimit)
	defer timer.Stop()
	for {
		c, old, err := p.tryReserve(req)
		if err == nil || old == nil || !old.Ended() {
			return c, err
		}
		select {
		case <-old.Settled():
		case <-timer.C:
			return nil, err
		}
	}
}

// tryReserve returns the container that has the id if it is taken.
func (p *Pod) tryReserve(req *conmon.CreateContainerRequest) (c, old *container.Container, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return nil, nil, conmon.ErrShuttingDown
	}
	if old := p.containers[req.ID]; old != nil {
		return nil, old, fmt.Errorf("id %q: %w", req.ID, conmon.ErrContainerExists)
	}
	c = container.New(p.host, req, func() { p.forget(c) })
	p.containers[req.ID] = c
	return c, nil, nil
}

// forget is called when a container has ended. Execs that are left, in containers that share the pid namespace of
// others, end with it.
func (p *Pod) forget(c *container.Container) {
	defer p.active()
	defer p.describe()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.containers, c.ID())
	for e, id := range p.execs {
		if id == c.ID() {
			e.Kill()
		}
	}
}

func (p *Pod) find(id string) (*container.Container, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.containers[id]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("container %q: %w", id, conmon.ErrContainerNotFound)
}

// ExecSync runs a command in a container, which need not be one of this pod.
func (p *Pod) ExecSync(_ context.Context, req *conmon.ExecSyncRequest) (*server.ExecSyncResult, error) {
	if err := validateExec(req); err != nil {
		return nil, err
	}
	e, err := p.beginExec(req)
	if err != nil {
		return nil, err
	}
	r := e.Run()
	p.mu.Lock()
	delete(p.execs, e)
	p.mu.Unlock()
	return &server.ExecSyncResult{
		ExitCode: r.ExitCode, TimedOut: r.TimedOut, Stdout: r.Stdout, Stderr: r.Stderr,
	}, nil
}

func (p *Pod) beginExec(req *conmon.ExecSyncRequest) (*container.Exec, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return nil, conmon.ErrShuttingDown
	}
	e := container.NewExec(p.work, p.host, req)
	p.execs[e] = req.ID
	return e, nil
}

// Attach makes sure that clients can connect to the container.
func (p *Pod) Attach(_ context.Context, req *conmon.AttachRequest) error {
	c, err := p.find(req.ID)
	if err != nil {
		return err
	}
	if err := checkPath("socketPath", req.SocketPath); err != nil {
		return err
	}
	return c.Attach(req.SocketPath, req.StopAfterStdinEOF)
}

// ReopenLog opens the container's log files again.
func (p *Pod) ReopenLog(_ context.Context, req *conmon.ReopenLogRequest) error {
	c, err := p.find(req.ID)
	if err != nil {
		return err
	}
	return c.ReopenLog()
}

// SetWindowSize resizes the container's terminal.
func (p *Pod) SetWindowSize(_ context.Context, req *conmon.SetWindowSizeRequest) error {
	c, err := p.find(req.ID)
	if err != nil {
		return err
	}
	return c.Resize(req.Width, req.Height)
}

// ServeExec is not there yet.
func (p *Pod) ServeExec(_ context.Context, req *conmon.ServeExecRequest) (*conmon.ServeResponse, error) {
	if _, err := p.find(req.ID); err != nil {
		return nil, err
	}
	return nil, notYet("streaming an exec")
}

// ServeAttach is not there yet.
func (p *Pod) ServeAttach(_ context.Context, req *conmon.ServeAttachRequest) (*conmon.ServeResponse, error) {
	if _, err := p.find(req.ID); err != nil {
		return nil, err
	}
	return nil, notYet("streaming an attach")
}

// ServePortForward is not there yet.
func (p *Pod) ServePortForward(context.Context, *conmon.ServePortForwardRequest) (*conmon.ServeResponse, error) {
	return nil, notYet("forwarding ports")
}

func notYet(what string) error {
	return fmt.Errorf("%s is not supported yet: %w", what, conmon.ErrNotSupported)
}
