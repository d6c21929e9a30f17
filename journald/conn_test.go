package journald

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestValidName(t *testing.T) {
	tests := map[string]bool{
		"MESSAGE": true, "A": true, "A_1": true, strings.Repeat("A", 64): true,
		"": false, "_PID": false, "1A": false, "message": false, "A B": false, "A=": false,
		"A\n": false, "É": false, "A-B": false, strings.Repeat("A", 65): false,
	}
	for name, want := range tests {
		if ValidName(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

func TestSend(t *testing.T) {
	j := startJournal(t)
	c := dial(t, j.path)
	values := []string{"text", "", "two\nlines", "\n", "a=b", "\x00\xff", "end\n", strings.Repeat("x", 100<<10)}
	for _, value := range values {
		if err := c.Send(Field{"MESSAGE", []byte(value)}, Field{"X", []byte("1")}); err != nil {
			t.Fatal(err)
		}
		if e := j.next(); e.get("MESSAGE") != value || e.get("X") != "1" || len(e) != 2 {
			t.Errorf("%.40q came as %.80q", value, e)
		}
	}
	for _, bad := range []string{"", "x", "_X", "A\nB"} {
		if err := c.Send(Field{"MESSAGE", nil}, Field{bad, nil}); err == nil || !strings.Contains(err.Error(), "invalid field name") {
			t.Errorf("name %q: %v", bad, err)
		}
	}
	j.none()
}

func TestSendLarge(t *testing.T) {
	j := startJournal(t)
	c := dial(t, j.path)
	message := bytes.Repeat([]byte("0123456789\n"), 200<<10)
	before := openDescriptors(t)
	for range 3 {
		if err := c.Send(Field{"MESSAGE", message}); err != nil {
			t.Fatal(err)
		}
		data, file := j.receive()
		if e, err := decode(data); err != nil || !file || e.get("MESSAGE") != string(message) {
			t.Errorf("error %v, in a file: %v", err, file)
		}
	}
	if after := openDescriptors(t); after != before {
		t.Errorf("descriptors: %d before, %d after", before, after)
	}
	if cap(c.buf) > keep {
		t.Errorf("keeps %d bytes", cap(c.buf))
	}
}

func TestDial(t *testing.T) {
	for _, path := range []string{"", "@abstract", strings.Repeat("x", 108)} {
		if _, err := Dial(path); err == nil {
			t.Errorf("path %q accepted", path)
		}
	}
}

// A Conn made before journald is there, and one whose journald went away, work as
// soon as it is there.
func TestRestart(t *testing.T) {
	j := startJournal(t)
	j.stop()
	c := dial(t, j.path)
	send := func() error { return c.Send(Field{"MESSAGE", []byte("x")}) }
	for range 3 {
		for range 2 {
			if err := send(); !unreachable(err) {
				t.Errorf("without journald: %v", err)
			}
		}
		if err := c.Connect(); !errors.Is(err, unix.ENOENT) {
			t.Errorf("connect: %v", err)
		}
		j.start()
		for range 2 {
			if err := send(); err != nil {
				t.Error(err)
			}
			j.next()
		}
		if err := c.Connect(); err != nil {
			t.Error(err)
		}
		j.stop()
	}
	j.start() // at once: the Conn only notices when it sends
	if err := send(); err != nil {
		t.Error(err)
	}
	j.next()
}

func TestFullQueue(t *testing.T) {
	j := startJournal(t)
	filled := j.fill()
	c := dial(t, j.path)
	if err := c.Send(Field{"MESSAGE", nil}); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("full: %v", err)
	}
	tx := c.newSender()
	if err := tx.send([]byte("MESSAGE=waited\n"), 10*time.Millisecond); err != unix.EAGAIN {
		t.Errorf("limit reached: %v", err)
	}
	result := make(chan error)
	go func() { result <- tx.send([]byte("MESSAGE=waited\n"), time.Minute) }()
	for range filled {
		if e := j.next(); e.get("MESSAGE") != "fill" {
			t.Errorf("%q", e)
		}
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
	if e := j.next(); e.get("MESSAGE") != "waited" {
		t.Errorf("%q", e)
	}
	j.none()
}

// A large entry waits with its file, which is not made anew for each attempt.
func TestFullQueueLarge(t *testing.T) {
	j := startJournal(t)
	filled := j.fill()
	c := dial(t, j.path)
	large := AppendField(nil, "MESSAGE", strings.Repeat("x", 1<<20))
	before := openDescriptors(t)
	tx := c.newSender()
	if err := tx.send(large, 10*time.Millisecond); err != unix.EAGAIN {
		t.Errorf("limit reached: %v", err)
	}
	if after := openDescriptors(t); after != before {
		t.Errorf("descriptors: %d before, %d after", before, after)
	}
	result := make(chan error)
	go func() { result <- tx.send(large, time.Minute) }()
	for range filled {
		j.next()
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
	if e := j.next(); len(e.get("MESSAGE")) != 1<<20 {
		t.Errorf("%d bytes", len(e.get("MESSAGE")))
	}
}

func TestCloseWakes(t *testing.T) {
	j := startJournal(t)
	j.fill()
	c := dial(t, j.path)
	result := make(chan error)
	go func() { result <- c.newSender().send([]byte("MESSAGE=x\n"), time.Minute) }()
	eventually(t, "sender waits", func() bool {
		if c.waiting.TryLock() {
			c.waiting.Unlock()
			return false
		}
		return true
	})
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-result; !errors.Is(err, os.ErrClosed) {
		t.Errorf("waiting sender: %v", err)
	}
	if err := c.Send(Field{"MESSAGE", nil}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := c.Connect(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("connect after Close: %v", err)
	}
}

func TestSendConcurrently(t *testing.T) {
	j := startJournal(t)
	c := dial(t, j.path)
	const senders, each = 4, 200
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			tx := c.newSender()
			for range each {
				if err := tx.send(AppendField(nil, "MESSAGE", strings.Repeat(string(rune('a'+i)), 100)), time.Minute); err != nil {
					t.Error(err)
				}
			}
		})
	}
	count := map[string]int{}
	for range senders * each {
		count[j.next().get("MESSAGE")]++
	}
	wg.Wait()
	for message, n := range count {
		if len(message) != 100 || n != each {
			t.Errorf("%d times %q", n, message)
		}
	}
}

func TestSendDoesNotAllocate(t *testing.T) {
	j := startJournal(t)
	c := dial(t, j.path)
	fields := []Field{{"MESSAGE", []byte("hello")}, {"X", []byte("a\nb")}}
	buf := make([]byte, 4096)
	n := testing.AllocsPerRun(100, func() {
		if err := c.Send(fields...); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Read(j.fd, buf); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzEncode(f *testing.F) {
	f.Add("MESSAGE", "text", "X", "a\nb")
	f.Add("A", "", "A", "\n")
	f.Add("CONTAINER_ID", "\x00\xff=", "M", "end\n")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string) {
		if !ValidName(name1) || !ValidName(name2) {
			return
		}
		e, err := decode(AppendField(AppendField(nil, name1, value1), name2, []byte(value2)))
		if err != nil {
			t.Fatal(err)
		}
		want := entry{name1: {value1}}
		want[name2] = append(want[name2], value2)
		if len(e) != len(want) || e.get(name1) != want.get(name1) || e.get(name2) != want.get(name2) {
			t.Errorf("got %q, want %q", e, want)
		}
	})
}
