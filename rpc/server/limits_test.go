package server

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"capnproto.org/go/capnp/v3"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// noService has no methods that work; the tests here call none.
type noService struct{ Service }

func newTestConn() *conn {
	s := New(Options{Service: noService{}})
	c := &conn{server: s}
	c.link = newLink(nopConn{}, c)
	return c
}

type nopConn struct{}

func (nopConn) Read([]byte) (int, error)    { return 0, io.EOF }
func (nopConn) Write(b []byte) (int, error) { return len(b), nil }
func (nopConn) Close() error                { return nil }

// Large replies wait for earlier ones to be taken, small ones do not.
func TestReplyBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestConn()
		full := int64(maxReplyBytes)
		if err := c.reserve(full); err != nil {
			t.Fatal(err)
		}
		m := &capnp.Message{}
		c.charge(m, full)
		if err := c.reserve(smallReply - 1); err != nil {
			t.Errorf("small reply: %v", err)
		}
		result := make(chan error, 1)
		go func() { result <- c.reserve(smallReply) }()
		synctest.Wait()
		select {
		case err := <-result:
			t.Fatalf("did not wait: %v", err)
		default:
		}
		c.released(m)
		if err := <-result; err != nil {
			t.Error(err)
		}
		c.charge(nil, smallReply)
		if c.replies != 0 || len(c.charges) != 0 {
			t.Errorf("%d bytes and %d charges left", c.replies, len(c.charges))
		}
	})
}

// The wait ends when the client takes nothing, or goes away.
func TestReplyBudgetGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestConn()
		if err := c.reserve(maxReplyBytes); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := c.reserve(smallReply); !errors.Is(err, errReplyWait) {
			t.Errorf("got %v", err)
		}
		if d := time.Since(begin); d != patience {
			t.Errorf("gave up after %v", d)
		}
		result := make(chan error, 1)
		go func() { result <- c.reserve(smallReply) }()
		synctest.Wait()
		_ = c.link.Close()
		if err := <-result; !errors.Is(err, errConnClosed) {
			t.Errorf("got %v", err)
		}
	})
}

// A single reply is let through whatever its size.
func TestReplyLargerThanBudget(t *testing.T) {
	if err := newTestConn().reserve(maxReplyBytes + 1); err != nil {
		t.Error(err)
	}
}

// A client that reads nothing is cut off.
func TestSlowReader(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	n, err := patientWriter{w, 50 * time.Millisecond}.Write(make([]byte, 1<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || n == 1<<20 {
		t.Fatalf("wrote %d bytes, %v", n, err)
	}
	// The deadline does not outlive the write.
	go func() { _, _ = io.Copy(io.Discard, r) }()
	if n, err := (patientWriter{w, time.Minute}).Write(make([]byte, 1<<20)); err != nil || n != 1<<20 {
		t.Fatalf("wrote %d bytes, %v", n, err)
	}
}

// troubledListener fails a number of times, then hands out a connection, and so on, and then blocks.
type troubledListener struct {
	script []error
	done   chan struct{}
}

func (l *troubledListener) Accept() (io.ReadWriteCloser, error) {
	if len(l.script) == 0 {
		<-l.done
		return nil, net.ErrClosed
	}
	err := l.script[0]
	l.script = l.script[1:]
	if err != nil {
		return nil, err
	}
	return nopConn{}, nil
}

func (l *troubledListener) Close() error { close(l.done); return nil }

func TestAcceptErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := New(Options{Service: noService{}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		script := []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ECONNABORTED, nil, nil, syscall.EMFILE}
		for range 20 {
			script = append(script, syscall.ENOMEM)
		}
		script = append(script, nil)
		begin := time.Now()
		served := make(chan error, 1)
		go func() { served <- s.Serve(t.Context(), &troubledListener{script: script, done: make(chan struct{})}) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "cannot accept"); n != 2 {
			t.Errorf("%d lines about two runs of errors:\n%s", n, log.String())
		}
		if n := strings.Count(log.String(), "accepting connections again"); n != 2 {
			t.Errorf("%d lines about their ends:\n%s", n, log.String())
		}
		if d := time.Since(begin); d < time.Minute {
			t.Errorf("server ended after %v", d)
		}
	})
}

// The pause grows to a second and is interrupted by shutdown.
func TestAcceptPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var trouble acceptTrouble
		log := slog.New(slog.DiscardHandler)
		stop := make(chan struct{})
		var last time.Duration
		for range 12 {
			begin := time.Now()
			trouble.pause(log, syscall.EMFILE, nil, stop)
			d := time.Since(begin)
			if d < last || d > maxAcceptPause {
				t.Errorf("pause of %v after %v", d, last)
			}
			last = d
		}
		if last != maxAcceptPause {
			t.Errorf("last pause is %v", last)
		}
		close(stop)
		begin := time.Now()
		trouble.pause(log, syscall.EMFILE, nil, stop)
		if d := time.Since(begin); d != 0 {
			t.Errorf("paused %v after stop", d)
		}
	})
}

func TestExceptionTypes(t *testing.T) {
	if got := exception(conmon.ErrShuttingDown).Error(); got != conmon.ErrShuttingDown.Error() {
		t.Errorf("text %q", got)
	}
}

// Reading does not allocate what a header merely announces.
func TestReadMessageAllocation(t *testing.T) {
	head := []byte{0, 0, 0, 0, 0, 0, 0x20, 0} // 16 MiB
	got := testing.AllocsPerRun(10, func() { _, _ = readMessage(strings.NewReader(string(head))) })
	if got > 10 {
		t.Errorf("%v allocations", got)
	}
	result := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			if _, err := readMessage(strings.NewReader(string(head))); !errors.Is(err, io.ErrUnexpectedEOF) {
				b.Fatal(err)
			}
		}
	})
	if n := result.AllocedBytesPerOp(); n > 2*firstRead {
		t.Errorf("%d bytes allocated for a header", n)
	}
}

// The beginning and the end of a connection, and the end of a call, are told.
func TestActivity(t *testing.T) {
	told := make(chan struct{}, 100)
	s := New(Options{Service: noService{}, Activity: func() { told <- struct{}{} }})
	client, end := net.Pipe()
	s.start(end)
	<-told
	client.Close()
	select {
	case <-told:
	case <-time.After(20 * time.Second):
		t.Fatal("the end is not told")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
