package fdslot

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// batch is how many packets of one connection are handled before others have their turn.
	batch = 16
	// acceptPause is the pause after an accept that failed for want of descriptors or memory.
	acceptPause = 100 * time.Millisecond
)

// Logger takes a message and keys, each followed by its value, as *slog.Logger does. It may block.
type Logger interface {
	Debug(message string, args ...any)
	Warn(message string, args ...any)
}

type noLogger struct{}

func (noLogger) Debug(string, ...any) {}
func (noLogger) Warn(string, ...any)  {}

// Poll registers a descriptor, which stays the caller's. After each call of arm, ready is called once when it can be
// read or has been hung up, not from within arm. After cancel no call of ready begins.
type Poll func(fd int, ready func()) (arm func() error, cancel func())

// Listener is a listening SOCK_SEQPACKET socket, non-blocking and close-on-exec.
type Listener interface {
	// File returns the descriptor, which stays the listener's.
	File() *os.File
	Close() error
}

// Options describe a [Server].
type Options struct {
	// Poll watches descriptors. It is required.
	Poll Poll
	// Logger hears which clients are refused or cut off; nil: nobody does.
	Logger Logger
}

// Server receives descriptors and keeps them until they are taken. It has the descriptor of its listener, one for each
// connection, and those in its slots; it has no goroutine and no buffer while nothing happens. All methods may be called
// from several goroutines.
//
// Only processes of the server's own user, and of root, are served. A client that does not read its replies is cut off.
type Server struct {
	poll   Poll
	log    Logger
	closer closer

	mu       sync.Mutex // guards what follows; system calls under it do not block
	closed   bool
	listener *listening // nil until Listen
	conns    map[*conn]struct{}
	slots    table
}

// watched is a descriptor that Poll watches.
type watched struct {
	fd     int
	arm    func() error
	cancel func()
}

type listening struct {
	watched
	listener Listener
	starved  bool // clients wait because none could be accepted, which has been reported
}

// conn is a connection of a client; its descriptor is owned.
type conn struct{ watched }

// New returns a server without a listener. It panics if there is no Poll.
func New(o Options) *Server {
	if o.Poll == nil {
		panic("fdslot: no poll")
	}
	if o.Logger == nil {
		o.Logger = noLogger{}
	}
	return &Server{poll: o.Poll, log: o.Logger, conns: make(map[*conn]struct{})}
}

// Listen serves those who connect to l, in place of an earlier listener, which is closed; connections and slots stay.
// It takes ownership of l, also on error. After Close the error is os.ErrClosed.
func (s *Server) Listen(l Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := &listening{listener: l}
	err := s.listenLocked(next)
	if err != nil {
		_ = l.Close()
		return fmt.Errorf("receive descriptors: %w", err)
	}
	return nil
}

func (s *Server) listenLocked(next *listening) error {
	if s.closed {
		return os.ErrClosed
	}
	raw, err := next.listener.File().SyscallConn()
	if err != nil {
		return err
	}
	if err := raw.Control(func(fd uintptr) { next.fd = int(fd) }); err != nil {
		return err
	}
	next.arm, next.cancel = s.poll(next.fd, func() { s.accept(next) })
	if err := next.arm(); err != nil {
		next.cancel()
		return err
	}
	err = s.unlistenLocked()
	s.listener = next
	if err != nil {
		go s.log.Warn("old socket for descriptors not removed", "error", err)
	}
	return nil
}

func (s *Server) unlistenLocked() error {
	l := s.listener
	if l == nil {
		return nil
	}
	s.listener = nil
	l.cancel()
	return l.listener.Close()
}

// accept is called when clients wait.
func (s *Server) accept(l *listening) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != l { // closed meanwhile
		return
	}
	for {
		fd, _, err := unix.Accept4(l.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			s.addLocked(fd)
		case unix.EINTR, unix.ECONNABORTED:
		case unix.EAGAIN:
			l.starved = false
			_ = l.arm()
			return
		default:
			// The client stays in the queue: it is served when there are descriptors again.
			if !l.starved {
				l.starved = true
				go s.log.Warn("senders of descriptors not accepted", "error", err)
			}
			time.AfterFunc(acceptPause, func() { _ = l.arm() })
			return
		}
	}
}

// addLocked takes ownership of fd.
func (s *Server) addLocked(fd int) {
	err := checkPeer(fd)
	c := &conn{watched{fd: fd}}
	if err == nil {
		c.arm, c.cancel = s.poll(fd, func() { s.ready(c) })
		if err = c.arm(); err != nil {
			c.cancel()
		}
	}
	if err != nil {
		go s.log.Warn("sender of descriptors refused", "error", err)
		s.closer.closeQueue(fd)
		return
	}
	s.conns[c] = struct{}{}
}

var errStranger = errors.New("peer is another user")

// checkPeer looks at who has connected. The mode of the socket says the same, as long as nobody changes it.
func checkPeer(fd int) error {
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return fmt.Errorf("read credentials of peer: %w", err)
	}
	if !mayConnect(peer.Uid, os.Geteuid()) {
		return fmt.Errorf("%w: uid %d, pid %d", errStranger, peer.Uid, peer.Pid)
	}
	return nil
}

func mayConnect(peer uint32, own int) bool { return peer == 0 || int64(peer) == int64(own) }

// ready is called when a connection has a packet, or has ended.
func (s *Server) ready(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.conns[c]; !ok { // closed meanwhile
		return
	}
	for range batch {
		next, err := s.stepLocked(c)
		if err != nil {
			go s.log.Debug("sender of descriptors cut off", "error", err)
			s.dropLocked(c, s.closer.closeQueue)
		}
		if c.fd < 0 {
			return
		}
		if !next {
			break
		}
	}
	if err := c.arm(); err != nil {
		s.dropLocked(c, s.closer.closeQueue)
	}
}

// stepLocked handles one packet, if there is one. next says that there may be another. After the end of the connection
// its descriptor is gone.
func (s *Server) stepLocked(c *conn) (next bool, err error) {
	var packet [headerSize]byte
	size, fds, truncated, err := receive(c.fd, packet[:])
	switch {
	case err == unix.EAGAIN:
		return false, nil
	case err != nil:
		return false, err
	case size == 0: // also an empty packet: the two look the same
		s.closer.close(fds...)
		s.dropLocked(c, func(fd int) { s.closer.close(fd) })
		return false, nil
	}
	reply := s.answerLocked(c, packet[:min(size, len(packet))], size, fds, truncated)
	if reply == nil {
		return true, nil
	}
	if err := send(c.fd, reply, nil); err != nil {
		return false, fmt.Errorf("send reply: %w", err)
	}
	return true, nil
}

// answerLocked does what a packet asks for, and returns the reply, nil if there is none. It takes ownership of fds.
func (s *Server) answerLocked(c *conn, packet []byte, size int, fds []int, truncated bool) (reply []byte) {
	r, err := parseRequest(packet, size)
	switch {
	case err != nil:
	case r.release():
		s.closer.close(fds...)
		s.closer.close(s.slots.takeAll(c)...)
		return nil
	case uint64(len(fds)) != uint64(r.count):
		err = fmt.Errorf("received %d fds, but expected %d fds", len(fds), r.count)
	case truncated:
		err = errors.New("control message truncated")
	case len(fds)+len(s.slots.slots)+s.closer.waiting() > MaxWaiting:
		err = fmt.Errorf("more than %d descriptors wait to be used or closed", MaxWaiting)
	}
	if err != nil {
		s.closer.close(fds...)
		return appendRefusal(nil, r.id, err.Error())
	}
	slots := make([]uint64, len(fds))
	for i, fd := range fds {
		slots[i] = s.slots.put(fd, c)
	}
	return appendSlots(make([]byte, 0, headerSize+len(fds)*slotSize), r, slots)
}

// dropLocked ends a connection, and closes what came over it and was not taken.
func (s *Server) dropLocked(c *conn, closeConn func(fd int)) {
	delete(s.conns, c)
	c.cancel()
	closeConn(c.fd)
	c.fd = -1
	s.closer.close(s.slots.takeAll(c)...)
}

// Take empties slots. The caller owns what it gets, one result for each list. All are gone from their slots when it
// returns; if one of them is empty, the error is a *[SlotError], and the descriptors of the others are closed. A slot
// that is named twice is empty the second time.
func (s *Server) Take(lists ...[]uint64) ([]*Descriptors, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := make([]*Descriptors, len(lists))
	var failure error
	for i, list := range lists {
		taken[i] = &Descriptors{closer: &s.closer}
		for j, number := range list {
			fd, ok := s.slots.take(number)
			if ok {
				taken[i].fds = append(taken[i].fds, fd)
			} else if failure == nil {
				failure = &SlotError{Slot: number, List: i, Index: j}
			}
		}
	}
	if failure == nil {
		return taken, nil
	}
	for _, d := range taken {
		d.Close()
	}
	return nil, failure
}

// Close ends all connections and closes the listener and what is in slots. It does not wait until descriptors of
// strangers are closed. What has been taken stays open. Closing twice is harmless.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	err := s.unlistenLocked()
	for c := range s.conns {
		s.dropLocked(c, s.closer.closeQueue)
	}
	s.closer.close(s.slots.takeAll(nil)...)
	if err != nil {
		return fmt.Errorf("close socket for descriptors: %w", err)
	}
	return nil
}
