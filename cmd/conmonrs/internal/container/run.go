package container

import (
	"context"
	"fmt"
	"syscall"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/oci"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/reaper"
	"github.com/conmonrs/conmonrs/io/pump"
	"github.com/conmonrs/conmonrs/io/stdio"
)

// run runs the runtime for a command that leaves no process behind, and returns what it printed on its standard output.
func (h *Host) run(ctx context.Context, args []string) (string, error) {
	pipes, err := stdio.OpenPipes(stdio.Options{})
	if err != nil {
		return "", err
	}
	defer pipes.Close()
	out, message := &gate{}, &gate{}
	ends := pipes.Child()
	outStream := h.watchStream(pipes.TakeStdout(), pump.Options{Sinks: []pump.Sink{out}}, nil)
	defer outStream.Close()
	errStream := h.watchStream(pipes.TakeStderr(), pump.Options{Sinks: []pump.Sink{message}}, nil)
	defer errStream.Close()
	p, err := h.Reaper.Start(ctx, reaper.Command{
		Path: h.Runtime.Path, Args: args, Env: oci.Environ(h.Environ, nil), Files: ends[:], OwnGroup: true,
	})
	_ = pipes.CloseChild()
	if err != nil {
		return "", err
	}
	err = waitRuntime(ctx, p)
	drain, cancel := context.WithTimeout(context.Background(), messageDrain)
	defer cancel()
	_ = outStream.Drain(drain)
	_ = errStream.Drain(drain)
	if err == nil && p.Status().Code != 0 {
		err = runtimeError(p.Status(), "")
	}
	if err != nil {
		return "", withMessage(err, message.message())
	}
	return out.message(), nil
}

// stopSignal returns the signal that asks the container to end.
func (c *Container) stopSignal() syscall.Signal {
	name := ""
	_ = oci.WithConfig(c.req.BundlePath, func(config []byte) { name = oci.StopSignal(config) })
	if sig, ok := parseSignal(name); ok {
		return sig
	}
	return syscall.SIGTERM
}

// status asks the runtime for the OCI state of the container: "created", "running", "paused", or empty if unknown.
func (c *Container) status(ctx context.Context) string {
	out, err := c.host.run(ctx, c.host.Runtime.StateArgs(c.req.ID, c.systemdCgroup(), c.req.GlobalArgs))
	if err != nil {
		c.log.Debug("state not learnt", "error", err)
	}
	return oci.StateStatus([]byte(out))
}

// Stop asks the container to end: its stop signal, once, to its first process. A container that cannot act on a signal,
// since it has not been started or is paused, is killed. It does not wait for the end.
func (c *Container) Stop(ctx context.Context) {
	if c.State() != Running {
		return
	}
	if status := c.status(ctx); status == "created" || status == "paused" {
		c.Kill()
		return
	}
	sig := c.stopSignal()
	c.log.Info("container asked to stop", "signal", int(sig))
	if err := c.process.Signal(sig); err != nil {
		c.log.Warn("container not signalled", "error", fmt.Sprint(err))
	}
}
