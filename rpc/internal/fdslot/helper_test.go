package fdslot

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/internal/unixpath"
	"golang.org/x/sys/unix"
)

const limit = 10 * time.Second

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

func checkLeaks(t *testing.T) {
	t.Helper()
	goroutines, fds := runtime.NumGoroutine(), openFDs(t)
	t.Cleanup(func() {
		eventually(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines })
		eventually(t, "descriptors closed", func() bool { return openFDs(t) <= fds })
	})
}

func openFDs(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		// The runtime's poller comes into being with the first descriptor that needs it.
		link, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if link != "anon_inode:[eventpoll]" && link != "anon_inode:[eventfd]" {
			n++
		}
	}
	return n
}

// poller stands for the daemon's epoll set: one goroutine for each armed descriptor, which is good enough for tests.
type poller struct {
	wg      sync.WaitGroup
	watches atomic.Int32
	ending  atomic.Bool
}

func (p *poller) watch(fd int, ready func()) (arm func() error, cancel func()) {
	p.watches.Add(1)
	var cancelled atomic.Bool
	arm = func() error {
		if cancelled.Load() {
			return os.ErrClosed
		}
		p.wg.Go(func() {
			for !cancelled.Load() && !p.ending.Load() {
				n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1)
				if n > 0 && !cancelled.Load() {
					ready()
					return
				}
			}
		})
		return nil
	}
	return arm, func() {
		if !cancelled.Swap(true) {
			p.watches.Add(-1)
		}
	}
}

type testListener struct{ file *os.File }

func (l testListener) File() *os.File { return l.file }
func (l testListener) Close() error   { return l.file.Close() }

// record is a Logger.
type record struct {
	mu    sync.Mutex
	lines []string
}

func (r *record) Debug(message string, args ...any) { r.Warn(message, args...) }

func (r *record) Warn(message string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprint(append([]any{message}, args...)...))
}

func (r *record) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.lines...)
}

// fixture is a server that listens at path.
type fixture struct {
	*Server
	t      *testing.T
	path   string
	poller *poller
	log    *record
}

func serve(t *testing.T) *fixture {
	t.Helper()
	checkLeaks(t)
	f := &fixture{t: t, path: filepath.Join(t.TempDir(), "s"), poller: &poller{}, log: &record{}}
	f.Server = New(Options{Poll: f.poller.watch, Logger: f.log})
	if err := f.Listen(listen(t, f.path)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		f.poller.ending.Store(true)
		f.poller.wg.Wait()
		if n := f.poller.watches.Load(); n != 0 {
			t.Errorf("%d descriptors are still watched", n)
		}
	})
	return f
}

func listen(t *testing.T, path string) Listener {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 16))
	}
	if err != nil {
		t.Fatal(err)
	}
	return testListener{os.NewFile(uintptr(fd), path)}
}

func (f *fixture) sender() *Sender {
	f.t.Helper()
	conn, err := unixpath.Dial(f.t.Context(), "unixpacket", f.path)
	if err != nil {
		f.t.Fatal(err)
	}
	s, err := NewSender(conn)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = s.Close() })
	return s
}

// sent returns the slots of descriptors that have been sent.
func (f *fixture) sent(s *Sender, fds ...int) []uint64 {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), limit)
	defer cancel()
	slots, err := s.Send(ctx, fds)
	if err != nil {
		f.t.Fatal(err)
	}
	if len(slots) != len(fds) {
		f.t.Fatalf("%d slots for %d descriptors", len(slots), len(fds))
	}
	return slots
}

func (f *fixture) taken(lists ...[]uint64) []*Descriptors {
	f.t.Helper()
	d, err := f.Take(lists...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		for _, d := range d {
			d.Close()
		}
	})
	return d
}

func (f *fixture) waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.slots.slots)
}

func (f *fixture) connections() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns)
}

// raw is a connection for packets of any kind.
type raw struct {
	t  *testing.T
	fd int
}

func (f *fixture) raw() *raw {
	f.t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: f.path})
	}
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { unix.Close(fd) })
	return &raw{f.t, fd}
}

func (r *raw) send(packet []byte, fds ...int) {
	r.t.Helper()
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(r.fd, packet, control, nil, unix.MSG_NOSIGNAL); err != nil {
		r.t.Fatal(err)
	}
}

// reply returns the next packet; nil at the end of the connection.
func (r *raw) reply() []byte {
	r.t.Helper()
	b := make([]byte, 1<<16)
	n, err := unix.Read(r.fd, b)
	if errors.Is(err, unix.ECONNRESET) { // told once if what was sent has not been read
		n, err = unix.Read(r.fd, b)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	if n == 0 {
		return nil
	}
	return b[:n]
}

func words(list ...uint64) (b []byte) {
	for _, w := range list {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// pipe returns a blocking pipe.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	p := make([]int, 2)
	if err := unix.Pipe2(p, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r, w = os.NewFile(uintptr(p[0]), "r"), os.NewFile(uintptr(p[1]), "w")
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// closed tells whether nobody holds the write end of a pipe.
func closed(r *os.File) bool {
	p := []unix.PollFd{{Fd: int32(r.Fd()), Events: unix.POLLIN}}
	n, _ := unix.Poll(p, 0)
	return n == 1 && p[0].Revents&unix.POLLHUP != 0
}

// sentPipe sends the write end of a pipe and keeps the read end.
func (f *fixture) sentPipe(s *Sender) (slot uint64, r *os.File) {
	f.t.Helper()
	r, w := pipe(f.t)
	slot = f.sent(s, int(w.Fd()))[0]
	w.Close()
	if closed(r) {
		f.t.Fatal("the server does not have the pipe")
	}
	return slot, r
}
