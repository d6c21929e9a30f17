package daemon

import (
	"errors"
	"os"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/journald"
)

const (
	// crashIdentifier is that of the monitor's own log: journalctl -t conmonrs.
	crashIdentifier = "conmonrs"
	// crashPriority is LOG_CRIT of syslog(3).
	crashPriority = 2

	stderrFD = 2
)

// CrashOutput carries the traceback of a crash to the journal, since a monitor in the background has no standard error.
// It is one idle connection. Its methods may be called from several goroutines.
type CrashOutput struct {
	path string
	// isStderr: standard error leads nowhere, so the connection is put there. Otherwise the Go runtime gets it beside
	// standard error, which does less: the text of a fatal error (not of a panic) is printed before the runtime copies
	// what it prints, so it is on standard error only.
	isStderr bool

	mu   sync.Mutex
	unit string
	// stream is our descriptor of the connection: standard error, or one of our own and the Go runtime has another.
	// nil: no journald.
	stream *os.File
}

// ReportCrashes has the traceback of a panic or a fatal error written to the journal. It is called after Detach, since it
// takes the place of a standard error that is /dev/null; another one keeps getting tracebacks as well. path is the
// socket of journald, usually journald.DefaultStdout. The error says that journald cannot be reached, and then nothing
// has changed.
func ReportCrashes(path string) (*CrashOutput, error) {
	c := &CrashOutput{path: path, isStderr: isNull(stderrFD)}
	return c, c.Renew("")
}

// dumpCore makes a panic or a fatal error end this process by SIGABRT, so that the kernel hands a core dump to
// systemd-coredump(8). GOTRACEBACK=crash would do the same, but runtimes and containers inherit the environment. They
// inherit RLIMIT_CORE too, so that is left alone: with systemd's kernel.core_pattern a dump is taken whatever the limit.
func dumpCore() { debug.SetTraceback("crash") }

func isNull(fd int) bool {
	var st, null unix.Stat_t
	return unix.Fstat(fd, &st) == nil && unix.Stat(os.DevNull, &null) == nil &&
		st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == null.Rdev
}

// Renew connects anew and tells journald that this process is in unit, such as a scope that it has been moved into.
// journald looks at the process, so it knows without that as well, but only until the process has gone; a busy
// journald may be later than that.
func (c *CrashOutput) Renew(unit string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unit = unit
	return c.renewLocked()
}

func (c *CrashOutput) renewLocked() error {
	stream, err := journald.DialStdout(c.path, journald.StdoutOptions{
		Identifier: crashIdentifier, Priority: crashPriority, Unit: c.unit,
	})
	if err != nil {
		return err
	}
	if c.isStderr {
		defer stream.Close()
		c.stream = os.Stderr
		return unix.Dup3(int(stream.Fd()), stderrFD, 0)
	}
	if err := debug.SetCrashOutput(stream, debug.CrashOptions{}); err != nil {
		stream.Close()
		return err
	}
	if c.stream != nil {
		c.stream.Close()
	}
	c.stream = stream
	return nil
}

// Check connects anew if the connection has ended, which happens when journald is stopped, but not when it is restarted
// (sd_pid_notify_with_fds(3), FDSTORE). It is one poll(2) that does not wait, to be called whenever the monitor is awake
// anyhow: journald's end is closed for writing, which the epoll set of package waiter would take for an event.
func (c *CrashOutput) Check() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream != nil && hungUp(c.stream) {
		_ = c.renewLocked() // tried again at the next call
	}
}

func hungUp(f *os.File) bool {
	set := [1]unix.PollFd{{Fd: int32(f.Fd())}}
	for {
		n, err := unix.Poll(set[:], 0)
		if !errors.Is(err, unix.EINTR) {
			return n > 0 && set[0].Revents&unix.POLLHUP != 0
		}
	}
}
