package oom

import (
	"errors"
	"fmt"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inotify is the one instance of a Watcher.
type inotify struct {
	fd     int
	arm    func() error
	cancel func()
	byWD   map[int32]*Container
}

// unified is a group of the unified hierarchy. The descriptor of memory.events is kept: at the end there may be none left
// to open it with.
type unified struct {
	w      *Watcher
	events int
	wd     int32
}

func (w *Watcher) watchUnified(c *Container) (source, error) {
	path := filepath.Join(c.group.Dir, "memory.events")
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		err = ErrNoController
	}
	if err != nil {
		return nil, err
	}
	u := &unified{w: w, events: fd, wd: -1}
	// Where no instance, or no watch, can be had the counter is still read at the end.
	if w.openInotifyLocked() == nil {
		if wd, err := unix.InotifyAddWatch(w.inotify.fd, path, unix.IN_MODIFY); err == nil {
			u.wd = int32(wd)
			w.inotify.byWD[u.wd] = c
		}
		w.closeInotifyLocked() // if there is no watch
	}
	return u, nil
}

func (w *Watcher) openInotifyLocked() error {
	if w.inotify != nil {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("create inotify instance: %w", err)
	}
	i := &inotify{fd: fd, byWD: make(map[int32]*Container)}
	i.arm, i.cancel = w.poll(fd, w.changed)
	if err := i.arm(); err != nil {
		i.cancel()
		unix.Close(fd)
		return err
	}
	w.inotify = i
	return nil
}

func (w *Watcher) closeInotifyLocked() {
	if i := w.inotify; i != nil && len(i.byWD) == 0 {
		i.cancel()
		unix.Close(i.fd)
		w.inotify = nil
	}
}

// changed runs when there are inotify events. Many of one file are one look.
func (w *Watcher) changed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.inotify
	if i == nil {
		return
	}
	var buf [32 * unix.SizeofInotifyEvent]byte
	var last *Container
	for {
		n, err := unix.Read(i.fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n < unix.SizeofInotifyEvent {
			break
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
			b = b[min(len(b), unix.SizeofInotifyEvent+int(e.Len)):]
			switch c := i.byWD[e.Wd]; {
			case e.Mask&unix.IN_Q_OVERFLOW != 0:
				for _, c := range i.byWD {
					c.lookLocked()
				}
			case c != nil && c != last:
				c.lookLocked()
				last = c
			}
		}
	}
	_ = i.arm() // fails only when it has been cancelled
}

func (u *unified) kills() (int64, error) { return readCounter(u.events, "oom_kill") }

func (u *unified) hits() int64 {
	n, _ := readCounter(u.events, "oom")
	return n
}

func (u *unified) close() {
	unix.Close(u.events)
	if i := u.w.inotify; i != nil && u.wd >= 0 {
		_, _ = unix.InotifyRmWatch(i.fd, uint32(u.wd)) // a group that has gone has taken its watch along
		delete(i.byWD, u.wd)
	}
	u.w.closeInotifyLocked()
}
