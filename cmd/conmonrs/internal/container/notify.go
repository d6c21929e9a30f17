package container

import (
	"context"
	"time"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/logging"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/waiter"
	"github.com/conmonrs/conmonrs/notify"
)

// notifyDrain limits the wait for a receiver that does not take the container's last messages: they must not hold back
// the exit code.
const notifyDrain = 200 * time.Millisecond

// notifier relays the container's notifications when the pod's waiter says that there are some.
type notifier struct {
	relay *notify.Relay
	watch *waiter.Watch
	log   *logging.Logger
}

// lateLogger writes on a goroutine of its own: the relay works on that of the pod's waiter, which must not wait for
// whoever reads the log.
type lateLogger struct{ log *logging.Logger }

func (l lateLogger) Info(message string, args ...any) { go l.log.Info(message, args...) }
func (l lateLogger) Warn(message string, args ...any) { go l.log.Warn(message, args...) }

// openNotify makes the socket of a container that is to have one. It must be there before the runtime mounts it.
func (c *Container) openNotify(u *undo) error {
	if c.req.SdNotifySocket == "" {
		return nil
	}
	relay, err := notify.Listen(c.req.BundlePath, notify.Options{Socket: c.req.SdNotifySocket, Logger: lateLogger{c.log}})
	if err != nil {
		return err
	}
	n := &notifier{relay: relay, log: c.log}
	n.watch = c.host.Waiter.Watch(relay.FD(), n.ready)
	c.notify = n
	u.add(n.close)
	return n.watch.Arm()
}

// ready runs on the waiter's goroutine, or on a timer's while a message waits for its receiver; never on both, since the
// watch is not armed then.
func (n *notifier) ready() {
	if after := n.relay.Ready(); after > 0 {
		time.AfterFunc(after, n.ready)
		return
	}
	_ = n.watch.Arm() // fails only when it has been closed
}

// drain relays what the container said before its end. n may be nil.
func (n *notifier) drain() {
	if n == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), notifyDrain)
	defer cancel()
	n.relay.Drain(ctx)
}

// close removes the socket. What could not be relayed by now is lost. n may be nil.
func (n *notifier) close() {
	if n == nil {
		return
	}
	n.watch.Close()
	if err := n.relay.Close(); err != nil {
		n.log.Warn("socket for notifications not removed", "error", err)
	}
}
