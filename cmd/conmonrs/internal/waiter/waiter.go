// Package waiter tells when descriptors that are quiet most of the time become ready.
//
// A pod holds many descriptors on which almost nothing ever happens: the pidfds of its processes, the sockets that
// attach clients connect to, pipes of containers that do not print. A goroutine parked on each costs 14 KiB a container.
// Here they share one epoll(7) set, which is itself one descriptor in the poller of the Go runtime, and one goroutine.
//
// A watch fires once for each Arm (EPOLLONESHOT), so that whoever handles an event decides when to hear of the next one.
package waiter

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// batch is how many events one epoll_wait(2) takes. More are taken in further calls.
const batch = 32

// Set is a set of watched descriptors. New starts its one goroutine, Close ends it.
type Set struct {
	file *os.File
	raw  syscall.RawConn
	epfd int
	done chan struct{}

	mu      sync.Mutex
	watches map[uint64]*Watch
	next    uint64
}

// Watch is one descriptor in a Set.
type Watch struct {
	set    *Set
	fd     int
	events uint32 // of epoll_ctl(2)
	ready  func()
	token  uint64
	added  bool // known to the kernel; guarded by set.mu
}

// New returns an empty set.
func New() (*Set, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll set: %w", err)
	}
	// Only a non-blocking descriptor is put into the runtime's poller. The flag means nothing to epoll itself.
	if err := unix.SetNonblock(epfd, true); err != nil {
		unix.Close(epfd)
		return nil, fmt.Errorf("create epoll set: %w", err)
	}
	file := os.NewFile(uintptr(epfd), "epoll")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("create epoll set: %w", err)
	}
	s := &Set{file: file, raw: raw, epfd: epfd, done: make(chan struct{}), watches: make(map[uint64]*Watch)}
	go s.run()
	return s, nil
}

// Watch registers fd, which stays the caller's, disarmed. After each Arm, ready is called once when fd can be read or
// has been hung up. It runs on the set's goroutine, one at a time with those of all other watches: it must not block.
// The caller closes the watch before it closes fd.
func (s *Set) Watch(fd int, ready func()) *Watch { return s.watch(fd, unix.EPOLLIN, ready) }

// WatchPriority is Watch for files that can be read at any time, and tell by POLLPRI that their content has changed since
// it was read last, as some of cgroups(7) do.
func (s *Set) WatchPriority(fd int, ready func()) *Watch { return s.watch(fd, unix.EPOLLPRI, ready) }

func (s *Set) watch(fd int, events uint32, ready func()) *Watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	w := &Watch{set: s, fd: fd, events: events, ready: ready, token: s.next}
	s.watches[w.token] = w
	return w
}

// Arm asks for one call of the ready function. It can be called from within that function. After Close it returns
// os.ErrClosed.
func (w *Watch) Arm() error {
	w.set.mu.Lock()
	defer w.set.mu.Unlock()
	if w.set.watches[w.token] != w {
		return os.ErrClosed
	}
	op := unix.EPOLL_CTL_MOD
	if !w.added {
		op = unix.EPOLL_CTL_ADD
	}
	event := unix.EpollEvent{
		Events: w.events | unix.EPOLLONESHOT,
		Fd:     int32(uint32(w.token)), Pad: int32(uint32(w.token >> 32)),
	}
	if err := unix.EpollCtl(w.set.epfd, op, w.fd, &event); err != nil {
		return fmt.Errorf("watch descriptor %d: %w", w.fd, err)
	}
	w.added = true
	return nil
}

// Close ends the watch. A call of the ready function that is under way is not waited for; no further one begins.
// Close is idempotent.
func (w *Watch) Close() {
	w.set.mu.Lock()
	defer w.set.mu.Unlock()
	if w.set.watches[w.token] != w {
		return
	}
	delete(w.set.watches, w.token)
	if w.added {
		// A descriptor that its owner has closed too early is gone from the set already.
		_ = unix.EpollCtl(w.set.epfd, unix.EPOLL_CTL_DEL, w.fd, nil)
	}
}

// Len returns the number of watches.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches)
}

// Close ends the set's goroutine and waits for it. Watches that are left never fire.
func (s *Set) Close() error {
	err := s.file.Close()
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.watches)
	return err
}

func (s *Set) run() {
	defer close(s.done)
	events := make([]unix.EpollEvent, batch)
	for {
		n := 0
		// The runtime's poller is edge-triggered; Read tries once more before it waits, so no edge is missed.
		err := s.raw.Read(func(fd uintptr) bool {
			got, err := unix.EpollWait(int(fd), events, 0)
			if err == nil {
				n = got
			}
			return n > 0
		})
		if err != nil {
			return // closed
		}
		for _, e := range events[:n] {
			s.fire(uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32)
		}
	}
}

func (s *Set) fire(token uint64) {
	s.mu.Lock()
	w := s.watches[token]
	s.mu.Unlock()
	if w != nil {
		w.ready()
	}
}
