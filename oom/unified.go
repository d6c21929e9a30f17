package oom

import (
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// unified is a group of the unified hierarchy. The descriptor of memory.events is kept: it tells of changes, and at the
// end there may be none left to open it with.
type unified struct {
	events int
	arm    func() error
	cancel func()
}

func (w *Watcher) watchUnified(c *Container) (source, error) {
	fd, err := unix.Open(filepath.Join(c.group.Dir, "memory.events"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		err = ErrNoController
	}
	if err != nil {
		return nil, err
	}
	u := &unified{events: fd}
	if _, err := u.kills(); err != nil { // what is read before the first arm is no change
		unix.Close(fd)
		return nil, err
	}
	u.arm, u.cancel = w.poll(fd, true, func() { u.ready(c) })
	if err := u.arm(); err != nil {
		u.close()
		return nil, err
	}
	return u, nil
}

// ready runs when the counters have changed, at most every ten milliseconds.
func (u *unified) ready(c *Container) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if !c.closed {
		c.lookLocked()
		_ = u.arm() // fails only when it has been cancelled
	}
}

func (u *unified) kills() (int64, error) { return readCounter(u.events, "oom_kill") }

func (u *unified) hits() int64 {
	n, _ := readCounter(u.events, "oom")
	return n
}

func (u *unified) close() {
	u.cancel()
	unix.Close(u.events)
}
