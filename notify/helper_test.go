package notify

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// limit bounds waits for what is to happen soon.
const limit = 20 * time.Second

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until done returns true.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// openFDs returns what the descriptors of this process are open on, but for those of the Go runtime's poller.
func openFDs(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	var open []string
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !strings.Contains(target, "eventpoll") && !strings.Contains(target, "eventfd") {
			open = append(open, e.Name()+" "+target)
		}
	}
	return open
}

// checkFDs fails the test if it leaves descriptors open. It is called before anything is opened.
func checkFDs(t testing.TB) {
	t.Helper()
	before := openFDs(t)
	t.Cleanup(func() {
		eventually(t, fmt.Sprintf("open is only %q", before), func() bool { return len(openFDs(t)) <= len(before) })
	})
}

// host stands for a service manager.
type host struct {
	t  testing.TB
	fd int
}

// hostAt binds a socket. Descriptors that it is sent are received and counted.
func hostAt(t testing.TB, socket string) *host {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	check(t, err)
	h := &host{t: t, fd: fd}
	t.Cleanup(h.close)
	name := socket
	if !isAbstract(socket) && len(socket) > maxPath {
		dir, err := unix.Open(filepath.Dir(socket), unix.O_PATH|unix.O_CLOEXEC, 0)
		check(t, err)
		defer unix.Close(dir)
		name = procPath(dir) + "/" + filepath.Base(socket)
	}
	check(t, unix.Bind(fd, &unix.SockaddrUnix{Name: name}))
	return h
}

func newHost(t testing.TB) (*host, string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "host.sock")
	return hostAt(t, socket), socket
}

func (h *host) close() {
	closeFD(h.fd)
	h.fd = -1
}

// next returns the next message, false if there is none.
func (h *host) next() (string, bool) {
	h.t.Helper()
	message, control := make([]byte, 1<<20), make([]byte, 1024)
	n, controls, _, _, err := unix.Recvmsg(h.fd, message, control, unix.MSG_CMSG_CLOEXEC)
	if err == unix.EAGAIN {
		return "", false
	}
	check(h.t, err)
	if fds := descriptors(control[:controls]); len(fds) > 0 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		h.t.Errorf("%d descriptors relayed", len(fds))
	}
	return string(message[:n]), true
}

func (h *host) want(messages ...string) {
	h.t.Helper()
	for i, want := range messages {
		got, ok := "", false
		eventually(h.t, "a message like "+want, func() bool { got, ok = h.next(); return ok })
		if got != want {
			h.t.Fatalf("message %d is %.100q, want %.100q", i, got, want)
		}
	}
}

func (h *host) wantNothing() {
	h.t.Helper()
	if got, ok := h.next(); ok {
		h.t.Errorf("unexpected %.100q", got)
	}
}

// memo is a log.
type memo struct {
	mu   sync.Mutex
	text strings.Builder
}

func (m *memo) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text.Write(b)
}

func (m *memo) count(s string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Count(m.text.String(), s)
}

func (m *memo) logger() *slog.Logger { return slog.New(slog.NewTextHandler(m, nil)) }

// newRelay makes a relay with a bundle of its own; socket is where its container sends.
func newRelay(t testing.TB, o Options) (r *Relay, socket string) {
	t.Helper()
	bundle := t.TempDir()
	r, err := Listen(bundle, o)
	check(t, err)
	t.Cleanup(func() { check(t, r.Close()) })
	return r, filepath.Join(bundle, "notify", "notify.sock")
}

// serve calls Ready as the owner of a relay has to, until the test ends.
func serve(t testing.TB, r *Relay) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		poll := []unix.PollFd{{Fd: int32(r.FD()), Events: unix.POLLIN}}
		var after time.Duration
		for {
			select {
			case <-stop:
				return
			default:
			}
			if after > 0 {
				time.Sleep(after)
			} else if n, _ := unix.Poll(poll, 10); n <= 0 {
				continue
			}
			after = r.Ready()
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
}

// sender is a process of the container.
type sender struct {
	t  testing.TB
	fd int
}

func newSender(t testing.TB, socket string) *sender {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	check(t, unix.Connect(fd, &unix.SockaddrUnix{Name: socket}))
	return &sender{t, fd}
}

// send waits if the queue is full.
func (s *sender) send(message string, fds ...int) {
	s.t.Helper()
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(s.fd, []byte(message), rights, nil, 0); err != nil {
		s.t.Error(err) // may be called from other goroutines
	}
}

// barrier sends one and returns a function that says whether it has been answered.
func (s *sender) barrier(message string) (answered func() bool) {
	s.t.Helper()
	var p [2]int
	check(s.t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	s.t.Cleanup(func() { unix.Close(p[0]) })
	s.send(message, p[1])
	unix.Close(p[1])
	return func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p[0])}}, 0)
		return err == nil && n == 1
	}
}
