package output

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

func collect(t *testing.T, c *Collector) []byte {
	t.Helper()
	b := make([]byte, c.Len())
	if n := c.CopyTo(b); n != len(b) {
		t.Fatalf("copied %d of %d bytes", n, len(b))
	}
	return b
}

func TestCollectorKeepsBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, sizes := range [][]int{
		{}, {1}, {0, 1, 0}, {firstBlock}, {firstBlock + 1}, {1, firstBlock, 1}, {blockSize}, {3*blockSize + 1},
		{firstBlock, blockSize, blockSize, 1}, {5, blockSize, 7, 2 * blockSize},
	} {
		budget := NewBudget(64 << 20)
		c := NewCollector(budget.Open(), 10*blockSize)
		var want []byte
		for _, size := range sizes {
			chunk := make([]byte, size)
			for i := range chunk {
				chunk[i] = byte(r.Uint32())
			}
			if err := c.WriteChunk(time.Time{}, chunk, nil); err != nil {
				t.Fatal(err)
			}
			want = append(want, chunk...)
		}
		if got := collect(t, c); !bytes.Equal(got, want) {
			t.Errorf("sizes %v: bytes differ", sizes)
		}
		if c.Truncated() {
			t.Errorf("sizes %v: truncated", sizes)
		}
		c.Release()
		c.Release()
		if budget.Used() != 0 || c.Len() != 0 {
			t.Errorf("sizes %v: %d bytes still used", sizes, budget.Used())
		}
		if err := c.WriteChunk(time.Time{}, []byte("x"), nil); !errors.Is(err, errStopped) {
			t.Errorf("write after release: %v", err)
		}
	}
}

func TestCollectorFillsTheLimitExactly(t *testing.T) {
	for _, limit := range []int{1, firstBlock - 1, firstBlock + 1, 2*blockSize + 3} {
		c := NewCollector(NewBudget(64<<20).Open(), limit)
		data := bytes.Repeat([]byte("0123456789"), limit/10+2)
		for chunk := range chunks(data, 777) {
			if err := c.WriteChunk(time.Time{}, chunk, nil); err != nil {
				t.Fatal(err)
			}
		}
		if got := collect(t, c); !bytes.Equal(got, data[:limit]) {
			t.Errorf("limit %d: kept %d bytes", limit, len(got))
		}
		if !c.Truncated() {
			t.Errorf("limit %d: not marked as truncated", limit)
		}
		c.Release()
	}
}

func chunks(b []byte, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			k := min(n, len(b))
			if !yield(b[:k]) {
				return
			}
			b = b[k:]
		}
	}
}

// Twenty execs want more than the budget, on both streams: all end, and never more than the budget, a share of each and
// one exec's own limit is in use.
func TestBudgetIsSharedWithoutDeadlock(t *testing.T) {
	const limit = 4 * blockSize
	const each = 8 * blockSize
	const execs = 20
	budget := NewBudget(limit)
	var wg sync.WaitGroup
	for range execs {
		wg.Go(func() {
			account := budget.Open()
			var streams sync.WaitGroup
			var collectors [2]*Collector
			for i := range collectors {
				collectors[i] = NewCollector(account, each)
				streams.Go(func() {
					for range each / 1000 {
						if err := collectors[i].WriteChunk(time.Time{}, make([]byte, 1000), nil); err != nil {
							t.Error(err)
						}
						if used := budget.Used(); used > limit+2*each+execs*share {
							t.Errorf("%d bytes in use", used)
						}
					}
				})
			}
			streams.Wait()
			for _, c := range collectors {
				c.Release()
			}
		})
	}
	wg.Wait()
	if budget.Used() != 0 || budget.excess != nil || len(budget.waiting) != 0 {
		t.Errorf("left: %d used, %d waiting", budget.Used(), len(budget.waiting))
	}
}

// exhausted returns a budget that is used up and has been exceeded.
func exhausted(t *testing.T) (b *Budget, large, larger *Account) {
	t.Helper()
	b = NewBudget(2 * share)
	large, larger = b.Open(), b.Open()
	for _, a := range []*Account{large, larger} {
		if err := a.take(2 * share); err != nil {
			t.Fatal(err)
		}
	}
	if b.excess != larger {
		t.Fatal("the budget has not been exceeded")
	}
	return b, large, larger
}

func TestStopWakesAWaitingCollector(t *testing.T) {
	budget, large, larger := exhausted(t)
	waiting := budget.Open()
	if err := waiting.take(share); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	go func() {
		failed <- NewCollector(waiting, blockSize).WriteChunk(time.Time{}, make([]byte, blockSize), nil)
	}()
	waiting.Stop()
	if err := <-failed; !errors.Is(err, errStopped) {
		t.Fatalf("got %v", err)
	}
	waiting.give(share)
	large.give(2 * share)
	larger.give(2 * share)
	if budget.Used() != 0 {
		t.Errorf("%d bytes in use", budget.Used())
	}
}

// A block for each stream is there whatever the others use, and all that a command left when it ended.
func TestShareAndEndDoNotWait(t *testing.T) {
	budget, _, _ := exhausted(t)
	small := budget.Open()
	for range 2 {
		c := NewCollector(small, Max)
		for _, n := range []int{100, blockSize} {
			if err := c.WriteChunk(time.Time{}, make([]byte, n), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := NewCollector(small, Max)
	written := make(chan error)
	go func() { written <- c.WriteChunk(time.Time{}, make([]byte, 10*blockSize), nil) }()
	small.End()
	if err := <-written; err != nil || c.Len() != 10*blockSize {
		t.Errorf("%d bytes, %v", c.Len(), err)
	}
}

// A command that has exceeded the budget and prints nothing any more, but does not end, keeps nobody from it.
func TestExcessIsTakenBack(t *testing.T) {
	budget, _, _ := exhausted(t)
	a := budget.Open()
	if err := a.take(3 * share); err != nil {
		t.Fatal(err)
	}
	if budget.excess != a {
		t.Error("somebody else may exceed the budget")
	}
}
