package fdslot

import (
	"fmt"
	"sync"
)

// MaxWaiting bounds the descriptors of one server that wait to be taken or closed. More are refused.
const MaxWaiting = 4096

// A SlotError says that a slot is empty: it never had a descriptor, it was taken before, or its connection has ended.
type SlotError struct {
	Slot uint64
	// List and Index say where it was in the arguments of [Server.Take].
	List, Index int
}

// Error names the slot.
func (e *SlotError) Error() string { return fmt.Sprintf("no file descriptor in slot %d", e.Slot) }

// slot is a descriptor that nobody has taken.
type slot struct {
	fd    int
	owner *conn
}

// table is the slots of a server. Its users hold the server's lock.
type table struct {
	last  uint64
	slots map[uint64]slot // nil while empty: a map does not shrink
}

// put returns the number of the slot that fd is in now.
func (t *table) put(fd int, owner *conn) uint64 {
	if t.slots == nil {
		t.slots = make(map[uint64]slot)
	}
	for {
		t.last++
		if _, used := t.slots[t.last]; !used && t.last != 0 {
			t.slots[t.last] = slot{fd: fd, owner: owner}
			return t.last
		}
	}
}

func (t *table) take(number uint64) (fd int, ok bool) {
	s, ok := t.slots[number]
	if ok {
		delete(t.slots, number)
		t.shrink()
	}
	return s.fd, ok
}

// takeAll empties the slots of one connection, or all of them if owner is nil.
func (t *table) takeAll(owner *conn) (fds []int) {
	for number, s := range t.slots {
		if owner == nil || s.owner == owner {
			fds = append(fds, s.fd)
			delete(t.slots, number)
		}
	}
	t.shrink()
	return fds
}

func (t *table) shrink() {
	if len(t.slots) == 0 {
		t.slots = nil
	}
}

// Descriptors are some that have been taken out of their slots. They are close-on-exec; whether they block is the
// sender's choice, which all copies share. A nil pointer has none.
type Descriptors struct {
	closer *closer

	mu  sync.Mutex
	fds []int // nil after Close
}

// Numbers returns the descriptors in the order in which they were asked for; none after Close. They stay owned by d.
func (d *Descriptors) Numbers() []int {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fds
}

// Close gives the descriptors up. It does not wait until they are closed, because some may block then, and may be called
// again.
func (d *Descriptors) Close() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closer.close(d.fds...)
	d.fds = nil
}
