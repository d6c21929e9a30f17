package pump

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// recently is how close together two reads must be for the second one to
	// count as part of a run of small writes. The first line of a quiet
	// container is therefore never delayed.
	recently = time.Millisecond

	// yieldEvery is the number of reads after which a busy stream lets other
	// goroutines run.
	yieldEvery = 8

	// retryAfter is the pause after the kernel refused memory for buffers or
	// to arm the descriptor.
	retryAfter = 100 * time.Millisecond

	// closeWait bounds how long Close waits for a stuck sink.
	closeWait = 100 * time.Millisecond
)

// Sink takes what a stream delivers.
type Sink interface {
	// WriteChunk takes what one read returned. data is valid only during
	// the call. at is the time of the read. scratch has length 0 and a
	// capacity of 128 KiB, may be used during the call and is not retained.
	// A call that blocks holds its own stream, and one pair of buffers,
	// until it returns. An error stops nothing: the next chunk comes anyway.
	WriteChunk(at time.Time, data, scratch []byte) error
}

// Options describes a stream. Pool and Rearm are required.
type Options struct {
	Pool  *Pool
	Sinks []Sink // called in this order for each chunk

	// Terminal says that the descriptor is the master side of a
	// pseudo-terminal: EIO is its end of stream, and reads are not coalesced.
	Terminal bool

	// Rearm asks the owner of the epoll set to report the next readiness
	// (EPOLL_CTL_MOD with EPOLLIN|EPOLLONESHOT). It may be called before the
	// first Ready, and while the descriptor is armed. If it fails the stream
	// looks for data by itself a little later.
	Rearm func() error

	// Unwatch, if not nil, is called once, right before the descriptor is
	// closed, so that the owner can take it out of the epoll set. It matters
	// only if duplicates of the descriptor stay open: see epoll(7).
	Unwatch func()

	// Immediate, if not nil, is asked before a coalescing pause; true means
	// that somebody watches the output and the pause is left out.
	Immediate func() bool

	// OnSinkError, if not nil, is told when sink number i fails after it had
	// worked, not for each chunk that it refuses.
	OnSinkError func(i int, err error)

	// OnEnd, if not nil, is called exactly once: with nil at the end of the
	// stream, with os.ErrClosed if it was closed before, else with the error
	// of the read. No chunk comes after it.
	OnEnd func(err error)
}

type state uint8

const (
	idle    state = iota // armed in the epoll set; nothing of ours runs
	running              // a goroutine reads, delivers or arms
	paused               // the pool's clock or a timer will start the goroutine
	ended
)

// Stream reads one descriptor and hands what it reads to its sinks.
//
// It owns the descriptor, a plain number on purpose: readiness comes from the
// epoll set shared by the whole pod, and an os.File would register the
// descriptor a second time, with the runtime's poller.
//
// A goroutine exists only from Ready until there is nothing more to read.
// Close ends it.
type Stream struct {
	o    Options
	loop func()        // s.run, bound once: a go statement on it allocates nothing
	over chan struct{} // closed after OnEnd

	// mu is never held during a system call on fd or a call out. Even a
	// non-blocking read can hang: the kernel holds the pipe's lock while it
	// copies from a writer's memory, which the writer can back by a file
	// system that does not answer.
	mu      sync.Mutex
	fd      int // -1 once given up; set aside by the goroutine while using is true
	state   state
	using   bool // the goroutine is in a system call on fd
	kicked  bool // Ready came while the goroutine was running
	closing bool
	read    uint64 // bytes read
	handed  uint64 // bytes that went through all sinks
	last    time.Time
	drains  []*drain

	// Only the goroutine uses these.
	stamp   time.Time
	failing []bool
}

// New takes ownership of fd, a non-blocking read end of a pipe or master side
// of a terminal, which the caller adds to its epoll set. Nothing is read
// before the first Ready or Drain.
func New(fd int, o Options) *Stream {
	o.Sinks = append([]Sink(nil), o.Sinks...)
	s := &Stream{o: o, fd: fd, over: make(chan struct{}), failing: make([]bool, len(o.Sinks))}
	s.loop = s.run
	return s
}

// Ready says that the descriptor is readable or hung up. It does not block.
func (s *Stream) Ready() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeLocked()
}

func (s *Stream) wakeLocked() {
	switch s.state {
	case idle:
		s.state = running
		go s.loop()
	case running:
		s.kicked = true
	}
}

// resume ends a pause.
func (s *Stream) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == paused {
		s.state = running
		go s.loop()
	}
}

// State is what is known about a stream, as plain values.
type State struct {
	FD     int    // the descriptor, -1 once it has been closed
	Read   uint64 // bytes read
	Handed uint64 // bytes that went through all sinks
	Ended  bool   // no chunk will come any more
}

// State returns the present state.
func (s *Stream) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{FD: s.fd, Read: s.read, Handed: s.handed, Ended: s.state == ended}
}

// Close stops reading and closes the descriptor. What is still in the pipe is
// lost: Drain first. It waits for a chunk that is being delivered, but at
// most 100 ms for a sink that is stuck (the descriptor is closed all the
// same) or a read that hangs (it is closed afterwards): then the goroutine
// goes away when that call returns, and the result is
// os.ErrDeadlineExceeded. Further calls do nothing.
func (s *Stream) Close() error {
	s.mu.Lock()
	s.closing = true
	switch s.state {
	case ended:
		s.mu.Unlock()
		return nil
	case idle, paused:
		s.state = running // this call now stands for the goroutine
		s.mu.Unlock()
		s.finish(os.ErrClosed)
		return nil
	}
	fd := -1
	if !s.using {
		fd = s.takeLocked()
	}
	s.mu.Unlock()
	s.discard(fd)

	timer := time.NewTimer(closeWait)
	defer timer.Stop()
	select {
	case <-s.over:
		return nil
	case <-timer.C:
		return os.ErrDeadlineExceeded
	}
}

// takeLocked makes the caller the one who closes the descriptor.
func (s *Stream) takeLocked() int {
	fd := s.fd
	s.fd = -1
	return fd
}

func (s *Stream) discard(fd int) {
	if fd < 0 {
		return
	}
	if s.o.Unwatch != nil {
		s.o.Unwatch()
	}
	_ = unix.Close(fd) // a read end has nothing to report
}

// finish makes the stream end. Only the goroutine, or a Close that stands for
// it, comes here, and only once.
func (s *Stream) finish(err error) {
	s.mu.Lock()
	fd := s.takeLocked()
	s.state = ended
	s.releaseDrainsLocked(true)
	s.mu.Unlock()

	s.discard(fd)
	if s.o.OnEnd != nil {
		s.o.OnEnd(err)
	}
	close(s.over)
}
