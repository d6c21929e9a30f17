package server

import (
	"errors"
	"io"
	"sync"
	"time"

	"capnproto.org/go/capnp/v3"
	"capnproto.org/go/capnp/v3/rpc"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

const (
	// maxReplyBytes bounds the large replies of one connection that are in memory: two full exec outputs of
	// two streams. go-capnp keeps a reply until the client has sent a Finish message for it.
	maxReplyBytes = 4 * conmon.MaxExecOutput
	// smallReply is not accounted; the limit on unfinished calls bounds these.
	smallReply = 4 << 10
)

var (
	errTooManyCalls = errors.New("too many calls of this connection are running")
	errReplyWait    = errors.New("client does not take its replies")
	errConnClosed   = errors.New("connection closed")
)

// conn is one connection. Its goroutines belong to go-capnp and end when the transport does; the ones of its
// calls may outlive it.
type conn struct {
	server *Server
	link   *link
	rpc    *rpc.Conn

	mu      sync.Mutex
	closed  bool
	running int
	// replies are the accounted bytes of replies in memory, charges those that have a message already.
	replies int64
	charges map[*capnp.Message]int64
	changed chan struct{} // closed when replies shrinks or the connection closes; nil if nobody waits
}

// start takes ownership of rwc.
func (s *Server) start(rwc io.ReadWriteCloser) {
	c := &conn{server: s}
	c.link = newLink(rwc, c)
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		_ = rwc.Close()
		return
	}
	s.conns[c] = struct{}{}
	// With the lock held, so that Shutdown never sees a connection that cannot be closed yet. NewConn only
	// starts goroutines.
	c.rpc = rpc.NewConn(c.link, &rpc.Options{
		BootstrapClient: capnp.NewClient(bootstrap{c}),
		Logger:          debugLogger{s.log},
	})
	s.mu.Unlock()
	s.activity()
}

// transportClosed is called once, when the descriptor has been closed.
func (c *conn) transportClosed() {
	c.mu.Lock()
	c.closed = true
	c.wakeLocked()
	c.mu.Unlock()

	s := c.server
	s.mu.Lock()
	delete(s.conns, c)
	s.wakeLocked()
	s.mu.Unlock()
	s.activity()
}

// begin admits a call. The caller must call end if there is no error.
func (c *conn) begin() error {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return conmon.ErrShuttingDown
	}
	c.mu.Lock() // lock order: Server.mu, conn.mu
	defer c.mu.Unlock()
	if c.running >= s.maxCalls {
		return errTooManyCalls
	}
	c.running++
	s.running++
	return nil
}

func (c *conn) end() {
	s := c.server
	defer s.activity()
	s.mu.Lock()
	defer s.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	s.running--
	s.wakeLocked()
}

// reserve waits until n bytes of replies may be allocated. A single reply is always let through when there is
// no other.
func (c *conn) reserve(n int64) error {
	if n < smallReply {
		return nil
	}
	timer := time.NewTimer(c.server.patience)
	defer timer.Stop()
	for {
		c.mu.Lock()
		switch {
		case c.closed:
			c.mu.Unlock()
			return errConnClosed
		case c.replies == 0 || c.replies+n <= maxReplyBytes:
			c.replies += n
			c.mu.Unlock()
			return nil
		}
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-timer.C:
			return errReplyWait
		}
	}
}

// charge says that what was reserved is in m. It is given back when m is released, or at once if m is nil.
func (c *conn) charge(m *capnp.Message, n int64) {
	if n < smallReply {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m == nil {
		c.replies -= n
		c.wakeLocked()
		return
	}
	if c.charges == nil {
		c.charges = make(map[*capnp.Message]int64)
	}
	c.charges[m] = n
}

// released is called when m has been given back.
func (c *conn) released(m *capnp.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n, ok := c.charges[m]; ok {
		delete(c.charges, m)
		c.replies -= n
		c.wakeLocked()
	}
}

func (c *conn) wakeLocked() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// debugLogger lowers everything go-capnp says to debug level: it reports the end of each connection as an
// error.
type debugLogger struct{ log Logger }

func (l debugLogger) Debug(msg string, args ...any) { l.print(msg, args) }
func (l debugLogger) Info(msg string, args ...any)  { l.print(msg, args) }
func (l debugLogger) Warn(msg string, args ...any)  { l.print(msg, args) }
func (l debugLogger) Error(msg string, args ...any) { l.print(msg, args) }

func (l debugLogger) print(msg string, args []any) {
	l.log.Debug("rpc connection: "+msg, args...)
}
