package notify

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The container's socket, below the bundle. Engines mount the directory into the container, usually at /run/notify.
const (
	directory  = "notify"
	socketName = "notify.sock"
	// socketMode: the container's user may have any number.
	socketMode = 0o777
)

// SocketPath returns the path of the socket that [Listen] binds for a container with this bundle.
func SocketPath(bundle string) string { return filepath.Join(bundle, directory, socketName) }

// boundSocket is a socket in a bundle.
type boundSocket struct {
	fd     int
	bundle string
	made   bool // the directory was not there before
	id     inode
}

// inode tells whether a name still means the file that we made. The number cannot be reused while the socket is open.
type inode struct{ dev, ino uint64 }

func inodeOf(st *unix.Stat_t) inode {
	return inode{dev: uint64(st.Dev), ino: uint64(st.Ino)} //nolint:unconvert // the width differs between CPUs
}

// bindSocket makes the directory, if it is missing, and the socket in it, in place of an old one. The last components of
// the path are not followed if they are links: the directory may be writable in a container.
func bindSocket(bundle string) (*boundSocket, error) {
	parent, err := openat(unix.AT_FDCWD, bundle, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open bundle %q: %w", bundle, err)
	}
	defer unix.Close(parent)
	err = retryEINTR(func() error { return unix.Mkdirat(parent, directory, 0o755) })
	s := &boundSocket{fd: -1, bundle: bundle, made: err == nil}
	if err != nil && err != unix.EEXIST {
		return nil, fmt.Errorf("make directory %q: %w", filepath.Dir(SocketPath(bundle)), err)
	}
	dir, err := openDirectory(parent)
	if err == nil {
		defer unix.Close(dir)
		err = s.bind(dir)
	}
	if err != nil {
		if s.made {
			_ = unix.Unlinkat(parent, directory, unix.AT_REMOVEDIR)
		}
		return nil, fmt.Errorf("bind %q: %w", SocketPath(bundle), err)
	}
	return s, nil
}

func openDirectory(parent int) (int, error) {
	return openat(parent, directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
}

func (s *boundSocket) bind(dir int) error {
	if err := unix.Unlinkat(dir, socketName, 0); err != nil && err != unix.ENOENT {
		return fmt.Errorf("remove old socket: %w", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	// Through the descriptor of the directory the length of the bundle's path does not matter.
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: procPath(dir) + "/" + socketName}); err != nil {
		_ = unix.Close(fd)
		return err
	}
	if s.id, err = openUp(dir); err != nil {
		_ = unix.Unlinkat(dir, socketName, 0)
		_ = unix.Close(fd)
		return err
	}
	s.fd = fd
	return nil
}

// openUp sets the mode of the file that has been bound, and identifies it. The file is opened first, without following
// links, so that a name swapped meanwhile leads to an error and not to a chmod of something else.
func openUp(dir int) (inode, error) {
	node, err := openat(dir, socketName, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return inode{}, err
	}
	defer unix.Close(node)
	var st unix.Stat_t
	if err := unix.Fstat(node, &st); err != nil {
		return inode{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return inode{}, errors.New("replaced by something that is not a socket")
	}
	// fchmod(2) refuses O_PATH descriptors, the path through proc is the way.
	if err := unix.Chmod(procPath(node), socketMode); err != nil {
		return inode{}, fmt.Errorf("set mode: %w", err)
	}
	return inodeOf(&st), nil
}

// close removes the file, if it still is the one that was bound, and the directory, if it was made and is empty. The
// descriptor is closed a moment later: descriptors in messages that nobody has read go with it, and may block.
func (s *boundSocket) close() error {
	err := s.remove() // the name goes first: while the descriptor is open the inode number is ours
	go func(fd int) { _ = unix.Close(fd) }(s.fd)
	s.fd = -1
	if err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP { // all of it has gone already, or is not ours
		return nil
	}
	return err
}

func (s *boundSocket) remove() error {
	parent, err := openat(unix.AT_FDCWD, s.bundle, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	dir, err := openDirectory(parent)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstatat(dir, socketName, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if inodeOf(&st) != s.id {
		return nil
	}
	if err := unix.Unlinkat(dir, socketName, 0); err != nil {
		return err
	}
	if s.made {
		// What else the engine has put there stays.
		_ = unix.Unlinkat(parent, directory, unix.AT_REMOVEDIR)
	}
	return nil
}
