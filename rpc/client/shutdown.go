package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/internal/unixpath"
)

// Names of the files in a monitor's runtime directory that a client has to know.
const (
	socketName   = "conmon.sock"
	fdSocketName = "conmon-fd.sock"
	pidFileName  = "pidfile"
)

// maxAttempts bounds how often a monitor that closes its connections is asked for its process.
const maxAttempts = 200

// goneAttempts bounds how often a monitor that has ended is found to be there.
const goneAttempts = 20

// Shutdown asks the monitor to kill its containers and leave, with SIGINT, and returns when the process has
// ended. Sockets that a killed monitor left behind are removed. If there is no monitor any more there is
// nothing to do, so it can be repeated. The client still has to be closed.
//
// An error means that the monitor may be running, most often because the context ended first.
func (c *Client) Shutdown(ctx context.Context) error {
	p, err := c.monitor(ctx)
	if err != nil {
		return fmt.Errorf("shut down monitor: %w", err)
	}
	if p != nil {
		defer p.release()
		if err := p.interrupt(); err != nil {
			return fmt.Errorf("shut down monitor: %w", err)
		}
		if err := p.wait(ctx); err != nil {
			return fmt.Errorf("shut down monitor: %w", err)
		}
	}
	if err := c.removeLeftovers(ctx); err != nil {
		return fmt.Errorf("shut down monitor: %w", err)
	}
	return nil
}

// monitor returns a reference to the process of the monitor, or nil if there is none. The caller releases it.
func (c *Client) monitor(ctx context.Context) (*process, error) {
	var err error
	// A monitor that is ending loses its connections first, and its socket takes new ones until the very end.
	// Asking again tells when it is over.
	for range maxAttempts {
		c.mu.Lock()
		p := c.proc
		if p != nil {
			p, err = p.dup()
			c.mu.Unlock()
			return p, err
		}
		c.mu.Unlock()
		switch err = c.learnProcess(ctx); {
		case err == nil:
		case notRunning(err):
			return nil, nil
		case !errors.Is(err, ErrDisconnected), !sleep(ctx, pollInterval):
			return nil, err
		}
	}
	return nil, err
}

// learnProcess finds the process behind the connection. The second question makes sure that the reference,
// which was taken after the first answer, is to the process that answers and not to a successor of its pid.
func (c *Client) learnProcess(ctx context.Context) error {
	first, err := c.Version(ctx, &conmon.VersionRequest{})
	if err != nil {
		return err
	}
	p, err := openProcess(int(first.ProcessID))
	if err != nil {
		return err
	}
	if p == nil {
		return fmt.Errorf("open process %d: %w", first.ProcessID, ErrDisconnected)
	}
	second, err := c.Version(ctx, &conmon.VersionRequest{})
	if err == nil && second.ProcessID != first.ProcessID {
		err = fmt.Errorf("monitor %d was replaced by %d: %w", first.ProcessID, second.ProcessID, ErrDisconnected)
	}
	if err != nil {
		p.release()
		return err
	}
	c.keepProcess(p)
	return nil
}

// keepProcess takes ownership.
func (c *Client) keepProcess(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc != nil || c.closed {
		p.release()
		return
	}
	c.proc = p
}

// notRunning says that nobody listens at the socket.
func notRunning(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
}

// removeLeftovers removes the files of a monitor that could not do it itself, unless another one listens
// there already.
func (c *Client) removeLeftovers(ctx context.Context) error {
	if c.socketPath == "" {
		return nil
	}
	switch taken, err := c.taken(ctx); {
	case err != nil:
		return err
	case taken:
		return nil
	}
	paths := []string{c.socketPath}
	if dir, name := filepath.Split(c.socketPath); name == socketName {
		paths = append(paths, filepath.Join(dir, fdSocketName), filepath.Join(dir, pidFileName))
	}
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove leftover: %w", err)
		}
	}
	return nil
}

// taken tells whether a monitor is there. One that has just ended may seem to be: its threads go one after the other, and
// the last closes the socket.
func (c *Client) taken(ctx context.Context) (bool, error) {
	for range goneAttempts {
		conn, err := unixpath.Dial(ctx, "unix", c.socketPath)
		switch {
		case err == nil:
			_ = conn.Close()
		case notRunning(err):
			return false, nil
		default:
			return false, err
		}
		if !sleep(ctx, pollInterval) {
			return false, context.Cause(ctx)
		}
	}
	return true, nil
}
