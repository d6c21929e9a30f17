package systemdunit

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// slots is how many calls talk to a service manager at the same time, over all processes. It sends every signal to each
	// of its own connections, so many at once cost it the square of their number: 300 registrations more than 10 s,
	// where they take one with few slots.
	slots = 4
	// slotLimit is how long a slot is waited for. The manager may be stuck, but it may also be the holders that are.
	slotLimit = 4 * time.Second
	// slotPause is the longest pause between two looks for a free one.
	slotPause = 20 * time.Millisecond
)

// lockFile returns the file whose first bytes are the slots.
func (m *Manager) lockFile() string {
	const name = "conmonrs-scope.lock"
	if m.locks != "" {
		return filepath.Join(m.locks, name)
	}
	if os.Geteuid() == 0 {
		return filepath.Join("/run", name)
	}
	if dir := m.getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, name)
	}
	return ""
}

// takeSlot waits for a free slot, and returns what gives it back. If there is none for too long, or no file to have them
// in, it returns all the same.
func (m *Manager) takeSlot(ctx context.Context) (release func()) {
	path := m.lockFile()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return func() {}
	}
	release = func() { _ = unix.Close(fd) }
	end := time.Now().Add(m.slotWait)
	for pause := time.Millisecond; time.Now().Before(end); pause = min(2*pause, slotPause) {
		if lockAny(fd) || !sleep(ctx, pause/2+rand.N(pause)) {
			break
		}
	}
	return release
}

// lockAny locks one of the slots, unless all are taken. Locks of an open file description (F_OFD_SETLK of fcntl(2)) end
// with it, so a helper that is killed holds none.
func lockAny(fd int) bool {
	first := rand.IntN(slots)
	for i := range slots {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: int64((first + i) % slots), Len: 1}
		err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock)
		for err == unix.EINTR {
			err = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock)
		}
		switch err {
		case nil:
			return true
		case unix.EAGAIN, unix.EACCES:
		default:
			return true // no locks on this file system: go on without
		}
	}
	return false
}
