package attach

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPackets(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 20000)
	for _, tc := range []struct {
		name  string
		sizes []int // of chunks
		want  []int // of packets, with the first byte
	}{
		{"one", []int{5}, []int{6}},
		{"not merged", []int{1, 1, 2}, []int{2, 2, 3}},
		{"as long as it can be", []int{8191}, []int{8192}},
		{"split", []int{8192, 20000}, []int{8192, 2, 8192, 8192, 3619}},
		{"nothing", []int{0, 1}, []int{2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			noLeaks(t)
			h := newHub(t, Options{})
			p := attach(t, h, false)
			for _, n := range tc.sizes {
				write(t, h.Stderr(), long[:n])
			}
			for i, n := range tc.want {
				if got := p.receive(); len(got) != n || got[0] != 3 {
					t.Errorf("packet %d: %d bytes of kind %d, want %d", i, len(got), got[0], n)
				}
			}
		})
	}
}

func TestAllClientsSeeAllFromTheirStart(t *testing.T) {
	noLeaks(t)
	h := newHub(t, Options{})
	write(t, h.Stdout(), []byte("before anybody came\n"))
	first := attach(t, h, false)
	write(t, h.Stdout(), []byte("one\n"))
	second := attach(t, h, false)
	write(t, h.Stderr(), []byte("two\n"))
	if n := h.Clients(); n != 2 {
		t.Errorf("%d clients", n)
	}
	check(t, h.Finish())
	for _, tc := range []struct {
		p           *peer
		stdout, err string
	}{{first, "one\n", "two\n"}, {second, "", "two\n"}} {
		stdout, stderr, done := tc.p.output()
		if string(stdout) != tc.stdout || string(stderr) != tc.err || !done {
			t.Errorf("got %q, %q, done %v", stdout, stderr, done)
		}
		if end := tc.p.receive(); end != nil {
			t.Errorf("after done: %q", end)
		}
	}
	late := attach(t, h, false)
	if _, _, done := late.output(); !done || h.Clients() != 0 {
		t.Error("a late client is not told that all is over")
	}
}

// A client that never reads is disconnected and delays nobody; one that reads
// gets everything.
func TestSlowClient(t *testing.T) {
	noLeaks(t)
	var l logs
	h := newHub(t, Options{Logger: l.logger()})
	stuck, reader := attach(t, h, false), attach(t, h, false)
	const total = 10 << 20
	got := make(chan int)
	go func() {
		stdout, _, done := reader.output()
		if !done {
			t.Error("reading client was disconnected")
		}
		got <- len(stdout)
	}()
	began := time.Now()
	chunk := make([]byte, 64<<10)
	for range total / len(chunk) {
		write(t, h.Stdout(), chunk)
	}
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("output took %v", d)
	}
	if n := h.Clients(); n != 1 {
		t.Errorf("%d clients, want the reading one", n)
	}
	check(t, h.Finish())
	if n := <-got; n != total {
		t.Errorf("reading client got %d of %d bytes", n, total)
	}
	if !strings.Contains(l.String(), "does not read") {
		t.Errorf("no reason in the log: %s", l.String())
	}
	if _, _, done := stuck.output(); done {
		t.Error("done packet after lost output")
	}
}

// A container that writes byte by byte must not make the queue cost many
// times its limit.
func TestQueueLimitCountsSmallPackets(t *testing.T) {
	noLeaks(t)
	const limit = 64 << 10
	h := newHub(t, Options{QueueBytes: limit})
	attach(t, h, false) // never reads
	sink, scratch := h.Stdout(), make([]byte, 0, 128<<10)
	c := h.all[0]
	queued := 0
	for h.Clients() == 1 {
		c.mu.Lock()
		queued = len(c.queue)
		c.mu.Unlock()
		check(t, sink.WriteChunk(time.Now(), []byte("x"), scratch))
	}
	if queued > limit/packetOverhead {
		t.Errorf("%d packets were queued", queued)
	}
}

func TestQueueIsFlushedAtTheEnd(t *testing.T) {
	noLeaks(t)
	h := newHub(t, Options{QueueBytes: 4 << 20})
	p := attach(t, h, false)
	want := bytes.Repeat([]byte("0123456789abcdef"), 60<<10) // more than a socket holds
	for rest := want; len(rest) > 0; {
		n := min(len(rest), 64<<10)
		write(t, h.Stdout(), rest[:n])
		rest = rest[n:]
	}
	finished := make(chan error)
	go func() { finished <- h.Finish() }()
	stdout, _, done := p.output()
	check(t, <-finished)
	if !bytes.Equal(stdout, want) || !done {
		t.Errorf("got %d of %d bytes, done %v", len(stdout), len(want), done)
	}
}

func TestFinishIsBounded(t *testing.T) {
	noLeaks(t)
	h := newHub(t, Options{})
	attach(t, h, false) // never reads
	for range 8 {
		write(t, h.Stdout(), make([]byte, 64<<10))
	}
	began := time.Now()
	check(t, h.Finish())
	if d := time.Since(began); d < flushWait/2 || d > 2*flushWait {
		t.Errorf("took %v", d)
	}
}

func TestAbruptEndDisturbsNobody(t *testing.T) {
	noLeaks(t)
	in, stdin := newStdin(t)
	h := newHub(t, Options{Stdin: stdin})
	peers := []*peer{attach(t, h, false), attach(t, h, false), attach(t, h, false)}
	write(t, h.Stdout(), []byte("unread"))
	peers[1].close()
	eventually(t, "client is forgotten", func() bool { return h.Clients() == 2 })
	for _, i := range []int{0, 2} {
		peers[i].send([]byte("line\n"))
		if got := in.read(t, 5); string(got) != "line\n" {
			t.Errorf("input %q", got)
		}
	}
	write(t, h.Stdout(), []byte("more"))
	check(t, h.Finish())
	for _, i := range []int{0, 2} {
		if stdout, _, done := peers[i].output(); string(stdout) != "unreadmore" || !done {
			t.Errorf("client %d: %q, done %v", i, stdout, done)
		}
	}
}

func TestOutputDoesNotAllocate(t *testing.T) {
	h := newHub(t, Options{})
	sink := h.Stdout()
	data, scratch, now := make([]byte, 20000), make([]byte, 0, 128<<10), time.Now()
	buf := make([]byte, 8192)
	for clients := range 3 {
		var peers []*peer
		for range clients {
			peers = append(peers, attach(t, h, false))
		}
		allocs := testing.AllocsPerRun(100, func() {
			if err := sink.WriteChunk(now, data, scratch); err != nil {
				t.Fatal(err)
			}
			for _, p := range peers {
				for range 3 {
					if _, err := unix.Read(p.fd, buf); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
		if allocs >= 1 {
			t.Errorf("%v allocations per chunk with %d clients", allocs, clients)
		}
		for _, p := range peers {
			p.close()
		}
		eventually(t, "clients are forgotten", func() bool { return h.Clients() == 0 })
	}
}

func TestWithoutClientsNothingIsHeld(t *testing.T) {
	noLeaks(t)
	in, stdin := newStdin(t)
	h := newHub(t, Options{Stdin: stdin})
	p := attach(t, h, false)
	p.send(make([]byte, 30000))
	in.read(t, 30000)
	eventually(t, "pages of the buffer are given back", func() bool {
		h.inputMu.Lock()
		defer h.inputMu.Unlock()
		return h.input.mapping != nil && h.input.used == 0
	})
	p.close()
	eventually(t, "the buffer is unmapped", func() bool {
		h.inputMu.Lock()
		defer h.inputMu.Unlock()
		return h.input.mapping == nil
	})
}

func TestAddOwnsTheSocket(t *testing.T) {
	noLeaks(t)
	h := newHub(t, Options{})
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	check(t, err)
	defer unix.Close(fds[1])
	f := os.NewFile(uintptr(fds[0]), "connection")
	f.Close()
	if h.Add(f, false) == nil {
		t.Error("added a closed connection")
	}
	r, w, err := os.Pipe()
	check(t, err)
	defer w.Close()
	if h.Add(r, false) == nil {
		t.Error("added a pipe")
	}
	if r.Close() == nil {
		t.Error("Add left a refused descriptor open")
	}
}

func FuzzSplit(f *testing.F) {
	f.Add([]byte("x"), uint16(0))
	f.Add([]byte("hello"), uint16(8187))
	f.Fuzz(func(t *testing.T, data []byte, pad uint16) {
		data = append(data, make([]byte, pad)...)
		packets := split(2, data, nil)
		var joined []byte
		for rest := packets; len(rest) > 0; {
			n := min(len(rest), 1+maxPayload)
			if rest[0] != 2 || n < 2 {
				t.Fatalf("packet of %d bytes, kind %d", n, rest[0])
			}
			joined = append(joined, rest[1:n]...)
			rest = rest[n:]
		}
		if !bytes.Equal(joined, data) {
			t.Error("bytes differ")
		}
	})
}
