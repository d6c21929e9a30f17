package pump

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// verdict says why reading stopped.
type verdict uint8

const (
	empty  verdict = iota // nothing there: wait for readiness
	lull                  // a short read in a run of short reads: pause
	starve                // no memory: pause longer
	end
)

// run is the goroutine of a stream.
func (s *Stream) run() {
	for {
		v, err := s.pump()
		var parked bool
		switch v {
		case end:
			s.finish(err)
			return
		case empty:
			parked = s.rearm()
		default:
			parked = s.park(v)
		}
		if parked {
			return
		}
	}
}

// pump reads and delivers until there is a reason to stop.
func (s *Stream) pump() (verdict, error) {
	b, err := s.o.Pool.get()
	if err != nil {
		return starve, nil
	}
	for reads := 1; ; reads++ {
		n, now, again, err := s.readOnce(b.read)
		if n <= 0 {
			s.o.Pool.put(b)
			if again {
				return empty, nil
			}
			return end, err
		}
		recent := s.deliver(now, b.read[:n], b.scratch)
		if v, stop := s.judge(n, recent); stop {
			s.o.Pool.put(b)
			return v, nil
		}
		if reads%yieldEvery != 0 {
			continue
		}
		if b, err = s.yield(b); err != nil {
			return starve, nil
		}
	}
}

// yield lets others run, and lets those who wait for buffers have ours.
func (s *Stream) yield(b *buffers) (*buffers, error) {
	if !s.o.Pool.contended(b) {
		runtime.Gosched()
		return b, nil
	}
	s.o.Pool.put(b)
	runtime.Gosched()
	return s.o.Pool.get()
}

// judge decides whether to go on after a read of n bytes. A short read of a
// pipe means that it was empty a moment ago; a terminal hands out its data in
// small pieces whatever is there.
func (s *Stream) judge(n int, recent bool) (v verdict, stop bool) {
	if n >= readSize/2 || s.o.Terminal {
		return 0, false
	}
	s.mu.Lock()
	draining := len(s.drains) > 0
	s.mu.Unlock()
	switch {
	case draining:
		return 0, false
	case recent && (s.o.Immediate == nil || !s.o.Immediate()):
		return lull, true
	default:
		return empty, true
	}
}

// readOnce reads into p. again is set if there was nothing to read. n is 0
// without an error at the end of the stream.
func (s *Stream) readOnce(p []byte) (n int, now time.Time, again bool, err error) {
	fd, measure, ok := s.use()
	if !ok {
		return 0, now, false, os.ErrClosed
	}
	if measure {
		s.measure(fd)
	}
	for {
		n, err = unix.Read(fd, p)
		if err != unix.EINTR {
			break
		}
	}
	now = time.Now()
	s.unuse(max(n, 0))

	switch {
	case n > 0:
		return n, now, false, nil
	case err == unix.EAGAIN:
		s.mu.Lock()
		s.emptyLocked()
		s.mu.Unlock()
		return 0, now, true, nil
	case err == unix.EIO && s.o.Terminal:
		return 0, now, false, nil // the last slave side was closed
	case err != nil:
		return 0, now, false, os.NewSyscallError("read", err)
	}
	return 0, now, false, nil
}

// use claims the descriptor for system calls.
func (s *Stream) use() (fd int, measure, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return -1, false, false
	}
	s.using = true
	return s.fd, s.unmeasuredLocked(), true
}

// unuse ends the claim and closes the descriptor if Close wanted to.
func (s *Stream) unuse(n int) {
	s.mu.Lock()
	s.using = false
	s.read += uint64(n)
	fd := -1
	if s.closing {
		fd = s.takeLocked()
	}
	s.mu.Unlock()
	s.discard(fd)
}

// deliver hands one chunk to all sinks and says whether the chunk before it
// was read a short time ago.
func (s *Stream) deliver(now time.Time, data, scratch []byte) (recent bool) {
	// The wall clock can be set back; the stamps of a stream never go back.
	if at := now.Round(0); at.After(s.stamp) {
		s.stamp = at
	}
	for i, sink := range s.o.Sinks {
		err := sink.WriteChunk(s.stamp, data, scratch)
		if err != nil && !s.failing[i] && s.o.OnSinkError != nil {
			s.o.OnSinkError(i, err)
		}
		s.failing[i] = err != nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	recent = !s.last.IsZero() && now.Sub(s.last) < recently
	s.last = now
	s.handed += uint64(len(data))
	s.releaseDrainsLocked(false)
	return recent
}

// rearm waits for the next readiness. It returns false if the goroutine must
// go on because something came in the meantime.
func (s *Stream) rearm() (parked bool) {
	s.mu.Lock()
	if s.unmeasuredLocked() {
		s.mu.Unlock()
		return false
	}
	// From here on each Ready is news, as the descriptor was not armed.
	s.kicked = false
	s.mu.Unlock()

	_, _, ok := s.use()
	if !ok {
		s.finish(os.ErrClosed)
		return true
	}
	err := s.o.Rearm()
	s.unuse(0)

	s.mu.Lock()
	if s.closing || s.kicked || s.unmeasuredLocked() {
		s.mu.Unlock()
		return false // pump notices that the stream was closed
	}
	s.state = idle
	if err != nil {
		s.state = paused
		time.AfterFunc(retryAfter, s.resume)
	}
	s.mu.Unlock()
	return true
}

// park starts a pause. It returns false if the goroutine must go on.
func (s *Stream) park(v verdict) (parked bool) {
	s.mu.Lock()
	if s.closing || v == lull && s.unmeasuredLocked() {
		s.mu.Unlock()
		return false
	}
	s.state = paused
	s.mu.Unlock()
	if v == lull {
		s.o.Pool.pause.add(s)
	} else {
		time.AfterFunc(retryAfter, s.resume)
	}
	return true
}
