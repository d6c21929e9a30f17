package oom

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxGroups bounds how many groups below a container's are looked at in version 1, where each counts for itself.
const maxGroups = 64

// v1 is a group of version 1.
type v1 struct {
	dir     string
	control int // memory.oom_control
	eventfd int // -1 if there is none
	arm     func() error
	cancel  func()
	counted bool  // the kernel counts
	events  int64 // on a kernel that does not
}

func (w *Watcher) watchV1(c *Container) (source, error) {
	fd, err := unix.Open(filepath.Join(c.group.Dir, "memory.oom_control"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		err = ErrNoController
	}
	if err != nil {
		return nil, err
	}
	v := &v1{dir: c.group.Dir, control: fd, eventfd: -1}
	_, err = readCounter(fd, "oom_kill")
	v.counted = err == nil
	// Some kernels have no events. Then the counter is read at the end.
	if err := v.listen(w, c); err != nil && !v.counted {
		v.close()
		return nil, err
	}
	return v, nil
}

// listen asks the kernel to tell when a limit is hit.
func (v *v1) listen(w *Watcher, c *Container) error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	words := strconv.Itoa(fd) + " " + strconv.Itoa(v.control)
	if err := os.WriteFile(filepath.Join(v.dir, "cgroup.event_control"), []byte(words), 0); err != nil {
		unix.Close(fd)
		return err
	}
	v.eventfd = fd
	v.arm, v.cancel = w.poll(fd, false, func() { v.ready(c) })
	if err := v.arm(); err != nil {
		v.cancel()
		unix.Close(fd)
		v.eventfd = -1
		return err
	}
	return nil
}

// ready runs when the limit was hit, or the group has been removed.
func (v *v1) ready(c *Container) {
	c.w.mu.Lock()
	if !c.closed {
		var count [8]byte
		_, _ = unix.Read(v.eventfd, count[:])
		_ = v.arm()
		if !v.counted && unix.Access(filepath.Join(v.dir, "cgroup.event_control"), unix.F_OK) == nil {
			v.events++
		}
		c.lookLocked()
		c.lookLaterLocked()
	}
	c.w.mu.Unlock()
}

func (v *v1) kills() (int64, error) {
	if !v.counted {
		return v.events, nil
	}
	n, err := readCounter(v.control, "oom_kill")
	if err != nil {
		return 0, err
	}
	groups := maxGroups
	return n + below(v.dir, &groups), nil
}

func (v *v1) hits() int64 { return hits(v.dir) }

// below returns the kills in the groups below dir, of which it looks at so many.
func below(dir string, groups *int) (kills int64) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if !e.IsDir() || *groups == 0 {
			continue
		}
		*groups--
		path := filepath.Join(dir, e.Name())
		n, _ := readFileCounter(filepath.Join(path, "memory.oom_control"), "oom_kill")
		kills += n + below(path, groups)
	}
	return kills
}

// hits returns how often the limit of a group has been hit, with or without a kill.
func hits(dir string) int64 {
	b, _ := os.ReadFile(filepath.Join(dir, "memory.failcnt"))
	n, _ := number(b)
	return n
}

func (v *v1) close() {
	if v.eventfd >= 0 {
		v.cancel()
		unix.Close(v.eventfd)
		v.eventfd = -1
	}
	unix.Close(v.control)
}
