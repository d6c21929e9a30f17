package journald

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// listenStdout is a fake journald for streams. Like the real one it closes its side for writing.
func listenStdout(t *testing.T) (path string, accept func() *net.UnixConn) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "jd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path = dir + "/stdout"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return path, func() *net.UnixConn {
		t.Helper()
		_ = l.SetDeadline(time.Now().Add(10 * time.Second))
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.CloseWrite()
		return c
	}
}

func TestStdout(t *testing.T) {
	path, accept := listenStdout(t)
	f, err := DialStdout(path, StdoutOptions{Identifier: "me", Priority: 2, Unit: "my.scope"})
	if err != nil {
		t.Fatal(err)
	}
	c := accept()
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %x, %v: children would inherit it", flags, err)
	}
	if _, err := f.WriteString("one\ntwo\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if got, err := io.ReadAll(c); err != nil || string(got) != "me\nmy.scope\n2\n0\n0\n0\n0\none\ntwo\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestStdoutErrors(t *testing.T) {
	path, _ := listenStdout(t)
	before := openDescriptors(t)
	for name, c := range map[string]struct {
		path string
		o    StdoutOptions
		want error
	}{
		"nobody listens":     {path + "x", StdoutOptions{}, os.ErrNotExist},
		"path too long":      {strings.Repeat("/x", 60), StdoutOptions{}, unix.EINVAL},
		"line in identifier": {path, StdoutOptions{Identifier: "a\nb"}, nil},
		"line in unit":       {path, StdoutOptions{Unit: "a\nb"}, nil},
		"no such priority":   {path, StdoutOptions{Priority: 8}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := DialStdout(c.path, c.o)
			if err == nil {
				f.Close()
				t.Fatal("no error")
			}
			if c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	if after := openDescriptors(t); after != before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

// A journald that is stuck must not keep a process from dying: what does not fit is given up.
func TestStdoutWritesEnd(t *testing.T) {
	path, accept := listenStdout(t)
	f, err := DialStdout(path, StdoutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	accept()
	done := make(chan error, 1)
	go func() {
		data := make([]byte, 4<<20)
		for {
			if _, err := unix.Write(int(f.Fd()), data); err != nil {
				done <- err
				return
			}
		}
	}()
	select {
	case err := <-done:
		if !errors.Is(err, unix.EAGAIN) {
			t.Errorf("got %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the writer is stuck")
	}
}

// What people look for: identifier, priority and unit, byte-exact lines, and the same connection across a restart.
func TestRealStdout(t *testing.T) {
	realJournal(t)
	id := "stdout-" + uniqueID()
	f, err := DialStdout(DefaultStdout, StdoutOptions{Identifier: id, Priority: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := []string{"before", "\ttext with <3> in it", "after"}
	if _, err := f.WriteString(want[0] + "\n" + want[1] + "\n"); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("CONMONRS_TEST_RESTART_JOURNALD") != "" {
		if out, err := exec.Command("systemctl", "restart", "systemd-journald").CombinedOutput(); err != nil {
			t.Fatalf("restart: %v: %s", err, out)
		}
	}
	if _, err := f.WriteString(want[2] + "\n"); err != nil {
		t.Fatal(err)
	}
	var entries []map[string]any
	for end := time.Now().Add(10 * time.Second); len(entries) < len(want) && time.Now().Before(end); {
		entries = query(t, "-t", id)
	}
	if len(entries) != len(want) {
		t.Fatalf("%d entries, want %d", len(entries), len(want))
	}
	for i, e := range entries {
		if e["MESSAGE"] != want[i] || e["PRIORITY"] != "2" || e["_TRANSPORT"] != "stdout" || e["_SYSTEMD_UNIT"] == nil {
			t.Errorf("entry %v", e)
		}
	}
}
