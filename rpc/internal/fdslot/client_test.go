package fdslot

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakeServer returns a sender and the other end of its connection.
func fakeServer(t *testing.T) (*Sender, *raw) {
	t.Helper()
	checkLeaks(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.SetNonblock(pair[0], true),
			unix.SetsockoptTimeval(pair[1], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSender(os.NewFile(uintptr(pair[0]), "client"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(); unix.Close(pair[1]) })
	return s, &raw{t, pair[1]}
}

// answer sends reply when a request has come.
func (r *raw) answer(reply ...[]byte) {
	go func() {
		var b [headerSize]byte
		if n, err := unix.Read(r.fd, b[:]); err != nil || n != headerSize { // the descriptors are dropped
			return
		}
		for _, packet := range reply {
			_ = unix.Sendmsg(r.fd, packet, nil, nil, unix.MSG_NOSIGNAL)
		}
	}()
}

func TestReplies(t *testing.T) {
	const all = 1<<32 - 1
	for _, c := range []struct {
		name  string
		reply []byte
		text  string // of the error; empty: none
	}{
		{"slots", words(1<<32|2, 5, 1<<63), ""},
		{"refusal", append(words(1<<32|all), "no"...), "refused descriptors: no"},
		{"refusal without text", words(1<<32 | all), "refused descriptors: "},
		{"short", []byte{1, 2}, "it has 2 bytes"},
		{"fewer", words(1<<32|1, 5), "slots for 1 descriptors, 2 were sent"},
		{"more", words(1<<32|3, 5, 6, 7), "slots for 3 descriptors, 2 were sent"},
		{"cut", words(1<<32|2, 5), "16 bytes for 2 slots"},
		{"long", words(1<<32|2, 5, 6, 7), "32 bytes for 2 slots"},
		{"too long", append(words(1<<32|2), make([]byte, maxReply)...), "it has 2040 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, server := fakeServer(t)
			server.answer(c.reply)
			_, w := pipe(t)
			slots, err := s.Send(t.Context(), []int{int(w.Fd()), int(w.Fd())})
			if c.text == "" {
				if err != nil || len(slots) != 2 || slots[0] != 5 || slots[1] != 1<<63 {
					t.Errorf("slots %v, %v", slots, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.text) || slots != nil {
				t.Errorf("slots %v, %v", slots, err)
			}
			var refused *RefusedError
			if errors.As(err, &refused) != strings.HasPrefix(c.name, "refusal") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A reply to a request that was given up is not taken for another's.
func TestCancelledSend(t *testing.T) {
	s, server := fakeServer(t)
	_, w := pipe(t)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errors.New("enough"))
	defer cancel()
	if _, err := s.Send(ctx, []int{int(w.Fd())}); err == nil || err.Error() != "enough" {
		t.Errorf("error %v", err)
	}
	if _, err := s.Send(ctx, []int{int(w.Fd())}); err == nil || err.Error() != "enough" {
		t.Errorf("error with an ended context %v", err)
	}
	server.answer()
	server.answer(words(1<<32|1, 7), words(2<<32|1, 8))
	slots, err := s.Send(t.Context(), []int{int(w.Fd())})
	if err != nil || len(slots) != 1 || slots[0] != 8 {
		t.Errorf("slots %v, %v", slots, err)
	}
}

func TestServerGone(t *testing.T) {
	s, server := fakeServer(t)
	_, w := pipe(t)
	go func() { server.reply(); unix.Shutdown(server.fd, unix.SHUT_RDWR) }()
	if _, err := s.Send(t.Context(), []int{int(w.Fd())}); !errors.Is(err, io.EOF) {
		t.Errorf("error %v", err)
	}
	if _, err := s.Send(t.Context(), []int{int(w.Fd())}); !errors.Is(err, unix.EPIPE) {
		t.Errorf("error %v", err)
	}
}

// Descriptors in a reply, which there should be none, are not kept.
func TestUnaskedDescriptors(t *testing.T) {
	s, server := fakeServer(t)
	r, w := pipe(t)
	server.send(words(1<<32|1, 5), int(w.Fd()))
	server.answer()
	if _, err := s.Send(t.Context(), []int{int(r.Fd())}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if !closed(r) {
		t.Error("kept")
	}
}

// Several goroutines may use one connection.
func TestConcurrentSends(t *testing.T) {
	f := serve(t)
	s := f.sender()
	_, w := pipe(t)
	results := make(chan []uint64)
	for range 20 {
		go func() {
			slots, err := s.Send(context.Background(), []int{int(w.Fd()), int(w.Fd())})
			if err != nil {
				t.Error(err)
			}
			results <- slots
		}()
	}
	seen := make(map[uint64]bool)
	for range 20 {
		for _, slot := range <-results {
			if seen[slot] {
				t.Errorf("slot %d twice", slot)
			}
			seen[slot] = true
		}
	}
	if len(seen) != 40 {
		t.Errorf("%d slots", len(seen))
	}
}
