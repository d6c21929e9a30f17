package pump

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// coalesceFor is how long a stream that delivers small pieces in quick
// succession is left alone. At 250 us a writer of 240 MB/s just fills a pipe
// of 64 KiB; longer pauses would slow it down.
const coalesceFor = 250 * time.Microsecond

// pauser ends the pauses of all streams of a pool with one timerfd_create(2)
// descriptor. The runtime's own timers are no use here: with nothing else to
// run their resolution is a millisecond, the unit of epoll_wait, and a pause
// of a millisecond limits a writer to 64 MB/s.
//
// One goroutine runs while at least one stream pauses. The descriptor is
// opened at the first pause and closed when the pool has been idle.
type pauser struct {
	mu      sync.Mutex
	file    *os.File
	raw     int // the descriptor of file, owned by file
	waiting []*Stream
	resume  []*Stream // the list taken last, kept for its memory
	running bool
	closed  bool
	loop    func() // p.run, bound once: a go statement on it allocates nothing
	tick    [8]byte
}

// add makes s continue after at most coalesceFor: streams that pause at about
// the same time are woken together, with the first of them.
func (p *pauser) add(s *Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.file == nil && p.openLocked() != nil {
		// Out of descriptors or memory: a coarser pause is good enough.
		time.AfterFunc(coalesceFor, s.resume)
		return
	}
	p.waiting = append(p.waiting, s)
	if p.running {
		return
	}
	p.running = true
	p.armLocked()
	go p.loop()
}

func (p *pauser) openLocked() error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return err
	}
	p.raw = fd
	p.file = os.NewFile(uintptr(fd), "pause timer")
	if p.loop == nil {
		p.loop = p.run
	}
	return nil
}

func (p *pauser) armLocked() {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(coalesceFor))}
	_ = unix.TimerfdSettime(p.raw, 0, &spec, nil) // the arguments are constant and valid
}

// run wakes the waiting streams at each tick and ends when none waits. If
// the descriptor was closed under it, it wakes them at once.
func (p *pauser) run() {
	for {
		_, _ = p.file.Read(p.tick[:])

		p.mu.Lock()
		p.waiting, p.resume = p.resume[:0], p.waiting
		p.mu.Unlock()
		for i, s := range p.resume {
			s.resume()
			p.resume[i] = nil
		}

		p.mu.Lock()
		if len(p.waiting) == 0 {
			p.running = false
			closed := p.closed
			p.mu.Unlock()
			if closed {
				p.release()
			}
			return
		}
		p.armLocked()
		p.mu.Unlock()
	}
}

// release closes the descriptor unless a stream pauses.
func (p *pauser) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file != nil && !p.running {
		p.file.Close()
		p.file = nil
		p.waiting, p.resume = nil, nil
	}
}

// close releases the descriptor for good, at the latest when the pauses under
// way have ended.
func (p *pauser) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.release()
}
