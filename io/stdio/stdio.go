// Package stdio makes the pipes for the three standard streams of a container
// process and keeps track of who owns which end. See pipe(2) and pipe(7).
//
// O_NONBLOCK belongs to an open file description, and the two ends of a pipe
// are two of them: our ends are non-blocking, the child's ends are not, and
// what a child does to its own end does not reach ours.
//
// Terminals are the business of package console.
package stdio

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Options says what is wanted.
type Options struct {
	Stdin bool // a pipe; false: the child reads /dev/null
}

// Pipes holds both ends of the standard streams until each has been taken or
// closed. It is used by one goroutine.
type Pipes struct {
	stdin          *os.File // our end for writing; nil without Options.Stdin
	stdout, stderr int      // our ends for reading; -1 once taken
	child          [3]*os.File
}

// OpenPipes opens the three streams. All descriptors are close-on-exec. On
// error nothing stays open.
func OpenPipes(o Options) (*Pipes, error) {
	p := &Pipes{stdout: -1, stderr: -1}
	err := p.openStdin(o.Stdin)
	if err == nil {
		p.stdout, p.child[1], err = output("stdout")
	}
	if err == nil {
		p.stderr, p.child[2], err = output("stderr")
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Pipes) openStdin(pipe bool) error {
	if !pipe {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return fmt.Errorf("open stdin: %w", err)
		}
		p.child[0] = null
		return nil
	}
	r, w, err := open("stdin")
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(w, true); err != nil {
		_ = unix.Close(r)
		_ = unix.Close(w)
		return fmt.Errorf("set stdin non-blocking: %w", err)
	}
	p.child[0] = os.NewFile(uintptr(r), "stdin of child")
	p.stdin = os.NewFile(uintptr(w), "stdin")
	return nil
}

func output(name string) (read int, child *os.File, err error) {
	r, w, err := open(name)
	if err != nil {
		return -1, nil, err
	}
	if err := unix.SetNonblock(r, true); err != nil {
		_ = unix.Close(r)
		_ = unix.Close(w)
		return -1, nil, fmt.Errorf("set %s non-blocking: %w", name, err)
	}
	return r, os.NewFile(uintptr(w), name+" of child"), nil
}

func open(name string) (r, w int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, fmt.Errorf("open pipe for %s: %w", name, err)
	}
	return fds[0], fds[1], nil
}

// Child returns the ends for the descriptors 0, 1 and 2 of the child. They
// stay owned by p; CloseChild closes them once the child has been started.
func (p *Pipes) Child() [3]*os.File { return p.child }

// CloseChild closes the child's ends, without which no stream ever ends.
func (p *Pipes) CloseChild() error {
	var errs []error
	for i, f := range p.child {
		if f != nil {
			errs = append(errs, f.Close())
			p.child[i] = nil
		}
	}
	return errors.Join(errs...)
}

// TakeStdin makes the caller the owner of the writing end of stdin, known to
// the runtime's poller. It returns nil if there is none or it was taken.
func (p *Pipes) TakeStdin() *os.File {
	f := p.stdin
	p.stdin = nil
	return f
}

// TakeStdout makes the caller the owner of the reading end of stdout, a plain
// non-blocking descriptor, -1 if it was taken.
func (p *Pipes) TakeStdout() int {
	fd := p.stdout
	p.stdout = -1
	return fd
}

// TakeStderr does the same for stderr.
func (p *Pipes) TakeStderr() int {
	fd := p.stderr
	p.stderr = -1
	return fd
}

// Close closes every end that has not been taken or closed. It fits an undo
// list: when all has gone well there is nothing left for it to do.
func (p *Pipes) Close() error {
	err := p.CloseChild()
	if p.stdin != nil {
		err = errors.Join(err, p.stdin.Close())
		p.stdin = nil
	}
	for _, fd := range []*int{&p.stdout, &p.stderr} {
		if *fd >= 0 {
			err = errors.Join(err, unix.Close(*fd))
			*fd = -1
		}
	}
	return err
}
