package helper

import (
	"sync"
	"time"
)

// throttle calls f some time after it was asked to, never twice at the same time, and never sooner than pause after the
// last call. Requests meanwhile become one; the last one is always followed by a call. While nothing is asked, it has
// no goroutine.
type throttle struct {
	f     func()
	pause time.Duration

	mu      sync.Mutex
	next    time.Time // no call before
	timer   *time.Timer
	waiting bool // the timer runs
	running bool
	asked   bool // while running
	closed  bool
	idle    sync.WaitGroup
}

// kick asks for a call. It does not block.
func (t *throttle) kick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed || t.waiting:
	case t.running:
		t.asked = true
	default:
		t.scheduleLocked()
	}
}

func (t *throttle) scheduleLocked() {
	t.waiting = true
	t.idle.Add(1)
	t.timer = time.AfterFunc(max(time.Until(t.next), 0), t.call)
}

func (t *throttle) call() {
	defer t.idle.Done()
	t.mu.Lock()
	t.waiting, t.running, t.asked = false, true, false
	closed := t.closed
	t.mu.Unlock()
	if !closed {
		t.f()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running = false
	t.next = time.Now().Add(t.pause)
	if t.asked && !t.closed {
		t.scheduleLocked()
	}
}

// close takes back what has been asked for and waits for a call that is under way.
func (t *throttle) close() {
	t.mu.Lock()
	t.closed = true
	if t.waiting && t.timer.Stop() {
		t.waiting = false
		t.idle.Done()
	}
	t.mu.Unlock()
	t.idle.Wait()
}
