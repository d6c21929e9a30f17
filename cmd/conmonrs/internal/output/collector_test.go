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

// Twenty execs want more than the budget, on both streams: all end, and never more than the budget and one exec's own
// limit is in use.
func TestBudgetIsSharedWithoutDeadlock(t *testing.T) {
	const limit = 4 * blockSize
	const each = 3 * blockSize
	budget := NewBudget(limit)
	var wg sync.WaitGroup
	for range 20 {
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
						if used := budget.Used(); used > limit+2*each+2*blockSize {
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

func TestStopWakesAWaitingCollector(t *testing.T) {
	budget := NewBudget(blockSize)
	first, second, third := budget.Open(), budget.Open(), budget.Open()
	for _, a := range []*Account{first, second} { // second exceeds the budget
		if err := a.take(blockSize); err != nil {
			t.Fatal(err)
		}
	}
	failed := make(chan error)
	go func() { failed <- NewCollector(third, blockSize).WriteChunk(time.Time{}, make([]byte, blockSize), nil) }()
	third.Stop()
	if err := <-failed; !errors.Is(err, errStopped) {
		t.Fatalf("got %v", err)
	}
	first.give(blockSize)
	second.give(blockSize)
	if budget.Used() != 0 {
		t.Errorf("%d bytes in use", budget.Used())
	}
}
