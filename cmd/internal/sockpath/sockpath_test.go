package sockpath

import (
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

// pathOf builds a socket path of exactly n bytes below dir, with directories
// that do not exist yet.
func pathOf(t *testing.T, dir string, n int) string {
	t.Helper()
	const name = "/conmon.sock"
	path := dir
	for n-len(path)-len(name) > 0 {
		fill := min(n-len(path)-len(name)-1, 64)
		if rest := n - len(path) - len(name) - 1 - fill; rest == 1 {
			fill-- // no component of zero bytes
		}
		path += "/" + strings.Repeat("d", fill)
	}
	path += name
	if len(path) != n {
		t.Fatalf("path has %d bytes, want %d", len(path), n)
	}
	return path
}

// shortDir is a temporary directory whose own name leaves room for short paths.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestLengths(t *testing.T) {
	for _, sotype := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		for _, n := range []int{60, 90, 107, 108, 150, 250, 300, 1000} {
			t.Run(fmt.Sprintf("type %d length %d", sotype, n), func(t *testing.T) {
				path := pathOf(t, shortDir(t), n)
				l, err := Listen(path, sotype, 0o700)
				if err != nil {
					t.Fatal(err)
				}
				exchange(t, l, path, sotype)
				if err := l.Close(); err != nil {
					t.Error(err)
				}
				if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 0 {
					t.Errorf("left after Close: %v, %v", entries, err)
				}
			})
		}
	}
}

// exchange sends a few bytes each way through the socket at path.
func exchange(t *testing.T, l *Listener, path string, sotype int) {
	t.Helper()
	if st, err := os.Lstat(path); err != nil || st.Mode().Type() != os.ModeSocket {
		t.Fatalf("no socket at the path itself: %v, %v", st, err)
	}
	client, err := Dial(path, sotype)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, ends := range [][2]*os.File{{client, server}, {server, client}} {
		if _, err := ends[0].WriteString("hello"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 16)
		n, err := ends[1].Read(buf)
		if err != nil || string(buf[:n]) != "hello" {
			t.Fatalf("read %q, %v", buf[:n], err)
		}
	}
}

func TestRefusedPaths(t *testing.T) {
	long := strings.Repeat("d", 100)
	tests := []struct {
		name, path string
		text       string
		errno      error
	}{
		{"name too long behind a descriptor", long + "/" + strings.Repeat("n", maxName+1), fmt.Sprintf("limit is %d", maxName), unix.ENAMETOOLONG},
		{"component too long", strings.Repeat("d", 256) + "/s", "limit is 255", unix.ENAMETOOLONG},
		{"name too long for the file system", long + "/" + strings.Repeat("n", 256), "limit is 255", unix.ENAMETOOLONG},
		{"path too long", strings.Repeat(long+"/", 41) + "s", "limit is 4095", unix.ENAMETOOLONG},
		{"NUL", "a\x00b", "NUL", nil},
		{"empty", "", "empty", nil},
		{"directory", "a/", "file name", nil},
		{"dot", "a/.", "file name", nil},
		{"dots", "..", "file name", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(shortDir(t))
			_, err := Listen(tt.path, unix.SOCK_STREAM, 0o700)
			if err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %v, want one with %q", err, tt.text)
			}
			if tt.errno != nil && !errors.Is(err, tt.errno) {
				t.Errorf("error %v is not %v", err, tt.errno)
			}
			if entries, _ := os.ReadDir("."); len(entries) != 0 {
				t.Errorf("left on disk: %v", entries)
			}
		})
	}
}

// The longest name that is promised to work does, and so does a relative path
// that would mean the abstract name space in an address.
func TestEdgeNames(t *testing.T) {
	t.Chdir(shortDir(t))
	dir := strings.Repeat("d", 100)
	for _, path := range []string{"@abstract", "s", "./s2", dir + "/" + strings.Repeat("n", maxName)} {
		l, err := Listen(path, unix.SOCK_STREAM, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		exchange(t, l, path, unix.SOCK_STREAM)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestMode(t *testing.T) {
	for _, umask := range []int{0, 0o022, 0o077, 0o777} {
		for _, mode := range []os.FileMode{0o700, 0o600, 0o666, 0o777} {
			path := filepath.Join(shortDir(t), "s")
			old := unix.Umask(umask)
			l, err := Listen(path, unix.SOCK_STREAM, mode)
			unix.Umask(old)
			if err != nil {
				t.Fatal(err)
			}
			st, err := os.Lstat(path)
			if err != nil || st.Mode().Perm() != mode {
				t.Errorf("umask %#o: mode %v, want %v (%v)", umask, st.Mode(), mode, err)
			}
			_ = l.Close()
		}
	}
}

func TestDatagram(t *testing.T) {
	path := pathOf(t, shortDir(t), 150)
	l, err := Listen(path, unix.SOCK_DGRAM, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := Dial(path, unix.SOCK_DGRAM)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.WriteString("READY=1"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	if n, err := l.File().Read(buf); err != nil || string(buf[:n]) != "READY=1" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
}

func TestListenTwice(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	l, err := Listen(path, unix.SOCK_STREAM, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Listen(path, unix.SOCK_STREAM, 0o700); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("second Listen: %v", err)
	}
}

// leaveStale leaves a socket file that nobody has open, as a killed server does.
func leaveStale(t *testing.T, path string) {
	t.Helper()
	l, err := Listen(path, unix.SOCK_STREAM, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.file.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestReplaceStale(t *testing.T) {
	for _, n := range []int{60, 200} {
		path := pathOf(t, shortDir(t), n)
		leaveStale(t, path)
		l, err := ListenReplacingStale(path, unix.SOCK_STREAM, 0o700)
		if err != nil {
			t.Fatal(err)
		}
		exchange(t, l, path, unix.SOCK_STREAM)
		_ = l.Close()
	}
}

func TestReplaceRefusesLive(t *testing.T) {
	for _, sotype := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		path := pathOf(t, shortDir(t), 200)
		l, err := Listen(path, sotype, 0o700)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := ListenReplacingStale(path, unix.SOCK_STREAM, 0o700); !errors.Is(err, ErrInUse) {
			t.Errorf("type %d: second listener: %v", sotype, err)
		}
		for { // what the probe left in the queue
			conn, err := l.AcceptNonblock()
			if err != nil {
				break
			}
			_ = conn.Close()
		}
		exchange(t, l, path, sotype)
	}
}

func TestReplaceRefusesOtherFiles(t *testing.T) {
	dir := shortDir(t)
	stale := filepath.Join(dir, "stale")
	leaveStale(t, stale)
	tests := map[string]func(path string) error{
		"file":            func(path string) error { return os.WriteFile(path, []byte("keep"), 0o600) },
		"directory":       func(path string) error { return os.Mkdir(path, 0o700) },
		"link":            func(path string) error { return os.Symlink(stale, path) },
		"dangling link":   func(path string) error { return os.Symlink("nowhere", path) },
		"fifo":            func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory link":  func(path string) error { return os.Symlink(dir, path) },
		"link to itself":  func(path string) error { return os.Symlink(path, path) },
		"file, long path": nil,
	}
	for name, plant := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			if plant == nil {
				path = pathOf(t, dir, 180)
				_ = os.MkdirAll(filepath.Dir(path), 0o700)
				plant = tests["file"]
			}
			if err := plant(path); err != nil {
				t.Fatal(err)
			}
			before, _ := os.Lstat(path)
			if _, err := ListenReplacingStale(path, unix.SOCK_STREAM, 0o700); !errors.Is(err, ErrNotSocket) {
				t.Errorf("error %v", err)
			}
			after, err := os.Lstat(path)
			if err != nil || !os.SameFile(before, after) {
				t.Errorf("replaced: %v", err)
			}
		})
	}
	if _, err := os.Lstat(stale); err != nil {
		t.Errorf("link target touched: %v", err)
	}
}

func TestCloseLeavesForeignSocket(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	l, err := Listen(path, unix.SOCK_STREAM, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := Listen(path, unix.SOCK_STREAM, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for range 2 {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	exchange(t, other, path, unix.SOCK_STREAM)
}

func TestCloseWithoutDirectory(t *testing.T) {
	dir := filepath.Join(shortDir(t), "gone")
	l, err := Listen(filepath.Join(dir, "s"), unix.SOCK_STREAM, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestAcceptWakesOnClose(t *testing.T) {
	l, err := Listen(filepath.Join(shortDir(t), "s"), unix.SOCK_STREAM, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	result := make(chan error)
	go func() {
		close(started)
		_, err := l.Accept()
		result <- err
	}()
	<-started
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-result:
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("Accept: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Accept still blocked after Close")
	}
	if _, err := l.Accept(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	if _, err := l.AcceptNonblock(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("AcceptNonblock after Close: %v", err)
	}
}

func TestAcceptNonblock(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	l, err := Listen(path, unix.SOCK_SEQPACKET, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.AcceptNonblock(); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("without a client: %v", err)
	}
	client, err := Dial(path, unix.SOCK_SEQPACKET)
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.AcceptNonblock()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{client, server, l.File()} {
		checkFlags(t, f)
	}
	_ = client.Close()
	if n, err := server.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("after the client left: %d, %v", n, err)
	}
	_ = server.Close()
}

func checkFlags(t *testing.T, f *os.File) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		if flags, _ := unix.FcntlInt(fd, unix.F_GETFD, 0); flags&unix.FD_CLOEXEC == 0 {
			t.Error("descriptor is inherited by children")
		}
		if flags, _ := unix.FcntlInt(fd, unix.F_GETFL, 0); flags&unix.O_NONBLOCK == 0 {
			t.Error("descriptor blocks")
		}
	})
}

func TestDialErrors(t *testing.T) {
	dir := shortDir(t)
	stale := pathOf(t, dir, 150)
	leaveStale(t, stale)
	tests := []struct {
		name, path string
		want       error
	}{
		{"missing", filepath.Join(dir, "no"), unix.ENOENT},
		{"missing, long", pathOf(t, dir, 140), unix.ENOENT},
		{"stale, long", stale, unix.ECONNREFUSED},
		{"too long", filepath.Join(dir, strings.Repeat("n", 256)), unix.ENAMETOOLONG},
	}
	for _, tt := range tests {
		if _, err := Dial(tt.path, unix.SOCK_STREAM); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// A full round, failures included, leaves the descriptor table as it was.
func TestDescriptors(t *testing.T) {
	dir := shortDir(t)
	round := func() {
		path := pathOf(t, dir, 200)
		l, err := Listen(path, unix.SOCK_STREAM, 0o700)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = Listen(path, unix.SOCK_STREAM, 0o700)
		_, _ = ListenReplacingStale(path, unix.SOCK_STREAM, 0o700)
		if conn, err := l.Accept(); err == nil { // of the probe
			_ = conn.Close()
		}
		exchange(t, l, path, unix.SOCK_STREAM)
		_ = l.Close()
		_, _ = Dial(path, unix.SOCK_STREAM)
	}
	round() // opens what the runtime keeps
	before := openDescriptors(t)
	for range 5 {
		round()
	}
	if after := openDescriptors(t); after != before {
		t.Errorf("descriptors before %d, after %d", before, after)
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func FuzzLocate(f *testing.F) {
	for _, seed := range []string{"", "/", "a", "/a/b", "a/..", "@x", "/run/conmonrs/conmon.sock", strings.Repeat("x/", 100)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		loc, err := locate(path)
		if err != nil {
			return
		}
		if loc.name == "" || len(loc.name) > maxComponent || strings.ContainsAny(loc.name, "/\x00") {
			t.Errorf("name %q", loc.name)
		}
		if loc.checkName() != nil {
			return
		}
		if addr := loc.address(9_999_999); len(addr.Name) > maxAddress || addr.Name[0] == '@' {
			t.Errorf("address %q", addr.Name)
		}
	})
}
