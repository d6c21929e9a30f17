package oom

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unheard is a Poll that never calls: nobody looks before the end.
func unheard(int, bool, func()) (arm func() error, cancel func()) {
	return func() error { return nil }, func() {}
}

// remove removes the group of a container whose process has been waited for.
func (g Group) remove(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); exists(g.Dir); time.Sleep(time.Millisecond) {
		if _ = os.Remove(g.Dir); time.Now().After(end) {
			t.Fatal("the group cannot be removed")
		}
	}
}

// Two containers in one group both hear of a kill there, so that the one that goes on is not blamed for it at its end.
func TestOOMSharedGroup(t *testing.T) {
	h := realHierarchy(t)
	for _, first := range []string{"idle", "hog"} { // the order in which they are added
		w := New(poll(t))
		g := h.group(t, "shared-"+first, memory)
		second := map[string]string{"idle": "hog", "hog": "idle"}[first]
		both := map[string]*container{first: runIn(t, w, g, first)}
		both[second] = runIn(t, w, g, second)
		both["hog"].start()
		if k := both["idle"].nextKill(); k.Count != 1 {
			t.Errorf("%s first: %+v", first, k)
		}
		if v := both["hog"].wait(); !v.Killed {
			t.Errorf("%s first: %+v", first, v)
		}
		_ = both["idle"].cmd.Process.Kill()
		if v := both["idle"].wait(); v.Killed {
			t.Errorf("%s first: the other one: %+v", first, v)
		}
		w.checkEmpty(t)
	}
}

// The group of a container that the engine killed has gone, and the kill that the group above counted is a sibling's that
// nobody has looked at yet.
func TestOOMGroupGoneSibling(t *testing.T) {
	h := realHierarchy(t)
	w := New(unheard)
	loud := runIn(t, w, h.group(t, "loud-sibling", memory), "hog")
	quietGroup := h.group(t, "quiet-sibling", memory)
	quiet := runIn(t, w, quietGroup, "idle")
	loud.start()
	if _, err := loud.cmd.Process.Wait(); err != nil {
		t.Fatal(err)
	}
	_ = quiet.cmd.Process.Kill()
	if _, err := quiet.cmd.Process.Wait(); err != nil {
		t.Fatal(err)
	}
	quietGroup.remove(t)
	if v := quiet.Exited(killedStatus, unix.SIGKILL); v.Killed {
		t.Errorf("the other one: %+v", v)
	}
	if v := loud.Exited(killedStatus, unix.SIGKILL); !v.Killed {
		t.Errorf("%+v", v)
	}
	w.checkEmpty(t)
}

// The limit of the pod is hit, and all its processes are to be killed together: it is the pod's limit for each container.
func TestOOMPodGroup(t *testing.T) {
	h := realHierarchy(t)
	if err := os.WriteFile(h.root+"/memory.oom.group", []byte("1"), 0); err != nil {
		t.Skip("no memory.oom.group in this hierarchy")
	}
	h.limit(t, h.root, memory)
	w := New(poll(t))
	var all []*container
	for i, role := range []string{"hog", "idle", "idle"} {
		all = append(all, runIn(t, w, h.group(t, fmt.Sprint("c", i), 0), role))
	}
	all[0].start()
	for _, explained := range []bool{false, true} {
		for i, c := range all {
			if explained == (i < 2) { // the last one with the counters alone
				continue
			}
			v := c.wait()
			if explained {
				v.Explain()
			}
			if !v.Killed || v.Kill.Limit != LimitPod {
				t.Errorf("container %d: %+v", i, v)
			}
		}
	}
	w.checkEmpty(t)
}

// The thread that a process began with has ended, and the others go on: the process is not dying.
func TestOOMWithoutFirstThread(t *testing.T) {
	h := realHierarchy(t)
	w := New(poll(t))
	c := runIn(t, w, h.group(t, "c", memory), "headless")
	c.start()
	if line, err := c.out.ReadString('\n'); err != nil || line != "signal: killed\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if k := c.nextKill(); k.Count != 1 {
		t.Errorf("%+v", k)
	}
	_ = c.cmd.Process.Kill()
	if v := c.wait(); v.Killed {
		t.Errorf("%+v", v)
	}
	w.checkEmpty(t)
}

// The signal came so late after the count that the first process seemed to survive. The kernel's log knows better.
func TestOOMLateSignal(t *testing.T) {
	if !kmsgReadable() {
		t.Skip("the kernel's log cannot be read")
	}
	h := realHierarchy(t)
	w := New(unheard)
	for _, role := range []string{"hog", "parent"} {
		c := runIn(t, w, h.group(t, role, memory), role)
		c.start()
		if role == "parent" {
			if line, err := c.out.ReadString('\n'); err != nil || line != "signal: killed\n" {
				t.Fatalf("%q, %v", line, err)
			}
			_ = c.cmd.Process.Kill()
		}
		if _, err := c.cmd.Process.Wait(); err != nil {
			t.Fatal(err)
		}
		c.misjudge()
		if k := c.nextKill(); k.Count != 1 {
			t.Errorf("%s: %+v", role, k)
		}
		if v := c.Exited(killedStatus, unix.SIGKILL); v.Killed != (role == "hog") || v.Killed && v.Kill.Count < 1 {
			t.Errorf("%s: %+v", role, v)
		}
	}
	w.checkEmpty(t)
}

// misjudge does what look and decide do if the first process seems to be well.
func (c *Container) misjudge() {
	c.look()
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.dying = false
	c.reportLocked()
}

// R071: one kill after the other, each with a neighbour that is killed by somebody else at about the same time.
func TestOOMManyInARow(t *testing.T) {
	h := realHierarchy(t)
	w := New(poll(t))
	for i := range 50 {
		loud := runIn(t, w, h.group(t, fmt.Sprint("l", i), memory), "hog")
		quiet := runIn(t, w, h.group(t, fmt.Sprint("q", i), memory), "idle")
		loud.start()
		killed := make(chan error, 1)
		go func() { killed <- quiet.cmd.Process.Kill() }()
		if v := loud.wait(); !v.Killed || v.Kill.Count != 1 {
			t.Errorf("round %d: %+v", i, v)
		}
		if err := <-killed; err != nil {
			t.Fatal(err)
		}
		if v := quiet.wait(); v.Killed {
			t.Errorf("round %d: the other one: %+v", i, v)
		}
		loud.group.remove(t)
		quiet.group.remove(t)
	}
	w.checkEmpty(t)
}

// look is what a change of the counters brings about.
func (c *Container) look() {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.lookLocked()
}
