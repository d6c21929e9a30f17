package exitfile

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPublishExit(t *testing.T) {
	dir := t.TempDir()
	watched, bundle := filepath.Join(dir, "exits"), filepath.Join(dir, "bundle")
	for _, d := range []string{watched, bundle} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	paths := []string{
		filepath.Join(watched, "id"), filepath.Join(dir, "missing", "exit"), filepath.Join(bundle, "exit"),
	}
	if err := os.WriteFile(paths[2], []byte("a longer old content"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, logger := New(), slog.New(slog.NewTextHandler(&log, nil))
	p.Publish(logger, paths, -1)
	if n := p.left(); n != 0 {
		t.Errorf("retry of %d", n)
	}
	p.Close(t.Context())
	for _, i := range []int{0, 2} {
		got, err := os.ReadFile(paths[i])
		if err != nil || string(got) != "-1" {
			t.Errorf("%s: %q, %v", paths[i], got, err)
		}
		if info, err := os.Stat(paths[i]); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: mode %v, %v", paths[i], info.Mode(), err)
		}
	}
	if n := strings.Count(log.String(), paths[1]); n == 0 {
		t.Errorf("the missing directory is not named: %s", log.String())
	}
	for _, d := range []string{watched, bundle} {
		if entries, _ := os.ReadDir(d); len(entries) != 1 {
			t.Errorf("%s has %v", d, entries)
		}
	}
}

// The order and the completeness are seen as an engine sees them: by a watch on the directories.
func TestExitFilesAppearCompleteAndInReverseOrder(t *testing.T) {
	dir := t.TempDir()
	inotify, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inotify)
	if _, err := unix.InotifyAddWatch(inotify, dir, unix.IN_MOVED_TO|unix.IN_CREATE); err != nil {
		t.Fatal(err)
	}
	New().Publish(slog.New(slog.DiscardHandler), []string{filepath.Join(dir, "first"), filepath.Join(dir, "second")}, 137)
	buf := make([]byte, 4096)
	n, err := unix.Read(inotify, buf)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		size := int(b[12]) | int(b[13])<<8
		name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size], "\x00"))
		if !strings.HasPrefix(name, ".") { // temporary files cannot be taken for an id
			names = append(names, name)
		}
		b = b[unix.SizeofInotifyEvent+size:]
	}
	if strings.Join(names, " ") != "second first" {
		t.Errorf("seen: %v", names)
	}
}

// tmpfs mounts a small file system.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		if os.Getenv("CI") == "true" || os.Getenv("CONMONRS_REQUIRE_ALL") != "" {
			t.Fatalf("mount tmpfs: %v", err)
		}
		t.Skipf("mount tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fullDisk returns a directory on a file system without space, and what makes some.
func fullDisk(t *testing.T) (dir string, makeSpace func()) {
	t.Helper()
	dir = tmpfs(t, "size=64k")
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	return dir, func() {
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
	}
}

func wantContent(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s: %q, %v; want %s", path, got, err, want)
	}
}

func (p *Publisher) left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending)
}

func settle(t *testing.T, p *Publisher) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); p.left() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d left", p.left())
		}
	}
}

func TestExitFileOnAFullDiskIsRetried(t *testing.T) {
	full, makeSpace := fullDisk(t)
	paths := []string{filepath.Join(full, "exit"), filepath.Join(t.TempDir(), "exit")}
	var log bytes.Buffer
	p, logger := New(), slog.New(slog.NewTextHandler(&log, nil))
	p.Publish(logger, paths, 7)
	wantContent(t, paths[1], "7")
	if p.left() != 1 {
		t.Errorf("%d to retry", p.left())
	}
	makeSpace()
	settle(t, p)
	p.Close(t.Context())
	wantContent(t, paths[0], "7")
	if n := strings.Count(log.String(), "exit file not written"); n != 1 {
		t.Errorf("reported %d times:\n%s", n, log.String())
	}
	if n := strings.Count(log.String(), "exit file written after a retry"); n != 1 {
		t.Errorf("the end is reported %d times:\n%s", n, log.String())
	}
}

// The engine has used the id again: the older code must not come late.
func TestNewerExitCodeWins(t *testing.T) {
	full, makeSpace := fullDisk(t)
	path := filepath.Join(full, "exit")
	p, logger := New(), slog.New(slog.DiscardHandler)
	p.Publish(logger, []string{path}, 1)
	p.mu.Lock()
	old := p.pending[path]
	p.mu.Unlock()
	p.Publish(logger, []string{path}, 2)
	makeSpace()
	settle(t, p)
	if err := old.try(func() {}); !errors.Is(err, errOver) { // a retry that was at work meanwhile
		t.Errorf("got %v", err)
	}
	p.Close(t.Context())
	wantContent(t, path, "2")
	if entries, _ := os.ReadDir(full); len(entries) != 1 {
		t.Errorf("left: %v", entries)
	}
}

// What cannot be written until the end is reported with its path and code, and the end does not wait for it.
func TestExitFilesLeftAtTheEnd(t *testing.T) {
	full, _ := fullDisk(t)
	gone, makeSpace := fullDisk(t)
	var log bytes.Buffer
	p, logger := New(), slog.New(slog.NewTextHandler(&log, nil))
	lost := filepath.Join(gone, "dir", "exit")
	if err := os.Mkdir(filepath.Dir(lost), 0o755); err != nil {
		t.Fatal(err)
	}
	p.Publish(logger, []string{filepath.Join(full, "exit"), lost}, 7)
	makeSpace()
	settleOne := func() bool { return p.left() == 1 }
	for end := time.Now().Add(20 * time.Second); !settleOne() && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	wantContent(t, lost, "7")
	p.Close(t.Context())
	if n := strings.Count(log.String(), "exit file given up"); n != 1 || p.left() != 0 {
		t.Errorf("reported %d times, %d left:\n%s", n, p.left(), log.String())
	}
}

// A file that hangs delays nothing elsewhere, and the end by no more than it is given.
func TestHungDiskHoldsUpNothingElse(t *testing.T) {
	dir := t.TempDir()
	p := New()
	stuck := &attempt{log: slog.New(slog.DiscardHandler), path: filepath.Join(dir, "stuck"), text: "1"}
	p.add(stuck)
	hang := make(chan struct{})
	tried := make(chan struct{})
	p.work.Go(func() { p.run(t.Context(), stuck, hang, tried) }) // waits for a turn that does not come
	other := filepath.Join(dir, "other")
	begin := time.Now()
	p.Publish(slog.New(slog.DiscardHandler), []string{other}, 2)
	if d := time.Since(begin); d > patience {
		t.Errorf("took %v", d)
	}
	wantContent(t, other, "2")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	p.Close(ctx)
	if p.left() != 1 {
		t.Errorf("%d left", p.left())
	}
	close(hang)
	<-tried
	p.work.Wait()
	wantContent(t, stuck.path, "1")
}

// Of files that are written together a later one waits for its turn, though not for ever.
func TestTurn(t *testing.T) {
	dir := t.TempDir()
	p := New()
	a := &attempt{log: slog.New(slog.DiscardHandler), path: filepath.Join(dir, "a"), text: "1"}
	limit, cancel := context.WithCancel(t.Context())
	tried := make(chan struct{})
	p.work.Go(func() { p.run(limit, a, nil, tried) })
	select {
	case <-tried:
		t.Error("it did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	cancel()
	<-tried
	wantContent(t, a.path, "1")
	p.Close(t.Context())
}
