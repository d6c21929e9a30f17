package journald

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultStdout is where journald takes the standard output of services: a stream of lines on a connection, each of
// which becomes an entry.
const DefaultStdout = "/run/systemd/journal/stdout"

const (
	// stdoutBuffer is how much may wait for journald. An empty buffer takes no memory, whatever its limit.
	stdoutBuffer = 8 << 20
	// stdoutPatience is how long a write waits for room in the buffer before it fails with EAGAIN.
	stdoutPatience = 20 * time.Millisecond
)

// StdoutOptions say what the entries of a connection made by [DialStdout] have in common.
type StdoutOptions struct {
	// Identifier becomes SYSLOG_IDENTIFIER, for journalctl -t. No newline.
	Identifier string
	// Priority is a level of syslog(3), 0 to 7.
	Priority int
	// Unit becomes _SYSTEMD_UNIT of what journald reads after the process has gone. As long as the process is there,
	// journald looks at its control group, so a move counts at once. It is heeded from root only. May be empty.
	Unit string
}

// DialStdout connects to journald for lines of text, in the protocol of sd_journal_stream_fd(3). The caller owns the
// result, a descriptor in blocking mode on which a write waits for a moment only, even if journald is stuck.
//
// journald hands its connections to systemd while it is restarted, or has crashed. They end when it is stopped: then
// writes fail with EPIPE, and poll(2) says POLLHUP. Until something is written the connection costs journald a
// descriptor and a file of 200 bytes in /run/systemd/journal/streams. The error is that of connect(2) where there is no
// journald, and EAGAIN when it has too many waiting: DialStdout itself never waits.
func DialStdout(path string, o StdoutOptions) (*os.File, error) {
	if strings.ContainsRune(o.Identifier+o.Unit, '\n') || o.Priority < 0 || o.Priority > 7 {
		return nil, fmt.Errorf("connect to journal stream %q: invalid options %+v", path, o)
	}
	// The errors are formatted by whoever prints them: that nobody listens is common and no reason to touch fmt.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "connect to", Path: path, Err: err}
	}
	if err := openStdout(fd, path, o); err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "connect to", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func openStdout(fd int, path string, o StdoutOptions) error {
	if err := connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return err
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, stdoutBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, stdoutBuffer) // cut to net.core.wmem_max
	}
	patience := unix.NsecToTimeval(int64(stdoutPatience))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience); err != nil {
		return err
	}
	// Identifier, unit, priority; not wanted: levels at the beginning of lines, and copies to syslog, the kernel's log
	// and the console.
	header := o.Identifier + "\n" + o.Unit + "\n" + strconv.Itoa(o.Priority) + "\n0\n0\n0\n0\n"
	if _, err := unix.Write(fd, []byte(header)); err != nil {
		return err
	}
	return unix.SetNonblock(fd, false)
}
