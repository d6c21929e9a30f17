package sockpath

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// backlog is the number of connections that wait for Accept.
const backlog = 128

// Listener is a bound unix socket and the file system name it made. It runs no
// goroutine. All methods may be called from several goroutines.
type Listener struct {
	file *os.File // owned; non-blocking, so it is in the runtime's poller
	raw  syscall.RawConn
	loc  location
	id   inode

	mu     sync.Mutex
	closed bool
}

// inode tells whether a name still means the file that we made. The number
// cannot be reused while our socket is open, since the socket holds the inode.
type inode struct{ dev, ino uint64 }

// Listen binds a socket of type unix.SOCK_STREAM, unix.SOCK_SEQPACKET or
// unix.SOCK_DGRAM (which only binds) at path and gives the file exactly the
// permission bits of mode, whatever the umask; there is no moment at which it
// is more open than that. Missing parent directories are created with mode 0755.
// Nothing may exist at path: the error then is unix.EADDRINUSE. A path that
// cannot be an address is refused with unix.ENAMETOOLONG and the limit in the
// text, before anything is created.
func Listen(path string, sotype int, mode os.FileMode) (*Listener, error) {
	l, err := listen(path, sotype, mode, false)
	if err != nil {
		return nil, fmt.Errorf("listen on socket %q: %w", path, err)
	}
	return l, nil
}

// ListenReplacingStale is Listen, except that a socket file on which nobody
// listens any more is replaced. A live socket is left alone (ErrInUse), and so is
// anything that is not a socket, symbolic links included (ErrNotSocket). Between
// the look and the replacement another process may bind: starters that compete
// for one path need a lock around this call.
func ListenReplacingStale(path string, sotype int, mode os.FileMode) (*Listener, error) {
	l, err := listen(path, sotype, mode, true)
	if err != nil {
		return nil, fmt.Errorf("listen on socket %q: %w", path, err)
	}
	return l, nil
}

func listen(path string, sotype int, mode os.FileMode, replace bool) (*Listener, error) {
	loc, err := locate(path)
	if err != nil {
		return nil, err
	}
	if err := loc.checkName(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(loc.dir, 0o755); err != nil {
		return nil, err
	}
	dirfd, err := loc.openDir()
	if err != nil {
		return nil, fmt.Errorf("open directory %q: %w", loc.dir, err)
	}
	defer unix.Close(dirfd)
	if replace {
		if err := removeStale(dirfd, loc, sotype); err != nil {
			return nil, err
		}
	}
	return bind(dirfd, loc, sotype, uint32(mode.Perm()))
}

// removeStale makes room for a bind, or says why it must not.
func removeStale(dirfd int, loc location, sotype int) error {
	var st unix.Stat_t
	err := unix.Fstatat(dirfd, loc.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return ErrNotSocket
	}
	fd, err := connect(loc.address(dirfd), sotype)
	switch err {
	case nil:
		_ = unix.Close(fd)
		return ErrInUse
	case unix.EAGAIN, unix.EPROTOTYPE: // its queue is full; it is of another type
		return fmt.Errorf("%w: %w", ErrInUse, err)
	case unix.ECONNREFUSED: // nobody has it open
	case unix.ENOENT:
		return nil
	default:
		return fmt.Errorf("probe existing socket: %w", err)
	}
	if err := unix.Unlinkat(dirfd, loc.name, 0); err != nil && err != unix.ENOENT {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}

func bind(dirfd int, loc location, sotype int, mode uint32) (*Listener, error) {
	fd, err := newSocket(sotype)
	if err != nil {
		return nil, err
	}
	undo := func(err error) error {
		_ = unix.Close(fd)
		return err
	}
	// 1. The new file takes its mode from the socket, minus the umask: it is
	// never more open than asked.
	if err := unix.Fchmod(fd, mode); err != nil {
		return nil, undo(fmt.Errorf("set mode: %w", err))
	}
	if err := unix.Bind(fd, loc.address(dirfd)); err != nil {
		return nil, undo(err)
	}
	undo = func(err error) error {
		_ = unix.Unlinkat(dirfd, loc.name, 0)
		_ = unix.Close(fd)
		return err
	}
	// 2. Give back what the umask took.
	id, err := finishMode(dirfd, loc.name, mode)
	if err != nil {
		return nil, undo(fmt.Errorf("set mode: %w", err))
	}
	// 3. Only now may clients come.
	if sotype != unix.SOCK_DGRAM {
		if err := unix.Listen(fd, backlog); err != nil {
			return nil, undo(err)
		}
	}
	file := os.NewFile(uintptr(fd), loc.path)
	raw, err := file.SyscallConn()
	if err != nil {
		_ = unix.Unlinkat(dirfd, loc.name, 0)
		_ = file.Close()
		return nil, err
	}
	return &Listener{file: file, raw: raw, loc: loc, id: id}, nil
}

// finishMode sets the mode of the file just bound and identifies it. The file is
// opened first without following links, so that a name swapped meanwhile by
// somebody else leads to an error and not to a chmod of a foreign file.
func finishMode(dirfd int, name string, mode uint32) (inode, error) {
	fd, err := openat(dirfd, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return inode{}, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return inode{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return inode{}, ErrNotSocket
	}
	// fchmod(2) refuses O_PATH descriptors, the path through proc is the way.
	if err := unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode); err != nil {
		return inode{}, err
	}
	return inodeOf(&st), nil
}

func inodeOf(st *unix.Stat_t) inode {
	return inode{dev: uint64(st.Dev), ino: uint64(st.Ino)} //nolint:unconvert // the width differs between CPUs
}

// Path returns the path as it was given to Listen.
func (l *Listener) Path() string { return l.loc.path }

// File returns the listening descriptor, for an epoll set of the caller's. It
// stays the Listener's and is closed by Close.
func (l *Listener) File() *os.File { return l.file }

// Accept waits for a connection and returns it: non-blocking, close-on-exec,
// owned by the caller. Connections that were reset while they waited are
// skipped. After Close, also when Close comes during the call, the error is
// os.ErrClosed. Errors such as unix.EMFILE leave the Listener usable; pause
// before the next call then, since the connection stays in the queue.
func (l *Listener) Accept() (*os.File, error) {
	var file *os.File
	var failure error
	err := l.raw.Read(func(fd uintptr) bool {
		file, failure = l.accept(int(fd))
		return !errors.Is(failure, unix.EAGAIN)
	})
	return l.accepted(file, failure, err)
}

// AcceptNonblock is Accept without waiting: unix.EAGAIN when no connection is there.
func (l *Listener) AcceptNonblock() (*os.File, error) {
	var file *os.File
	var failure error
	err := l.raw.Control(func(fd uintptr) {
		file, failure = l.accept(int(fd))
	})
	return l.accepted(file, failure, err)
}

func (l *Listener) accept(fd int) (*os.File, error) {
	for {
		conn, _, err := unix.Accept4(fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			return os.NewFile(uintptr(conn), l.loc.path), nil
		case unix.EINTR, unix.ECONNABORTED:
			continue
		}
		return nil, err
	}
}

// accepted turns the two errors of a raw call into one.
func (l *Listener) accepted(file *os.File, failure, err error) (*os.File, error) {
	if err == nil {
		err = failure
	} else if l.isClosed() {
		err = os.ErrClosed // the poller has an error value of its own for this
	}
	if err != nil {
		return nil, fmt.Errorf("accept on socket %q: %w", l.loc.path, err)
	}
	return file, nil
}

func (l *Listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// Close removes the socket file, if the path still leads to the one that Listen
// made, wakes Accept and closes the descriptor. Closing twice is harmless.
// Connections already accepted are not touched.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	// The name goes first: while the descriptor is open the inode number is ours.
	removeErr := l.remove()
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("close socket %q: %w", l.loc.path, err)
	}
	if removeErr != nil {
		return fmt.Errorf("remove socket %q: %w", l.loc.path, removeErr)
	}
	return nil
}

func (l *Listener) remove() error {
	dirfd, err := l.loc.openDir()
	if err != nil {
		return ignoreMissing(err)
	}
	defer unix.Close(dirfd)
	var st unix.Stat_t
	if err := unix.Fstatat(dirfd, l.loc.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return ignoreMissing(err)
	}
	if inodeOf(&st) != l.id {
		return nil
	}
	return ignoreMissing(unix.Unlinkat(dirfd, l.loc.name, 0))
}

func ignoreMissing(err error) error {
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return nil
	}
	return err
}
