package unixpath

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDialLengths(t *testing.T) {
	for _, network := range []string{"unix", "unixpacket"} {
		for _, n := range []int{60, 106, 107, 108, 109, 150, 250, 300} {
			t.Run(network, func(t *testing.T) {
				path := pathOfLength(t, n)
				l := listen(t, network, path)
				defer l.Close()
				c, err := Dial(t.Context(), network, path)
				if err != nil {
					t.Fatalf("path of %d bytes: %v", n, err)
				}
				defer c.Close()
				served, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				served.Close()
			})
		}
	}
}

func TestDialErrors(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l := listen(t, "unix", stale)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	for _, tc := range []struct {
		name, path string
		want       error
	}{
		{"missing", filepath.Join(dir, "none"), unix.ENOENT},
		{"missing directory", filepath.Join(dir, strings.Repeat("d", 120), "none"), unix.ENOENT},
		{"stale", stale, unix.ECONNREFUSED},
		{"long name", filepath.Join(dir, strings.Repeat("n", 200)), unix.ENAMETOOLONG},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := Dial(t.Context(), "unix", tc.path)
			if err == nil {
				c.Close()
			}
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if !strings.Contains(err.Error(), filepath.Base(dir)) {
				t.Errorf("error %q does not name the path", err)
			}
		})
	}
}

// pathOfLength makes directories so that the path of a socket has n bytes.
func pathOfLength(t *testing.T, n int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "up")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for rest := n - len(dir) - len("/s"); rest > 1; rest = n - len(dir) - len("/s") {
		dir += "/" + strings.Repeat("d", min(rest-1, 100))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "s")
}

// listen binds by a relative name, which is short.
func listen(t *testing.T, network, path string) net.Listener {
	t.Helper()
	t.Chdir(filepath.Dir(path))
	l, err := net.Listen(network, filepath.Base(path))
	if err != nil {
		t.Fatal(err)
	}
	return l
}
