package exitfile

import (
	"bytes"
	"context"
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
	again := Publish(slog.New(slog.NewTextHandler(&log, nil)), paths, -1)
	if len(again) != 0 {
		t.Errorf("retry of %v", again)
	}
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
	Publish(slog.New(slog.DiscardHandler), []string{filepath.Join(dir, "first"), filepath.Join(dir, "second")}, 137)
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

func TestExitFileOnAFullDiskIsRetried(t *testing.T) {
	full, good := tmpfs(t, "size=64k"), t.TempDir()
	filler := filepath.Join(full, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	paths := []string{filepath.Join(full, "exit"), filepath.Join(good, "exit")}
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	again := Publish(logger, paths, 7)
	if len(again) != 1 || again[0] != paths[0] {
		t.Fatalf("to retry: %v", again)
	}
	if got, err := os.ReadFile(paths[1]); err != nil || string(got) != "7" {
		t.Fatalf("good path: %q, %v", got, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() { Retry(ctx, logger, again, 7); close(done) }()
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	<-done
	if got, err := os.ReadFile(paths[0]); err != nil || string(got) != "7" {
		t.Fatalf("after the retry: %q, %v", got, err)
	}
	if n := strings.Count(log.String(), "exit file not written"); n != 1 {
		t.Errorf("reported %d times:\n%s", n, log.String())
	}
}
