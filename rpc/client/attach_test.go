package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/rpctest"
)

// attachTo gives a client and the options for a container whose end of the attach socket is handled by serve.
func attachTo(t *testing.T, path string, serve func(*net.UnixConn)) (*client.Client, client.AttachOptions, *sync.Map) {
	t.Helper()
	checkLeaks(t)
	t.Chdir(filepath.Dir(path)) // a relative name is short
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Base(path), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		serve(c)
	}()
	t.Cleanup(func() { l.Close(); <-done })
	var sizes sync.Map
	c := rpctest.New(t, &rpctest.Monitor{
		Attach: func(_ context.Context, req *conmon.AttachRequest) error {
			if req.ID != "box" {
				return conmon.ErrContainerNotFound
			}
			if req.SocketPath != path || req.ExecSessionID != "sess" || !req.StopAfterStdinEOF {
				t.Errorf("request %+v", req)
			}
			return nil
		},
		SetWindowSize: func(_ context.Context, req *conmon.SetWindowSizeRequest) error {
			sizes.Store(req.WindowSize, req.ID)
			return nil
		},
	})
	return c, client.AttachOptions{ID: "box", SocketPath: path, ExecSessionID: "sess", StopAfterStdinEOF: true}, &sizes
}

func socketPath(t *testing.T) string { return filepath.Join(t.TempDir(), "attach") }

func send(t *testing.T, c *net.UnixConn, packets ...string) {
	t.Helper()
	for _, p := range packets {
		// A client that has heard enough may leave first.
		if _, err := c.Write([]byte(p)); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("send: %v", err)
		}
	}
}

// All output is delivered, byte for byte and each to its stream, until the done packet or the end of the
// connection.
func TestAttachOutput(t *testing.T) {
	full := string(bytes.Repeat([]byte("\x00\x02\x03\xff"), 2047))
	long := filepath.Join(t.TempDir(), strings.Repeat("l", 150), "attach")
	if err := os.Mkdir(filepath.Dir(long), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		path string
		last []string
	}{
		"done":      {socketPath(t), []string{"\x00", "\x02after the end"}},
		"close":     {socketPath(t), nil},
		"long path": {long, []string{"\x00"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, opts, _ := attachTo(t, tc.path, func(conn *net.UnixConn) {
				send(t, conn, "\x02out1", "\x03err1", "\x02"+full, "\x09unknown", "\x02", "\x03err2")
				send(t, conn, tc.last...)
			})
			var stdout, stderr bytes.Buffer
			opts.Stdout, opts.Stderr = &stdout, &stderr
			attached := false
			opts.Attached = func() { attached = true }
			if err := c.Attach(t.Context(), opts); err != nil {
				t.Fatal(err)
			}
			if stdout.String() != "out1"+full || stderr.String() != "err1err2" {
				t.Errorf("%d bytes of output, errors %q", stdout.Len(), stderr.String())
			}
			if !attached {
				t.Error("hook was not called")
			}
		})
	}
}

// Input arrives whole, in packets that fit, and its end is a half-close after which output goes on.
func TestAttachStdin(t *testing.T) {
	input := bytes.Repeat([]byte("0123456789abcde\x00"), 20_000)
	var got []byte
	c, opts, _ := attachTo(t, socketPath(t), func(conn *net.UnixConn) {
		buf := make([]byte, 128<<10)
		for {
			n, err := conn.Read(buf)
			if n > 32<<10 {
				t.Errorf("packet of %d bytes", n)
			}
			got = append(got, buf[:n]...)
			if err != nil || n == 0 {
				break
			}
		}
		send(t, conn, "\x02bye", "\x00")
	})
	var stdout bytes.Buffer
	opts.Stdin, opts.Stdout = bytes.NewReader(input), &stdout
	if err := c.Attach(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, input) {
		t.Errorf("%d bytes of input arrived, want %d", len(got), len(input))
	}
	if stdout.String() != "bye" {
		t.Errorf("output %q", stdout.String())
	}
}

// A monitor that closes with input unread makes the kernel report a reset, before the output that is queued.
func TestAttachReset(t *testing.T) {
	wrote := make(chan struct{})
	c, opts, _ := attachTo(t, socketPath(t), func(conn *net.UnixConn) {
		<-wrote
		send(t, conn, "\x02one", "\x02two")
	})
	var stdout bytes.Buffer
	opts.Stdout = &stdout
	opts.Stdin = io.MultiReader(strings.NewReader("never read"), readerFunc(func([]byte) (int, error) {
		close(wrote)
		return 0, io.EOF
	}))
	if err := c.Attach(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	if stdout.String() != "onetwo" {
		t.Errorf("output %q", stdout.String())
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

var errBroken = errors.New("broken")

// Nil, nil pointers in interfaces, and streams that fail.
func TestAttachStreams(t *testing.T) {
	closed := func() *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
		r.Close()
		return r
	}
	for name, tc := range map[string]struct {
		change func(*client.AttachOptions)
		want   error
	}{
		"nil":           {func(*client.AttachOptions) {}, nil},
		"typed nil in":  {func(o *client.AttachOptions) { o.Stdin = (*os.File)(nil) }, nil},
		"typed nil out": {func(o *client.AttachOptions) { o.Stdout = (*bytes.Buffer)(nil); o.Stderr = (*os.File)(nil) }, nil},
		"nil func":      {func(o *client.AttachOptions) { o.Stdin = readerFunc(nil) }, nil},
		"closed in":     {func(o *client.AttachOptions) { o.Stdin = closed() }, os.ErrClosed},
		"closed out":    {func(o *client.AttachOptions) { o.Stdout = closed() }, os.ErrClosed},
		"broken out":    {func(o *client.AttachOptions) { o.Stdout = brokenWriter{} }, errBroken},
		"broken err":    {func(o *client.AttachOptions) { o.Stderr = brokenWriter{} }, errBroken},
	} {
		t.Run(name, func(t *testing.T) {
			// With bad input the container does not end; otherwise it does.
			c, opts, _ := attachTo(t, socketPath(t), func(conn *net.UnixConn) {
				send(t, conn, "\x02out", "\x03err")
				if name == "closed in" {
					_, _ = conn.Read(make([]byte, 1))
					return
				}
				send(t, conn, "\x00")
			})
			tc.change(&opts)
			if err := c.Attach(t.Context(), opts); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

// Without input nothing is closed: the container's standard input belongs to others as well.
func TestAttachWithoutStdin(t *testing.T) {
	c, opts, _ := attachTo(t, socketPath(t), func(conn *net.UnixConn) {
		_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
		send(t, conn, "\x00")
	})
	if err := c.Attach(t.Context(), opts); err != nil {
		t.Error(err)
	}
}

// The end of the container ends the attach although nobody types, and leaves standard input usable.
func TestAttachEndsWithStdinIdle(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	c, opts, _ := attachTo(t, socketPath(t), func(conn *net.UnixConn) { send(t, conn, "\x00") })
	opts.Stdin = r
	if err := c.Attach(t.Context(), opts); err != nil {
		t.Error(err)
	}
	if _, err := w.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(make([]byte, 2)); n != 1 || err != nil {
		t.Errorf("standard input after attach: %d, %v", n, err)
	}
}

func TestAttachCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, opts, _ := attachTo(t, socketPath(t), func(conn *net.UnixConn) {
		_, _ = conn.Read(make([]byte, 1)) // until the client leaves
	})
	opts.Attached = cancel
	if err := c.Attach(ctx, opts); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestAttachResize(t *testing.T) {
	finish := make(chan struct{})
	c, opts, sizes := attachTo(t, socketPath(t), func(conn *net.UnixConn) {
		<-finish
		send(t, conn, "\x00")
	})
	resize := make(chan conmon.WindowSize)
	opts.Resize = resize
	done := make(chan error, 1)
	go func() { done <- c.Attach(t.Context(), opts) }()
	want := conmon.WindowSize{Width: 120, Height: 50}
	for _, size := range []conmon.WindowSize{{}, {Width: 80}, {Height: 24}, want} {
		resize <- size
	}
	eventually(t, "the size to arrive", func() bool { _, ok := sizes.Load(want); return ok }, func() string { return "" })
	n := 0
	sizes.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d sizes were sent", n)
	}
	close(finish)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAttachErrors(t *testing.T) {
	c, opts, _ := attachTo(t, socketPath(t), func(*net.UnixConn) {})
	unknown := opts
	unknown.ID = "other"
	if err := c.Attach(t.Context(), unknown); !errors.Is(err, conmon.ErrContainerNotFound) {
		t.Errorf("unknown container: %v", err)
	}
	if err := os.Remove(opts.SocketPath); err != nil {
		t.Fatal(err)
	}
	if err := c.Attach(t.Context(), opts); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing socket: %v", err)
	}
}
