package pump

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// terminalQuiet is how long a terminal must have had nothing to read before
// Drain takes it for empty. The kernel moves data from the slave to the
// master side in a worker of its own, so "nothing to read" proves nothing at
// the moment of the exit; a hang-up does, and normally comes at once.
const terminalQuiet = 200 * time.Millisecond

// drain is one call of Drain in progress.
type drain struct {
	target   uint64 // value of handed at which it is satisfied
	measured bool   // target is known
	done     chan struct{}
}

// Drain returns when everything that was in the pipe at the time of the call
// has been handed to the sinks, or at the end of the stream. It is called
// after the process has exited. A process left behind that goes on writing
// does not keep Drain waiting, and reading goes on afterwards.
//
// For a terminal it waits for the end of the stream or for about 200 ms
// without data. The error is that of ctx, which also bounds a stuck sink.
func (s *Stream) Drain(ctx context.Context) error {
	d := &drain{done: make(chan struct{})}
	if s.o.Terminal {
		d.target, d.measured = math.MaxUint64, true
	}
	s.mu.Lock()
	if s.state == ended {
		s.mu.Unlock()
		return nil
	}
	s.drains = append(s.drains, d)
	s.wakeLocked()
	s.mu.Unlock()
	defer s.forget(d)

	if s.o.Terminal {
		return s.settle(ctx, d)
	}
	select {
	case <-d.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain stream: %w", ctx.Err())
	}
}

// settle waits for a terminal to end or to become quiet.
func (s *Stream) settle(ctx context.Context, d *drain) error {
	start := time.Now()
	timer := time.NewTimer(terminalQuiet)
	defer timer.Stop()
	for {
		select {
		case <-d.done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("drain terminal: %w", ctx.Err())
		case <-timer.C:
		}
		s.mu.Lock()
		since, busy := start, s.state != idle
		if s.last.After(since) {
			since = s.last
		}
		s.mu.Unlock()
		left := terminalQuiet - time.Since(since)
		if left <= 0 && !busy {
			return nil
		}
		timer.Reset(max(left, terminalQuiet/20)) // busy: a sink still has the last chunk
	}
}

func (s *Stream) forget(d *drain) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.drains, d); i >= 0 {
		s.drains = slices.Delete(s.drains, i, i+1)
	}
}

// unmeasuredLocked says whether a Drain waits to learn what is in the pipe.
func (s *Stream) unmeasuredLocked() bool {
	for _, d := range s.drains {
		if !d.measured {
			return true
		}
	}
	return false
}

// measure sets the targets of new drains. Only the goroutine does this, right
// before a read, when everything read so far has been handed over: what is
// in the pipe now includes all that was in it when Drain was called.
func (s *Stream) measure(fd int) {
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil || n < 0 {
		n = readSize // cannot happen with a pipe; EAGAIN ends the wait early
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.drains {
		if !d.measured {
			d.measured, d.target = true, s.handed+uint64(n)
		}
	}
	s.releaseDrainsLocked(false)
}

// emptyLocked notes that a read found nothing: all that was measured has been
// read, whoever read it.
func (s *Stream) emptyLocked() {
	if s.o.Terminal {
		return
	}
	for _, d := range s.drains {
		if d.measured {
			d.target = 0
		}
	}
	s.releaseDrainsLocked(false)
}

// releaseDrainsLocked ends the drains that are satisfied, or all.
func (s *Stream) releaseDrainsLocked(all bool) {
	if len(s.drains) == 0 {
		return
	}
	s.drains = slices.DeleteFunc(s.drains, func(d *drain) bool {
		if all || d.measured && s.handed >= d.target {
			close(d.done)
			return true
		}
		return false
	})
}
