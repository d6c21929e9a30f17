// Package exitfile publishes the exit code of a container in the files that an engine asked for, and before that the
// mark of a container that the OOM killer ended.
//
// An engine reads such a file the moment it appears, so each is complete when it does: it is written beside its place and
// renamed (rename(2)). Directories are not created, and nothing is synchronised to disk.
package exitfile

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// mode lets engines running as another user read the exit code.
const mode = 0o644

// Pauses between attempts to write what could not be written for want of space or descriptors.
const (
	firstRetry = 10 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Logger takes a message and keys, each followed by its value.
type Logger interface {
	Info(message string, args ...any)
	Error(message string, args ...any)
}

// Publisher publishes the exit codes of a pod. While there are files to be tried again it has one goroutine.
type Publisher struct {
	mu      sync.Mutex
	pending map[string]*attempt // by path
	closed  chan struct{}       // closed by Close
	done    chan struct{}       // closed when the goroutine has ended; nil if there is none
}

// attempt is an exit code that is still to be written.
type attempt struct {
	log  Logger
	path string
	text string // content of the file
	err  error  // of the last time
}

// New returns a Publisher.
func New() *Publisher { return &Publisher{closed: make(chan struct{})} }

// Publish writes code, decimal and without a newline, to all paths, so that each file is complete when it appears.
// The order is the reverse of the list: engines put the directory that they watch first and read the other file when it
// fires. A path that fails does not keep the others from being written; failures are told to log, and those that may go
// away tried again. A newer code for a path takes the place of an older one that has not been written.
func (p *Publisher) Publish(log Logger, paths []string, code int) {
	p.publish(log, paths, strconv.Itoa(code))
}

// Mark writes an empty file to all paths, in the same way.
func (p *Publisher) Mark(log Logger, paths []string) { p.publish(log, paths, "") }

func (p *Publisher) publish(log Logger, paths []string, text string) {
	p.Forget(paths)
	attempts, temps := make([]attempt, len(paths)), make([]string, len(paths))
	for i, path := range paths {
		attempts[i] = attempt{log: log, path: path, text: text}
		temps[i], attempts[i].err = writeTemp(path, text)
	}
	for i := len(paths) - 1; i >= 0; i-- {
		if attempts[i].err == nil {
			attempts[i].err = rename(temps[i], paths[i])
		}
	}
	for i := range attempts {
		if a := &attempts[i]; a.err != nil {
			retry := retriable(a.err)
			log.Error("exit file not written", "path", a.path, "error", a.err, "retry", retry)
			if retry {
				p.add(a)
			}
		}
	}
}

// Forget gives up what is still to be written to paths.
func (p *Publisher) Forget(paths []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, path := range paths {
		delete(p.pending, path)
	}
}

func (p *Publisher) add(a *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending == nil {
		p.pending = make(map[string]*attempt)
	}
	p.pending[a.path] = a
	if p.done == nil {
		p.done = make(chan struct{})
		go p.retry(p.done)
	}
}

func retriable(err error) bool {
	for _, errno := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO, unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// retry tries until nothing is left, or Close is called. Attempts are silent, their end is told.
func (p *Publisher) retry(done chan struct{}) {
	defer close(done)
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		timer := time.NewTimer(pause)
		closing := false
		select {
		case <-p.closed:
			closing = true
		case <-timer.C:
		}
		timer.Stop()
		for _, a := range p.attempts() {
			p.again(a, closing)
		}
		p.mu.Lock()
		if closing || len(p.pending) == 0 {
			p.done = nil
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
}

func (p *Publisher) attempts() (all []*attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.pending {
		all = append(all, a)
	}
	return all
}

// again tries to write one file again, for the last time if last is set.
func (p *Publisher) again(a *attempt, last bool) {
	temp, err := writeTemp(a.path, a.text)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending[a.path] != a { // there is a newer code
		_ = unix.Unlink(temp)
		return
	}
	if err == nil {
		err = rename(temp, a.path)
	}
	switch {
	case err == nil:
		a.log.Info("exit file written after a retry", "path", a.path, "content", a.text)
	case last || !retriable(err):
		a.log.Error("exit file given up", "path", a.path, "content", a.text, "error", err)
	default:
		return
	}
	delete(p.pending, a.path)
}

// Close tries for a last time to write what is left and reports what could not be written. It waits until that has been
// done, or ctx ends: a disk may be stuck. Nothing is published afterwards.
func (p *Publisher) Close(ctx context.Context) {
	close(p.closed)
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	if p.mu.TryLock() { // else it is held by whoever is stuck
		defer p.mu.Unlock()
		for _, a := range p.pending {
			a.log.Error("exit file given up", "path", a.path, "content", a.text, "error", ctx.Err())
		}
	}
}

// rename puts the temporary file in its place, or removes it.
func rename(temp, path string) error {
	if err := unix.Rename(temp, path); err != nil {
		_ = unix.Unlink(temp)
		return fmt.Errorf("publish exit file %q: %w", path, err)
	}
	return nil
}

// writeTemp writes text to a new file beside path. Its name starts with a dot, which is no container id.
func writeTemp(path, text string) (string, error) {
	var random [8]byte
	_, _ = unix.Getrandom(random[:], 0) // the pool has long been ready
	temp := filepath.Join(filepath.Dir(path), ".exit-"+hex.EncodeToString(random[:]))
	fd, err := unix.Open(temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return "", fmt.Errorf("create exit file for %q: %w", path, err)
	}
	n, err := unix.Write(fd, []byte(text))
	if err == nil && n != len(text) {
		err = unix.ENOSPC
	}
	if closeErr := unix.Close(fd); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = unix.Unlink(temp)
		return "", fmt.Errorf("write exit file for %q: %w", path, err)
	}
	return temp, nil
}
