package logfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFullDevice(t *testing.T) {
	var l logs
	f := openLog(t, "/dev/full", Options{Logger: l.logger()})
	w := f.Stream("stdout")
	for range 10 {
		if err := w.WriteChunk(at, []byte("one\ntwo\nrest"), scratch()); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("error %v", err)
		}
	}
	if s := f.Stats(); s.LostRecords != 30 || s.LostBytes != 10*(3*criHead+4+4+5) {
		t.Errorf("stats %+v", s)
	}
	check(t, f.Close())
	if text := l.String(); strings.Count(text, "level=ERROR") != 1 || strings.Count(text, "level=WARN") != 1 ||
		!strings.Contains(text, "records=30") {
		t.Errorf("log:\n%s", text)
	}
}

// tmpfs mounts a small file system. On a laptop the tests that need it are
// skipped; where CI is set their absence is a failure.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("mount a small file system: %v", err)
		}
		t.Skipf("SKIPPED, needs root: mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestDiskFullAndFreeAgain(t *testing.T) {
	for _, format := range []Format{CRI, JSON} {
		dir := tmpfs(t, "size=1m")
		path, filler := filepath.Join(dir, "log"), filepath.Join(dir, "filler")
		check(t, os.WriteFile(filler, make([]byte, 600<<10), 0o600))
		var l logs
		f := openLog(t, path, Options{Format: format, Logger: l.logger()})
		w := f.Stream("stdout")

		line, now, failures := strings.Repeat("0123456789", 90)+"\n", at, 0
		for range 50 { // 2 MiB
			now = now.Add(time.Millisecond)
			if w.WriteChunk(now, []byte(strings.Repeat(line, 47)), scratch()) != nil {
				failures++
			}
		}
		lost := f.Stats()
		if failures == 0 || lost.LostRecords == 0 {
			t.Fatalf("%d failures, %+v", failures, lost)
		}
		checkWhole(t, format, path, line, 50*47-int(lost.LostRecords))

		check(t, os.Remove(filler))
		for i := range 3 {
			check(t, w.WriteChunk(now.Add(time.Duration(i)*calmFor), []byte(line), scratch()))
			if i == 0 && strings.Contains(l.String(), "level=WARN") {
				t.Error("the trouble is taken for over at the first success")
			}
		}
		if after := f.Stats(); after.LostRecords != lost.LostRecords {
			t.Errorf("lost %d after the disk was free, %d before", after.LostRecords, lost.LostRecords)
		}
		checkWhole(t, format, path, line, 50*47+3-int(lost.LostRecords))
		if text := l.String(); strings.Count(text, "level=ERROR") != 1 || strings.Count(text, "level=WARN") != 1 {
			t.Errorf("log:\n%s", text)
		}
	}
}

func checkWhole(t *testing.T, format Format, path, line string, count int) {
	t.Helper()
	read := readCRI
	if format == JSON {
		read = readJSON
	}
	entries := read(t, path)
	if len(entries) != count {
		t.Errorf("%d records, want %d", len(entries), count)
	}
	for _, e := range entries {
		if e.text+"\n" != line || !e.whole {
			t.Fatalf("record %q", e.text)
		}
	}
}

// With a size limit the log makes room for itself.
func TestDiskFullWithLimit(t *testing.T) {
	path := filepath.Join(tmpfs(t, "size=256k"), "log")
	f := openLog(t, path, Options{MaxSize: 64 << 10})
	w := f.Stream("stdout")
	for range 2000 {
		check(t, w.WriteChunk(at, []byte(strings.Repeat("x", 1000)+"\n"), scratch()))
	}
	if e := readCRI(t, path); len(e) == 0 {
		t.Error("nothing in the log")
	}
}

// A partial record that cannot be cut off again must not join the next one.
func TestTornRecordWithoutTruncation(t *testing.T) {
	var fds [2]int
	check(t, unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	defer unix.Close(fds[0])
	o := output{fd: fds[1]} // a pipe takes part of a write and cannot be truncated
	defer o.close()
	big := []byte(strings.Repeat("r", 70<<10) + "\n")
	lost, err := o.append(big)
	if err == nil || len(lost) != len(big) || !o.torn {
		t.Fatalf("lost %d, torn %v, error %v", len(lost), o.torn, err)
	}
	buf := make([]byte, 128<<10)
	_, err = unix.Read(fds[0], buf)
	check(t, err)
	if _, err := o.append([]byte("next\n")); err != nil {
		t.Fatal(err)
	}
	n, err := unix.Read(fds[0], buf)
	check(t, err)
	if string(buf[:n]) != "\nnext\n" {
		t.Errorf("got %q", buf[:n])
	}
}

// A write that hangs must not make Reopen and Close hang for ever.
func TestStuckWrite(t *testing.T) {
	f := openLog(t, filepath.Join(t.TempDir(), "log"), Options{})
	f.wait = 20 * time.Millisecond
	f.lock() // what a writer holds while its write hangs
	if err := f.Reopen(); !errors.Is(err, ErrBusy) {
		t.Errorf("reopen: %v", err)
	}
	if err := f.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("close: %v", err)
	}
	fd := f.out.fd
	f.unlock()
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("descriptor stays open: %v", err)
	}
	check(t, f.Close())
}
