package pump

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestEveryByteInOrder(t *testing.T) {
	for _, tc := range []struct {
		name      string
		chunk     int // greatest write
		total     int
		immediate bool
	}{
		{"one byte", 1, 1, false},
		{"lines", 200, 1 << 20, false},
		{"lines, watched", 200, 1 << 20, true},
		{"blocks", 300 << 10, 16 << 20, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			noLeaks(t)
			random := rand.New(rand.NewPCG(1, 2))
			want := make([]byte, tc.total)
			for i := range want {
				want[i] = byte(random.Uint32())
			}
			r, w := newPipe(t)
			var sink collector
			end := make(chan error, 2)
			s := newWatcher(t).start(t, r, Options{
				Pool: newPool(t, 2), Sinks: []Sink{&sink},
				Immediate: func() bool { return tc.immediate },
				OnEnd:     func(err error) { end <- err },
			})
			for rest := want; len(rest) > 0; {
				n := min(1+random.IntN(tc.chunk), len(rest))
				_, err := w.Write(rest[:n])
				check(t, err)
				rest = rest[n:]
			}
			check(t, w.Close())
			check(t, <-end)
			if !bytes.Equal(sink.data, want) {
				t.Errorf("got %d bytes, want %d, or they differ", len(sink.data), len(want))
			}
			for i := 1; i < len(sink.stamps); i++ {
				if sink.stamps[i].Before(sink.stamps[i-1]) {
					t.Fatal("time went back")
				}
			}
			if got := s.State(); got != (State{FD: -1, Read: uint64(tc.total), Handed: uint64(tc.total), Ended: true}) {
				t.Errorf("state %+v", got)
			}
			check(t, s.Close())
			if len(end) != 0 {
				t.Error("OnEnd was called twice")
			}
		})
	}
}

func TestFirstLineIsImmediateAndRunsCoalesce(t *testing.T) {
	noLeaks(t)
	r, w := newPipe(t)
	var sink collector
	newWatcher(t).start(t, r, Options{Pool: newPool(t, 2), Sinks: []Sink{&sink}})
	const lines = 20000
	line := []byte(strings.Repeat("x", 79) + "\n")
	for range lines {
		_, err := w.Write(line)
		check(t, err)
	}
	eventually(t, "all lines arrive", func() bool { return sink.len() == lines*len(line) })
	if sink.chunks > lines/4 {
		t.Errorf("%d chunks for %d lines", sink.chunks, lines)
	}
	t.Logf("%d lines in %d chunks", lines, sink.chunks)
}

func TestSinksInOrderWithOneStamp(t *testing.T) {
	noLeaks(t)
	r, w := newPipe(t)
	var order []string
	var stamps []time.Time
	done := make(chan struct{})
	sink := func(name string) Sink {
		return sinkFunc(func(at time.Time, data []byte) error {
			order = append(order, name)
			stamps = append(stamps, at)
			if name == "c" {
				close(done)
			}
			return nil
		})
	}
	newWatcher(t).start(t, r, Options{Pool: newPool(t, 1), Sinks: []Sink{sink("a"), sink("b"), sink("c")}})
	_, err := w.WriteString("hello")
	check(t, err)
	<-done
	if got := strings.Join(order, ""); got != "abc" {
		t.Errorf("order %q", got)
	}
	if !stamps[0].Equal(stamps[1]) || !stamps[0].Equal(stamps[2]) {
		t.Errorf("stamps differ: %v", stamps)
	}
}

type sinkFunc func(at time.Time, data []byte) error

func (f sinkFunc) WriteChunk(at time.Time, data, _ []byte) error { return f(at, data) }

func TestStampsNeverGoBack(t *testing.T) {
	var sink collector
	s := New(-1, Options{Sinks: []Sink{&sink}})
	now := time.Now()
	for _, d := range []time.Duration{0, -time.Hour, time.Second, 0} { // the clock is set back
		s.deliver(now.Add(d), []byte("x"), make([]byte, 0, scratchSize))
	}
	for i, want := range []time.Duration{0, 0, time.Second, time.Second} {
		if !sink.stamps[i].Equal(now.Add(want)) {
			t.Errorf("stamp %d is %v, want %v", i, sink.stamps[i], now.Add(want))
		}
	}
}

func TestFailingSinkStopsNobody(t *testing.T) {
	noLeaks(t)
	r, w := newPipe(t)
	bad, good := &collector{err: errors.New("disk full")}, &collector{}
	var reports atomic.Int32
	newWatcher(t).start(t, r, Options{
		Pool: newPool(t, 1), Sinks: []Sink{bad, good},
		OnSinkError: func(i int, err error) {
			if i != 0 || err == nil {
				t.Errorf("sink %d: %v", i, err)
			}
			reports.Add(1)
		},
	})
	for i := range 10 {
		_, err := w.WriteString("line\n")
		check(t, err)
		eventually(t, "chunk arrives", func() bool { return good.len() == 5*(i+1) })
	}
	if bad.len() != good.len() {
		t.Errorf("failing sink got %d bytes, want %d", bad.len(), good.len())
	}
	if n := reports.Load(); n != 1 {
		t.Errorf("%d reports of one trouble", n)
	}
}

// One sink that is stuck, even two that hold the whole pool, must not keep
// the others from anything.
func TestStuckSinksBesideFastOnes(t *testing.T) {
	noLeaks(t)
	pool, watch := newPool(t, 2), newWatcher(t)
	stuck := newGate()
	for range 2 {
		r, w := newPipe(t)
		watch.start(t, r, Options{Pool: pool, Sinks: []Sink{stuck}})
		_, err := w.WriteString("stuck")
		check(t, err)
		<-stuck.entered
	}
	var group sync.WaitGroup
	began := time.Now()
	for range 9 {
		r, w := newPipe(t)
		var got atomic.Int64
		end := make(chan error, 1)
		watch.start(t, r, Options{
			Pool:  pool,
			Sinks: []Sink{sinkFunc(func(_ time.Time, p []byte) error { got.Add(int64(len(p))); return nil })},
			OnEnd: func(err error) { end <- err },
		})
		group.Go(func() {
			block := make([]byte, 100<<10)
			for range 20 {
				if _, err := w.Write(block); err != nil {
					t.Error(err)
				}
			}
			w.Close()
			if err := <-end; err != nil || got.Load() != 20*100<<10 {
				t.Errorf("end %v after %d bytes", err, got.Load())
			}
		})
	}
	group.Wait()
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("fast streams took %v", d)
	}
	if st := pool.Stats(); st.InUse != 2 || st.Overflow != 0 {
		t.Errorf("pool %+v, want the two stuck ones only", st)
	}
	close(stuck.open)
}

func TestClose(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		noLeaks(t)
		r, w := newPipe(t)
		ends := make(chan error, 2)
		s := newWatcher(t).start(t, r, Options{Pool: newPool(t, 1), OnEnd: func(err error) { ends <- err }})
		check(t, s.Close())
		check(t, s.Close())
		if err := <-ends; !errors.Is(err, os.ErrClosed) {
			t.Errorf("OnEnd(%v)", err)
		}
		if _, err := w.Write([]byte("x")); !errors.Is(err, unix.EPIPE) {
			t.Errorf("write after close: %v", err)
		}
		s.Ready() // harmless
		check(t, s.Drain(t.Context()))
	})
	t.Run("stuck in a sink", func(t *testing.T) {
		noLeaks(t)
		r, w := newPipe(t)
		stuck := newGate()
		var unwatched atomic.Int32
		ends := make(chan error, 2)
		s := newWatcher(t).start(t, r, Options{
			Pool: newPool(t, 1), Sinks: []Sink{stuck},
			Unwatch: func() { unwatched.Add(1) }, OnEnd: func(err error) { ends <- err },
		})
		_, err := w.WriteString("x")
		check(t, err)
		<-stuck.entered
		if err := s.Close(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("close: %v", err)
		}
		if _, err := w.Write([]byte("x")); !errors.Is(err, unix.EPIPE) {
			t.Errorf("descriptor is open although nobody reads it: %v", err)
		}
		close(stuck.open)
		if err := <-ends; !errors.Is(err, os.ErrClosed) {
			t.Errorf("OnEnd(%v)", err)
		}
		if n := unwatched.Load(); n != 1 {
			t.Errorf("Unwatch was called %d times", n)
		}
	})
	t.Run("while busy", func(t *testing.T) {
		noLeaks(t)
		watch, pool := newWatcher(t), newPool(t, 2)
		for range 200 {
			r, w := newPipe(t)
			ends := make(chan error, 3)
			s := watch.start(t, r, Options{Pool: pool, Sinks: []Sink{&collector{}}, OnEnd: func(err error) { ends <- err }})
			go func() {
				for {
					if _, err := w.WriteString("line\n"); err != nil {
						return
					}
				}
			}()
			eventually(t, "first bytes", func() bool { return s.State().Handed > 0 })
			var group sync.WaitGroup
			for range 3 {
				group.Go(func() {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
			if err := <-ends; !errors.Is(err, os.ErrClosed) {
				t.Errorf("OnEnd(%v)", err)
			}
			if len(ends) != 0 {
				t.Error("OnEnd was called twice")
			}
		}
	})
}

func TestRearmFailureIsNotTheEnd(t *testing.T) {
	noLeaks(t)
	r, w := newPipe(t)
	var sink collector
	s := New(r, Options{Pool: newPool(t, 1), Sinks: []Sink{&sink}, Rearm: func() error { return unix.ENOMEM }})
	t.Cleanup(func() { s.Close() })
	s.Ready()
	for i := range 3 {
		_, err := w.WriteString("x")
		check(t, err)
		eventually(t, "byte arrives", func() bool { return sink.len() == i+1 })
	}
}

// A child may set its end to non-blocking: that is a different open file.
func TestChildSetsNonblock(t *testing.T) {
	noLeaks(t)
	r, w := newPipe(t)
	check(t, control(w, func(fd int) error { return unix.SetNonblock(fd, true) }))
	var sink collector
	newWatcher(t).start(t, r, Options{Pool: newPool(t, 1), Sinks: []Sink{&sink}})
	block, sent := make([]byte, 300<<10), 0
	check(t, control(w, func(fd int) error {
		for sent < len(block) {
			n, err := unix.Write(fd, block[sent:])
			if err != nil && err != unix.EAGAIN {
				return err
			}
			sent += max(n, 0)
		}
		return nil
	}))
	eventually(t, "all arrives", func() bool { return sink.len() == len(block) })
}

func control(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := raw.Control(func(fd uintptr) { result = do(int(fd)) }); err != nil {
		return err
	}
	return result
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	for _, tc := range []struct {
		name  string
		size  int
		times int
	}{
		{"full reads", 64 << 10, 1},
		{"short reads that coalesce", 80, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, w := newPipe(t)
			got := make(chan int, 64)
			s := New(r, Options{
				Pool:  newPool(t, 2),
				Sinks: []Sink{sinkFunc(func(_ time.Time, p []byte) error { got <- len(p); return nil })},
				Rearm: func() error { return nil },
			})
			t.Cleanup(func() { s.Close() })
			block := make([]byte, tc.size)
			allocs := testing.AllocsPerRun(200, func() {
				for range tc.times {
					if _, err := w.Write(block); err != nil {
						t.Fatal(err)
					}
					s.Ready()
					for n := 0; n < tc.size; n += <-got {
					}
				}
			})
			if allocs >= 1 {
				t.Errorf("%v allocations per read", allocs)
			}
		})
	}
}

func TestReadyWhileRunning(t *testing.T) {
	noLeaks(t)
	r, w := newPipe(t)
	sink := newGate()
	s := newWatcher(t).start(t, r, Options{Pool: newPool(t, 1), Sinks: []Sink{sink}})
	_, err := w.WriteString("x")
	check(t, err)
	<-sink.entered
	for range 5 {
		s.Ready() // late or double reports
	}
	close(sink.open)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	check(t, s.Drain(ctx))
	_, err = w.WriteString("y")
	check(t, err)
	<-sink.entered
}
