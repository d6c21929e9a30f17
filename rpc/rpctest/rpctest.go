// Package rpctest is a monitor in memory, for tests of engines. It speaks the real protocol through the real
// server and client, but runs no containers: what each method does is a function of the test.
package rpctest

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/server"
)

// Monitor implements the methods of a monitor by functions. A nil function answers
// [conmon.ErrNotSupported], except that a nil Version answers with version 1.0.1 and the pid of the test. The
// functions are called from many goroutines and must not be changed once a client is in use.
type Monitor struct {
	Version          func(context.Context, *conmon.VersionRequest) (*conmon.VersionResponse, error)
	CreateContainer  func(context.Context, *conmon.CreateContainerRequest) (*conmon.CreateContainerResponse, error)
	ExecSync         func(context.Context, *conmon.ExecSyncRequest) (*conmon.ExecSyncResponse, error)
	Attach           func(context.Context, *conmon.AttachRequest) error
	ReopenLog        func(context.Context, *conmon.ReopenLogRequest) error
	SetWindowSize    func(context.Context, *conmon.SetWindowSizeRequest) error
	CreateNamespaces func(context.Context, *conmon.CreateNamespacesRequest) (*conmon.CreateNamespacesResponse, error)
	StartFDSocket    func(context.Context, *conmon.StartFDSocketRequest) (*conmon.StartFDSocketResponse, error)
	ServeExec        func(context.Context, *conmon.ServeExecRequest) (*conmon.ServeResponse, error)
	ServeAttach      func(context.Context, *conmon.ServeAttachRequest) (*conmon.ServeResponse, error)
	ServePortForward func(context.Context, *conmon.ServePortForwardRequest) (*conmon.ServeResponse, error)
}

// stopTimeout is how long calls may run on after the test.
const stopTimeout = 5 * time.Second

// New serves m until the test ends, and returns a client of it. Calls still running then fail the test.
// Do not call [client.Client.Shutdown]: the process it would signal is the test.
func New(tb testing.TB, m *Monitor) *client.Client {
	tb.Helper()
	l := &listener{conns: make(chan io.ReadWriteCloser), done: make(chan struct{})}
	s := server.New(server.Options{Service: service{m}})
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), l) }()
	c := client.New(l.dial)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := c.Close(); err != nil {
			tb.Errorf("close client: %v", err)
		}
		if err := s.Shutdown(ctx); err != nil {
			tb.Errorf("shut down monitor: %v", err)
		}
		if err := <-served; err != nil {
			tb.Errorf("serve: %v", err)
		}
	})
	return c
}

// listener hands one end of a pipe to the server for each dial.
type listener struct {
	conns chan io.ReadWriteCloser
	done  chan struct{}
	once  sync.Once
}

func (l *listener) dial(ctx context.Context) (io.ReadWriteCloser, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.done:
		return nil, fmt.Errorf("dial monitor: %w", os.ErrClosed)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Accept implements [server.Listener].
func (l *listener) Accept() (io.ReadWriteCloser, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, os.ErrClosed
	}
}

// Close implements [server.Listener].
func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// output is collected output in one piece.
type output []byte

func newOutput(b []byte) server.Output {
	if len(b) == 0 {
		return nil
	}
	return output(b)
}

// Len, CopyTo and Release implement [server.Output].
func (o output) Len() int              { return len(o) }
func (o output) CopyTo(dst []byte) int { return copy(dst, o) }
func (o output) Release()              {}
