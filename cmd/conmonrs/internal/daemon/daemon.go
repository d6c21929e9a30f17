// Package daemon turns the process that an engine starts into the monitor: in the background, with the runtime settings
// that keep it small, with no descriptor of its starter's, and alone in its directory.
//
// Go cannot fork, so the monitor is the same executable run again. Its settings are read by the Go runtime from the
// environment before any of our code runs, which is the second reason for running it again. What the environment held
// before is put back first of all, so that runtimes and hooks inherit what the engine had.
package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// marker tells a process that it is the monitor, and which descriptors are for it.
	marker = "_CONMONRS_DAEMON"
	// saved precedes the names of variables that were set before ours took their place.
	saved = "_CONMONRS_SAVED_"
)

// settings are what the runtime of the monitor reads at its start; see docs/performance.md for the figures.
//   - GOMAXPROCS=1: fewer threads, no caches of a second processor.
//   - GOGC=25: no garbage collection before there is 1 MiB of garbage.
//   - disablethp: on hosts with THP=always each heap would take some MiB.
//   - profstackdepth=0: no room in each thread for the stacks of profiles that nobody takes.
//   - GOMEMLIMIT: not the engine's; a limit near the floor makes the collector run without end.
var settings = [...][2]string{{"GOMAXPROCS", "1"}, {"GOGC", "25"}, {"GODEBUG", "disablethp=1,profstackdepth=0"}, {"GOMEMLIMIT", ""}}

// The descriptors of the monitor from birth on, besides the standard ones.
const (
	lockFD  = 3
	readyFD = 4
)

// ready is what the monitor writes when it serves. Anything else is the text of an error.
const ready = "\x00ready"

// How long a lock that somebody has is tried for, and how often.
const (
	lockPatience = 300 * time.Millisecond
	lockPause    = 5 * time.Millisecond
)

// shutdownGrace is how long a monitor that could not be announced is given to leave.
const shutdownGrace = 10 * time.Second

// Inherited is what the monitor has from the process that started it.
type Inherited struct {
	// Foreground: it was asked to stay in the foreground, and nobody waits for Ready.
	Foreground bool
	lock       *os.File
	pipe       *os.File
}

// Enter returns nil in a process that has not been started by Background or Foreground. Otherwise it cleans the
// environment; it is called before anything reads that. With an error it returns what can tell the starter.
func Enter() (*Inherited, error) {
	mode, ok := os.LookupEnv(marker)
	if !ok {
		return nil, nil
	}
	os.Unsetenv(marker)
	dumpCore()
	for _, s := range settings {
		name := s[0]
		if old, ok := os.LookupEnv(saved + name); ok {
			os.Setenv(name, old)
			os.Unsetenv(saved + name)
		} else {
			os.Unsetenv(name)
		}
	}
	// The name that journalctl _COMM= looks for, even if the executable was run as /proc/self/exe. Where /proc is read-only
	// it is done without.
	_ = os.WriteFile("/proc/self/comm", []byte("conmonrs"), 0)
	unix.CloseOnExec(lockFD)
	in := &Inherited{Foreground: mode == "foreground", lock: os.NewFile(lockFD, "lock")}
	if in.Foreground {
		return in, nil
	}
	unix.CloseOnExec(readyFD)
	in.pipe = os.NewFile(readyFD, "ready")
	if _, err := unix.Setsid(); err != nil { // no terminal's Ctrl-C
		return in, fmt.Errorf("start session: %w", err)
	}
	return in, nil
}

// SetUmask makes the modes of files independent of the starter's umask(2).
func SetUmask() { unix.Umask(0o022) }

// Prepare sets the attributes of the process that the monitor works with: the umask, signals that cannot be caught, and
// that orphans below it become its children (PR_SET_CHILD_SUBREAPER).
func Prepare() error {
	SetUmask()
	restoreReserved()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become child subreaper: %w", err)
	}
	return nil
}

// Ready tells the starter that the monitor serves.
func (in *Inherited) Ready() error { return in.tell(ready) }

// Fail tells the starter why the monitor does not serve.
func (in *Inherited) Fail(err error) { _ = in.tell(err.Error()) }

func (in *Inherited) tell(text string) error {
	if in.pipe == nil {
		return nil
	}
	_, err := in.pipe.WriteString(text)
	if closeErr := in.pipe.Close(); err == nil {
		err = closeErr
	}
	in.pipe = nil
	return err
}

// Lock makes this process the only monitor of dir until all copies of the result are closed. The directory itself is
// locked, so that no file is left behind.
func Lock(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("lock runtime directory %q: %w", dir, err)
	}
	if err := flock(fd); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock runtime directory %q: another server is running there", dir)
		}
		return nil, fmt.Errorf("lock runtime directory %q: %w", dir, err)
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// flock waits a moment: a monitor that was killed holds its lock until the last of its threads has gone, which may be
// after its parent has seen it dead.
func flock(fd int) error {
	for end := time.Now().Add(lockPatience); ; time.Sleep(lockPause) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
	}
}

// HideInherited keeps the monitor from inheriting descriptors of its starter's starter: a harness that waits for its
// pipe to be closed would wait for ever.
func HideInherited() {
	if unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC) == nil { // Linux 5.11
		return
	}
	names, _ := os.ReadDir("/proc/self/fd")
	for _, name := range names {
		if fd, err := strconv.Atoi(name.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

// Background starts the monitor, waits until it serves, and writes its pid to pidFile: decimal, no newline. If it does
// not come to serve, the error says why and nothing is left running. args includes argv[0].
func Background(args []string, lock *os.File, pidFile string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start in the background: %w", err)
	}
	defer r.Close()
	pid, err := syscall.ForkExec(executable(), args, &syscall.ProcAttr{
		Env:   environ("background"),
		Files: []uintptr{0, 1, 2, lock.Fd(), w.Fd()},
	})
	w.Close()
	if err != nil {
		return fmt.Errorf("start in the background: %w", err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("wait for server: %w", err)
	}
	if string(text) != ready {
		return startError(pid, string(text))
	}
	if err := writePid(pidFile, pid); err != nil {
		end(pid)
		return err
	}
	return nil
}

func startError(pid int, text string) error {
	var ws syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(pid, &ws, 0, nil); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if text != "" {
		return errors.New(text)
	}
	if ws.Signaled() {
		return fmt.Errorf("server ended before it was ready: %v", ws.Signal())
	}
	return fmt.Errorf("server ended before it was ready: exit status %d", ws.ExitStatus())
}

// end makes a monitor leave that serves but cannot be announced.
func end(pid int) {
	_ = syscall.Kill(pid, syscall.SIGINT)
	done := make(chan struct{})
	go func() {
		_, _ = syscall.Wait4(pid, nil, 0, nil)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(shutdownGrace):
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// writePid puts the pid file in place in one step.
func writePid(path string, pid int) error {
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"-"+strconv.Itoa(pid))
	err := os.WriteFile(temp, []byte(strconv.Itoa(pid)), 0o644)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return fmt.Errorf("write pid file: %w", err)
	}
	return nil
}

// Foreground becomes the monitor in this process, with its settings. It returns only on error.
func Foreground(args []string, lock *os.File) error {
	fd := int(lock.Fd())
	if fd != lockFD {
		if err := unix.Dup3(fd, lockFD, 0); err != nil {
			return fmt.Errorf("restart in the foreground: %w", err)
		}
	} else if _, err := unix.FcntlInt(lockFD, unix.F_SETFD, 0); err != nil {
		return fmt.Errorf("restart in the foreground: %w", err)
	}
	return fmt.Errorf("restart in the foreground: %w", syscall.Exec(executable(), args, environ("foreground")))
}

// executable returns what to run again: the real path, from which the process gets its name.
func executable() string {
	const self = "/proc/self/exe"
	if path, err := os.Readlink(self); err == nil {
		if a, err := os.Stat(path); err == nil {
			if b, err := os.Stat(self); err == nil && os.SameFile(a, b) {
				return path
			}
		}
	}
	return self // replaced or removed meanwhile
}

func environ(mode string) []string {
	env := []string{marker + "=" + mode}
	for _, word := range os.Environ() {
		name, _, _ := strings.Cut(word, "=")
		if isSetting(name) {
			word = saved + word
		}
		env = append(env, word)
	}
	for _, s := range settings {
		env = append(env, s[0]+"="+s[1])
	}
	return env
}

func isSetting(name string) bool {
	for _, s := range settings {
		if s[0] == name {
			return true
		}
	}
	return false
}

// Detach points the standard streams at /dev/null: standard input always, the others unless keepOutput is set.
func Detach(keepOutput bool) error {
	fd, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("detach from standard streams: %w", err)
	}
	defer unix.Close(fd)
	for std := range 3 {
		if std > 0 && keepOutput {
			break
		}
		if err := unix.Dup3(fd, std, 0); err != nil {
			return fmt.Errorf("detach from standard streams: %w", err)
		}
	}
	return nil
}
