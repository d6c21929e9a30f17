package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/oci"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/reaper"
)

// drainLimit bounds how long the exit waits for output that was written before it: a log on a stuck disk must not hold
// back the exit code. Reading goes on afterwards.
const drainLimit = time.Second

// cleanupLimit bounds the wait for a cleanup command that cannot be opened: the id must become free.
const cleanupLimit = 5 * time.Second

// exited runs when the container's first process has been reaped. The order of the steps is the contract.
func (c *Container) exited() {
	c.move(ProcessExited)
	if c.limit != nil {
		c.limit.Stop()
	}
	status := c.process.Status()
	// 1. The control group may go any moment. An engine looks for the mark when it has the exit code.
	c.markOOM(status)
	// 2. Nothing reads the standard input any more.
	_ = c.hub.CloseStdin()
	// 3. What the container said and wrote before its end reaches the engine and the log before its exit code is seen.
	c.notify.drain()
	left := c.drain()
	c.logs.forgetProcess()
	// 4. The exit code. Engines act as soon as they see it. Before, nothing waits for whoever reads our own log.
	c.host.Exits.Publish(c.log, c.req.ExitPaths, status.Code)
	if left != nil {
		c.log.Warn("exit published before all output was logged", "error", left)
	}
	c.log.Info("container exited", "exit_code", status.Code, "signal", int(status.Signal), "core", status.Core,
		"known", status.Known)
	// 5. Clients learn the end after all output. One that does not read delays neither the next steps nor the next
	//    container of this id.
	c.closeSockets()
	told := make(chan struct{})
	go func() {
		defer close(told)
		_ = c.hub.Finish()
		_ = c.hub.Close()
	}()
	// 6. The engine's own command may rely on the exit files.
	c.startCleanup()
	// 7. Descriptors kept for the container's lifetime, and the id.
	c.notify.close()
	release(c.leaked)
	c.closeTerminal()
	c.move(Published)
	c.gone()
	close(c.settled)
	c.log.Debug("container forgotten", "reading", c.stillRead())
	// 8. Processes that the container left may hold its pipes: they are read into the log until they end.
	<-told
	c.streams.Wait()
	_ = c.out.Close()
	if c.err != nil {
		_ = c.err.Close()
	}
	c.logs.close()
}

// drain returns why not all output has been logged.
func (c *Container) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	err := c.out.Drain(ctx)
	if c.err != nil {
		err = errors.Join(err, c.err.Drain(ctx))
	}
	if err == nil {
		err = c.endLines(ctx)
	}
	return err
}

// endLines logs lines that the container left unfinished. Their streams may go on: processes that it left may hold the
// pipes, for longer than this monitor lives.
func (c *Container) endLines(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.logs.end(stdout)
		c.logs.end(stderr)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("log the last line: %w", ctx.Err())
	}
}

func (c *Container) stillRead() bool {
	return !c.out.State().Ended || c.err != nil && !c.err.State().Ended
}

func (c *Container) closeTerminal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.terminal != nil {
		_ = c.terminal.Close()
		c.terminal = nil
	}
}

// startCleanup starts the cleanup command. Nobody waits for it but the reaper.
func (c *Container) startCleanup() {
	if len(c.req.CleanupCommand) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupLimit)
	defer cancel()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err == nil {
		defer null.Close()
		var path string
		if path, err = lookPath(c.req.CleanupCommand[0], c.host.Environ); err == nil {
			_, err = c.host.Reaper.Start(ctx, reaper.Command{
				Path: path, Args: c.req.CleanupCommand, Env: oci.Environ(c.host.Environ, nil),
				Files: []*os.File{null, null, null}, OwnGroup: true,
			})
		}
	}
	if err != nil {
		c.log.Error("cleanup command not started", "error", err)
	}
}

// lookPath finds an executable as a shell would, with the PATH of environ.
func lookPath(name string, environ []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, word := range environ {
		list, ok := strings.CutPrefix(word, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range strings.Split(list, ":") {
			path := filepath.Join(dir, name) // of an empty element, which is the working directory, not an absolute one
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return path, nil
			}
		}
	}
	return "", &os.PathError{Op: "look up in PATH", Path: name, Err: os.ErrNotExist}
}
