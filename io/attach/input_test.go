package attach

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Every byte arrives, NULs included, wherever packets end.
func TestInputIsBinarySafe(t *testing.T) {
	noLeaks(t)
	in, stdin := newStdin(t)
	h := newHub(t, Options{Stdin: stdin})
	p := attach(t, h, true)
	random := rand.New(rand.NewPCG(3, 4))
	want := make([]byte, 1<<20)
	for i := range want {
		want[i] = byte(random.Uint32() % 7) // many NULs
	}
	var sender sync.WaitGroup
	defer sender.Wait()
	sender.Go(func() {
		for rest := want; len(rest) > 0; {
			n := min(1+random.IntN(32<<10), len(rest))
			p.send(rest[:n])
			rest = rest[n:]
		}
		p.halfClose()
	})
	if got := in.readAll(t); !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, want %d, or they differ", len(got), len(want))
	}
}

// What a client does at its end, and what the container sees of it.
func TestEndOfInput(t *testing.T) {
	type action func(p *peer)
	closeAll, half := func(p *peer) { p.close() }, func(p *peer) { p.halfClose() }
	for _, tc := range []struct {
		name     string
		stop     bool
		terminal bool
		unread   bool // the client has output that it did not read
		end      action
		closed   bool // the container's input
		clients  int
	}{
		{"stop, close", true, false, false, closeAll, true, 0},
		{"stop, close with unread output", true, false, true, closeAll, true, 0},
		{"stop, half-close", true, false, false, half, true, 1},
		{"stay, close", false, false, false, closeAll, false, 0},
		{"stay, close with unread output", false, false, true, closeAll, false, 0},
		{"stay, half-close", false, false, false, half, false, 1},
		{"terminal, close", true, true, false, closeAll, false, 0},
		{"terminal, half-close", true, true, false, half, false, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			noLeaks(t)
			for range 50 {
				in, stdin := newStdin(t)
				h := NewHub(Options{Stdin: stdin, Terminal: tc.terminal})
				p := attach(t, h, tc.stop)
				if tc.unread {
					write(t, h.Stdout(), []byte("prompt"))
				}
				p.send([]byte("abcd"))
				p.send([]byte("1234\n"))
				tc.end(p)
				if tc.closed {
					if got := in.readAll(t); string(got) != "abcd1234\n" {
						t.Fatalf("input %q", got)
					}
				} else if got := in.read(t, 9); string(got) != "abcd1234\n" {
					t.Fatalf("input %q", got)
				}
				eventually(t, "clients as expected", func() bool { return h.Clients() == tc.clients })
				if tc.clients == 1 { // a half-closed client goes on getting output
					write(t, h.Stdout(), []byte("answer"))
					if got := p.receive(); string(got) != "\x02answer" {
						t.Fatalf("output %q", got)
					}
				}
				if !tc.closed {
					if _, err := stdin.WriteString("still open"); err != nil {
						t.Fatalf("container's input: %v", err)
					}
				}
				check(t, h.Close())
				p.close()
			}
		})
	}
}

// A packet of length 0 is not the end of input.
func TestEmptyPacket(t *testing.T) {
	noLeaks(t)
	in, stdin := newStdin(t)
	h := newHub(t, Options{Stdin: stdin})
	p := attach(t, h, true)
	for _, s := range []string{"", "a", "", "", "b"} {
		check(t, unix.Send(p.fd, []byte(s), 0))
	}
	if got := in.read(t, 2); string(got) != "ab" {
		t.Errorf("input %q", got)
	}
	check(t, unix.Send(p.fd, nil, 0))
	p.close()
	if got := in.readAll(t); len(got) != 0 {
		t.Errorf("input %q", got)
	}
}

func TestTooLongPacketEndsThatClient(t *testing.T) {
	for _, discard := range []bool{false, true} {
		noLeaks(t)
		var l logs
		o := Options{Logger: l.logger()}
		var in container
		if !discard {
			in, o.Stdin = newStdin(t)
		}
		h := newHub(t, o)
		bad, good := attach(t, h, false), attach(t, h, false)
		bad.send(make([]byte, 64<<10+1))
		if discard {
			bad.send([]byte("x")) // nobody wants it: nothing is lost either
			continue
		}
		eventually(t, "client is disconnected", func() bool { return h.Clients() == 1 })
		if !strings.Contains(l.String(), "longer than") {
			t.Errorf("no reason in the log: %s", l.String())
		}
		good.send([]byte("ok"))
		if got := in.read(t, 2); string(got) != "ok" {
			t.Errorf("input %q", got)
		}
	}
}

func TestInputIsMergedByPackets(t *testing.T) {
	noLeaks(t)
	in, stdin := newStdin(t)
	h := newHub(t, Options{Stdin: stdin})
	const packets, size = 200, 20000 // a packet is longer than what the pipe takes at once
	var senders sync.WaitGroup
	defer senders.Wait()
	for kind := range 3 {
		p := attach(t, h, false)
		senders.Go(func() {
			for range packets {
				p.send(bytes.Repeat([]byte{byte('a' + kind)}, size))
			}
		})
	}
	counts := map[byte]int{}
	for range 3 * packets {
		got := in.read(t, size)
		if bytes.Count(got, got[:1]) != size {
			t.Fatal("packets are mixed")
		}
		counts[got[0]]++
	}
	for kind, n := range counts {
		if n != packets {
			t.Errorf("%d packets of %c", n, kind)
		}
	}
}

// A container that does not read its input stops the client from sending and
// nothing else.
func TestBackPressure(t *testing.T) {
	noLeaks(t)
	in, stdin := newStdin(t)
	h := newHub(t, Options{Stdin: stdin})
	p := attach(t, h, true)
	check(t, unix.SetNonblock(p.fd, true))
	sent, packet := 0, bytes.Repeat([]byte("i"), 32<<10)
	full := func() bool {
		_, err := unix.Write(p.fd, packet)
		if err == nil {
			sent += len(packet)
		}
		return err == unix.EAGAIN
	}
	eventually(t, "client cannot send", full)
	for deadline := time.Now().Add(20 * time.Millisecond); time.Now().Before(deadline); {
		if !full() {
			continue
		}
		time.Sleep(time.Millisecond)
	}
	if sent > 1<<20 {
		t.Errorf("%d bytes were taken from the client", sent)
	}
	write(t, h.Stdout(), []byte("output goes on"))
	check(t, unix.SetNonblock(p.fd, false))
	if got := p.receive(); string(got) != "\x02output goes on" {
		t.Errorf("output %q", got)
	}
	p.close()
	if got := in.readAll(t); len(got) != sent {
		t.Errorf("container got %d of %d bytes", len(got), sent)
	}
}

// The end of the container while a client's input is stuck.
func TestEndWhileInputIsStuck(t *testing.T) {
	for _, how := range []string{"finish", "close"} {
		t.Run(how, func(t *testing.T) {
			noLeaks(t)
			_, stdin := newStdin(t)
			h := newHub(t, Options{Stdin: stdin})
			a, b := attach(t, h, false), attach(t, h, false)
			for range 4 {
				a.send(make([]byte, 40<<10))
			}
			b.send([]byte("waits behind"))
			eventually(t, "input is stuck", func() bool {
				stuck := !h.inputMu.TryLock()
				if !stuck {
					h.inputMu.Unlock()
				}
				return stuck
			})
			began := time.Now()
			if how == "finish" {
				check(t, h.Finish())
				if _, _, done := a.output(); !done {
					t.Error("no done packet")
				}
			} else {
				check(t, h.Close())
			}
			if d := time.Since(began); d > 500*time.Millisecond {
				t.Errorf("took %v", d)
			}
		})
	}
}

// A container that has closed its input costs the client nothing but the
// input.
func TestContainerClosedItsInput(t *testing.T) {
	noLeaks(t)
	in, stdin := newStdin(t)
	h := newHub(t, Options{Stdin: stdin})
	p := attach(t, h, false)
	check(t, in.r.Close())
	for range 100 {
		p.send(make([]byte, 32<<10))
	}
	eventually(t, "input is closed", func() bool { return h.stdinGone.Load() })
	write(t, h.Stdout(), []byte("x"))
	if got := p.receive(); string(got) != "\x02x" {
		t.Errorf("output %q", got)
	}
	p.close()
	eventually(t, "client is forgotten", func() bool { return h.Clients() == 0 })
}

func TestInputWithoutStdinIsDiscarded(t *testing.T) {
	noLeaks(t)
	h := newHub(t, Options{})
	p := attach(t, h, true)
	for range 100 {
		p.send(make([]byte, 32<<10))
	}
	p.halfClose()
	write(t, h.Stdout(), []byte("x"))
	if got := p.receive(); string(got) != "\x02x" {
		t.Errorf("output %q", got)
	}
	check(t, h.CloseStdin())
}

// Descriptors sent along must not pile up in the daemon.
func TestDescriptorsFromClientAreRefused(t *testing.T) {
	noLeaks(t)
	in, stdin := newStdin(t)
	h := newHub(t, Options{Stdin: stdin})
	p := attach(t, h, false)
	for range 20 {
		check(t, unix.Sendmsg(p.fd, []byte("x"), unix.UnixRights(0, 1, 2), nil, 0))
	}
	in.read(t, 20)
}

// A half-closed client must not keep us busy.
func TestHalfClosedClientCostsNoCPU(t *testing.T) {
	noLeaks(t)
	h := newHub(t, Options{})
	attach(t, h, false).halfClose()
	attach(t, h, false)
	used := func() time.Duration {
		var u unix.Rusage
		check(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	<-time.After(300 * time.Millisecond)
	if d := used() - before; d > 100*time.Millisecond {
		t.Errorf("%v of CPU time in 300 ms", d)
	}
}

func TestReceiveTellsEndFromEmpty(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(fds[0])
	check(t, unix.Send(fds[1], nil, 0)) // before the option is set, too
	check(t, unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1))
	unix.Close(fds[1])
	control := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	for i, want := range []bool{true, false} {
		_, isPacket, err := receive(fds[0], make([]byte, 10), control, 0)
		if err != nil || isPacket != want {
			t.Errorf("%d: %v, %v", i, isPacket, err)
		}
	}
	if _, _, err := receive(-1, nil, nil, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("error %v", err)
	}
}
