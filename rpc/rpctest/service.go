package rpctest

import (
	"context"
	"os"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/server"
)

// service turns the functions of a Monitor into methods.
type service struct{ m *Monitor }

var _ server.Service = service{}

// call calls f unless it is nil.
func call[Req, Resp any](ctx context.Context, f func(context.Context, *Req) (*Resp, error), req *Req) (*Resp, error) {
	if f == nil {
		return nil, conmon.ErrNotSupported
	}
	return f(ctx, req)
}

// do is call for methods without a response.
func do[Req any](ctx context.Context, f func(context.Context, *Req) error, req *Req) error {
	if f == nil {
		return conmon.ErrNotSupported
	}
	return f(ctx, req)
}

func (s service) Version(ctx context.Context, req *conmon.VersionRequest) (*conmon.VersionResponse, error) {
	if s.m.Version == nil {
		return &conmon.VersionResponse{
			ProcessID: uint32(os.Getpid()), Version: "1.0.1", Commit: "unknown", BuildDate: "unknown",
			Target: "unknown", RustVersion: "unknown", CargoVersion: "unknown",
		}, nil
	}
	return s.m.Version(ctx, req)
}

func (s service) CreateContainer(ctx context.Context, req *conmon.CreateContainerRequest) (*conmon.CreateContainerResponse, error) {
	return call(ctx, s.m.CreateContainer, req)
}

func (s service) ExecSync(ctx context.Context, req *conmon.ExecSyncRequest) (*server.ExecSyncResult, error) {
	resp, err := call(ctx, s.m.ExecSync, req)
	if err != nil || resp == nil {
		return nil, err
	}
	return &server.ExecSyncResult{
		ExitCode: resp.ExitCode,
		TimedOut: resp.TimedOut,
		Stdout:   newOutput(resp.Stdout),
		Stderr:   newOutput(resp.Stderr),
	}, nil
}

func (s service) Attach(ctx context.Context, req *conmon.AttachRequest) error {
	return do(ctx, s.m.Attach, req)
}

func (s service) ReopenLog(ctx context.Context, req *conmon.ReopenLogRequest) error {
	return do(ctx, s.m.ReopenLog, req)
}

func (s service) SetWindowSize(ctx context.Context, req *conmon.SetWindowSizeRequest) error {
	return do(ctx, s.m.SetWindowSize, req)
}

func (s service) CreateNamespaces(ctx context.Context, req *conmon.CreateNamespacesRequest) (*conmon.CreateNamespacesResponse, error) {
	return call(ctx, s.m.CreateNamespaces, req)
}

func (s service) StartFDSocket(ctx context.Context, req *conmon.StartFDSocketRequest) (*conmon.StartFDSocketResponse, error) {
	return call(ctx, s.m.StartFDSocket, req)
}

func (s service) ServeExec(ctx context.Context, req *conmon.ServeExecRequest) (*conmon.ServeResponse, error) {
	return call(ctx, s.m.ServeExec, req)
}

func (s service) ServeAttach(ctx context.Context, req *conmon.ServeAttachRequest) (*conmon.ServeResponse, error) {
	return call(ctx, s.m.ServeAttach, req)
}

func (s service) ServePortForward(ctx context.Context, req *conmon.ServePortForwardRequest) (*conmon.ServeResponse, error) {
	return call(ctx, s.m.ServePortForward, req)
}
