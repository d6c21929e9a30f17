package journald

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// entry is what the fake journald received: values by field name.
type entry map[string][]string

func (e entry) get(name string) string { return strings.Join(e[name], "\x00|\x00") }

// decode reads the native protocol. It follows the document, not our encoder.
func decode(data []byte) (entry, error) {
	e := entry{}
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		if end < 0 {
			return nil, errors.New("no newline at the end")
		}
		if name, value, ok := bytes.Cut(data[:end], []byte("=")); ok {
			e[string(name)] = append(e[string(name)], string(value))
			data = data[end+1:]
			continue
		}
		name, rest := string(data[:end]), data[end+1:]
		if len(rest) < 8 {
			return nil, fmt.Errorf("no length for %q", name)
		}
		n := binary.LittleEndian.Uint64(rest)
		rest = rest[8:]
		if n >= uint64(len(rest)) || rest[n] != '\n' {
			return nil, fmt.Errorf("length %d of %q", n, name)
		}
		e[name] = append(e[name], string(rest[:n]))
		data = rest[n+1:]
	}
	return e, nil
}

// journal is a fake journald: a datagram socket of the test's own.
type journal struct {
	t    testing.TB
	path string
	fd   int
	buf  []byte // for datagrams
}

func startJournal(t testing.TB) *journal {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "jd")
	if err != nil {
		t.Fatal(err)
	}
	j := &journal{t: t, path: filepath.Join(dir, "socket"), fd: -1}
	t.Cleanup(func() { j.stop(); _ = os.RemoveAll(dir) })
	j.start()
	return j
}

func (j *journal) start() {
	j.t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		j.t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: j.path}); err != nil {
		j.t.Fatal(err)
	}
	j.fd = fd
}

// stop leaves nothing at the path.
func (j *journal) stop() {
	if j.fd >= 0 {
		_ = unix.Close(j.fd)
		_ = os.Remove(j.path)
		j.fd = -1
	}
}

// wait reports whether a datagram comes within the time.
func (j *journal) wait(limit time.Duration) bool {
	end := time.Now().Add(limit)
	for {
		fds := []unix.PollFd{{Fd: int32(j.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(time.Until(end), 0).Milliseconds()))
		if err != unix.EINTR {
			return n > 0
		}
	}
}

// receive returns the next datagram, valid until the next call, or the content of
// the file that came instead of one.
func (j *journal) receive() ([]byte, bool) {
	j.t.Helper()
	if !j.wait(10 * time.Second) {
		j.t.Fatal("nothing sent")
	}
	if j.buf == nil {
		j.buf = make([]byte, 256<<10)
	}
	oob := make([]byte, 256)
	n, oobn, flags, _, err := unix.Recvmsg(j.fd, j.buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil || flags&unix.MSG_TRUNC != 0 {
		j.t.Fatalf("receive: %v, flags %#x", err, flags)
	}
	if oobn == 0 {
		return j.buf[:n], false
	}
	if n != 0 {
		j.t.Errorf("%d bytes beside a descriptor", n)
	}
	return j.content(oob[:oobn]), true
}

func (j *journal) content(oob []byte) []byte {
	j.t.Helper()
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		j.t.Fatalf("control messages: %v, %v", messages, err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		j.t.Fatalf("descriptors: %v, %v", fds, err)
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
	if got, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GET_SEALS, 0); err != nil || got != seals {
		j.t.Errorf("seals %#x, %v", got, err)
	}
	f := os.NewFile(uintptr(fds[0]), "memfd")
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40)) // as if mapped: the offset is ours
	if err != nil {
		j.t.Fatal(err)
	}
	return data
}

func (j *journal) next() entry {
	j.t.Helper()
	data, _ := j.receive()
	e, err := decode(data)
	if err != nil {
		j.t.Fatalf("%v in %q", err, data)
	}
	return e
}

// none checks that nothing more was sent.
func (j *journal) none() {
	j.t.Helper()
	if j.wait(0) {
		data, _ := j.receive()
		j.t.Errorf("unexpected entry %q", data)
	}
}

// fill makes the queue full with entries of the message "fill" and returns how many.
func (j *journal) fill() int {
	j.t.Helper()
	c := dial(j.t, j.path)
	for n := 0; ; n++ {
		if err := c.Send(Field{"MESSAGE", []byte("fill")}); err != nil {
			if !errors.Is(err, unix.EAGAIN) || n == 0 {
				j.t.Fatal(err)
			}
			return n
		}
	}
}

func dial(t testing.TB, path string) *Conn {
	t.Helper()
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// eventually polls a condition that another goroutine brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func openDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
