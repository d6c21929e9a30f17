// Package oci knows the command lines of the OCI runtimes (runc, crun), what they leave behind, and what they print.
// It starts nothing.
package oci

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// maxPidFile bounds what is read of a pid file.
const maxPidFile = 64

// Runtime is the runtime of a pod, fixed for the life of its monitor.
type Runtime struct {
	// Path is the binary; Root its state directory, empty for the runtime's own default.
	Path, Root string
	// LogLevel is the monitor's own level; crun follows it where it has the same.
	LogLevel string
}

// Create describes a container to create.
type Create struct {
	ID, Bundle, PidFile string
	// ConsoleSocket is empty for a container without terminal.
	ConsoleSocket string
	SystemdCgroup bool
	// GlobalArgs go before the verb, CommandArgs behind it.
	GlobalArgs, CommandArgs []string
}

// Exec describes a process to run in a container.
type Exec struct {
	ID, PidFile string
	// ConsoleSocket is empty for a process without terminal.
	ConsoleSocket string
	SystemdCgroup bool
	// Env holds KEY=VALUE words for the environment of the process; see ExecEnv.
	Env     []string
	Command []string
}

// CreateArgs returns the arguments, argv[0] included, that create a container.
func (r Runtime) CreateArgs(c Create) []string {
	// Of a repeated option the last one wins: the caller's come after ours.
	args := append(r.global(c.ID, c.SystemdCgroup), c.GlobalArgs...)
	args = append(args, "create", "--bundle", c.Bundle, "--pid-file", c.PidFile)
	args = append(args, c.CommandArgs...)
	if c.ConsoleSocket != "" {
		args = append(args, "--console-socket="+c.ConsoleSocket)
	}
	return append(args, c.ID)
}

// ExecArgs returns the arguments that start a process in a container and leave it to the caller.
func (r Runtime) ExecArgs(e Exec) []string {
	args := append(r.global(e.ID, e.SystemdCgroup), "exec", "-d")
	if e.ConsoleSocket != "" {
		args = append(args, "--console-socket="+e.ConsoleSocket, "--tty")
	}
	for _, env := range e.Env {
		args = append(args, "--env="+env)
	}
	// No "--": both runtimes stop looking for options at the id.
	return append(append(args, "--pid-file="+e.PidFile, e.ID), e.Command...)
}

// DeleteArgs returns the arguments that remove what a failed create may have left.
func (r Runtime) DeleteArgs(id string, systemdCgroup bool, globalArgs []string) []string {
	return r.plain(id, systemdCgroup, globalArgs, "delete", "--force", id)
}

// StateArgs returns the arguments that print a container's state as JSON.
func (r Runtime) StateArgs(id string, systemdCgroup bool, globalArgs []string) []string {
	return r.plain(id, systemdCgroup, globalArgs, "state", id)
}

// ResumeArgs returns the arguments that thaw a paused container.
func (r Runtime) ResumeArgs(id string, systemdCgroup bool, globalArgs []string) []string {
	return r.plain(id, systemdCgroup, globalArgs, "resume", id)
}

func (r Runtime) plain(id string, systemdCgroup bool, globalArgs []string, command ...string) []string {
	return append(append(r.global(id, systemdCgroup), globalArgs...), command...)
}

// ExecEnv returns what Exec.Env may be to add one variable to the container's own for a process: nothing for a runtime
// that is not known to add. crun replaces the environment by what it is given.
func (r Runtime) ExecEnv(variable string) []string {
	if filepath.Base(r.Path) == "runc" {
		return []string{variable}
	}
	return nil
}

func (r Runtime) global(id string, systemdCgroup bool) []string {
	args := []string{r.Path}
	if filepath.Base(r.Path) == "crun" {
		args = append(args, "--log=journald:"+id)
		if r.LogLevel == "debug" {
			// Not --log-level=debug, which older ones do not know; the level is "error" otherwise.
			args = append(args, "--debug")
		}
	}
	if r.Root != "" {
		args = append(args, "--root="+r.Root)
	}
	if systemdCgroup {
		args = append(args, "--systemd-cgroup")
	}
	return args
}

// scrubbed are variables by which service managers address the engine or the monitor. runc and crun act on
// NOTIFY_SOCKET of their own environment: they would mount it into the container and wait for it.
var scrubbed = [...]string{
	"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES",
}

// Environ returns the environment of a runtime: base without what concerns only the engine or the monitor, then extra
// (KEY=VALUE words), which replaces what base has of the same name.
func Environ(base, extra []string) []string {
	env := make([]string, 0, len(base)+len(extra))
	for _, word := range base {
		key, _, _ := strings.Cut(word, "=")
		if !isScrubbed(key) && !hasKey(extra, key) {
			env = append(env, word)
		}
	}
	return append(env, extra...)
}

func isScrubbed(key string) bool {
	if strings.HasPrefix(key, "CONMON_") {
		return true
	}
	for _, s := range scrubbed {
		if key == s {
			return true
		}
	}
	return false
}

func hasKey(env []string, key string) bool {
	for _, word := range env {
		if len(word) > len(key) && word[len(key)] == '=' && word[:len(key)] == key {
			return true
		}
	}
	return false
}

// MaxConfig bounds what is read of a bundle's configuration.
const MaxConfig = 16 << 20

// OpenConfig opens the configuration of a bundle for reading. It does not wait where a FIFO is in its place, or somebody
// holds a lease on it; what is not a regular file is an error.
func OpenConfig(bundle string) (*os.File, error) {
	f, _, err := openConfig(bundle)
	return f, err
}

func openConfig(bundle string) (*os.File, os.FileInfo, error) {
	path := filepath.Join(bundle, "config.json")
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "open", Path: path, Err: errNotRegular}
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// WithConfig calls use with the configuration of a bundle, of which at most MaxConfig bytes are read. use must not keep
// it: its memory, which is none of the heap's and given back at once, is not there afterwards. Errors are those of
// OpenConfig and of reading; then use is not called.
func WithConfig(bundle string, use func(config []byte)) error {
	f, info, err := openConfig(bundle)
	if err != nil {
		return err
	}
	defer f.Close()
	size := int(min(info.Size(), MaxConfig))
	if size == 0 {
		use(nil)
		return nil
	}
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("map memory: %w", err)
	}
	defer func() { _ = unix.Munmap(m) }()
	n, err := io.ReadFull(f, m)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) { // it has become shorter
		return err
	}
	use(m[:n])
	return nil
}

var errNotRegular = errors.New("is not a regular file")

// ReadPidFile returns the pid that a runtime has written. Blanks around the number are allowed.
func ReadPidFile(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, fmt.Errorf("grandchild pid read error %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var buf [maxPidFile]byte
	n, err := f.Read(buf[:])
	if err != nil {
		return 0, fmt.Errorf("grandchild pid read error %s: %w", path, err)
	}
	pid, err := parsePid(buf[:n])
	if err != nil {
		return 0, fmt.Errorf("grandchild pid parse error %s: %w", path, err)
	}
	return pid, nil
}

func parsePid(text []byte) (int, error) {
	pid, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 32)
	if err != nil {
		return 0, err
	}
	if pid <= 1 { // 1 would be the host's init, and is never ours
		return 0, fmt.Errorf("%d is no process of a container", pid)
	}
	return int(pid), nil
}

// MaxErrorText bounds the text that ErrorText returns, in bytes.
const MaxErrorText = 64 << 10

// ErrorText makes a runtime's message fit to be part of an error: valid UTF-8, no control characters but tabs and line
// feeds, no blanks around it, at most MaxErrorText bytes, with a mark where it was cut.
func ErrorText(message []byte) string {
	const cut = " [...]"
	message = bytes.TrimSpace(message)
	truncated := len(message) > MaxErrorText
	if truncated {
		message = message[:MaxErrorText]
	}
	var b strings.Builder
	for len(message) > 0 {
		r, size := utf8.DecodeRune(message)
		if r < 0x20 && r != '\n' && r != '\t' || r == 0x7f {
			r = utf8.RuneError
		}
		if b.Len()+utf8.RuneLen(r) > MaxErrorText-len(cut) {
			truncated = true
			break
		}
		b.WriteRune(r)
		message = message[size:]
	}
	if truncated {
		b.WriteString(cut)
	}
	return b.String()
}
