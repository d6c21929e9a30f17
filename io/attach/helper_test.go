package attach

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

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
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		check(t, err)
		return len(entries)
	}
	r, w, err := os.Pipe() // the runtime's poller opens its own descriptors at the first use
	check(t, err)
	r.Close()
	w.Close()
	goroutines, fds := runtime.NumGoroutine(), count()
	t.Cleanup(func() {
		eventually(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines })
		eventually(t, "descriptors are closed", func() bool { return count() <= fds })
	})
}

// peer is the client's side of a connection.
type peer struct {
	t  testing.TB
	fd int
}

// attach connects a client to h.
func attach(t testing.TB, h *Hub, stopAfterStdinEOF bool) *peer {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	check(t, unix.SetNonblock(fds[0], true))
	p := &peer{t: t, fd: fds[1]}
	t.Cleanup(p.close)
	// A client that waits for something that never comes shall not hang the tests.
	check(t, unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
	check(t, h.Add(os.NewFile(uintptr(fds[0]), "connection"), stopAfterStdinEOF))
	return p
}

func (p *peer) close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
		p.fd = -1
	}
}

func (p *peer) send(data []byte) {
	p.t.Helper()
	n, err := unix.Write(p.fd, data)
	if err != nil || n != len(data) {
		p.t.Fatalf("send %d bytes: %d, %v", len(data), n, err)
	}
}

func (p *peer) halfClose() {
	p.t.Helper()
	check(p.t, unix.Shutdown(p.fd, unix.SHUT_WR))
}

// receive returns the next packet, nil at the end. Like the published client
// it tries again after ECONNRESET.
func (p *peer) receive() []byte {
	p.t.Helper()
	buf := make([]byte, 8193)
	for {
		n, err := unix.Read(p.fd, buf)
		if err == unix.ECONNRESET || err == unix.EINTR {
			continue
		}
		if err != nil {
			p.t.Fatalf("receive: %v", err)
		}
		if n == 0 {
			return nil
		}
		if n > 8192 {
			p.t.Fatalf("packet of %d bytes", n)
		}
		return buf[:n]
	}
}

// output reads until "done" or the end of the connection.
func (p *peer) output() (stdout, stderr []byte, done bool) {
	p.t.Helper()
	for {
		packet := p.receive()
		switch {
		case packet == nil:
			return stdout, stderr, false
		case packet[0] == 0 && len(packet) == 1:
			return stdout, stderr, true
		case packet[0] == 2 && len(packet) > 1:
			stdout = append(stdout, packet[1:]...)
		case packet[0] == 3 && len(packet) > 1:
			stderr = append(stderr, packet[1:]...)
		default:
			p.t.Fatalf("packet %q", packet)
		}
	}
}

// container is what reads the standard input.
type container struct {
	r *os.File
}

// newStdin returns both ends of a standard input.
func newStdin(t testing.TB) (container, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	check(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	return container{r}, w
}

func (c container) readAll(t testing.TB) []byte {
	t.Helper()
	check(t, c.r.SetReadDeadline(time.Now().Add(10*time.Second)))
	data, err := io.ReadAll(c.r)
	check(t, err)
	return data
}

func (c container) read(t testing.TB, n int) []byte {
	t.Helper()
	check(t, c.r.SetReadDeadline(time.Now().Add(10*time.Second)))
	data := make([]byte, n)
	_, err := io.ReadFull(c.r, data)
	check(t, err)
	return data
}

func newHub(t testing.TB, o Options) *Hub {
	h := NewHub(o)
	t.Cleanup(func() { check(t, h.Close()) })
	return h
}

func write(t testing.TB, o *Output, data []byte) {
	t.Helper()
	check(t, o.WriteChunk(time.Now(), data, make([]byte, 0, 128<<10)))
}

// logs collects what goes to the logger.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
