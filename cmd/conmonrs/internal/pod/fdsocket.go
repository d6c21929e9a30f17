package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/container"
	"github.com/conmonrs/conmonrs/cmd/internal/sockpath"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/server"
)

// FDSocketName is where the descriptor socket is in the runtime directory.
const FDSocketName = "conmon-fd.sock"

// fdSocketMode: whoever connects can have descriptors put into containers.
const fdSocketMode = 0o700

// fdSocket is the socket on which engines send descriptors. It is bound when an engine first asks for it: most never do.
type fdSocket struct {
	host *container.Host

	mu     sync.Mutex
	closed bool
	slots  *server.FDSlots // nil until start
	file   os.FileInfo     // of the socket when it was bound
}

func newFDSocket(h *container.Host) *fdSocket {
	return &fdSocket{host: h}
}

func (s *fdSocket) path() string { return filepath.Join(s.host.RuntimeDir, FDSocketName) }

// start makes sure that engines can connect. A socket that somebody has removed is bound anew.
func (s *fdSocket) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return conmon.ErrShuttingDown
	}
	if s.file != nil {
		if now, err := os.Lstat(s.path()); err == nil && os.SameFile(now, s.file) {
			return nil
		}
	}
	if err := s.listenLocked(); err != nil {
		return fmt.Errorf("bind server socket: %w", err)
	}
	return nil
}

func (s *fdSocket) listenLocked() error {
	l, err := sockpath.ListenReplacingStale(s.path(), syscall.SOCK_SEQPACKET, fdSocketMode)
	if err != nil {
		return err
	}
	file, err := os.Lstat(s.path())
	if err != nil {
		l.Close()
		return err
	}
	if s.slots == nil {
		s.slots = server.NewFDSlots(server.FDOptions{Poll: s.poll, Logger: s.host.Log})
	}
	if err := s.slots.Listen(l); err != nil {
		return err
	}
	s.file = file
	return nil
}

// poll has descriptors watched with all others of the pod.
func (s *fdSocket) poll(fd int, ready func()) (arm func() error, cancel func()) {
	w := s.host.Waiter.Watch(fd, ready)
	return w.Arm, w.Close
}

// take empties the slots that a create names.
func (s *fdSocket) take(req *conmon.CreateContainerRequest) (container.Files, error) {
	if len(req.AdditionalFDs)+len(req.LeakFDs) == 0 {
		return container.Files{}, nil
	}
	s.mu.Lock()
	slots := s.slots
	s.mu.Unlock()
	if slots == nil { // nobody can have sent any
		slots = server.NewFDSlots(server.FDOptions{Poll: s.poll})
	}
	taken, err := slots.Take(req.AdditionalFDs, req.LeakFDs)
	if empty := (*server.SlotError)(nil); errors.As(err, &empty) {
		field := [...]string{"additionalFds", "leakFds"}[empty.List]
		err = &conmon.InvalidError{Field: fmt.Sprintf("%s[%d]", field, empty.Index), Reason: empty.Error()}
	}
	if err != nil {
		return container.Files{}, err
	}
	return container.Files{Additional: taken[0], Leaked: taken[1]}, nil
}

// close removes the socket, and closes what was sent and not used.
func (s *fdSocket) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.slots == nil {
		return
	}
	if err := s.slots.Close(); err != nil {
		s.host.Log.Warn("socket for descriptors not removed", "error", err)
	}
}

// StartFDSocket binds the socket on which engines send descriptors, unless that has been done.
func (p *Pod) StartFDSocket(context.Context, *conmon.StartFDSocketRequest) (*conmon.StartFDSocketResponse, error) {
	if err := p.fds.start(); err != nil {
		return nil, err
	}
	return &conmon.StartFDSocketResponse{Path: p.fds.path()}, nil
}

// CloseFDSocket removes that socket. None is bound from now on.
func (p *Pod) CloseFDSocket() { p.fds.close() }
