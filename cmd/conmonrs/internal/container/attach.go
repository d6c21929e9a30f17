package container

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/waiter"
	"github.com/conmonrs/conmonrs/cmd/internal/sockpath"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// attachSocketMode: whoever attaches reads the container's output and writes its input.
const attachSocketMode = 0o700

// acceptPause is the pause after an accept that failed for want of descriptors or memory.
const acceptPause = 100 * time.Millisecond

// attachSocket is a socket that attach clients of one container connect to.
type attachSocket struct {
	container *Container
	listener  *sockpath.Listener
	watch     *waiter.Watch
	file      os.FileInfo // of the socket when it was bound
	// stopAfterEOF is what the last request for this socket asked for: a client connects right after its request.
	stopAfterEOF atomic.Bool
	// starved: clients wait because none could be accepted, which has been reported. Only ready uses it.
	starved bool
}

// Attach makes sure that clients can connect at path. A socket that a client has removed is bound anew.
func (c *Container) Attach(path string, stopAfterEOF bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != Running {
		return conmon.ErrContainerNotFound
	}
	if s := c.sockets[path]; s != nil {
		if now, err := os.Lstat(path); err == nil && os.SameFile(now, s.file) {
			s.stopAfterEOF.Store(stopAfterEOF)
			return nil
		}
		s.close()
		delete(c.sockets, path)
	}
	s, err := c.listen(path)
	if err != nil {
		return fmt.Errorf("create attach endpoint: bind socket %q: %w", path, err)
	}
	s.stopAfterEOF.Store(stopAfterEOF)
	if c.sockets == nil {
		c.sockets = make(map[string]*attachSocket)
	}
	c.sockets[path] = s
	return nil
}

func (c *Container) listen(path string) (*attachSocket, error) {
	l, err := sockpath.ListenReplacingStale(path, syscall.SOCK_SEQPACKET, attachSocketMode)
	if err != nil {
		return nil, err
	}
	s := &attachSocket{container: c, listener: l}
	if s.file, err = os.Lstat(path); err == nil {
		s.watch, err = s.watchListener()
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return s, nil
}

func (s *attachSocket) watchListener() (*waiter.Watch, error) {
	raw, err := s.listener.File().SyscallConn()
	if err != nil {
		return nil, err
	}
	var w *waiter.Watch
	if err := raw.Control(func(fd uintptr) { w = s.container.host.Waiter.Watch(int(fd), s.ready) }); err != nil {
		return nil, err
	}
	if err := w.Arm(); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// ready is called when a client waits.
func (s *attachSocket) ready() {
	switch err := s.accept(); {
	case errors.Is(err, syscall.EAGAIN):
		s.starved = false
		_ = s.watch.Arm() // fails only when the socket has been closed
	case errors.Is(err, os.ErrClosed):
	default:
		// The client stays in the queue: it is served when there are descriptors again.
		if !s.starved {
			s.starved = true
			go s.container.log.Warn("attach clients not accepted", "error", err) // may wait for whoever reads the log
		}
		time.AfterFunc(acceptPause, func() { _ = s.watch.Arm() })
	}
}

// accept takes all clients that wait, and returns why it cannot take one more.
func (s *attachSocket) accept() error {
	for {
		conn, err := s.listener.AcceptNonblock()
		if err != nil {
			return err
		}
		if err := s.container.hub.Add(conn, s.stopAfterEOF.Load()); err != nil {
			go s.container.log.Debug("attach client refused", "error", err)
		}
	}
}

// close accepts those who have connected before: they are told how it ends, instead of being reset.
func (s *attachSocket) close() {
	s.watch.Close()
	_ = s.accept()
	_ = s.listener.Close()
}

// closeSockets removes the attach sockets: the container has ended.
func (c *Container) closeSockets() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sockets {
		s.close()
	}
	c.sockets = nil
}
