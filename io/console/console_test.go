package console

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
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

func noLeaks(t *testing.T) {
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
	fds, goroutines := count(), runtime.NumGoroutine()
	t.Cleanup(func() {
		deadline := time.Now().Add(5 * time.Second)
		for (count() > fds || runtime.NumGoroutine() > goroutines) && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		if count() > fds || runtime.NumGoroutine() > goroutines {
			t.Errorf("%d descriptors (%d before), %d goroutines (%d before)", count(), fds, runtime.NumGoroutine(), goroutines)
		}
	})
}

func listen(t *testing.T) *Socket {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "c")
	check(t, err)
	s, err := Listen(dir)
	check(t, err)
	t.Cleanup(func() {
		check(t, s.Close())
		check(t, s.Close())
		check(t, os.Remove(dir)) // is empty
	})
	return s
}

// newTerminal returns both sides.
func newTerminal(t *testing.T) (master int, slave *os.File) {
	t.Helper()
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	check(t, err)
	t.Cleanup(func() { unix.Close(master) })
	check(t, unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	check(t, err)
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	check(t, err)
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// send plays the runtime: it connects and sends payload with descriptors.
func send(t *testing.T, path string, payload []byte, fds ...int) (conn int) {
	t.Helper()
	conn, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	check(t, unix.Connect(conn, &unix.SockaddrUnix{Name: path}))
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if len(payload) > 0 {
		check(t, unix.Sendmsg(conn, payload, oob, nil, 0))
	}
	return conn
}

func TestReceive(t *testing.T) {
	for _, tc := range []struct {
		name    string
		payload string
	}{
		{"one byte", "\x00"},
		{"a name, as runc does", "/dev/pts/7"},
		{"a long payload", strings.Repeat("x", 10000)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			noLeaks(t)
			s := listen(t)
			master, slave := newTerminal(t)
			settings, err := unix.IoctlGetTermios(master, unix.TCGETS)
			check(t, err)
			settings.Oflag &^= unix.ONLCR
			check(t, unix.IoctlSetTermios(master, unix.TCSETS, settings))

			defer unix.Close(send(t, s.Path(), []byte(tc.payload), master))
			f, err := s.Receive(t.Context())
			check(t, err)
			defer f.Close()

			_, err = slave.WriteString("line\n")
			check(t, err)
			check(t, f.SetReadDeadline(time.Now().Add(10*time.Second))) // works: it is in the poller
			got := make([]byte, 6)
			_, err = io.ReadFull(f, got)
			check(t, err)
			if string(got) != "line\r\n" {
				t.Errorf("got %q: ONLCR is not set", got)
			}
			dup, err := Duplicate(f)
			check(t, err)
			defer unix.Close(dup)
			if _, err := unix.Read(dup, got); err != unix.EAGAIN {
				t.Errorf("read of an empty terminal: %v", err)
			}
		})
	}
}

func TestReceiveRefuses(t *testing.T) {
	null, err := os.Open(os.DevNull)
	check(t, err)
	defer null.Close()
	for _, tc := range []struct {
		name    string
		payload string
		fds     func(t *testing.T) []int
		want    error
	}{
		{"nothing", "", nil, errNoDescriptor},
		{"bytes only", "hello", nil, errNoDescriptor},
		{"two descriptors", "x", func(t *testing.T) []int { m, _ := newTerminal(t); return []int{m, m} }, errTooMany},
		{"too many for the buffer", "x", func(t *testing.T) []int { m, _ := newTerminal(t); return []int{m, m, m, m, m, m} }, errTruncated},
		{"not a terminal", "x", func(*testing.T) []int { return []int{int(null.Fd())} }, unix.ENOTTY},
		{"the wrong side", "x", func(t *testing.T) []int { _, s := newTerminal(t); return []int{int(s.Fd())} }, unix.ENOTTY},
	} {
		t.Run(tc.name, func(t *testing.T) {
			noLeaks(t)
			s := listen(t)
			var fds []int
			if tc.fds != nil {
				fds = tc.fds(t)
			}
			unix.Close(send(t, s.Path(), []byte(tc.payload), fds...))
			f, err := s.Receive(t.Context())
			if err == nil {
				f.Close()
			}
			if !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
		})
	}
}

func TestReceiveIsCancelled(t *testing.T) {
	gone := errors.New("runtime exited")
	for _, connected := range []bool{false, true} {
		t.Run("connected "+strconv.FormatBool(connected), func(t *testing.T) {
			noLeaks(t)
			s := listen(t)
			if connected {
				defer unix.Close(send(t, s.Path(), nil))
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(10*time.Millisecond, func() { cancel(gone) })
			if _, err := s.Receive(ctx); !errors.Is(err, gone) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestCloseEndsReceive(t *testing.T) {
	noLeaks(t)
	s := listen(t)
	result := make(chan error)
	go func() {
		_, err := s.Receive(context.Background())
		result <- err
	}()
	time.AfterFunc(10*time.Millisecond, func() { s.Close() })
	if err := <-result; !errors.Is(err, os.ErrClosed) {
		t.Errorf("error %v", err)
	}
}

func TestListen(t *testing.T) {
	noLeaks(t)
	s := listen(t)
	st, err := os.Stat(filepath.Dir(s.Path()))
	check(t, err)
	if st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", st.Mode())
	}
	deep := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	check(t, os.Mkdir(deep, 0o700))
	if _, err := Listen(deep); !errors.Is(err, ErrPathTooLong) {
		t.Errorf("error %v", err)
	}
	if left, err := os.ReadDir(deep); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if _, err := Listen(filepath.Join(deep, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func TestResize(t *testing.T) {
	noLeaks(t)
	master, slave := newTerminal(t)
	dup, err := unix.Dup(master)
	check(t, err)
	f := os.NewFile(uintptr(dup), "terminal")
	check(t, Resize(f, 132, 43))
	size, err := unix.IoctlGetWinsize(int(slave.Fd()), unix.TIOCGWINSZ)
	check(t, err)
	if size.Col != 132 || size.Row != 43 {
		t.Errorf("size %+v", size)
	}
	check(t, f.Close())
	if Resize(f, 1, 1) == nil {
		t.Error("resized a closed terminal")
	}
}

func FuzzDescriptors(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0})
	f.Add([]byte{17, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 9})
	f.Fuzz(func(t *testing.T, oob []byte) {
		fds, err := descriptors(oob)
		if err == nil && len(fds)*4 > len(oob) {
			t.Errorf("%d descriptors in %d bytes", len(fds), len(oob))
		}
	})
}
