package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/server"
	"github.com/google/go-cmp/cmp"
)

// Every method gets its request and gives its response.
func TestMethods(t *testing.T) {
	type exchange struct {
		method    string
		req, resp any
		call      func(context.Context, *client.Client) (any, error)
	}
	version := &conmon.VersionResponse{ProcessID: 1, Version: "1.2.3", Tag: "t", Commit: "c", BuildDate: "b", Target: "x", RustVersion: "r", CargoVersion: "v", CargoTree: "tree"}
	url := &conmon.ServeResponse{URL: "http://127.0.0.1/x"}
	meta := map[string]string{"k": "v"}
	versionReq := &conmon.VersionRequest{Verbose: true, Metadata: meta}
	createReq := &conmon.CreateContainerRequest{ID: "a", BundlePath: "/b", Env: []conmon.EnvVar{{Key: "K", Value: "V"}}, SdNotifySocket: "/n"}
	execReq := &conmon.ExecSyncRequest{ID: "a", Timeout: time.Second, Command: []string{"true"}}
	reopenReq := &conmon.ReopenLogRequest{ID: "a", Metadata: meta}
	resizeReq := &conmon.SetWindowSizeRequest{ID: "a", WindowSize: conmon.WindowSize{Width: 80, Height: 24}}
	nsReq := &conmon.CreateNamespacesRequest{Namespaces: []conmon.Namespace{conmon.NamespacePID}, PodID: "p"}
	nsResp := &conmon.CreateNamespacesResponse{Namespaces: []conmon.NamespacePath{{Type: conmon.NamespacePID, Path: "/p"}}}
	fdReq := &conmon.StartFDSocketRequest{Metadata: meta}
	serveExecReq := &conmon.ServeExecRequest{ID: "a", Command: []string{"sh"}, TTY: true, Stdin: true}
	serveAttachReq := &conmon.ServeAttachRequest{ID: "a", Stderr: true}
	forwardReq := &conmon.ServePortForwardRequest{NetNSPath: "/ns"}
	none := func(err error) (any, error) { return nil, err }
	exchanges := []exchange{
		{"version", versionReq, version, func(ctx context.Context, c *client.Client) (any, error) { return c.Version(ctx, versionReq) }},
		{"create", createReq, &conmon.CreateContainerResponse{ContainerPID: 3}, func(ctx context.Context, c *client.Client) (any, error) { return c.CreateContainer(ctx, createReq) }},
		{"reopen", reopenReq, nil, func(ctx context.Context, c *client.Client) (any, error) { return none(c.ReopenLog(ctx, reopenReq)) }},
		{"resize", resizeReq, nil, func(ctx context.Context, c *client.Client) (any, error) { return none(c.SetWindowSize(ctx, resizeReq)) }},
		{"namespaces", nsReq, nsResp, func(ctx context.Context, c *client.Client) (any, error) { return c.CreateNamespaces(ctx, nsReq) }},
		{"fdsocket", fdReq, &conmon.StartFDSocketResponse{Path: "/f"}, func(ctx context.Context, c *client.Client) (any, error) { return c.StartFDSocket(ctx, fdReq) }},
		{"serveexec", serveExecReq, url, func(ctx context.Context, c *client.Client) (any, error) { return c.ServeExec(ctx, serveExecReq) }},
		{"serveattach", serveAttachReq, url, func(ctx context.Context, c *client.Client) (any, error) { return c.ServeAttach(ctx, serveAttachReq) }},
		{"serveforward", forwardReq, url, func(ctx context.Context, c *client.Client) (any, error) { return c.ServePortForward(ctx, forwardReq) }},
	}
	var current atomic.Pointer[exchange]
	r := serve(t, func(_ context.Context, method string, req any) (any, error) {
		e := current.Load()
		if method != e.method {
			t.Errorf("method %s, want %s", method, e.method)
		}
		if diff := cmp.Diff(e.req, req); diff != "" {
			t.Errorf("request of %s (-want +got):\n%s", method, diff)
		}
		if method == "exec" {
			return &server.ExecSyncResult{ExitCode: 5, TimedOut: true, Stdout: &testOutput{data: []byte("out")}}, nil
		}
		return e.resp, nil
	})
	c := r.client(t)
	exchanges = append(exchanges, exchange{
		"exec", execReq, &conmon.ExecSyncResponse{ExitCode: 5, TimedOut: true, Stdout: []byte("out")},
		func(ctx context.Context, c *client.Client) (any, error) { return c.ExecSync(ctx, execReq) },
	})
	for _, e := range exchanges {
		current.Store(&e)
		resp, err := e.call(t.Context(), c)
		if err != nil {
			t.Errorf("%s: %v", e.method, err)
			continue
		}
		if diff := cmp.Diff(e.resp, resp); diff != "" {
			t.Errorf("response of %s (-want +got):\n%s", e.method, diff)
		}
	}
}

// A call that blocks delays no other, on the same connection or on another.
func TestConcurrency(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	r := serve(t, alive(func(context.Context, string, any) (any, error) {
		close(begun)
		<-finish
		return &server.ExecSyncResult{}, nil
	}))
	c := r.client(t)
	done := make(chan error)
	go func() {
		_, err := c.ExecSync(t.Context(), &conmon.ExecSyncRequest{})
		done <- err
	}()
	<-begun
	if _, err := c.Version(t.Context(), &conmon.VersionRequest{}); err != nil {
		t.Error(err)
	}
	r.checkAlive(t)
	close(finish)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Work that has begun is finished, whatever becomes of the caller.
func TestCallSurvivesItsConnection(t *testing.T) {
	for name, leave := range map[string]func(*client.Client, context.CancelFunc){
		"connection closed": func(c *client.Client, _ context.CancelFunc) { c.Close() },
		"call cancelled":    func(_ *client.Client, cancel context.CancelFunc) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			begun, gone, finished := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			out := &testOutput{data: bytes.Repeat([]byte("x"), 100_000)}
			r := serve(t, alive(func(ctx context.Context, _ string, _ any) (any, error) {
				close(begun)
				<-gone
				finished <- ctx.Err()
				return &server.ExecSyncResult{Stdout: out}, nil
			}))
			c := r.client(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error)
			go func() {
				_, err := c.ExecSync(ctx, &conmon.ExecSyncRequest{})
				done <- err
			}()
			<-begun
			leave(c, cancel)
			if err := <-done; err == nil {
				t.Error("call succeeded")
			}
			close(gone)
			if err := <-finished; err != nil {
				t.Errorf("context of the method: %v", err)
			}
			eventually(t, "output to be released", func() bool { return out.released.Load() == 1 }, func() string { return "" })
			r.checkAlive(t)
		})
	}
}

func TestPanicIsolation(t *testing.T) {
	finish := make(chan struct{})
	r := serve(t, alive(func(_ context.Context, method string, _ any) (any, error) {
		if method == "create" {
			panic("boom at create")
		}
		<-finish
		return &server.ExecSyncResult{}, nil
	}))
	c := r.client(t)
	other := make(chan error)
	go func() {
		_, err := c.ExecSync(t.Context(), &conmon.ExecSyncRequest{})
		other <- err
	}()
	_, err := c.CreateContainer(t.Context(), &conmon.CreateContainerRequest{})
	if err == nil || !strings.Contains(err.Error(), "internal error: boom at create") {
		t.Errorf("got %v", err)
	}
	close(finish)
	if err := <-other; err != nil {
		t.Errorf("other call on the connection: %v", err)
	}
	if log := r.log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "server_test.go") {
		t.Errorf("no stack in the log:\n%s", log)
	}
}

func TestNilResponse(t *testing.T) {
	r := serve(t, func(context.Context, string, any) (any, error) { return nil, nil })
	c := r.client(t)
	if _, err := c.Version(t.Context(), &conmon.VersionRequest{}); err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("version: %v", err)
	}
	if _, err := c.ExecSync(t.Context(), &conmon.ExecSyncRequest{}); err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("exec: %v", err)
	}
}

// Errors keep text and meaning, and leave the connection open.
func TestErrors(t *testing.T) {
	var current atomic.Pointer[error]
	r := serve(t, alive(func(context.Context, string, any) (any, error) { return nil, *current.Load() }))
	c := r.client(t)
	call := func(err error) error {
		err = fmt.Errorf("do it: %w", err)
		current.Store(&err)
		return c.ReopenLog(t.Context(), &conmon.ReopenLogRequest{ID: "x"})
	}
	for _, want := range []error{
		conmon.ErrContainerNotFound, conmon.ErrContainerExists, conmon.ErrNoTerminal, conmon.ErrNotSupported, conmon.ErrShuttingDown,
	} {
		err := call(want)
		if !errors.Is(err, want) || errors.Is(err, client.ErrDisconnected) {
			t.Errorf("got %v, want %v", err, want)
		}
		if text := `reopen log of container "x": do it: ` + want.Error(); err.Error() != text {
			t.Errorf("text %q, want %q", err, text)
		}
	}
	var runtimeErr *conmon.RuntimeError
	if err := call(&conmon.RuntimeError{ExitCode: 3, Stderr: "not found in $PATH"}); !errors.As(err, &runtimeErr) ||
		runtimeErr.ExitCode != 3 || runtimeErr.Stderr != "not found in $PATH" {
		t.Errorf("got %v", err)
	}
	var invalid *conmon.InvalidError
	if err := call(&conmon.InvalidError{Field: "id", Reason: "is empty"}); !errors.As(err, &invalid) || invalid.Field != "id" {
		t.Errorf("got %v", err)
	}
	if err := call(errors.New("plain")); err == nil || !strings.HasSuffix(err.Error(), "do it: plain") {
		t.Errorf("got %v", err)
	}
	// Refused while decoding: the service is not asked.
	asked := errors.New("service was asked")
	current.Store(&asked)
	if err := c.ReopenLog(t.Context(), &conmon.ReopenLogRequest{ID: "a\x00b"}); !errors.As(err, &invalid) || invalid.Field != "id" {
		t.Errorf("got %v", err)
	}
}

func TestParallel(t *testing.T) {
	var seen sync.Map
	r := serve(t, alive(func(_ context.Context, _ string, req any) (any, error) {
		id := req.(*conmon.ExecSyncRequest).ID
		seen.Store(id, true)
		return &server.ExecSyncResult{Stdout: &testOutput{data: bytes.Repeat([]byte(id), 1000)}}, nil
	}))
	c := r.client(t)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			id := fmt.Sprint("container", i)
			resp, err := c.ExecSync(t.Context(), &conmon.ExecSyncRequest{ID: id})
			if err != nil {
				t.Error(err)
			} else if !bytes.Equal(resp.Stdout, bytes.Repeat([]byte(id), 1000)) {
				t.Errorf("wrong output for %s", id)
			}
			if _, ok := seen.Load(id); !ok {
				t.Errorf("%s was not called", id)
			}
		})
	}
	wg.Wait()
}

// Two full streams fit into a response, several of them at once, and each is released exactly once.
func TestLargeOutput(t *testing.T) {
	var mu sync.Mutex
	var outputs []*testOutput
	full := func(c byte) *testOutput {
		o := &testOutput{data: bytes.Repeat([]byte{c}, conmon.MaxExecOutput)}
		mu.Lock()
		defer mu.Unlock()
		outputs = append(outputs, o)
		return o
	}
	r := serve(t, alive(func(context.Context, string, any) (any, error) {
		return &server.ExecSyncResult{Stdout: full('o'), Stderr: full('e')}, nil
	}))
	c := r.client(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			resp, err := c.ExecSync(t.Context(), &conmon.ExecSyncRequest{})
			if err != nil {
				t.Error(err)
				return
			}
			for name, got := range map[byte][]byte{'o': resp.Stdout, 'e': resp.Stderr} {
				if len(got) != conmon.MaxExecOutput || bytes.Count(got, []byte{name}) != len(got) {
					t.Errorf("stream %c is wrong, %d bytes", name, len(got))
				}
			}
		})
	}
	wg.Wait()
	for i, o := range outputs {
		if n := o.released.Load(); n != 1 {
			t.Errorf("output %d released %d times", i, n)
		}
	}
}

// Outputs that come with an error are released too.
func TestOutputReleasedOnError(t *testing.T) {
	out := &testOutput{data: []byte("x")}
	r := serve(t, alive(func(context.Context, string, any) (any, error) {
		return &server.ExecSyncResult{Stdout: out}, errors.New("no")
	}))
	if _, err := r.client(t).ExecSync(t.Context(), &conmon.ExecSyncRequest{}); err == nil {
		t.Error("no error")
	}
	if n := out.released.Load(); n != 1 {
		t.Errorf("released %d times", n)
	}
}

// More calls than allowed are refused at once, on that connection only, and the others go on.
func TestMaxCalls(t *testing.T) {
	begun, finish := make(chan struct{}, 10), make(chan struct{})
	r := serve(t, alive(func(context.Context, string, any) (any, error) {
		begun <- struct{}{}
		<-finish
		return &server.ExecSyncResult{}, nil
	}), func(o *server.Options) { o.MaxCalls = 3 })
	c := r.client(t)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := c.ExecSync(t.Context(), &conmon.ExecSyncRequest{}); err != nil {
				t.Error(err)
			}
		})
	}
	for range 3 {
		<-begun
	}
	if _, err := c.Version(t.Context(), &conmon.VersionRequest{}); err == nil || !strings.Contains(err.Error(), "too many calls") {
		t.Errorf("got %v", err)
	}
	r.checkAlive(t)
	close(finish)
	wg.Wait()
	if _, err := c.Version(t.Context(), &conmon.VersionRequest{}); err != nil {
		t.Error(err)
	}
}
