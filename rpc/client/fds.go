package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/internal/fdslot"
	"github.com/conmonrs/conmonrs/rpc/internal/unixpath"
)

// MaxFDs is how many files one [FDs.Send] takes: what every monitor accepts in one message.
const MaxFDs = 252

// FDs sends files to a monitor, over a connection of its own. It is made by [Client.OpenFDs] and ended by [FDs.Close], has
// one descriptor and no goroutine, and may be used by several goroutines.
type FDs struct {
	sender *fdslot.Sender
}

// An FDError is the monitor's answer to files that it does not take.
type FDError struct {
	// Text says why.
	Text string
}

// Error returns the monitor's text.
func (e *FDError) Error() string { return "monitor refused descriptors: " + e.Text }

// OpenFDs starts the monitor's descriptor socket, if that has not been done, and connects to it. Errors:
// [conmon.ErrNotSupported], [conmon.ErrShuttingDown], and the errno of a connection that fails.
func (c *Client) OpenFDs(ctx context.Context) (*FDs, error) {
	resp, err := c.StartFDSocket(ctx, &conmon.StartFDSocketRequest{})
	if err != nil {
		return nil, err
	}
	conn, err := unixpath.Dial(ctx, "unixpacket", resp.Path)
	if err != nil {
		return nil, fmt.Errorf("open descriptor socket: %w", err)
	}
	sender, err := fdslot.NewSender(conn)
	if err != nil {
		return nil, fmt.Errorf("open descriptor socket: %w", err)
	}
	return &FDs{sender}, nil
}

// Send sends up to [MaxFDs] files, which stay the caller's and may be closed afterwards, and returns a slot for each, in
// order. Each slot can be named once, in AdditionalFDs or LeakFDs of a [conmon.CreateContainerRequest], as long as the
// connection is open: close it when that call has returned, not before. No files give no slots.
//
// Whether a descriptor blocks is shared with the container. The pipes and sockets that Go opens do not; calling Fd on
// the file first makes a pipe blocking.
//
// Errors: [*conmon.InvalidError] for too many files, os.ErrClosed for one that is closed, [*FDError],
// [ErrDisconnected], and the cause of ctx. What has been sent when ctx ends may have slots until the connection ends.
func (f *FDs) Send(ctx context.Context, files ...*os.File) (slots []uint64, err error) {
	switch n := len(files); {
	case n == 0:
		return nil, nil
	case n > MaxFDs:
		err = &conmon.InvalidError{Field: "files", Reason: fmt.Sprintf("are %d, at most %d are sent at once", n, MaxFDs)}
	default:
		err = withNumbers(files, make([]int, 0, n), func(fds []int) error {
			slots, err = f.sender.Send(ctx, fds)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("send files: %w", explainFDs(err))
	}
	return slots, nil
}

// Release gives up all files that were sent over this connection and not used. Errors are as with [FDs.Send].
func (f *FDs) Release(ctx context.Context) error {
	if err := f.sender.Release(ctx); err != nil {
		return fmt.Errorf("release files: %w", explainFDs(err))
	}
	return nil
}

// Close ends the connection. The monitor closes the files that were sent over it and not used. It is idempotent.
func (f *FDs) Close() error {
	if err := f.sender.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close descriptor socket: %w", err)
	}
	return nil
}

// withNumbers calls use with the descriptors of all files, none of which is closed or changed meanwhile: Fd would make
// them blocking.
func withNumbers(files []*os.File, fds []int, use func([]int) error) (err error) {
	if len(files) == 0 {
		return use(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	closed := raw.Control(func(fd uintptr) { err = withNumbers(files[1:], append(fds, int(fd)), use) })
	if closed != nil {
		return fmt.Errorf("%w: %w", os.ErrClosed, closed)
	}
	return err
}

// explainFDs gives errors of the descriptor socket the types of this package.
func explainFDs(err error) error {
	if refused := (*fdslot.RefusedError)(nil); errors.As(err, &refused) {
		return &FDError{Text: refused.Text}
	}
	if errors.Is(err, net.ErrClosed) {
		return os.ErrClosed
	}
	for _, gone := range []error{io.EOF, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, gone) {
			return fmt.Errorf("%w: %w", ErrDisconnected, err)
		}
	}
	return err
}
