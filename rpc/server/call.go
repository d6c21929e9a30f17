package server

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"capnproto.org/go/capnp/v3"
	"capnproto.org/go/capnp/v3/exc"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// bootstrap is the capability that every connection gets. It implements [capnp.ClientHook] itself instead of
// using the server package of go-capnp, which queues the calls of a capability behind each other until a
// handler declares itself concurrent, keeps a goroutine parked for the queue, and holds the parameters
// until the handler returns, for an exec that may be days.
type bootstrap struct{ conn *conn }

// Recv starts a call and returns at once.
func (b bootstrap) Recv(ctx context.Context, r capnp.Recv) capnp.PipelineCaller {
	m, err := lookUp(r.Method)
	if err == nil {
		err = b.conn.begin()
	}
	if err != nil {
		r.Reject(exception(err))
		return noPipeline{}
	}
	go b.conn.run(context.WithoutCancel(ctx), m, r)
	return noPipeline{}
}

// Send is for calls from inside the process, of which there are none.
func (b bootstrap) Send(_ context.Context, s capnp.Send) (*capnp.Answer, capnp.ReleaseFunc) {
	return capnp.ErrorAnswer(s.Method, exception(conmon.ErrNotSupported)), func() {}
}

// Brand, Shutdown and String complete the hook.
func (b bootstrap) Brand() capnp.Brand { return capnp.Brand{} }
func (b bootstrap) Shutdown()          {}
func (b bootstrap) String() string     { return "conmon" }

// noPipeline refuses calls of a result: none contains a capability. It also replaces the queue for such
// calls, see [filter].
type noPipeline struct{}

var errNoPipeline = errors.New("result has no capabilities")

func (p noPipeline) PipelineRecv(_ context.Context, _ []capnp.PipelineOp, r capnp.Recv) capnp.PipelineCaller {
	r.Reject(exception(errNoPipeline))
	return p
}

func (p noPipeline) PipelineSend(_ context.Context, _ []capnp.PipelineOp, s capnp.Send) (*capnp.Answer, capnp.ReleaseFunc) {
	return capnp.ErrorAnswer(s.Method, exception(errNoPipeline)), func() {}
}

// run is the goroutine of one call.
func (c *conn) run(ctx context.Context, m method, r capnp.Recv) {
	defer c.end()
	err := c.invoke(ctx, m, r)
	r.ReleaseArgs()
	// The order of these three is prescribed by capnp.Returner.
	r.Returner.PrepareReturn(err)
	r.Returner.Return()
	r.Returner.ReleaseResults()
}

// invoke does the call. A panic is the problem of this call only.
func (c *conn) invoke(ctx context.Context, m method, r capnp.Recv) (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.server.log.Error("panic in call", "method", m.name, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = exception(fmt.Errorf("internal error: %v", p))
		}
	}()
	if err := m.call(ctx, &call{conn: c, recv: r}); err != nil {
		return exception(err)
	}
	return nil
}

// exception gives an error the exception type that clients see. The text is that of the whole chain.
func exception(err error) error {
	typ := exc.Failed
	if errors.Is(err, conmon.ErrNotSupported) {
		typ = exc.Unimplemented
	}
	return exc.New(typ, "", err.Error())
}

// call is what a method works on.
type call struct {
	conn *conn
	recv capnp.Recv
}

// params returns the parameter struct.
func (c *call) params() capnp.Struct { return c.recv.Args }

// release gives the parameters back before the work begins.
func (c *call) release() { c.recv.ReleaseArgs() }

// results allocates the result struct, which in all methods is one pointer.
func (c *call) results() (capnp.Struct, error) {
	return c.recv.Returner.AllocResults(capnp.ObjectSize{PointerCount: 1})
}
