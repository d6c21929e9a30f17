package attach

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// packetOverhead is what a queued packet costs beside its bytes: the limit
// must hold for a container that writes byte by byte, too.
const packetOverhead = 64

// errSlow is the reason to disconnect a client whose queue is full.
var errSlow = errors.New("client does not read its output")

// Patience is the time that the output waits for a client whose queue is more
// than half full, in pauses of pauseFor. A client starts with maxPatience and
// earns a pause for each patienceBytes that it takes from its queue. So one
// that never reads costs 50 ms once, and one that reads as slowly as it can
// without being disconnected slows the container down to 64 MB/s, not more.
const (
	pauseFor      = time.Millisecond
	maxPatience   = 50
	patienceBytes = 64 << 10
)

// fate is what became of a client by a send.
type fate uint8

const (
	served fate = iota
	slow        // its queue was full: shut down just now
	gone        // gets no more output
)

// client is one connection. Its goroutine, serve, is the only one that closes
// the socket; everybody else ends it with shutdown(2), after which serve
// still delivers the input that had been received.
type client struct {
	h             *Hub
	conn          *os.File
	raw           syscall.RawConn
	stopAfterEOF  bool
	flushing      sync.WaitGroup // flush, if it runs
	controlBuffer []byte         // for receive; only serve uses it

	mu       sync.Mutex
	fd       int // that of conn, for sends without going through the poller; -1: closed
	queue    [][]byte
	queued   int  // bytes in queue, with overhead
	patience int  // in pauses
	earned   int  // bytes taken from the queue that have not made a pause yet
	flusher  bool // flush runs
	shut     bool // no more output
	lastThen bool // shut down once the queue is empty
}

func newClient(h *Hub, conn *os.File, stopAfterEOF bool) (*client, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &client{h: h, conn: conn, raw: raw, stopAfterEOF: stopAfterEOF, fd: -1, patience: maxPatience}
	c.controlBuffer = make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	err = raw.Control(func(fd uintptr) { c.fd = int(fd) })
	if err != nil {
		return nil, err
	}
	// With credentials on each packet a packet of length 0 can be told from
	// the end of input.
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	return c, nil
}

// send sends packets or queues what the socket does not take.
func (c *client) send(packets []byte) fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.shut {
		c.pushLocked()
	}
	if !c.shut && len(c.queue) == 0 {
		packets = c.tryLocked(packets)
	}
	if c.shut {
		return gone
	}
	if len(packets) == 0 {
		return served
	}
	if c.queued+costOf(packets) > c.h.o.QueueBytes {
		c.shutLocked()
		return slow
	}
	c.enqueueLocked(packets)
	return served
}

// wantsPause says whether to wait for the client before the next chunk, and
// takes that off its patience.
func (c *client) wantsPause() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut || c.queued <= c.h.o.QueueBytes/2 {
		return false
	}
	c.pushLocked()
	if c.shut || c.queued <= c.h.o.QueueBytes/2 || c.patience == 0 {
		return false
	}
	c.patience--
	return true
}

func (c *client) earnLocked(n int) {
	c.earned += n
	c.patience = min(maxPatience, c.patience+c.earned/patienceBytes)
	c.earned %= patienceBytes
}

// tryLocked sends as many packets as the socket takes and returns the rest.
func (c *client) tryLocked(packets []byte) []byte {
	for len(packets) > 0 {
		n := min(len(packets), 1+maxPayload)
		switch err := sendPacket(c.fd, packets[:n]); err {
		case nil:
			packets = packets[n:]
		case unix.EAGAIN:
			return packets
		default: // it went away
			c.shutLocked()
			return nil
		}
	}
	return nil
}

// pushLocked sends from the queue what the socket takes.
func (c *client) pushLocked() {
	for len(c.queue) > 0 {
		p := c.queue[0]
		if len(c.tryLocked(p)) > 0 || c.shut {
			return
		}
		c.queue[0] = nil
		c.queue = c.queue[1:]
		c.queued -= len(p) + packetOverhead
		c.earnLocked(len(p))
	}
	c.queue = nil
	if c.lastThen {
		c.shutLocked()
	}
}

// costOf is what packets count in a queue.
func costOf(packets []byte) int {
	count := (len(packets) + maxPayload) / (1 + maxPayload)
	return len(packets) + count*packetOverhead
}

// enqueueLocked keeps copies of the packets and sees to it that they are sent.
func (c *client) enqueueLocked(packets []byte) {
	for len(packets) > 0 {
		n := min(len(packets), 1+maxPayload)
		c.queue = append(c.queue, append([]byte(nil), packets[:n]...))
		c.queued += n + packetOverhead
		packets = packets[n:]
	}
	if !c.flusher {
		c.flusher = true
		c.flushing.Add(1)
		go c.flush()
	}
}

// flush sends from the queue whenever the socket is writable, until the queue
// is empty or the client gone.
func (c *client) flush() {
	defer c.flushing.Done()
	err := c.raw.Write(func(uintptr) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pushLocked()
		if len(c.queue) > 0 && !c.shut {
			return false
		}
		c.flusher = false
		return true
	})
	if err != nil { // closed under us
		c.mu.Lock()
		c.flusher = false
		c.mu.Unlock()
	}
}

// finish sends "done" behind everything else, then shuts down.
func (c *client) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut || c.lastThen {
		return
	}
	c.lastThen = true
	done := []byte{packetDone}
	if len(c.queue) == 0 && len(c.tryLocked(done)) == 0 {
		c.shutLocked()
		return
	}
	c.enqueueLocked(done)
}

// end shuts the client down at once.
func (c *client) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shutLocked()
}

// shutLocked ends both directions. serve and flush notice; the client can
// still read what is in its socket, and serve what the client had sent.
func (c *client) shutLocked() {
	if c.shut || c.fd < 0 {
		return
	}
	c.shut = true
	c.queue, c.queued = nil, 0
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR) // ENOTCONN: the same result
}

func sendPacket(fd int, p []byte) error {
	for {
		err := unix.Send(fd, p, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return err
		}
	}
}
