package oom

import (
	"fmt"
	"os"
	"runtime"
	"testing"
)

// descriptors returns how many this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// collect reads the state of the memory without garbage, also that which finalizers held.
func collect(m *runtime.MemStats) {
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(m)
}

// An idle container costs two descriptors at most and little memory, and nothing of it is left afterwards.
func TestOOMIdleCost(t *testing.T) {
	const containers, bytesEach = 200, 4 << 10
	h := realHierarchy(t)
	w := New(unheard)
	var groups []Group
	for i := range containers {
		groups = append(groups, h.group(t, fmt.Sprint("c", i), 0))
	}
	all := make([]*Container, 0, containers)
	var before, after runtime.MemStats
	collect(&before) // and what earlier tests have left open
	goroutines, fds := runtime.NumGoroutine(), descriptors(t)
	for _, g := range groups {
		c, err := w.Add(g, os.Getpid(), nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	collect(&after)
	each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / containers
	t.Logf("%d bytes of heap for each of %d containers", each, containers)
	if each > bytesEach {
		t.Errorf("%d bytes of heap for each container", each)
	}
	if n := descriptors(t) - fds; n > 2*containers {
		t.Errorf("%d descriptors for %d containers", n, containers)
	}
	if n := runtime.NumGoroutine(); n != goroutines {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
	for _, c := range all {
		c.Close()
	}
	if n := descriptors(t); n != fds {
		t.Errorf("%d descriptors, %d before", n, fds)
	}
	w.checkEmpty(t)
}

// R075: near its limit a container changes its counters all the time. A look at which nobody was killed takes a small
// buffer for the file and no more in the unified hierarchy.
func TestOOMLookCost(t *testing.T) {
	h := realHierarchy(t)
	w := New(unheard)
	c, err := w.Add(h.group(t, "c", 0), os.Getpid(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	limit := 4.0
	if !h.unified {
		limit = 100 // there the groups below are listed
	}
	if n := testing.AllocsPerRun(1000, c.look); n > limit {
		t.Errorf("%v allocations for each look", n)
	}
}
