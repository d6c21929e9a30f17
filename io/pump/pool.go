package pump

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readSize    = 64 << 10  // the default capacity of a pipe: one read empties it
	scratchSize = 128 << 10 // room for the records made from one read of short lines

	// starveAfter is how long a stream waits for a pair before it gets one of
	// its own. It is far above the time a healthy sink takes for a few reads,
	// so that only a stuck sink makes the pool exceed its bound.
	starveAfter = 20 * time.Millisecond

	// idleAfter is how long the pool must have been unused before its pages
	// go back to the kernel.
	idleAfter = time.Second
)

// buffers is the pair that one running stream holds. Both halves are parts of
// one private mapping outside the Go heap, where they would count as live
// memory and postpone garbage collections.
type buffers struct {
	mapping  []byte
	read     []byte // length readSize
	scratch  []byte // length 0, capacity scratchSize
	overflow bool   // beyond the bound of the pool: unmapped when put back
	touched  bool   // has pages since the last trim
}

// Pool is a bounded set of buffer pairs (64 KiB for reading, 128 KiB of
// scratch for the sinks) shared by all streams of a pod. It also holds the
// one clock that ends the streams' coalescing pauses.
//
// Pairs are mapped at first use. About a second after the last use their
// pages are given back to the kernel; an idle pool has no timer running.
// A Pool has no goroutine of its own except one, which runs while a stream
// pauses. It is safe for concurrent use.
type Pool struct {
	limit int
	pause pauser

	mu       sync.Mutex
	free     []*buffers // used from the end: the warmest pair first
	made     int        // regular pairs in existence
	out      int        // pairs held by streams, overflow pairs included
	overflow int        // overflow pairs in existence
	waiting  int        // streams waiting in get that were not promised a pair
	uses     uint64
	trim     *time.Timer
	trimSet  bool
	trimUses uint64
	closed   bool

	// handoff carries pairs that put promised to waiting streams. Its
	// capacity is limit, and only regular pairs go through it: sending never
	// blocks.
	handoff chan *buffers

	timers []*time.Timer // stopped ones, for the next stream that must wait
}

// NewPool returns a pool of at most n pairs. A stream that waited about 20 ms
// without getting one is given an additional pair, which is unmapped after
// use, so that n sinks that are stuck cannot stop the other streams. n below
// 1 counts as 1.
func NewPool(n int) *Pool {
	n = max(n, 1)
	return &Pool{limit: n, handoff: make(chan *buffers, n), free: make([]*buffers, 0, n)}
}

// Close unmaps the pairs that are not in use and releases the clock. Streams
// must have been closed before; a pair still held by a stuck sink is
// unmapped when the sink returns.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	if p.trim != nil {
		p.trim.Stop()
	}
	for _, b := range p.free {
		b.unmap()
	}
	p.made -= len(p.free)
	p.free = nil
	p.mu.Unlock()
	p.pause.close()
}

// get returns a pair, waiting a short time for one if all are in use. It
// fails only if the kernel refuses memory.
func (p *Pool) get() (*buffers, error) {
	p.mu.Lock()
	p.uses++
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		p.out++
		p.mu.Unlock()
		return b, nil
	}
	if p.made < p.limit {
		p.made++
		p.out++
		p.mu.Unlock()
		b, err := newBuffers(false)
		if err != nil {
			p.mu.Lock()
			p.made--
			p.out--
			p.mu.Unlock()
		}
		return b, err
	}
	p.waiting++
	timer := p.timerLocked()
	p.mu.Unlock()
	return p.await(timer)
}

// await waits for the pair of another stream, or takes an overflow pair.
func (p *Pool) await(timer *time.Timer) (*buffers, error) {
	var b *buffers
	select {
	case b = <-p.handoff:
	case <-timer.C:
	}
	timer.Stop()

	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.timers) < p.limit {
		p.timers = append(p.timers, timer)
	}
	if b == nil {
		// Pairs in handoff plus waiting is the number of streams in here:
		// either one is meant for us or we still count as waiting.
		select {
		case b = <-p.handoff:
		default:
			p.waiting--
		}
	}
	if b != nil {
		return b, nil // put left it counted in out
	}
	b, err := newBuffers(true)
	if err == nil {
		p.out++
		p.overflow++
	}
	return b, err
}

func (p *Pool) timerLocked() *time.Timer {
	if n := len(p.timers); n > 0 {
		t := p.timers[n-1]
		p.timers = p.timers[:n-1]
		t.Reset(starveAfter)
		return t
	}
	return time.NewTimer(starveAfter)
}

// put takes a pair back: it goes to a waiting stream, to the free list, or
// to the kernel if it is beyond the bound.
func (p *Pool) put(b *buffers) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b.touched = true
	switch {
	case b.overflow:
		p.overflow--
		p.out--
		b.unmap()
	case p.closed:
		p.made--
		p.out--
		b.unmap()
	case p.waiting > 0:
		p.waiting--
		p.handoff <- b
	default:
		p.out--
		p.free = append(p.free, b)
	}
	if p.out == 0 && !p.closed {
		p.startTrimLocked()
	}
}

// contended says whether a stream that could go on reading should put its
// pair back first, because others wait or because the pair is surplus.
func (p *Pool) contended(b *buffers) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return b.overflow || p.waiting > 0
}

func (p *Pool) startTrimLocked() {
	if p.trimSet {
		return
	}
	p.trimSet, p.trimUses = true, p.uses
	if p.trim == nil {
		p.trim = time.AfterFunc(idleAfter, p.trimIdle)
	} else {
		p.trim.Reset(idleAfter)
	}
}

// trimIdle runs when the timer fires. It starts the timer again only if the
// pool was used meanwhile; if it is in use right now, the put that ends the
// use will.
func (p *Pool) trimIdle() {
	p.mu.Lock()
	p.trimSet = false
	if p.closed || p.out > 0 {
		p.mu.Unlock()
		return
	}
	if p.uses != p.trimUses {
		p.startTrimLocked()
		p.mu.Unlock()
		return
	}
	for _, b := range p.free {
		b.trim()
	}
	p.timers = nil
	p.mu.Unlock()
	p.pause.release()
}

// PoolStats describes a pool at one moment.
type PoolStats struct {
	InUse    int // pairs held by running streams
	Overflow int // of these, pairs beyond the bound
	Mapped   int // pairs that may have pages of memory
}

// Stats returns the present figures.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PoolStats{InUse: p.out, Overflow: p.overflow, Mapped: p.out}
	for _, b := range p.free {
		if b.touched {
			s.Mapped++
		}
	}
	return s
}

func newBuffers(overflow bool) (*buffers, error) {
	m, err := unix.Mmap(-1, 0, readSize+scratchSize,
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map stream buffers: %w", err)
	}
	// A huge page would turn 192 KiB into 2 MiB. Kernels without huge pages
	// answer EINVAL, which is fine.
	_ = unix.Madvise(m, unix.MADV_NOHUGEPAGE)
	return &buffers{
		mapping:  m,
		read:     m[:readSize:readSize],
		scratch:  m[readSize:readSize],
		overflow: overflow,
	}, nil
}

// trim keeps the mapping, which costs no memory, and drops its pages.
func (b *buffers) trim() {
	if b.touched && unix.Madvise(b.mapping, unix.MADV_DONTNEED) == nil {
		b.touched = false
	}
}

func (b *buffers) unmap() {
	_ = unix.Munmap(b.mapping) // fails only for a range that is not a mapping
	*b = buffers{}
}
