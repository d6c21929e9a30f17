package pump

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDrainDeliversWhatWasThere(t *testing.T) {
	noLeaks(t)
	for range 50 {
		r, w := newPipe(t)
		var sink collector
		// Nobody watches: Drain starts the reading by itself.
		s := New(r, Options{Pool: newPool(t, 1), Sinks: []Sink{&sink}, Rearm: func() error { return nil }})
		text := strings.Repeat("0123456789abcde\n", 4<<10) // a full pipe
		_, err := w.WriteString(text)
		check(t, err)
		check(t, s.Drain(t.Context()))
		if sink.string() != text {
			t.Fatalf("drain returned with %d of %d bytes handed over", sink.len(), len(text))
		}
		check(t, s.Drain(t.Context())) // empty now
		check(t, s.Close())
		w.Close()
	}
}

func TestDrainAtEndOfStream(t *testing.T) {
	noLeaks(t)
	r, w := newPipe(t)
	var sink collector
	s := newWatcher(t).start(t, r, Options{Pool: newPool(t, 1), Sinks: []Sink{&sink}})
	_, err := w.WriteString("last words")
	check(t, err)
	w.Close()
	check(t, s.Drain(t.Context()))
	if sink.string() != "last words" {
		t.Errorf("got %q", sink.string())
	}
}

// A process that was left behind and prints without pause does not keep
// Drain, and is read afterwards.
func TestDrainWithBackgroundWriter(t *testing.T) {
	noLeaks(t)
	r, w := newPipe(t)
	var sink collector
	s := newWatcher(t).start(t, r, Options{Pool: newPool(t, 1), Sinks: []Sink{&sink}})
	_, err := w.WriteString("MARK\n")
	check(t, err)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			if _, err := w.WriteString("still here\n"); err != nil {
				return
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	check(t, s.Drain(ctx))
	if !strings.HasPrefix(sink.string(), "MARK\n") {
		t.Error("what was there before is missing")
	}
	before := sink.len()
	eventually(t, "reading goes on", func() bool { return sink.len() > before })
	check(t, s.Close())
	<-stopped
}

func TestDrainIsBoundedByContext(t *testing.T) {
	noLeaks(t)
	r, w := newPipe(t)
	stuck := newGate()
	s := newWatcher(t).start(t, r, Options{Pool: newPool(t, 1), Sinks: []Sink{stuck}})
	_, err := w.WriteString("x")
	check(t, err)
	<-stuck.entered
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drain: %v", err)
	}
	close(stuck.open)
}

// newTerminal returns the master side, owned by the stream to come, and the
// slave side with output processing off.
func newTerminal(t *testing.T) (master int, slave *os.File) {
	t.Helper()
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	check(t, err)
	check(t, unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	check(t, err)
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	check(t, err)
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

func TestTerminal(t *testing.T) {
	noLeaks(t)
	lines := strings.Repeat("a line on the terminal\n", 5000)
	want := strings.ReplaceAll(lines, "\n", "\r\n")
	t.Run("hang-up", func(t *testing.T) {
		noLeaks(t)
		master, slave := newTerminal(t)
		var sink collector
		ends := make(chan error, 1)
		s := newWatcher(t).start(t, master, Options{
			Pool: newPool(t, 1), Terminal: true, Sinks: []Sink{&sink}, OnEnd: func(err error) { ends <- err },
		})
		_, err := slave.WriteString(lines)
		check(t, err)
		slave.Close()
		check(t, s.Drain(t.Context()))
		if sink.string() != want {
			t.Errorf("got %d bytes, want %d", sink.len(), len(want))
		}
		check(t, <-ends)
	})
	t.Run("held open", func(t *testing.T) {
		noLeaks(t)
		master, slave := newTerminal(t)
		var sink collector
		s := newWatcher(t).start(t, master, Options{Pool: newPool(t, 1), Terminal: true, Sinks: []Sink{&sink}})
		_, err := slave.WriteString(lines)
		check(t, err)
		began := time.Now()
		check(t, s.Drain(t.Context()))
		if d := time.Since(began); d < terminalQuiet || d > 10*terminalQuiet {
			t.Errorf("drain took %v", d)
		}
		if sink.string() != want {
			t.Errorf("got %d bytes, want %d", sink.len(), len(want))
		}
	})
}
