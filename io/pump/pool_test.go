package pump

import (
	"sync"
	"testing"
	"time"
)

func TestPoolBoundAndOverflow(t *testing.T) {
	noLeaks(t)
	p := newPool(t, 2)
	var held []*buffers
	for i := range 4 {
		began := time.Now()
		b, err := p.get()
		check(t, err)
		if d := time.Since(began); (i >= 2) != (d >= starveAfter) {
			t.Errorf("pair %d after %v", i, d)
		}
		if b.overflow != (i >= 2) {
			t.Errorf("pair %d: overflow is %v", i, b.overflow)
		}
		held = append(held, b)
	}
	if got, want := p.Stats(), (PoolStats{InUse: 4, Overflow: 2, Mapped: 4}); got != want {
		t.Errorf("stats %+v, want %+v", got, want)
	}
	for _, b := range held {
		p.put(b)
	}
	if got, want := p.Stats(), (PoolStats{Mapped: 2}); got != want {
		t.Errorf("stats %+v, want %+v", got, want)
	}
}

func TestPoolHandsOver(t *testing.T) {
	noLeaks(t)
	p := newPool(t, 1)
	b, err := p.get()
	check(t, err)
	got := make(chan *buffers)
	go func() {
		b, err := p.get()
		if err != nil {
			t.Error(err)
		}
		got <- b
	}()
	eventually(t, "somebody waits", func() bool { return p.contended(b) })
	p.put(b)
	second := <-got
	p.put(second)
	if st := p.Stats(); st.InUse != 0 || st.Overflow != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestPoolUnderLoad(t *testing.T) {
	noLeaks(t)
	p := newPool(t, 2)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 2000 {
				b, err := p.get()
				if err != nil {
					t.Error(err)
					return
				}
				b.read[0], b.scratch = 1, append(b.scratch, 1)[:0]
				p.put(b)
			}
		})
	}
	group.Wait()
	if st := p.Stats(); st.InUse != 0 || st.Overflow != 0 || p.waiting != 0 || len(p.handoff) != 0 {
		t.Errorf("stats %+v, %d waiting, %d handed over", st, p.waiting, len(p.handoff))
	}
}

func TestIdlePoolHasNoPagesAndNoTimer(t *testing.T) {
	noLeaks(t)
	p := newPool(t, 2)
	b, err := p.get()
	check(t, err)
	b.read[0] = 1
	p.put(b)
	if st := p.Stats(); st.Mapped != 1 {
		t.Fatalf("stats %+v", st)
	}
	eventually(t, "pages are given back", func() bool { return p.Stats().Mapped == 0 })
	p.mu.Lock()
	set := p.trimSet
	p.mu.Unlock()
	if set || p.trim.Stop() {
		t.Error("an idle pool has a timer")
	}
	b, err = p.get()
	check(t, err)
	if b.read[0] != 0 {
		t.Error("pages were kept")
	}
	p.put(b)
}
