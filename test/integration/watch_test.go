package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fileEvent is what inotify(7) said of a file, with the file's content at that moment.
type fileEvent struct {
	name, content string
	mask          uint32
}

// watch calls begin and returns what appears in dir until a file of the name last does.
func watch(t *testing.T, dir string, begin func(), last string) (events []fileEvent) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_MODIFY); err != nil {
		t.Fatal(err)
	}
	if err := f.SetReadDeadline(time.Now().Add(exitLimit)); err != nil {
		t.Fatal(err)
	}
	begin()
	buf := make([]byte, 64<<10)
	for {
		n, err := f.Read(buf)
		if err != nil {
			t.Fatalf("no file %s in %s: %v; seen %v", last, dir, err, events)
		}
		for b := buf[:n]; len(b) > 0; {
			raw := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
			end := unix.SizeofInotifyEvent + int(raw.Len)
			name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:end], "\x00"))
			content, _ := os.ReadFile(filepath.Join(dir, name))
			events = append(events, fileEvent{name, string(content), raw.Mask})
			if name == last {
				return events
			}
			b = b[end:]
		}
	}
}
