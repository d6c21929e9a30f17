package client

import (
	"context"
	"fmt"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/internal/codec"
	"github.com/conmonrs/conmonrs/rpc/internal/wire"
)

// Version asks the monitor what it is. It answers also while other calls are running.
func (c *Client) Version(ctx context.Context, req *conmon.VersionRequest) (*conmon.VersionResponse, error) {
	return invoke(ctx, c, "get version", wire.Conmon.Version,
		wire.Conmon_version_Params.NewRequest, codec.EncodeVersionRequest, req,
		wire.Conmon_version_Results.Response, codec.DecodeVersionResponse)
}

// CreateContainer creates a container, which the engine then starts through the runtime. Errors:
// [conmon.ErrContainerExists], [*conmon.RuntimeError], [*conmon.InvalidError].
func (c *Client) CreateContainer(ctx context.Context, req *conmon.CreateContainerRequest) (*conmon.CreateContainerResponse, error) {
	return invoke(ctx, c, fmt.Sprintf("create container %q", req.ID), wire.Conmon.CreateContainer,
		wire.Conmon_createContainer_Params.NewRequest, codec.EncodeCreateContainerRequest, req,
		wire.Conmon_createContainer_Results.Response, codec.DecodeCreateContainerResponse)
}

// ExecSync runs a command in a container and returns its output. A command that cannot be started, fails or
// times out is a result and not an error.
func (c *Client) ExecSync(ctx context.Context, req *conmon.ExecSyncRequest) (*conmon.ExecSyncResponse, error) {
	return invoke(ctx, c, fmt.Sprintf("exec in container %q", req.ID), wire.Conmon.ExecSyncContainer,
		wire.Conmon_execSyncContainer_Params.NewRequest, codec.EncodeExecSyncRequest, req,
		wire.Conmon_execSyncContainer_Results.Response, codec.DecodeExecSyncResponse)
}

// attachSocket asks for the attach socket. See [Client.Attach].
func (c *Client) attachSocket(ctx context.Context, req *conmon.AttachRequest) error {
	_, err := invoke(ctx, c, fmt.Sprintf("attach to container %q", req.ID), wire.Conmon.AttachContainer,
		wire.Conmon_attachContainer_Params.NewRequest, codec.EncodeAttachRequest, req,
		wire.Conmon_attachContainer_Results.Response, none[wire.Conmon_AttachResponse])
	return err
}

// ReopenLog opens the log files of a container again. They exist when it returns. Errors:
// [conmon.ErrContainerNotFound].
func (c *Client) ReopenLog(ctx context.Context, req *conmon.ReopenLogRequest) error {
	_, err := invoke(ctx, c, fmt.Sprintf("reopen log of container %q", req.ID), wire.Conmon.ReopenLogContainer,
		wire.Conmon_reopenLogContainer_Params.NewRequest, codec.EncodeReopenLogRequest, req,
		wire.Conmon_reopenLogContainer_Results.Response, none[wire.Conmon_ReopenLogResponse])
	return err
}

// SetWindowSize resizes the terminal of a container. Errors: [conmon.ErrContainerNotFound],
// [conmon.ErrNoTerminal].
func (c *Client) SetWindowSize(ctx context.Context, req *conmon.SetWindowSizeRequest) error {
	_, err := invoke(ctx, c, fmt.Sprintf("resize terminal of container %q", req.ID), wire.Conmon.SetWindowSizeContainer,
		wire.Conmon_setWindowSizeContainer_Params.NewRequest, codec.EncodeSetWindowSizeRequest, req,
		wire.Conmon_setWindowSizeContainer_Results.Response, none[wire.Conmon_SetWindowSizeResponse])
	return err
}

// CreateNamespaces creates and pins namespaces for the pod.
func (c *Client) CreateNamespaces(ctx context.Context, req *conmon.CreateNamespacesRequest) (*conmon.CreateNamespacesResponse, error) {
	return invoke(ctx, c, fmt.Sprintf("create namespaces of pod %q", req.PodID), wire.Conmon.CreateNamespaces,
		wire.Conmon_createNamespaces_Params.NewRequest, codec.EncodeCreateNamespacesRequest, req,
		wire.Conmon_createNamespaces_Results.Response, codec.DecodeCreateNamespacesResponse)
}

// StartFDSocket starts the socket for passing descriptors, if that has not been done.
func (c *Client) StartFDSocket(ctx context.Context, req *conmon.StartFDSocketRequest) (*conmon.StartFDSocketResponse, error) {
	return invoke(ctx, c, "start descriptor socket", wire.Conmon.StartFdSocket,
		wire.Conmon_startFdSocket_Params.NewRequest, codec.EncodeStartFDSocketRequest, req,
		wire.Conmon_startFdSocket_Results.Response, codec.DecodeStartFDSocketResponse)
}

// ServeExec returns a URL at which a command can be run. Errors: [conmon.ErrContainerNotFound].
func (c *Client) ServeExec(ctx context.Context, req *conmon.ServeExecRequest) (*conmon.ServeResponse, error) {
	return invoke(ctx, c, fmt.Sprintf("serve exec in container %q", req.ID), wire.Conmon.ServeExecContainer,
		wire.Conmon_serveExecContainer_Params.NewRequest, codec.EncodeServeExecRequest, req,
		wire.Conmon_serveExecContainer_Results.Response, codec.DecodeServeResponse[wire.Conmon_ServeExecContainerResponse])
}

// ServeAttach returns a URL at which the streams of a container can be reached. Errors:
// [conmon.ErrContainerNotFound].
func (c *Client) ServeAttach(ctx context.Context, req *conmon.ServeAttachRequest) (*conmon.ServeResponse, error) {
	return invoke(ctx, c, fmt.Sprintf("serve attach to container %q", req.ID), wire.Conmon.ServeAttachContainer,
		wire.Conmon_serveAttachContainer_Params.NewRequest, codec.EncodeServeAttachRequest, req,
		wire.Conmon_serveAttachContainer_Results.Response, codec.DecodeServeResponse[wire.Conmon_ServeAttachContainerResponse])
}

// ServePortForward returns a URL at which ports of a network namespace can be reached. Errors:
// [conmon.ErrNotSupported].
func (c *Client) ServePortForward(ctx context.Context, req *conmon.ServePortForwardRequest) (*conmon.ServeResponse, error) {
	return invoke(ctx, c, "serve port forward", wire.Conmon.ServePortForwardContainer,
		wire.Conmon_servePortForwardContainer_Params.NewRequest, codec.EncodeServePortForwardRequest, req,
		wire.Conmon_servePortForwardContainer_Results.Response, codec.DecodeServeResponse[wire.Conmon_ServePortForwardContainerResponse])
}
