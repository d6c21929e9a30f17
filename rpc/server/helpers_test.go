package server_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/server"
	"golang.org/x/sys/unix"
)

// fake is a Service made of one function: it gets the name of the method and the request, and returns the
// response or an error.
type fake func(ctx context.Context, method string, req any) (any, error)

func respond[T any](ctx context.Context, f fake, method string, req any) (*T, error) {
	resp, err := f(ctx, method, req)
	if err != nil || resp == nil {
		return nil, err
	}
	return resp.(*T), nil
}

func (f fake) Version(ctx context.Context, r *conmon.VersionRequest) (*conmon.VersionResponse, error) {
	return respond[conmon.VersionResponse](ctx, f, "version", r)
}
func (f fake) CreateContainer(ctx context.Context, r *conmon.CreateContainerRequest) (*conmon.CreateContainerResponse, error) {
	return respond[conmon.CreateContainerResponse](ctx, f, "create", r)
}
func (f fake) ExecSync(ctx context.Context, r *conmon.ExecSyncRequest) (*server.ExecSyncResult, error) {
	resp, err := f(ctx, "exec", r)
	res, _ := resp.(*server.ExecSyncResult) // also together with an error
	return res, err
}
func (f fake) Attach(ctx context.Context, r *conmon.AttachRequest) error {
	_, err := f(ctx, "attach", r)
	return err
}
func (f fake) ReopenLog(ctx context.Context, r *conmon.ReopenLogRequest) error {
	_, err := f(ctx, "reopen", r)
	return err
}
func (f fake) SetWindowSize(ctx context.Context, r *conmon.SetWindowSizeRequest) error {
	_, err := f(ctx, "resize", r)
	return err
}
func (f fake) CreateNamespaces(ctx context.Context, r *conmon.CreateNamespacesRequest) (*conmon.CreateNamespacesResponse, error) {
	return respond[conmon.CreateNamespacesResponse](ctx, f, "namespaces", r)
}
func (f fake) StartFDSocket(ctx context.Context, r *conmon.StartFDSocketRequest) (*conmon.StartFDSocketResponse, error) {
	return respond[conmon.StartFDSocketResponse](ctx, f, "fdsocket", r)
}
func (f fake) ServeExec(ctx context.Context, r *conmon.ServeExecRequest) (*conmon.ServeResponse, error) {
	return respond[conmon.ServeResponse](ctx, f, "serveexec", r)
}
func (f fake) ServeAttach(ctx context.Context, r *conmon.ServeAttachRequest) (*conmon.ServeResponse, error) {
	return respond[conmon.ServeResponse](ctx, f, "serveattach", r)
}
func (f fake) ServePortForward(ctx context.Context, r *conmon.ServePortForwardRequest) (*conmon.ServeResponse, error) {
	return respond[conmon.ServeResponse](ctx, f, "serveforward", r)
}

// alive answers version calls and passes the rest on.
func alive(rest fake) fake {
	return func(ctx context.Context, method string, req any) (any, error) {
		if method == "version" {
			return &conmon.VersionResponse{ProcessID: 7, Version: "1.0.1"}, nil
		}
		if rest == nil {
			return nil, conmon.ErrNotSupported
		}
		return rest(ctx, method, req)
	}
}

// netListener adapts a net.Listener the way the daemon does: connections are files.
type netListener struct{ *net.UnixListener }

func (l netListener) Accept() (io.ReadWriteCloser, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var dupErr error
	if err := raw.Control(func(u uintptr) { fd, dupErr = unix.FcntlInt(u, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, dupErr
	}
	return os.NewFile(uintptr(fd), "connection"), nil // non-blocking, like the original
}

// running is a server on a socket.
type running struct {
	*server.Server
	path   string
	log    *logBuffer
	served chan error
}

func serve(t *testing.T, f fake, change ...func(*server.Options)) *running {
	t.Helper()
	checkLeaks(t)
	r := &running{path: filepath.Join(t.TempDir(), "s"), log: &logBuffer{}, served: make(chan error, 1)}
	o := server.Options{Service: f, Logger: slog.New(slog.NewTextHandler(r.log, nil))}
	for _, c := range change {
		c(&o)
	}
	r.Server = server.New(o)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	go func() { r.served <- r.Serve(context.Background(), netListener{l}) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-r.served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return r
}

func (r *running) client(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), r.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// raw is a bare connection, for saying what no client says.
func (r *running) raw(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// checkAlive makes a call on a new connection.
func (r *running) checkAlive(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, r.path)
	if err != nil {
		t.Fatalf("server is gone: %v", err)
	}
	defer c.Close()
	if _, err := c.Version(ctx, &conmon.VersionRequest{}); err != nil {
		t.Fatalf("server does not answer: %v", err)
	}
}

// logBuffer collects what is logged.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// checkLeaks compares goroutines and descriptors before the test with those after all its cleanups.
func checkLeaks(t *testing.T) {
	t.Helper()
	goroutines, fds := runtime.NumGoroutine(), countFDs(t)
	t.Cleanup(func() {
		eventually(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= goroutines }, func() string {
			buf := make([]byte, 1<<20)
			return string(buf[:runtime.Stack(buf, true)])
		})
		eventually(t, "descriptors to be closed", func() bool { return countFDs(t) <= fds }, func() string { return "" })
	})
}

func countFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		// The runtime's poller comes into being with the first descriptor that needs it.
		if link, _ := os.Readlink("/proc/self/fd/" + e.Name()); !strings.HasPrefix(link, "anon_inode:") {
			n++
		}
	}
	return n
}

func eventually(t *testing.T, what string, cond func() bool, detail func() string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Errorf("timed out waiting for %s\n%s", what, detail())
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// testOutput is collected output that counts its releases.
type testOutput struct {
	data     []byte
	released atomic.Int32
}

func (o *testOutput) Len() int              { return len(o.data) }
func (o *testOutput) CopyTo(dst []byte) int { return copy(dst, o.data) }
func (o *testOutput) Release()              { o.released.Add(1) }
