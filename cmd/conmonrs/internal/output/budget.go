// Package output collects what a command prints, for an answer that has to hold all of it, within a budget of memory
// shared by all commands of the pod.
package output

import (
	"errors"
	"slices"
	"sync"
)

var errStopped = errors.New("output is no longer collected")

// Budget bounds the memory that all execs of a pod use for output at the same time. Whoever needs more waits, and with
// it the process that writes. So that waiting execs cannot block one another for good, one of them, the one that has
// waited longest, may exceed the budget, up to its own limit.
type Budget struct {
	limit int64

	mu      sync.Mutex
	cond    *sync.Cond
	used    int64
	excess  *Account   // may exceed the limit
	waiting []*Account // the longest first; an account may be in it twice, for its two streams
}

// Account is the share of one exec in the budget.
type Account struct {
	budget  *Budget
	taken   int64 // guarded by budget.mu, as is the rest
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
	if !a.fitsLocked(n) && !a.stopped {
		b.waiting = append(b.waiting, a)
		for !a.fitsLocked(n) && !a.stopped {
			if b.excess == nil && b.waiting[0] == a {
				b.excess = a
				break
			}
			b.cond.Wait()
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
	return nil
}

func (a *Account) fitsLocked(n int64) bool {
	return a.budget.used+n <= a.budget.limit || a.budget.excess == a
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
