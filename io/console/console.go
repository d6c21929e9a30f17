// Package console receives the terminal of a container from its runtime, over
// a console socket as the OCI runtimes define it: the runtime connects to a
// unix stream socket and sends the master side of a new pseudo-terminal with
// SCM_RIGHTS. See unix(7), pty(7) and ioctl_tty(2).
//
// Reading the terminal is the business of package pump.
package console

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// MaxPath is the greatest length in bytes of a socket's path (sun_path less
// its final zero byte).
const MaxPath = 107

// ErrPathTooLong says that the directory given to Listen is too deep.
var ErrPathTooLong = errors.New("path of console socket is longer than 107 bytes")

// Socket is a bound console socket in a directory of its own. It owns both.
type Socket struct {
	dir, path string
	file      *os.File
	once      sync.Once
	closed    atomic.Bool
}

// Listen binds a console socket in a new directory below dir that nobody else
// may enter (mode 0700). dir should be short, such as /run/conmonrs: the
// directory and socket add 22 bytes at most.
func Listen(dir string) (*Socket, error) {
	private, err := os.MkdirTemp(dir, "con-")
	if err != nil {
		return nil, fmt.Errorf("make directory for console socket: %w", err)
	}
	s := &Socket{dir: private, path: filepath.Join(private, "s")}
	if err := s.bind(); err != nil {
		s.Close()
		return nil, fmt.Errorf("bind console socket %q: %w", s.path, err)
	}
	return s, nil
}

func (s *Socket) bind() error {
	if len(s.path) > MaxPath {
		return ErrPathTooLong
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	s.file = os.NewFile(uintptr(fd), s.path)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: s.path}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	return os.NewSyscallError("listen", unix.Listen(fd, 1))
}

// Path is what the runtime is given as its console socket.
func (s *Socket) Path() string { return s.path }

// Close removes the socket and its directory. A Receive in progress ends with
// os.ErrClosed. Calling it again does nothing.
func (s *Socket) Close() (err error) {
	s.once.Do(func() { err = s.close() }) // whoever comes second waits until the socket has gone
	return err
}

func (s *Socket) close() error {
	s.closed.Store(true)
	var errs []error
	if s.file != nil {
		errs = append(errs, s.file.Close())
	}
	if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	errs = append(errs, os.Remove(s.dir))
	return errors.Join(errs...)
}

// Receive waits for the runtime and returns the master side it sends:
// non-blocking, close-on-exec, with ONLCR set, owned by the caller. It ends
// with the error of ctx if that is done first: a runtime can exit without
// ever connecting.
func (s *Socket) Receive(ctx context.Context) (*os.File, error) {
	f, err := s.receive(ctx)
	if err != nil {
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case s.closed.Load(): // what raw descriptors report has no exported name
			err = os.ErrClosed
		}
		return nil, fmt.Errorf("receive terminal on console socket %q: %w", s.path, err)
	}
	return f, nil
}

func (s *Socket) receive(ctx context.Context) (*os.File, error) {
	conn, err := accept(ctx, s.file)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	fd, err := receiveDescriptor(ctx, conn)
	if err != nil {
		return nil, err
	}
	if err := prepare(fd); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "terminal"), nil
}

// interruptible makes waiting on f end when ctx is done.
func interruptible(ctx context.Context, f *os.File) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
}

func accept(ctx context.Context, listener *os.File) (*os.File, error) {
	defer interruptible(ctx, listener)()
	fd, err := -1, error(nil)
	werr := wait(listener, func(l int) error {
		fd, _, err = unix.Accept4(l, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err == unix.ECONNABORTED {
			err = unix.EAGAIN // it went away again: wait for the next one
		}
		return err
	})
	if werr != nil {
		return nil, fmt.Errorf("accept: %w", werr)
	}
	return os.NewFile(uintptr(fd), "console connection"), nil
}

// wait calls try until it does not return EAGAIN, waiting for readability in
// between. EINTR is handled here.
func wait(f *os.File, try func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Read(func(fd uintptr) bool {
		for {
			result = try(int(fd))
			if result != unix.EINTR {
				return result != unix.EAGAIN
			}
		}
	})
	if err != nil {
		return err
	}
	return result
}

// prepare checks that fd is a master side and sets what we need. ONLCR is a
// setting of the whole terminal; runtimes clear it.
func prepare(fd int) error {
	if _, err := unix.IoctlGetInt(fd, unix.TIOCGPTN); err != nil {
		return fmt.Errorf("descriptor is not a terminal's master side: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("set terminal non-blocking: %w", err)
	}
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return fmt.Errorf("get terminal settings: %w", err)
	}
	t.Oflag |= unix.ONLCR
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
		return fmt.Errorf("set terminal settings: %w", err)
	}
	return nil
}

// Resize sets the size of a terminal in columns and rows (TIOCSWINSZ); its
// foreground processes get SIGWINCH if that changes it.
func Resize(terminal *os.File, width, height uint16) error {
	return control(terminal, "resize terminal", func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height})
	})
}

// Duplicate returns another descriptor of the terminal, close-on-exec, for
// the pump to read from. It shares O_NONBLOCK with the first one. The caller
// owns it.
func Duplicate(terminal *os.File) (int, error) {
	dup := -1
	err := control(terminal, "duplicate terminal", func(fd int) (err error) {
		dup, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	return dup, err
}

func control(f *os.File, what string, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err == nil {
		var result error
		if err = raw.Control(func(fd uintptr) { result = do(int(fd)) }); err == nil {
			err = result
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
