package server_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/server"
)

// Shutdown answers what is running, refuses what is new, and closes.
func TestShutdownWaits(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	r := serve(t, alive(func(context.Context, string, any) (any, error) {
		close(begun)
		<-finish
		return &server.ExecSyncResult{ExitCode: 9}, nil
	}))
	c := r.client(t)
	type result struct {
		resp *conmon.ExecSyncResponse
		err  error
	}
	answered := make(chan result, 1)
	go func() {
		resp, err := c.ExecSync(t.Context(), &conmon.ExecSyncRequest{})
		answered <- result{resp, err}
	}()
	<-begun
	down := make(chan error, 1)
	go func() { down <- r.Shutdown(t.Context()) }()
	eventually(t, "new calls to be refused", func() bool {
		_, err := c.Version(t.Context(), &conmon.VersionRequest{})
		return errors.Is(err, conmon.ErrShuttingDown)
	}, func() string { return "" })
	eventually(t, "new connections to be refused", func() bool {
		c, err := net.Dial("unix", r.path)
		if err == nil {
			c.Close()
		}
		return err != nil
	}, func() string { return "" })
	select {
	case err := <-down:
		t.Fatalf("shutdown did not wait: %v", err)
	default:
	}
	close(finish)
	if got := <-answered; got.err != nil || got.resp.ExitCode != 9 {
		t.Errorf("running call: %+v", got)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Errorf("second shutdown: %v", err)
	}
}

// Shutdown does not wait for ever, and says what it left.
func TestShutdownBound(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	r := serve(t, alive(func(context.Context, string, any) (any, error) {
		close(begun)
		<-finish
		return &server.ExecSyncResult{}, nil
	}))
	c := r.client(t)
	done := make(chan error, 1)
	go func() {
		_, err := c.ExecSync(t.Context(), &conmon.ExecSyncRequest{})
		done <- err
	}()
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := r.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
	if err := <-done; !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("call: %v", err)
	}
	close(finish)
}

func TestServeEndsWithContext(t *testing.T) {
	checkLeaks(t)
	s := server.New(server.Options{Service: alive(nil)})
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- s.Serve(ctx, netListener{l}) }()
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	// A server that has been closed closes what it is given.
	l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path + "2", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(t.Context(), netListener{l}); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("listener is open: %v", err)
	}
}

// What a server and a connection cost in goroutines.
func TestIdleGoroutines(t *testing.T) {
	// Those of earlier tests may still be on their way out.
	eventually(t, "no connections", func() bool {
		buf := make([]byte, 1<<20)
		return !bytes.Contains(buf[:runtime.Stack(buf, true)], []byte("capnp/v3/rpc"))
	}, func() string { return "" })
	before := runtime.NumGoroutine()
	r := serve(t, alive(nil))
	eventually(t, "one goroutine", func() bool { return runtime.NumGoroutine() == before+1 }, func() string { return "" })
	raw := r.raw(t)
	if _, err := raw.Write(concat(bootstrapMsg(t, 0), callMsg(t, 1), finishMsg(t, 1))); err != nil {
		t.Fatal(err)
	}
	checkAnswered(t, raw)
	eventually(t, "four more goroutines", func() bool { return runtime.NumGoroutine() == before+5 }, func() string { return "" })
	raw.Close()
	eventually(t, "the connection to end", func() bool { return runtime.NumGoroutine() == before+1 }, func() string { return "" })
	if _, err := os.Stat(r.path); err != nil {
		t.Error(err)
	}
}
