package fdslot

import (
	"sync"

	"golang.org/x/sys/unix"
)

// closer closes descriptors that strangers have sent. Closing one may block: a socket with SO_LINGER waits for its peer.
// So it is done on goroutines, of which there are at most two, and none while there is nothing to close. Sockets that
// linger wait for each other, and hold up nothing else.
type closer struct {
	mu        sync.Mutex
	quick     lane
	lingering lane
	pending   int // handed over and not closed
}

// lane is what one goroutine closes, in order.
type lane struct {
	fds     []int
	running bool
}

// close takes ownership of fds, and does not wait.
func (c *closer) close(fds ...int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, fd := range fds {
		l := &c.quick
		if lingers(fd) {
			l = &c.lingering
		}
		c.addLocked(l, fd)
	}
}

// closeQueue closes a connection in whose queue descriptors may be that go with it.
func (c *closer) closeQueue(fd int) {
	_ = unix.Shutdown(fd, unix.SHUT_RDWR) // the peer need not wait
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(&c.lingering, fd)
}

func (c *closer) addLocked(l *lane, fd int) {
	c.pending++
	l.fds = append(l.fds, fd)
	if !l.running {
		l.running = true
		go c.run(l)
	}
}

func (c *closer) run(l *lane) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(l.fds) > 0 {
		fds := l.fds
		l.fds = nil
		for _, fd := range fds {
			c.mu.Unlock()
			_ = unix.Close(fd)
			c.mu.Lock()
			c.pending--
		}
	}
	l.running = false
}

// waiting returns how many descriptors are still to be closed.
func (c *closer) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending
}

func lingers(fd int) bool {
	l, err := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER)
	return err == nil && l.Onoff != 0
}
