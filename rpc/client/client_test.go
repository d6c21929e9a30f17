package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/rpctest"
	"github.com/conmonrs/conmonrs/rpc/server"
)

// cutListener lets a test break connections from the server's side, and counts them.
type cutListener struct {
	*net.UnixListener
	mu    sync.Mutex
	conns []io.Closer
}

func (l *cutListener) Accept() (io.ReadWriteCloser, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	return c, nil
}

func (l *cutListener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close()
	}
}

func (l *cutListener) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

// blockingService answers version; reopen blocks until released, and create fails.
type blockingService struct {
	server.Service
	begun   chan struct{}
	release chan struct{}
}

func (blockingService) Version(context.Context, *conmon.VersionRequest) (*conmon.VersionResponse, error) {
	return &conmon.VersionResponse{ProcessID: 1, Version: "1.0.1"}, nil
}

func (blockingService) CreateContainer(context.Context, *conmon.CreateContainerRequest) (*conmon.CreateContainerResponse, error) {
	return nil, conmon.ErrContainerExists
}

func (s blockingService) ReopenLog(context.Context, *conmon.ReopenLogRequest) error {
	s.begun <- struct{}{}
	<-s.release
	return nil
}

func serveBlocking(t *testing.T) (blockingService, *cutListener, string) {
	t.Helper()
	checkLeaks(t)
	svc := blockingService{begun: make(chan struct{}, 10), release: make(chan struct{})}
	l, path := serveService(t, svc)
	return svc, l, path
}

func serveService(t *testing.T, svc server.Service) (*cutListener, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	ul, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l := &cutListener{UnixListener: ul}
	s := server.New(server.Options{Service: svc})
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		<-served
	})
	return l, path
}

func dial(t *testing.T, path string) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func version(ctx context.Context, c *client.Client) error {
	_, err := c.Version(ctx, &conmon.VersionRequest{})
	return err
}

// A failed call is the answer to that call; others on the connection go on.
func TestFailedCallKeepsConnection(t *testing.T) {
	svc, l, path := serveBlocking(t)
	c := dial(t, path)
	other := make(chan error, 1)
	go func() { other <- c.ReopenLog(t.Context(), &conmon.ReopenLogRequest{}) }()
	<-svc.begun
	if _, err := c.CreateContainer(t.Context(), &conmon.CreateContainerRequest{ID: "x"}); !errors.Is(err, conmon.ErrContainerExists) {
		t.Errorf("create: %v", err)
	}
	close(svc.release)
	if err := <-other; err != nil {
		t.Errorf("other call: %v", err)
	}
	if n := l.count(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// A lost connection fails what runs on it, and the next call has a new one.
func TestReconnect(t *testing.T) {
	svc, l, path := serveBlocking(t)
	c := dial(t, path)
	for range 3 {
		running := make(chan error, 1)
		go func() { running <- c.ReopenLog(t.Context(), &conmon.ReopenLogRequest{}) }()
		<-svc.begun
		l.cut()
		if err := <-running; !errors.Is(err, client.ErrDisconnected) {
			t.Errorf("running call: %v", err)
		}
		if err := version(t.Context(), c); err != nil {
			t.Errorf("next call: %v", err)
		}
	}
	close(svc.release)
}

// Calls at the same time share one connection, also the first ones.
func TestOneConnection(t *testing.T) {
	_, l, path := serveBlocking(t)
	var dials atomic.Int32
	c := client.New(func(ctx context.Context) (io.ReadWriteCloser, error) {
		dials.Add(1)
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	})
	defer c.Close()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := version(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if dials.Load() != 1 || l.count() != 1 {
		t.Errorf("%d dials, %d connections", dials.Load(), l.count())
	}
}

func TestCancel(t *testing.T) {
	svc, _, path := serveBlocking(t)
	c := dial(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	running := make(chan error, 1)
	go func() { running <- c.ReopenLog(ctx, &conmon.ReopenLogRequest{}) }()
	<-svc.begun
	cancel()
	if err := <-running; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := version(t.Context(), c); err != nil {
		t.Errorf("other call on the connection: %v", err)
	}
	if err := version(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("call with an ended context: %v", err)
	}
	close(svc.release)
}

// A monitor that accepts and does nothing holds nobody longer than the context says.
func TestSilentServer(t *testing.T) {
	checkLeaks(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := dial(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := version(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	// More than fits into the socket, so that writing blocks.
	big := &conmon.CreateContainerRequest{ID: string(make([]byte, 4<<20))}
	ctx2, cancel2 := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel2()
	if _, err := c.CreateContainer(ctx2, big); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestClosed(t *testing.T) {
	svc, _, path := serveBlocking(t)
	c := dial(t, path)
	running := make(chan error, 1)
	go func() { running <- c.ReopenLog(t.Context(), &conmon.ReopenLogRequest{}) }()
	<-svc.begun
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-running; !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("running call: %v", err)
	}
	if err := version(t.Context(), c); !errors.Is(err, os.ErrClosed) {
		t.Errorf("call after close: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	close(svc.release)
}

func TestDialErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := client.Dial(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("missing socket: %v", err)
	}
	// Shutdown of what is not there is done.
	c := client.New(func(context.Context) (io.ReadWriteCloser, error) { return nil, syscall.ECONNREFUSED })
	defer c.Close()
	if err := c.Shutdown(t.Context()); err != nil {
		t.Errorf("shutdown: %v", err)
	}
}

// Requests that are too large are refused before they are sent, and lose no connection.
func TestHugeRequest(t *testing.T) {
	c := rpctest.New(t, &rpctest.Monitor{})
	_, err := c.CreateContainer(t.Context(), &conmon.CreateContainerRequest{ID: string(make([]byte, 20<<20))})
	if invalid := (*conmon.InvalidError)(nil); !errors.As(err, &invalid) {
		t.Errorf("got %v", err)
	}
	if err := version(t.Context(), c); err != nil {
		t.Errorf("next call: %v", err)
	}
}
