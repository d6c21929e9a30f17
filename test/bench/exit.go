package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// measureExit has the time from a container's end to its exit file.
func (b *bench) measureExit() (err error) {
	pods, err := b.podOfEach()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endAll(pods)) }()
	found := map[string][]float64{}
	for range b.pick(100, 12) {
		for _, m := range b.monitors {
			ms, err := pods[m.name].timeExit()
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			found[m.name] = append(found[m.name], ms)
		}
		if b.conmon != "" && len(found[cmon]) < b.pick(40, 6) {
			ms, err := b.exitConmon()
			if err != nil {
				return fmt.Errorf("conmon: %w", err)
			}
			found[cmon] = append(found[cmon], ms)
		}
	}
	b.addTimes("exit", "container's exit to exit file", "pidfd and inotify, one poll", found, atMost(1), atMost(5), 99)
	return nil
}

func (p *pod) timeExit() (float64, error) {
	c, err := p.create(false, "sleep", "1000000")
	if err != nil {
		return 0, err
	}
	if err := p.start(c); err != nil {
		return 0, err
	}
	ms, err := killAndWatch(c)
	return ms, errors.Join(err, p.remove(c))
}

func (b *bench) exitConmon() (float64, error) {
	m, err := b.newConmons(nil)
	if err != nil {
		return 0, err
	}
	c, err := m.bundle("sleep", "1000000")
	if err == nil {
		err = errors.Join(m.create(c), m.start(c))
	}
	if err != nil {
		return 0, errors.Join(err, m.end())
	}
	ms, err := killAndWatch(&c.container)
	return ms, errors.Join(err, m.end())
}

// killAndWatch kills the container's process and returns the milliseconds from its end to the exit file. Both events come out
// of the same poll(2), so that what it costs to be woken counts for neither.
func killAndWatch(c *container) (float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	process, err := unix.PidfdOpen(c.pid, 0)
	if err != nil {
		return 0, fmt.Errorf("open process %d: %w", c.pid, err)
	}
	defer unix.Close(process)
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return 0, fmt.Errorf("watch exit directory: %w", err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, filepath.Dir(c.exit), unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_CLOSE_WRITE); err != nil {
		return 0, fmt.Errorf("watch exit directory: %w", err)
	}
	if err := unix.Kill(c.pid, syscall.SIGKILL); err != nil {
		return 0, fmt.Errorf("kill container: %w", err)
	}
	return awaitBoth(process, watch, c.exit)
}

func awaitBoth(process, watch int, exit string) (float64, error) {
	var ended time.Time
	var buf [4096]byte
	for {
		fds := []unix.PollFd{{Fd: int32(watch), Events: unix.POLLIN}}
		if ended.IsZero() {
			fds = append(fds, unix.PollFd{Fd: int32(process), Events: unix.POLLIN})
		}
		n, err := unix.Poll(fds, 10_000)
		now := time.Now()
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("wait for the exit: %w", err)
		case n == 0:
			return 0, errors.New("wait for the exit: nothing within 10 s")
		}
		if len(fds) > 1 && fds[1].Revents != 0 {
			ended = now
		}
		if fds[0].Revents == 0 {
			continue
		}
		_, _ = unix.Read(watch, buf[:])
		if _, err := os.Stat(exit); err != nil {
			continue // a temporary file
		}
		if ended.IsZero() {
			ended = now
		}
		return float64(now.Sub(ended)) / float64(time.Millisecond), nil
	}
}
