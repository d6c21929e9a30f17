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

const (
	// patience is how long a file may take to be written before those that come after it go ahead: its disk may hang.
	patience = time.Second
	// firstRetry and lastRetry are pauses before what could not be written, for want of space for example, is tried again.
	firstRetry = 10 * time.Millisecond
	lastRetry  = 5 * time.Second
	// retryStep keeps files that wait for the same thing in their order.
	retryStep = 2 * time.Millisecond
)

// Logger takes a message and keys, each followed by its value.
type Logger interface {
	Info(message string, args ...any)
	Error(message string, args ...any)
}

// Publisher publishes the exit codes of a pod. It has one goroutine for each file that is being written, or is to be
// tried again: a disk that hangs holds up nothing but what is on it.
type Publisher struct {
	closed chan struct{} // closed by Close
	work   sync.WaitGroup

	mu      sync.Mutex
	pending map[string]*attempt // by path: what is not over
}

// attempt is a file that is to be written.
type attempt struct {
	log  Logger
	path string
	text string // its content
	rank int    // of those that are written together, 0 for the first

	mu   sync.Mutex // held while the file is put in place
	over bool       // it has been, or somebody else's has taken its turn
}

// New returns a Publisher.
func New() *Publisher { return &Publisher{closed: make(chan struct{})} }

// Publish writes code, decimal and without a newline, to all paths, so that each file is complete when it appears.
// The order is the reverse of the list: engines put the directory that they watch first and read the other file when it
// fires. A path that fails, or hangs for more than a second, does not keep the others from being written; failures are
// told to log, and those that may go away tried again. A newer code for a path takes the place of an older one that has
// not been written.
func (p *Publisher) Publish(log Logger, paths []string, code int) {
	p.publish(log, paths, strconv.Itoa(code))
}

// Mark writes an empty file to all paths, in the same way.
func (p *Publisher) Mark(log Logger, paths []string) { p.publish(log, paths, "") }

func (p *Publisher) publish(log Logger, paths []string, text string) {
	p.Forget(paths)
	limit, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	before := make(chan struct{}) // closed when the one before is in place, or cannot be
	close(before)
	for i := len(paths) - 1; i >= 0; i-- {
		a := &attempt{log: log, path: paths[i], text: text, rank: len(paths) - 1 - i}
		p.add(a)
		tried, turn := make(chan struct{}), before
		p.work.Go(func() { p.run(limit, a, turn, tried) })
		before = tried
	}
	wait(limit, before)
}

func wait(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func (p *Publisher) add(a *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending == nil {
		p.pending = make(map[string]*attempt)
	}
	p.pending[a.path] = a
}

func (p *Publisher) remove(a *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending[a.path] == a {
		delete(p.pending, a.path)
	}
}

// Forget gives up what is still to be written to paths. When it returns, nothing will be.
func (p *Publisher) Forget(paths []string) {
	for _, path := range paths {
		p.mu.Lock()
		a := p.pending[path]
		delete(p.pending, path)
		p.mu.Unlock()
		if a != nil {
			a.end()
		}
	}
}

// run is the life of an attempt. It puts the file in place after its turn has come, and closes tried.
func (p *Publisher) run(limit context.Context, a *attempt, turn <-chan struct{}, tried chan<- struct{}) {
	err := a.try(func() { wait(limit, turn) })
	wait(limit, turn) // also when it has failed: when the last one has been tried, so have all
	again := retriable(err)
	if !again {
		p.remove(a)
	}
	close(tried)
	if err == nil || errors.Is(err, errOver) {
		return
	}
	defer p.remove(a)
	a.log.Error("exit file not written", "path", a.path, "error", err, "retry", again)
	for pause := firstRetry + time.Duration(a.rank)*retryStep; again; pause = min(2*pause, lastRetry) {
		last := p.pause(pause)
		switch err := a.try(func() {}); {
		case err == nil:
			a.log.Info("exit file written after a retry", "path", a.path, "content", a.text)
			return
		case errors.Is(err, errOver):
			return
		case last || !retriable(err):
			a.log.Error("exit file given up", "path", a.path, "content", a.text, "error", err)
			return
		}
	}
}

// pause returns after a time, or when the Publisher is closed: then the next attempt is the last.
func (p *Publisher) pause(d time.Duration) (last bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false
	case <-p.closed:
		return true
	}
}

// errOver means that the file is not wanted any more.
var errOver = errors.New("superseded")

// try writes the file beside its place, waits for its turn, and puts it there.
func (a *attempt) try(turn func()) error {
	temp, err := writeTemp(a.path, a.text)
	if err != nil {
		return err
	}
	turn()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		_ = unix.Unlink(temp)
		return errOver
	}
	err = repeat(func() error { return unix.Rename(temp, a.path) })
	if err != nil {
		_ = unix.Unlink(temp)
		return fmt.Errorf("publish exit file %q: %w", a.path, err)
	}
	a.over = true
	return nil
}

func (a *attempt) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
}

func retriable(err error) bool {
	for _, errno := range []error{
		unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ESTALE, unix.ETIMEDOUT,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// Close tries for a last time to write what is left and reports what could not be written. It waits until that has been
// done, or ctx ends: a disk may be stuck. Nothing is published afterwards.
func (p *Publisher) Close(ctx context.Context) {
	close(p.closed)
	done := make(chan struct{})
	go func() { p.work.Wait(); close(done) }()
	wait(ctx, done)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.pending {
		a.log.Error("exit file given up", "path", a.path, "content", a.text, "error", ctx.Err())
	}
}

// repeat calls f again if a signal has interrupted it, as file systems in user space let happen.
func repeat(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// writeTemp writes text to a new file beside path. Its name starts with a dot, which is no container id.
func writeTemp(path, text string) (string, error) {
	var random [8]byte
	_, _ = unix.Getrandom(random[:], 0) // the pool has long been ready
	temp := filepath.Join(filepath.Dir(path), ".exit-"+hex.EncodeToString(random[:]))
	fd := -1
	err := repeat(func() (err error) {
		fd, err = unix.Open(temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("create exit file for %q: %w", path, err)
	}
	err = repeat(func() error {
		n, err := unix.Write(fd, []byte(text))
		if err == nil && n != len(text) {
			err = unix.ENOSPC
		}
		return err
	})
	if closeErr := unix.Close(fd); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = unix.Unlink(temp)
		return "", fmt.Errorf("write exit file for %q: %w", path, err)
	}
	return temp, nil
}
