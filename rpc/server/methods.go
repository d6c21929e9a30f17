package server

import (
	"context"
	"errors"
	"fmt"

	"capnproto.org/go/capnp/v3"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/internal/codec"
	"github.com/conmonrs/conmonrs/rpc/internal/wire"
)

// method is one method of the interface. Its ordinal is the index in the table.
type method struct {
	name string
	call func(context.Context, *call) error
}

// lookUp finds a method. It is a switch and not a table, because a table of functions would have to be a
// package variable built at start-up in every process.
func lookUp(m capnp.Method) (method, error) {
	if m.InterfaceID != wire.Conmon_TypeID {
		return method{}, fmt.Errorf("call interface %#x: %w", m.InterfaceID, conmon.ErrNotSupported)
	}
	switch m.MethodID {
	case 0:
		return method{"version", version}, nil
	case 1:
		return method{"createContainer", createContainer}, nil
	case 2:
		return method{"execSyncContainer", execSync}, nil
	case 3:
		return method{"attachContainer", attach}, nil
	case 4:
		return method{"reopenLogContainer", reopenLog}, nil
	case 5:
		return method{"setWindowSizeContainer", setWindowSize}, nil
	case 6:
		return method{"createNamespaces", createNamespaces}, nil
	case 7:
		return method{"startFdSocket", startFDSocket}, nil
	case 8:
		return method{"serveExecContainer", serveExec}, nil
	case 9:
		return method{"serveAttachContainer", serveAttach}, nil
	case 10:
		return method{"servePortForwardContainer", servePortForward}, nil
	}
	return method{}, fmt.Errorf("call method %d: %w", m.MethodID, conmon.ErrNotSupported)
}

func version(ctx context.Context, c *call) error {
	return unary(ctx, c, wire.Conmon_version_Params.Request, codec.DecodeVersionRequest,
		c.conn.server.service.Version,
		wire.Conmon_version_Results.NewResponse, codec.EncodeVersionResponse)
}

func createContainer(ctx context.Context, c *call) error {
	return unary(ctx, c, wire.Conmon_createContainer_Params.Request, codec.DecodeCreateContainerRequest,
		c.conn.server.service.CreateContainer,
		wire.Conmon_createContainer_Results.NewResponse, codec.EncodeCreateContainerResponse)
}

func attach(ctx context.Context, c *call) error {
	return unary(ctx, c, wire.Conmon_attachContainer_Params.Request, codec.DecodeAttachRequest,
		nothing(c.conn.server.service.Attach),
		wire.Conmon_attachContainer_Results.NewResponse, empty[wire.Conmon_AttachResponse])
}

func reopenLog(ctx context.Context, c *call) error {
	return unary(ctx, c, wire.Conmon_reopenLogContainer_Params.Request, codec.DecodeReopenLogRequest,
		nothing(c.conn.server.service.ReopenLog),
		wire.Conmon_reopenLogContainer_Results.NewResponse, empty[wire.Conmon_ReopenLogResponse])
}

func setWindowSize(ctx context.Context, c *call) error {
	return unary(ctx, c, wire.Conmon_setWindowSizeContainer_Params.Request, codec.DecodeSetWindowSizeRequest,
		nothing(c.conn.server.service.SetWindowSize),
		wire.Conmon_setWindowSizeContainer_Results.NewResponse, empty[wire.Conmon_SetWindowSizeResponse])
}

func createNamespaces(ctx context.Context, c *call) error {
	return unary(ctx, c, wire.Conmon_createNamespaces_Params.Request, codec.DecodeCreateNamespacesRequest,
		c.conn.server.service.CreateNamespaces,
		wire.Conmon_createNamespaces_Results.NewResponse, codec.EncodeCreateNamespacesResponse)
}

func startFDSocket(ctx context.Context, c *call) error {
	return unary(ctx, c, wire.Conmon_startFdSocket_Params.Request, codec.DecodeStartFDSocketRequest,
		c.conn.server.service.StartFDSocket,
		wire.Conmon_startFdSocket_Results.NewResponse, codec.EncodeStartFDSocketResponse)
}

func serveExec(ctx context.Context, c *call) error {
	return unary(ctx, c, wire.Conmon_serveExecContainer_Params.Request, codec.DecodeServeExecRequest,
		c.conn.server.service.ServeExec,
		wire.Conmon_serveExecContainer_Results.NewResponse, codec.EncodeServeResponse[wire.Conmon_ServeExecContainerResponse])
}

func serveAttach(ctx context.Context, c *call) error {
	return unary(ctx, c, wire.Conmon_serveAttachContainer_Params.Request, codec.DecodeServeAttachRequest,
		c.conn.server.service.ServeAttach,
		wire.Conmon_serveAttachContainer_Results.NewResponse, codec.EncodeServeResponse[wire.Conmon_ServeAttachContainerResponse])
}

func servePortForward(ctx context.Context, c *call) error {
	return unary(ctx, c, wire.Conmon_servePortForwardContainer_Params.Request, codec.DecodeServePortForwardRequest,
		c.conn.server.service.ServePortForward,
		wire.Conmon_servePortForwardContainer_Results.NewResponse, codec.EncodeServeResponse[wire.Conmon_ServePortForwardContainerResponse])
}

// unary is a call from parameters to results: decode, give the parameters back, work, encode.
func unary[P, R ~capnp.StructKind, WReq, WResp, Req, Resp any](
	ctx context.Context, c *call,
	request func(P) (WReq, error), decode func(WReq) (*Req, error),
	do func(context.Context, *Req) (*Resp, error),
	response func(R) (WResp, error), encode func(WResp, *Resp) error,
) error {
	req, err := decodeRequest(c, request, decode)
	if err != nil {
		return err
	}
	resp, err := do(ctx, req)
	if err != nil {
		return err
	}
	if resp == nil {
		return errNoResponse
	}
	w, err := newResponse(c, response)
	if err != nil {
		return err
	}
	return encode(w, resp)
}

var errNoResponse = errors.New("internal error: no response")

// decodeRequest reads the request and gives the parameters back.
func decodeRequest[P ~capnp.StructKind, WReq, Req any](c *call, request func(P) (WReq, error), decode func(WReq) (*Req, error)) (*Req, error) {
	defer c.release()
	w, err := request(P(c.params()))
	if err != nil {
		return nil, &conmon.InvalidError{Field: "request", Reason: "cannot be read: " + err.Error()}
	}
	return decode(w)
}

func newResponse[R ~capnp.StructKind, WResp any](c *call, response func(R) (WResp, error)) (w WResp, err error) {
	results, err := c.results()
	if err != nil {
		return w, err
	}
	return response(R(results))
}

// nothing adapts a method without a response.
func nothing[Req any](do func(context.Context, *Req) error) func(context.Context, *Req) (*struct{}, error) {
	return func(ctx context.Context, req *Req) (*struct{}, error) { return &struct{}{}, do(ctx, req) }
}

func empty[W any](W, *struct{}) error { return nil }

// execSync differs from the others in that its response owns memory, is large and therefore accounted.
func execSync(ctx context.Context, c *call) error {
	req, err := decodeRequest(c, wire.Conmon_execSyncContainer_Params.Request, codec.DecodeExecSyncRequest)
	if err != nil {
		return err
	}
	res, err := c.conn.server.service.ExecSync(ctx, req)
	if res != nil {
		defer release(res.Stdout)
		defer release(res.Stderr)
	}
	if err != nil {
		return err
	}
	if res == nil {
		return errNoResponse
	}
	n := size(res.Stdout) + size(res.Stderr)
	if err := c.conn.reserve(n); err != nil {
		return err
	}
	w, err := newResponse(c, wire.Conmon_execSyncContainer_Results.NewResponse)
	if err != nil {
		c.conn.charge(nil, n)
		return err
	}
	c.conn.charge(w.Message(), n)
	return codec.EncodeExecSyncResponse(w, res.ExitCode, res.TimedOut, res.Stdout, res.Stderr)
}

func release(o Output) {
	if o != nil {
		o.Release()
	}
}

func size(o Output) int64 {
	if o == nil {
		return 0
	}
	return int64(o.Len())
}
