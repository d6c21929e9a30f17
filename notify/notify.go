// Package notify speaks the datagram protocol of sd_notify(3), by which services tell their manager that they are ready,
// what they do, or that they stop.
//
// It has two parts: [Notify] sends the monitor's own state, and a [Relay] passes on what a container says, filtered, to
// the socket of whoever waits for that container.
//
// It does not read the environment, adds no MAINPID, stores no descriptors, and does not speak to managers on AF_VSOCK.
// It links neither package net nor C code, and runs no goroutine.
package notify

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxPath is what fits into sun_path beside the final NUL, see unix(7). x/sys keeps to it for abstract names as well,
	// which could have one byte more.
	maxPath = 107
	// maxLongPath is PATH_MAX without the final NUL.
	maxLongPath = 4095
)

// sendTimeout is how long Notify waits for room in the manager's queue.
const sendTimeout = 2 * time.Second

// CheckSocket says what keeps socket from being the address of a notification socket: nil if it is an absolute path of at
// most 4095 bytes, or the name of an abstract socket, which begins with '@' or a NUL byte and has at most 107 bytes with
// it. Whether there is such a socket is not looked at.
func CheckSocket(socket string) error {
	switch {
	case socket == "":
		return errors.New("is empty")
	case isAbstract(socket):
		if len(socket) == 1 || len(socket) > maxPath {
			return fmt.Errorf("is an abstract socket of %d bytes, from 2 to %d are possible", len(socket), maxPath)
		}
	case socket[0] != '/':
		return fmt.Errorf("%q is neither an absolute path nor the name of an abstract socket", socket)
	case len(socket) > maxLongPath:
		return fmt.Errorf("has %d bytes, the limit is %d", len(socket), maxLongPath)
	}
	if strings.IndexByte(socket[1:], 0) >= 0 {
		return errors.New("contains a NUL byte")
	}
	return nil
}

func isAbstract(socket string) bool { return socket[0] == '@' || socket[0] == 0 }

// Notify sends state, assignments separated by newlines, to the notification socket of a service manager; see sd_notify(3).
// The socket is as in NOTIFY_SOCKET, see [CheckSocket]. It waits up to two seconds for room in the manager's queue; the
// error is unix.EAGAIN then. The manager sees this process as the sender.
func Notify(socket, state string) error {
	if err := CheckSocket(socket); err != nil {
		return fmt.Errorf("notify service manager: socket %w", err)
	}
	if err := send(socket, []byte(state), sendTimeout); err != nil {
		return fmt.Errorf("notify service manager on %q: %w", socket, err)
	}
	return nil
}

// send sends one datagram and waits for room in the receiver's queue up to timeout, without any if that is 0. Everything
// is looked up anew each time: a receiver that has been replaced is found. It returns plain errno values.
func send(socket string, message []byte, timeout time.Duration) error {
	kind := unix.SOCK_DGRAM | unix.SOCK_CLOEXEC
	if timeout == 0 {
		kind |= unix.SOCK_NONBLOCK
	}
	fd, err := unix.Socket(unix.AF_UNIX, kind, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if timeout > 0 {
		limit := unix.NsecToTimeval(int64(timeout))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
			return err
		}
	}
	addr, node, err := address(socket)
	if err != nil {
		return err
	}
	defer closeFD(node)
	return retryEINTR(func() error { return unix.Sendto(fd, message, unix.MSG_NOSIGNAL, addr) })
}

// address turns a checked socket into an address. A path that is too long for one is reached through a descriptor of the
// socket file, which must stay open until the address has been used; it is -1 otherwise.
func address(socket string) (addr *unix.SockaddrUnix, node int, err error) {
	switch {
	case isAbstract(socket):
		return &unix.SockaddrUnix{Name: "@" + socket[1:]}, -1, nil
	case len(socket) <= maxPath:
		return &unix.SockaddrUnix{Name: socket}, -1, nil
	}
	if node, err = openat(unix.AT_FDCWD, socket, unix.O_PATH); err != nil {
		return nil, -1, err
	}
	return &unix.SockaddrUnix{Name: procPath(node)}, node, nil
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func openat(dir int, path string, flags int) (fd int, err error) {
	err = retryEINTR(func() error {
		fd, err = unix.Openat(dir, path, flags|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

func retryEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}
