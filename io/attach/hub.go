package attach

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// DefaultQueueBytes is the limit of a client's queue if none is given.
	DefaultQueueBytes = 1 << 20

	flushWait = time.Second // for clients to take what is queued at the end
	leaveWait = time.Second // for goroutines to end after their sockets were shut down
)

// Logger takes a message and keys, each followed by its value, as *slog.Logger does.
type Logger interface {
	Debug(message string, args ...any)
	Warn(message string, args ...any)
}

type noLogger struct{}

func (noLogger) Debug(string, ...any) {}
func (noLogger) Warn(string, ...any)  {}

// Options describes a hub. The zero value is that of a container without
// input.
type Options struct {
	// Logger hears of clients that are disconnected; nil: nobody does.
	Logger Logger

	// Stdin is the container's standard input, owned by the hub. Write may
	// block; Close must end such a Write. Nil: input is read and discarded.
	Stdin io.WriteCloser

	// Terminal says that closing Stdin means nothing to the container: the
	// end of a client's input never closes it.
	Terminal bool

	// QueueBytes limits the output queued for one client, counted with some
	// overhead for each packet; 0: DefaultQueueBytes.
	QueueBytes int
}

// Hub is the set of clients of one container. It is safe for concurrent use.
//
// Lock order: inputMu, then mu, then a client's mu.
type Hub struct {
	o   Options
	log Logger

	count     atomic.Int32 // clients that get output: len(clients)
	stdinGone atomic.Bool  // Stdin was closed, or failed: input is discarded

	// inputMu makes the packets of several clients reach Stdin one by one.
	// It is held while Stdin blocks.
	inputMu sync.Mutex
	input   window

	mu       sync.Mutex
	clients  []*client // those that get output
	all      []*client // those whose goroutine runs
	finished bool
	left     chan struct{} // set by Finish and Close: closed when all is empty
}

// NewHub returns a hub without clients. It takes ownership of o.Stdin.
func NewHub(o Options) *Hub {
	if o.QueueBytes <= 0 {
		o.QueueBytes = DefaultQueueBytes
	}
	h := &Hub{o: o, log: o.Logger}
	if h.log == nil {
		h.log = noLogger{}
	}
	h.stdinGone.Store(o.Stdin == nil)
	return h
}

// Clients returns how many clients get output at the moment.
func (h *Hub) Clients() int { return int(h.count.Load()) }

// Add takes ownership of conn, a connected, non-blocking SOCK_SEQPACKET
// socket. With stopAfterStdinEOF the end of the client's input, be it a
// half-close or a disconnect, closes the container's standard input once all
// that was received has been delivered; other clients' input ends with it.
// Without it nothing is closed, and a client that half-closed goes on getting
// output. After Finish the client is told "done" and closed.
func (h *Hub) Add(conn *os.File, stopAfterStdinEOF bool) error {
	c, err := newClient(h, conn, stopAfterStdinEOF)
	if err != nil {
		conn.Close()
		return fmt.Errorf("add attach client: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.finished {
		c.finish()
		c.end()
		return conn.Close()
	}
	h.clients = append(h.clients, c)
	h.all = append(h.all, c)
	h.count.Store(int32(len(h.clients)))
	go c.serve()
	return nil
}

// CloseStdin closes the container's standard input. Input that is being
// written at the moment may be cut off; later input is discarded.
func (h *Hub) CloseStdin() error {
	if h.o.Stdin == nil || h.stdinGone.Swap(true) {
		return nil
	}
	if err := h.o.Stdin.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close stdin: %w", err)
	}
	return nil
}

// Finish says that the container's streams have ended. Each client gets what
// is queued for it, then "done", then its connection is closed. Clients that
// do not read are given up after a second. It returns when the clients'
// goroutines have ended, or a second later if one is stuck, with an error.
func (h *Hub) Finish() error {
	left := h.dismiss(func(c *client) { c.finish() })
	timer := time.NewTimer(flushWait)
	defer timer.Stop()
	select {
	case <-left:
		return nil
	case <-timer.C:
	}
	return h.Close()
}

// Close disconnects all clients at once and closes the container's standard
// input. It waits for the clients' goroutines, at most a second.
func (h *Hub) Close() error {
	left := h.dismiss(func(c *client) { c.end() })
	timer := time.NewTimer(leaveWait)
	defer timer.Stop()
	select {
	case <-left:
		return nil
	case <-timer.C:
		return fmt.Errorf("close attach clients: %w", os.ErrDeadlineExceeded)
	}
}

// dismiss ends the hub and does something to each client. The result is
// closed when the last one has gone.
func (h *Hub) dismiss(do func(*client)) <-chan struct{} {
	h.mu.Lock()
	h.finished = true
	if h.left == nil {
		h.left = make(chan struct{})
		if len(h.all) == 0 {
			close(h.left)
		}
	}
	left := h.left
	all := slices.Clone(h.all)
	h.mu.Unlock()

	for _, c := range all {
		do(c)
	}
	// Ends a write that blocks, for which a client's goroutine may wait. The
	// container is gone, nobody can miss the rest.
	if err := h.CloseStdin(); err != nil {
		h.log.Debug("close stdin of container", "error", err)
	}
	return left
}

// drop takes c out of those that get output.
func (h *Hub) drop(c *client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropLocked(c)
}

func (h *Hub) dropLocked(c *client) {
	if i := slices.Index(h.clients, c); i >= 0 {
		h.clients = slices.Delete(h.clients, i, i+1)
		h.count.Store(int32(len(h.clients)))
	}
}

// leave is the last act of a client's goroutine.
func (h *Hub) leave(c *client) {
	h.mu.Lock()
	h.dropLocked(c)
	if i := slices.Index(h.all, c); i >= 0 {
		h.all = slices.Delete(h.all, i, i+1)
	}
	last := len(h.all) == 0
	if last {
		h.clients, h.all = nil, nil
		if h.left != nil {
			close(h.left)
		}
	}
	h.mu.Unlock()
	if last {
		h.releaseInput()
	}
}
