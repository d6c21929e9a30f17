// Package journald writes to the systemd journal in its native protocol
// (https://systemd.io/JOURNAL_NATIVE_PROTOCOL): one datagram per entry, and a
// sealed memfd for an entry that no datagram can hold.
//
// It has three layers: [Conn] sends entries, [Log] is a program's own log, which
// never waits, and [Sink] is the log of a container, which waits rather than lose
// a line.
//
// It does not read the journal, and it links neither package net nor C code.
package journald

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultSocket is where journald listens.
const DefaultSocket = "/run/systemd/journal/socket"

// maxPath is what fits into sun_path beside the final NUL, see unix(7).
const maxPath = 107

// keep is the size up to which a buffer is kept from one entry to the next.
const keep = 4 << 10

// Conn is a datagram socket that talks to journald. It connects when something
// is sent and again when journald has gone away meanwhile, so it may be made
// before journald runs and outlives its restarts. It runs no goroutine. All
// methods may be called from several goroutines.
type Conn struct {
	path string
	addr *unix.SockaddrUnix
	file *os.File // owned; non-blocking, so it is in the runtime's poller
	raw  syscall.RawConn

	// waiting is held by the one sender that waits for room: the deadline of
	// the descriptor is shared.
	waiting sync.Mutex

	mu  sync.Mutex // guards what follows; nothing is called out with it held
	tx  *sender
	buf []byte
}

// Dial makes a Conn for the journald socket at path, usually [DefaultSocket].
// That nobody listens there is not an error; use [Conn.Connect] to find out.
func Dial(path string) (*Conn, error) {
	if path == "" || path[0] == '@' || len(path) > maxPath {
		return nil, fmt.Errorf("dial journal socket %q: path has %d bytes, from 1 to %d are possible, without a leading '@'", path, len(path), maxPath)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("dial journal socket %q: %w", path, err)
	}
	c := &Conn{path: path, addr: &unix.SockaddrUnix{Name: path}, file: os.NewFile(uintptr(fd), path)}
	if c.raw, err = c.file.SyscallConn(); err != nil {
		_ = c.file.Close()
		return nil, fmt.Errorf("dial journal socket %q: %w", path, err)
	}
	c.tx = c.newSender()
	return c, nil
}

// Connect tells whether journald listens: nil, or why not. It is never needed
// before sending.
func (c *Conn) Connect() error {
	var failure error
	err := c.raw.Control(func(fd uintptr) { failure = connect(int(fd), c.addr) })
	if err != nil {
		failure = os.ErrClosed
	}
	if failure != nil {
		return fmt.Errorf("connect to journal socket %q: %w", c.path, failure)
	}
	return nil
}

// Send sends one entry without waiting: the error is unix.EAGAIN when journald's
// queue is full. A field with an invalid name is refused, and nothing is sent
// then. Steady use does not allocate.
func (c *Conn) Send(fields ...Field) error {
	for i := range fields {
		if !ValidName(fields[i].Name) {
			return fmt.Errorf("send journal entry: invalid field name %q", fields[i].Name)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.buf[:0]
	for i := range fields {
		b = AppendField(b, fields[i].Name, fields[i].Value)
	}
	c.buf = retain(b, keep)
	return c.tx.send(b, 0)
}

// Close closes the socket. Senders that wait return os.ErrClosed. Closing twice
// is harmless.
func (c *Conn) Close() error {
	err := c.file.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// retain returns b for later use, or nil if it has grown beyond limit.
func retain(b []byte, limit int) []byte {
	if cap(b) > limit {
		return nil
	}
	return b[:0]
}

// sender sends entries for one user, who may not use it concurrently. It exists
// to hold the state of a call: closures made for each call would be garbage.
type sender struct {
	c     *Conn
	entry []byte
	memfd int // holds the entry if it is too large for a datagram; -1: none
	err   error
	once  func(fd uintptr)
	until func(fd uintptr) bool
}

func (c *Conn) newSender() *sender {
	s := &sender{c: c, memfd: -1}
	s.once = func(fd uintptr) { s.err = s.attempt(int(fd)) }
	s.until = func(fd uintptr) bool { s.once(fd); return s.err != unix.EAGAIN }
	return s
}

// send sends an encoded entry, waiting up to limit for room in journald's queue.
// It returns plain errno values, or os.ErrClosed.
func (s *sender) send(entry []byte, limit time.Duration) error {
	s.entry = entry
	defer s.reset()
	if err := s.c.raw.Control(s.once); err != nil {
		return os.ErrClosed
	}
	if s.err != unix.EAGAIN || limit <= 0 {
		return s.err
	}
	return s.wait(limit)
}

// wait tries again whenever the socket is writable. The kernel reports that for
// a connected socket when the receiver takes something from a full queue.
func (s *sender) wait(limit time.Duration) error {
	s.c.waiting.Lock()
	defer s.c.waiting.Unlock()
	if err := s.c.file.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return os.ErrClosed
	}
	err := s.c.raw.Write(s.until)
	switch {
	case err == nil:
		return s.err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return unix.EAGAIN
	}
	return os.ErrClosed
}

func (s *sender) reset() {
	s.entry = nil
	if s.memfd >= 0 {
		_ = unix.Close(s.memfd)
		s.memfd = -1
	}
}

// attempt sends once. A socket that has lost its peer, or never had one, is
// connected first.
func (s *sender) attempt(fd int) error {
	err := s.transmit(fd)
	if !disconnected(err) {
		return err
	}
	if err := connect(fd, s.c.addr); err != nil {
		return err
	}
	return s.transmit(fd)
}

func (s *sender) transmit(fd int) error {
	if s.memfd < 0 {
		err := retryEINTR(func() error { return unix.Send(fd, s.entry, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) })
		if err != unix.EMSGSIZE && err != unix.ENOBUFS {
			return err
		}
		if s.memfd, err = sealed(s.entry); err != nil {
			return err
		}
	}
	rights := unix.UnixRights(s.memfd)
	return retryEINTR(func() error { return unix.Sendmsg(fd, nil, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) })
}

func connect(fd int, addr *unix.SockaddrUnix) error {
	return retryEINTR(func() error { return unix.Connect(fd, addr) })
}

func retryEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// disconnected says that the socket has no living peer.
func disconnected(err error) bool {
	switch err {
	case unix.ENOTCONN, unix.ECONNREFUSED, unix.ECONNRESET, unix.EDESTADDRREQ, unix.EPIPE:
		return true
	}
	return false
}

// unreachable says that nobody listens at the path at present.
func unreachable(err error) bool { return disconnected(err) || err == unix.ENOENT }

// sealed returns a memfd with the entry. journald maps the file and therefore
// insists on seals: exactly these four, older versions compare for equality.
func sealed(entry []byte) (int, error) {
	fd, err := createMemfd()
	if err != nil {
		return -1, err
	}
	for rest := entry; len(rest) > 0 && err == nil; {
		var n int
		if n, err = unix.Write(fd, rest); err == unix.EINTR {
			err = nil
			continue
		}
		rest = rest[max(n, 0):]
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// createMemfd asks for a non-executable file only where nothing else is allowed
// (sysctl vm.memfd_noexec=2): that adds a seal that old versions of journald do
// not expect.
func createMemfd() (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("journal-entry", flags)
	if err == unix.EACCES {
		fd, err = unix.MemfdCreate("journal-entry", flags|unix.MFD_NOEXEC_SEAL)
	}
	return fd, err
}
