package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"sync"
	"syscall"
	"time"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/internal/unixpath"
)

// First bytes of the packets that the monitor sends on an attach socket.
const (
	packetDone   = 0
	packetStdout = 2
	packetStderr = 3
)

const (
	// maxStdinPacket is how much standard input is sent at once. A seqpacket socket loses what does not fit
	// into the receiver's buffer, so this is part of the protocol.
	maxStdinPacket = 32 << 10
	// maxOutputPacket is larger than what a monitor sends, 8 KiB, so that one sending more is understood.
	maxOutputPacket = 64 << 10
)

// AttachOptions say what to connect to a container.
type AttachOptions struct {
	// ID is the container id.
	ID string
	// SocketPath is where the attach socket is or will be. It may be longer than a socket address.
	SocketPath string
	// ExecSessionID is only logged by the monitor.
	ExecSessionID string
	// StopAfterStdinEOF closes the container's standard input when Stdin ends.
	StopAfterStdinEOF bool
	// Stdin is sent to the container. Nil sends nothing, and does not close anything either.
	Stdin io.Reader
	// Stdout and Stderr receive the output from now on; with a terminal everything is in Stdout. What has
	// no writer is dropped. They are not closed.
	Stdout, Stderr io.Writer
	// Resize carries sizes of the terminal. Sizes with a zero are ignored. Attach reads until it returns or
	// the channel is closed; the sender must not block without watching for that.
	Resize <-chan conmon.WindowSize
	// Attached is called, unless nil, when the connection is made: nothing printed after it is missed.
	Attached func()
}

// Attach connects the given streams to a container, and returns nil when the container's output has ended. A
// nil pointer in an interface counts as nil.
//
// The end of Stdin closes only the sending half of the connection, and the output goes on. An error of Stdin
// or of a writer ends the attach. When Attach returns, Stdin may still have one Read pending, in a goroutine
// that ends with it, unless it has SetReadDeadline like [os.File] and [net.Conn]: then nothing is left.
func (c *Client) Attach(ctx context.Context, opts AttachOptions) error {
	opts.normalise()
	err := c.attachSocket(ctx, &conmon.AttachRequest{
		ID:                opts.ID,
		SocketPath:        opts.SocketPath,
		ExecSessionID:     opts.ExecSessionID,
		StopAfterStdinEOF: opts.StopAfterStdinEOF,
	})
	if err != nil {
		return err
	}
	conn, err := unixpath.Dial(ctx, "unixpacket", opts.SocketPath)
	if err != nil {
		return fmt.Errorf("attach to container %q: %w", opts.ID, err)
	}
	defer conn.Close()
	if opts.Attached != nil {
		opts.Attached()
	}
	if err := c.attached(ctx, conn, &opts); err != nil {
		return fmt.Errorf("attach to container %q: %w", opts.ID, err)
	}
	return nil
}

// attached moves data until the output ends.
func (c *Client) attached(ctx context.Context, conn *net.UnixConn, opts *AttachOptions) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Whatever ends the context also ends the reading below.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	var tasks sync.WaitGroup
	if opts.Resize != nil {
		tasks.Go(func() { c.forwardResize(ctx, opts) })
	}
	stdin := make(chan struct{})
	if opts.Stdin != nil {
		go func() {
			defer close(stdin)
			if err := sendStdin(conn, opts.Stdin); err != nil {
				cancel(err)
			}
		}()
	}

	err := receiveOutput(conn, opts.Stdout, opts.Stderr)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	cancel(nil)
	tasks.Wait()
	if opts.Stdin != nil {
		interrupt(opts.Stdin, stdin)
	}
	return err
}

// interrupt waits for the goroutine that reads standard input, if that can be made to return.
func interrupt(r io.Reader, done <-chan struct{}) {
	d, ok := r.(interface{ SetReadDeadline(time.Time) error })
	if !ok || d.SetReadDeadline(time.Unix(1, 0)) != nil {
		return
	}
	<-done
	_ = d.SetReadDeadline(time.Time{})
}

// sendStdin copies until the end, which closes the sending half.
func sendStdin(conn *net.UnixConn, r io.Reader) error {
	buf := make([]byte, maxStdinPacket)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			// One packet per read. An empty one would look like the end.
			if _, werr := conn.Write(buf[:n]); werr != nil {
				return ignoreGone(werr)
			}
		}
		switch {
		case err == io.EOF, errors.Is(err, os.ErrDeadlineExceeded):
			return ignoreGone(conn.CloseWrite())
		case err != nil:
			return fmt.Errorf("read standard input: %w", err)
		}
	}
}

// ignoreGone drops errors that mean that the other side has left: the receiving side finds out why, after
// the output that is still queued.
func ignoreGone(err error) error {
	for _, gone := range []error{syscall.EPIPE, syscall.ECONNRESET, syscall.ENOTCONN, net.ErrClosed, os.ErrDeadlineExceeded} {
		if errors.Is(err, gone) {
			return nil
		}
	}
	return err
}

// receiveOutput copies until the container's output has ended.
func receiveOutput(conn *net.UnixConn, stdout, stderr io.Writer) error {
	buf := make([]byte, maxOutputPacket)
	for {
		n, err := conn.Read(buf)
		switch {
		case errors.Is(err, syscall.ECONNRESET):
			// Reported once if the monitor closed with input unread. Packets may be queued behind it.
			continue
		case errors.Is(err, io.EOF), err == nil && n == 0:
			return nil
		case err != nil:
			return fmt.Errorf("read attach socket: %w", err)
		}
		switch buf[0] {
		case packetDone:
			return nil
		case packetStdout:
			err = write(stdout, buf[1:n])
		case packetStderr:
			err = write(stderr, buf[1:n])
		}
		if err != nil {
			return err
		}
	}
}

func write(w io.Writer, b []byte) error {
	if w == nil || len(b) == 0 {
		return nil
	}
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// forwardResize passes on sizes. An error is not the end of anything: the next size may work.
func (c *Client) forwardResize(ctx context.Context, opts *AttachOptions) {
	for {
		select {
		case size, ok := <-opts.Resize:
			if !ok {
				return
			}
			if size.Width > 0 && size.Height > 0 {
				_ = c.SetWindowSize(ctx, &conmon.SetWindowSizeRequest{ID: opts.ID, WindowSize: size})
			}
		case <-ctx.Done():
			return
		}
	}
}

// normalise turns nil pointers in interfaces into nil interfaces. Callers that keep a *os.File in a field get
// these without noticing.
func (o *AttachOptions) normalise() {
	if isNil(o.Stdin) {
		o.Stdin = nil
	}
	if isNil(o.Stdout) {
		o.Stdout = nil
	}
	if isNil(o.Stderr) {
		o.Stderr = nil
	}
}

func isNil(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Chan, reflect.Slice, reflect.Interface:
		return r.IsNil()
	}
	return false
}
