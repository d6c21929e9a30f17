// Package sockpath opens unix(7) sockets at file system paths of any usual length.
//
// It exists for two reasons. An address holds 107 bytes at most, and the
// directories that engines use are longer: such a path is reached through a
// descriptor of its parent directory, as /proc/self/fd/<n>/<name>. And
// net.Listen and net.Dial link the resolver, which a daemon that lives in every
// pod should not pay for: this package makes the system calls itself.
//
// It does not know who may talk to a socket beyond its file mode, and it does
// not accept in the background: a caller either blocks in Accept or puts the
// descriptor into its own epoll set and calls AcceptNonblock.
package sockpath

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxAddress is what fits into sun_path beside the final NUL, see unix(7).
	maxAddress = 107
	// maxName is the longest file name that always fits behind
	// /proc/self/fd/<n>/, with room for a descriptor of seven digits. It is
	// fixed, so that a name that works today cannot fail when more
	// descriptors are open.
	maxName = maxAddress - len("/proc/self/fd/") - 7 - 1
	// maxComponent is NAME_MAX, the limit of the file systems in use.
	maxComponent = 255
	// maxPath is PATH_MAX without the final NUL.
	maxPath = 4095
)

var (
	// ErrInUse says that another socket is alive at the path.
	ErrInUse = errors.New("socket is in use")
	// ErrNotSocket says that the path is taken by something that is not a
	// socket and therefore is not replaced.
	ErrNotSocket = errors.New("path exists and is not a socket")
)

// location is a socket path taken apart.
type location struct {
	path string // as the caller gave it, for messages
	dir  string // parent directory
	name string // last component
}

// locate checks path against every limit before anything is created on disk.
func locate(path string) (location, error) {
	switch {
	case path == "":
		return location{}, errors.New("socket path is empty")
	case strings.IndexByte(path, 0) >= 0:
		return location{}, fmt.Errorf("socket path %q contains a NUL byte", path)
	case len(path) > maxPath:
		return location{}, fmt.Errorf("socket path has %d bytes, the limit is %d: %w", len(path), maxPath, unix.ENAMETOOLONG)
	}
	for component := range strings.SplitSeq(path, "/") {
		if len(component) > maxComponent {
			return location{}, fmt.Errorf("component of socket path has %d bytes, the limit is %d: %q: %w",
				len(component), maxComponent, component, unix.ENAMETOOLONG)
		}
	}
	loc := location{path: path, dir: ".", name: path}
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		loc.dir, loc.name = path[:i+1], path[i+1:]
	}
	if loc.name == "" || loc.name == "." || loc.name == ".." {
		return location{}, fmt.Errorf("socket path %q does not end in a file name", path)
	}
	return loc, nil
}

// direct says whether the path itself fits into an address.
func (l location) direct() bool { return len(l.plain()) <= maxAddress }

// plain is the path as an address. A leading '@' would select the abstract
// name space, so a relative path that begins with one is written differently.
func (l location) plain() string {
	if l.path[0] == '@' {
		return "./" + l.path
	}
	return l.path
}

// checkName refuses names that do not fit behind a descriptor of the parent.
// Cutting them would put a socket where nobody looks for it.
func (l location) checkName() error {
	if l.direct() || len(l.name) <= maxName {
		return nil
	}
	return fmt.Errorf("socket name %q has %d bytes, the limit is %d in a path of more than %d: %w",
		l.name, len(l.name), maxName, maxAddress, unix.ENAMETOOLONG)
}

// address is where to bind, given a descriptor of the parent directory that
// stays open until the call is done.
func (l location) address(dirfd int) *unix.SockaddrUnix {
	if l.direct() {
		return &unix.SockaddrUnix{Name: l.plain()}
	}
	return &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(dirfd) + "/" + l.name}
}

// openDir opens the parent directory for name look-ups only.
func (l location) openDir() (int, error) {
	return open(l.dir, unix.O_PATH|unix.O_DIRECTORY)
}

func open(path string, flags int) (int, error) {
	return openat(unix.AT_FDCWD, path, flags)
}

func openat(dirfd int, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dirfd, path, flags|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func newSocket(sotype int) (int, error) {
	return unix.Socket(unix.AF_UNIX, sotype|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
}

// Dial connects to the socket at path, of type unix.SOCK_STREAM,
// unix.SOCK_SEQPACKET or unix.SOCK_DGRAM, and returns the connection, which is
// non-blocking, close-on-exec and belongs to the caller. It does not wait: when
// the listener's queue is full the error is unix.EAGAIN. Any path up to PATH_MAX
// works, because a long one is reached through a descriptor of the socket file.
func Dial(path string, sotype int) (*os.File, error) {
	fd, err := dial(path, sotype)
	if err != nil {
		return nil, fmt.Errorf("connect to socket %q: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func dial(path string, sotype int) (int, error) {
	loc, err := locate(path)
	if err != nil {
		return -1, err
	}
	addr := &unix.SockaddrUnix{Name: loc.plain()}
	if !loc.direct() {
		node, err := open(path, unix.O_PATH)
		if err != nil {
			return -1, err
		}
		defer unix.Close(node)
		addr.Name = "/proc/self/fd/" + strconv.Itoa(node)
	}
	return connect(addr, sotype)
}

func connect(addr *unix.SockaddrUnix, sotype int) (int, error) {
	fd, err := newSocket(sotype)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, addr); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
