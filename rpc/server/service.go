package server

import (
	"context"

	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// Service does the work behind the RPC. Methods are called from many goroutines at once. The context is
// never cancelled by the client; a method bounds its own work.
//
// Requests are owned by the method. An error is sent to the client as the text of its chain:
// [conmon.ErrNotSupported] as the exception type "unimplemented", all others as "failed". Outcomes that a
// client should expect, such as a command that exits non-zero, are results and not errors, because clients
// may drop their connection after an error.
type Service interface {
	Version(context.Context, *conmon.VersionRequest) (*conmon.VersionResponse, error)
	CreateContainer(context.Context, *conmon.CreateContainerRequest) (*conmon.CreateContainerResponse, error)
	ExecSync(context.Context, *conmon.ExecSyncRequest) (*ExecSyncResult, error)
	Attach(context.Context, *conmon.AttachRequest) error
	ReopenLog(context.Context, *conmon.ReopenLogRequest) error
	SetWindowSize(context.Context, *conmon.SetWindowSizeRequest) error
	CreateNamespaces(context.Context, *conmon.CreateNamespacesRequest) (*conmon.CreateNamespacesResponse, error)
	StartFDSocket(context.Context, *conmon.StartFDSocketRequest) (*conmon.StartFDSocketResponse, error)
	ServeExec(context.Context, *conmon.ServeExecRequest) (*conmon.ServeResponse, error)
	ServeAttach(context.Context, *conmon.ServeAttachRequest) (*conmon.ServeResponse, error)
	ServePortForward(context.Context, *conmon.ServePortForwardRequest) (*conmon.ServeResponse, error)
}

// ExecSyncResult is the outcome of [Service.ExecSync]. Ownership of the two outputs passes to the server.
type ExecSyncResult struct {
	ExitCode int32
	TimedOut bool
	// Stdout and Stderr are nil if there was no output, and hold at most conmon.MaxExecOutput bytes.
	Stdout, Stderr Output
}

// Output is collected output of a command, in whatever pieces it was collected. The server asks for the
// length, copies everything once into the reply, and releases it, also if there is nobody left to reply to.
type Output interface {
	// Len returns the number of bytes. It does not change.
	Len() int
	// CopyTo fills dst, which has Len bytes, and returns the number of bytes copied.
	CopyTo(dst []byte) int
	// Release gives the memory back. It is called exactly once, after which the output is not used.
	Release()
}
