package pump

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// watcher stands for the pod's shared epoll set.
type watcher struct {
	epfd, wake int
	done       chan struct{}

	mu      sync.Mutex
	streams map[int32]*Stream
}

func newWatcher(t testing.TB) *watcher {
	t.Helper()
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	check(t, err)
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	check(t, err)
	w := &watcher{epfd: epfd, wake: wake, done: make(chan struct{}), streams: map[int32]*Stream{}}
	check(t, unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1}))
	go w.run()
	t.Cleanup(func() {
		_, err := unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		check(t, err)
		<-w.done
		unix.Close(epfd)
		unix.Close(wake)
	})
	return w
}

func (w *watcher) run() {
	defer close(w.done)
	events := make([]unix.EpollEvent, 16)
	for {
		n, err := unix.EpollWait(w.epfd, events, -1)
		if err != nil && err != unix.EINTR {
			return
		}
		for i := range max(n, 0) {
			if events[i].Fd == -1 {
				return
			}
			w.mu.Lock()
			s := w.streams[events[i].Fd]
			w.mu.Unlock()
			s.Ready()
		}
	}
}

// start makes a stream for fd and adds it to the set.
func (w *watcher) start(t testing.TB, fd int, o Options) *Stream {
	t.Helper()
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(fd)}
	if o.Rearm == nil {
		o.Rearm = func() error { return unix.EpollCtl(w.epfd, unix.EPOLL_CTL_MOD, fd, &event) }
	}
	unwatch := o.Unwatch
	o.Unwatch = func() {
		if err := unix.EpollCtl(w.epfd, unix.EPOLL_CTL_DEL, fd, nil); err != nil {
			t.Errorf("take descriptor out of the set: %v", err)
		}
		if unwatch != nil {
			unwatch()
		}
	}
	s := New(fd, o)
	w.mu.Lock()
	w.streams[int32(fd)] = s
	w.mu.Unlock()
	check(t, unix.EpollCtl(w.epfd, unix.EPOLL_CTL_ADD, fd, &event))
	t.Cleanup(func() { s.Close() })
	return s
}

// newPipe returns a non-blocking read end, owned by the stream to come, and a
// blocking write end.
func newPipe(t testing.TB) (r int, w *os.File) {
	t.Helper()
	var fds [2]int
	check(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
	check(t, unix.SetNonblock(fds[0], true))
	w = os.NewFile(uintptr(fds[1]), "write end")
	t.Cleanup(func() { w.Close() })
	return fds[0], w
}

// collector is a sink that keeps everything.
type collector struct {
	mu     sync.Mutex
	data   []byte
	chunks int
	stamps []time.Time
	err    error // returned for each chunk
}

func (c *collector) WriteChunk(at time.Time, data, scratch []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data = append(c.data, data...)
	c.stamps = append(c.stamps, at)
	c.chunks++
	if len(scratch) != 0 || cap(scratch) < 128<<10 {
		return errors.New("no scratch space")
	}
	return c.err
}

func (c *collector) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.data)
}

func (c *collector) string() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.data)
}

// gate is a sink that blocks until it is opened.
type gate struct {
	entered chan struct{}
	open    chan struct{}
}

func newGate() *gate { return &gate{entered: make(chan struct{}, 1000), open: make(chan struct{})} }

func (g *gate) WriteChunk(time.Time, []byte, []byte) error {
	g.entered <- struct{}{}
	<-g.open
	return nil
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls, for what has no event to wait for.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not after ten seconds: %s", what)
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// noLeaks checks at the end of the test that goroutines and descriptors are
// as many as at its start.
func noLeaks(t testing.TB) {
	t.Helper()
	goroutines, fds := runtime.NumGoroutine(), countFDs(t)
	t.Cleanup(func() {
		eventually(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines })
		eventually(t, "descriptors are closed", func() bool { return countFDs(t) <= fds })
	})
}

func countFDs(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	return len(entries)
}

func newPool(t testing.TB, n int) *Pool {
	p := NewPool(n)
	t.Cleanup(p.Close)
	return p
}
