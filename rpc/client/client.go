package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"capnproto.org/go/capnp/v3"
	"capnproto.org/go/capnp/v3/rpc"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/internal/codec"
	"github.com/conmonrs/conmonrs/rpc/internal/unixpath"
	"github.com/conmonrs/conmonrs/rpc/internal/wire"
)

// ErrDisconnected means that the connection was lost while a call was running. The monitor completes what it
// has begun, so the outcome is unknown. The next call connects again.
var ErrDisconnected = errors.New("connection to monitor lost")

// DialFunc connects to a monitor. The client closes what it returns.
type DialFunc func(context.Context) (io.ReadWriteCloser, error)

// A Client talks to one monitor. It is made by [Dial], [Start] or [New] and ended by [Client.Close].
//
// It has the goroutines of its connection and one per running call, and up to two descriptors: the
// connection, and a reference to the process once that is known.
type Client struct {
	dial       DialFunc
	socketPath string // empty if made by New

	// slot holds a token while somebody dials. It is a channel because waiting for it ends with a context.
	slot chan struct{}

	mu     sync.Mutex
	sess   *session
	closed bool
	proc   *process // nil until known
}

// session is one connection.
type session struct {
	conn *rpc.Conn
	boot wire.Conmon
}

// Dial connects to the monitor that listens at socketPath, which may be longer than a socket address. The
// errno of a failure is wrapped: ENOENT or ECONNREFUSED mean that no monitor is running.
func Dial(ctx context.Context, socketPath string) (*Client, error) {
	c := newClient(socketPath)
	if _, err := c.session(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// New returns a client that connects by calling dial at the first call. It is for transports of one's own;
// [Client.Shutdown] needs to be on the same machine in the same pid namespace.
func New(dial DialFunc) *Client {
	return &Client{dial: dial, slot: make(chan struct{}, 1)}
}

func newClient(socketPath string) *Client {
	c := New(func(ctx context.Context) (io.ReadWriteCloser, error) {
		conn, err := unixpath.Dial(ctx, "unix", socketPath)
		if err != nil {
			return nil, err
		}
		return conn, nil
	})
	c.socketPath = socketPath
	return c
}

// Close ends the connection. The monitor and its containers go on; calls that are running fail. It is
// idempotent.
func (c *Client) Close() error {
	c.mu.Lock()
	sess, proc := c.sess, c.proc
	c.sess, c.proc, c.closed = nil, nil, true
	c.mu.Unlock()
	proc.release()
	return sess.close()
}

// session returns a living connection, and makes one if necessary.
func (c *Client) session(ctx context.Context) (*session, error) {
	if sess, err := c.current(); sess != nil || err != nil {
		return sess, err
	}
	select {
	case c.slot <- struct{}{}:
		defer func() { <-c.slot }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	// Somebody else may have dialled meanwhile.
	if sess, err := c.current(); sess != nil || err != nil {
		return sess, err
	}
	rwc, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	sess := open(rwc)
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.sess = sess
	}
	c.mu.Unlock()
	if closed {
		_ = sess.close()
		return nil, os.ErrClosed
	}
	return sess, nil
}

// current returns the connection if it is alive, and an error if the client is closed.
func (c *Client) current() (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, os.ErrClosed
	}
	if c.sess == nil {
		return nil, nil
	}
	select {
	case <-c.sess.conn.Done():
		c.sess.boot.Release()
		c.sess = nil
	default:
	}
	return c.sess, nil
}

// drop forgets a connection that turned out to be dead.
func (c *Client) drop(sess *session) {
	c.mu.Lock()
	if c.sess == sess {
		c.sess = nil
	}
	c.mu.Unlock()
	_ = sess.close()
}

func open(rwc io.ReadWriteCloser) *session {
	conn := rpc.NewConn(rpc.NewStreamTransport(rwc), nil)
	// The context of Bootstrap has to live as long as the capability.
	return &session{conn: conn, boot: wire.Conmon(conn.Bootstrap(context.Background()))}
}

// close ends the connection and waits for its goroutines. It may be called again, and on nil.
func (s *session) close() error {
	if s == nil {
		return nil
	}
	s.boot.Release()
	select {
	case <-s.conn.Done():
		return nil
	default:
	}
	if err := s.conn.Close(); err != nil {
		return fmt.Errorf("close connection to monitor: %w", err)
	}
	return nil
}

// PID returns the process id of the monitor, or 0 if it is not known. It is known after [Start].
func (c *Client) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc == nil {
		return 0
	}
	return c.proc.pid
}

// future is what the generated futures have in common.
type future[R any] interface {
	Struct() (R, error)
	Done() <-chan struct{}
}

// params is what the generated parameter structs have in common.
type params interface{ Message() *capnp.Message }

// checkSize refuses a request that the monitor would answer by closing the connection, which other calls use.
func checkSize(m *capnp.Message) error {
	size, err := m.TotalSize()
	if err == nil && size > codec.MaxMessage {
		err = &conmon.InvalidError{Field: "request", Reason: fmt.Sprintf("has %d bytes, at most %d are accepted", size, codec.MaxMessage)}
	}
	return err
}

// invoke does one call: place the request, wait, decode the result.
func invoke[F future[R], P params, R, WReq, WResp, Req, Resp any](
	ctx context.Context, c *Client, what string,
	method func(wire.Conmon, context.Context, func(P) error) (F, capnp.ReleaseFunc),
	place func(P) (WReq, error), encode func(WReq, *Req) error, req *Req,
	response func(R) (WResp, error), decode func(WResp) (*Resp, error),
) (*Resp, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	sess, err := c.session(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	f, release := method(sess.boot, ctx, func(p P) error {
		w, err := place(p)
		if err != nil {
			return err
		}
		if err := encode(w, req); err != nil {
			return err
		}
		return checkSize(p.Message())
	})
	select {
	case <-f.Done():
	case <-ctx.Done():
		// The release function waits for the answer, which comes late if the monitor does not read.
		go release()
		return nil, fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	defer release()
	results, err := f.Struct()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, c.translate(ctx, sess, err))
	}
	w, err := response(results)
	if err != nil {
		return nil, fmt.Errorf("%s: read response: %w", what, err)
	}
	resp, err := decode(w)
	if err != nil {
		return nil, fmt.Errorf("%s: read response: %w", what, err)
	}
	return resp, nil
}

// none decodes a response without content.
func none[W any](W) (*struct{}, error) { return &struct{}{}, nil }
