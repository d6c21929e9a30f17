// Package output collects what a command prints, for an answer that has to hold all of it, within a budget of memory
// shared by all commands of the pod.
package output

import (
	"errors"
	"slices"
	"sync"
	"time"
)

var errStopped = errors.New("output is no longer collected")

// share is what each account may use whether or not there is budget left, about a block for each stream: a probe is
// never held up by commands that print more.
const share = 2 * (firstBlock + blockSize)

// idleExcess is how long an account that may exceed the budget keeps that right without making use of it.
const idleExcess = time.Second

// Budget bounds the memory that all execs of a pod use for output at the same time. When it is used up, whoever needs
// more than a small share waits, and with it the process that writes. So that waiting execs cannot block one another for
// good, one of them, the one that has waited longest, may exceed the budget, up to its own limit and as long as it goes
// on to print.
type Budget struct {
	limit int64

	mu      sync.Mutex
	cond    *sync.Cond
	used    int64
	excess  *Account   // may exceed the limit
	last    time.Time  // when it last did
	waiting []*Account // the longest first; an account may be in it twice, for its two streams
}

// Account is the share of one exec in the budget.
type Account struct {
	budget  *Budget
	taken   int64 // guarded by budget.mu, as is the rest
	ended   bool
	stopped bool
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget {
	b := &Budget{limit: limit}
	b.cond = sync.NewCond(&b.mu)
	return b
}

// Used returns how many bytes are in use.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Open returns a new account.
func (b *Budget) Open() *Account { return &Account{budget: b} }

// take waits until n more bytes may be used. After Stop it fails.
func (a *Account) take(n int64) error {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if !a.mayLocked(n) {
		b.waiting = append(b.waiting, a)
		for !a.mayLocked(n) && !a.exceedLocked() {
			b.waitLocked(a)
		}
		i := slices.Index(b.waiting, a)
		b.waiting = slices.Delete(b.waiting, i, i+1)
		b.cond.Broadcast() // another one is first now
	}
	if a.stopped {
		return errStopped
	}
	b.used += n
	a.taken += n
	if b.excess == a {
		b.last = time.Now()
	}
	return nil
}

// mayLocked tells whether the wait is over, or none is needed.
func (a *Account) mayLocked(n int64) bool {
	return a.stopped || a.ended || a.taken+n <= share || a.budget.used+n <= a.budget.limit || a.budget.excess == a
}

// exceedLocked gives the right to exceed the budget to a if it has waited longest and nobody else makes use of it.
func (a *Account) exceedLocked() bool {
	b := a.budget
	if b.waiting[0] != a || b.excess != nil && time.Since(b.last) < idleExcess {
		return false
	}
	b.excess, b.last = a, time.Now()
	return true
}

// waitLocked waits until something has changed, which for the first in the queue includes the time.
func (b *Budget) waitLocked(a *Account) {
	if b.waiting[0] == a {
		timer := time.AfterFunc(idleExcess-time.Since(b.last), b.wake)
		defer timer.Stop()
	}
	b.cond.Wait()
}

func (b *Budget) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cond.Broadcast()
}

// End says that the command has ended. What it has printed is no more than its pipes hold, and take waits for nothing
// any more.
func (a *Account) End() {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.ended = true
	a.budget.cond.Broadcast()
}

// Stop makes take fail, for those too that wait in it.
func (a *Account) Stop() {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.stopped = true
	a.budget.cond.Broadcast()
}

// give returns n bytes to the budget.
func (a *Account) give(n int64) {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	a.taken -= n
	if a.taken == 0 && b.excess == a {
		b.excess = nil
	}
	b.cond.Broadcast()
}
