package oom

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// settle is how long the container's first process is given to be seen dying: the counter rises before the signal
	// is sent.
	settle = 10 * time.Millisecond
	// passedOn is how long a shell may take to pass on that its child was killed.
	passedOn = time.Second
	// reportPause is the least time between two reports of one container.
	reportPause = time.Second
	// killedStatus is 128 + SIGKILL.
	killedStatus = 137
)

// Version 1 is looked at again after an event, which comes before the kill, with pauses that grow.
const (
	firstLook = time.Millisecond
	lastLook  = 500 * time.Millisecond
)

// ErrNoController says that nobody counts in a group: the memory controller is not enabled for it.
var ErrNoController = errors.New("no memory controller")

// Poll registers a descriptor, which stays the caller's. After each call of arm, ready is called once when it can be read,
// or, with priority, when what it can be read from has changed (POLLPRI of poll(2)); cancel ends that.
type Poll func(fd int, priority bool, ready func()) (arm func() error, cancel func())

// Group is the memory control group of a container.
type Group struct {
	Dir     string // absolute path of its directory
	Unified bool   // it is in the unified hierarchy
}

// Limit is whose limit was hit.
type Limit string

// The limits. LimitPod is that of the group above the container's, LimitNode any above that and the memory itself.
const (
	LimitUnknown   Limit = ""
	LimitContainer Limit = "container"
	LimitPod       Limit = "pod"
	LimitNode      Limit = "node"
)

// Kill describes processes of one container that the OOM killer has killed.
type Kill struct {
	Count int64 // since the last Kill
	Limit Limit
	// Victim is the name of the last one, and VictimPID its pid, where the kernel's log has them.
	Victim    string
	VictimPID int
}

// Verdict is what is known at the end of a container.
type Verdict struct {
	// Killed: the OOM killer ended the container.
	Killed bool
	// Kill is valid if Killed.
	Kill Kill

	container *Container
	passedOn  bool // it ended by itself
}

// Watcher watches the containers of a pod. It has no goroutine, and no descriptor while there is no container.
type Watcher struct {
	poll Poll

	mu      sync.Mutex
	parents map[string]*parent // by directory
}

// parent is the group above those of containers.
type parent struct {
	dir       string
	children  map[*Container]struct{}
	accounted int64     // kills that were seen in groups of containers
	hits      int64     // how often its own limit was hit, when last looked at
	hit       time.Time // when that was seen to rise
}

// New returns a Watcher that hears of its descriptors through poll. Functions given to poll do not block.
func New(poll Poll) *Watcher { return &Watcher{poll: poll, parents: make(map[string]*parent)} }

// Container is one container that is watched.
type Container struct {
	w      *Watcher
	pid    int
	group  Group
	onKill func(Kill)
	source source
	parent *parent
	base   int64 // kills at the start
	// unexplained is how many kills the group above had counted at the start that nobody accounts for.
	unexplained int64
	begin       time.Duration // on the clock of the kernel's log, not later than Add

	// Guarded by w.mu.
	kills   int64       // last known
	hits    int64       // of the group's limit, last known
	pending int64       // kills of which it is not decided whom they hit
	dying   bool        // the first process was found dying after a kill
	recent  time.Time   // of the last kill that the first process survived
	timer   *time.Timer // decides; nil if nothing is pending
	untold  Kill        // what onKill has not been told yet
	teller  *time.Timer // tells it; nil if the next kill is told at once
	later   *time.Timer // looks again, after pause; nil until the first time
	pause   time.Duration
	closed  bool
}

// source is where kills in a group are counted.
type source interface {
	// kills returns how many processes were killed. It fails when the group has gone.
	kills() (int64, error)
	// hits returns how often the limit of the group, or of one below, was hit; 0 when it has gone.
	hits() int64
	close()
}

// Add begins to watch a container whose first process is pid, before that runs anything of the user's. onKill is
// called, on a goroutine of its own, for kills that the first process survives, at most once a second, and perhaps once
// more after the end of the watch. Without a memory controller the error is ErrNoController.
func (w *Watcher) Add(group Group, pid int, onKill func(Kill)) (*Container, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &Container{w: w, pid: pid, group: group, onKill: onKill, begin: logTime()}
	var err error
	if group.Unified {
		c.source, err = w.watchUnified(c)
	} else {
		c.source, err = w.watchV1(c)
	}
	if err == nil {
		if c.kills, err = c.source.kills(); err != nil {
			c.source.close()
		}
	}
	if err != nil {
		c.closed = true // for a callback that waits for the lock
		return nil, fmt.Errorf("watch %q for OOM kills: %w", group.Dir, err)
	}
	c.base = c.kills
	c.hits = c.source.hits()
	c.parent = w.parentOf(group)
	c.parent.children[c] = struct{}{}
	c.unexplained = c.parent.kills(group) - c.parent.accounted
	return c, nil
}

func (w *Watcher) parentOf(group Group) *parent {
	dir := filepath.Dir(group.Dir)
	p := w.parents[dir]
	if p == nil {
		p = &parent{dir: dir, children: make(map[*Container]struct{})}
		p.hits = p.limitHits(group)
		w.parents[dir] = p
	}
	return p
}

// lookLocked reads the counters. It is called when they may have changed.
func (c *Container) lookLocked() {
	if c.closed {
		return
	}
	kills, err := c.source.kills()
	if err != nil || kills <= c.kills {
		return // the group has gone, or nobody was killed
	}
	c.pending += kills - c.kills
	c.parent.accounted += kills - c.kills
	c.kills = kills
	c.dying = c.dying || isDying(c.pid)
	if !c.dying && c.timer == nil {
		c.timer = time.AfterFunc(settle, c.decide)
	}
}

// decide runs a moment after a rise at which the first process seemed to be well.
func (c *Container) decide() {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.timer = nil
	if c.closed || c.pending == 0 {
		return
	}
	if c.dying = isDying(c.pid); !c.dying {
		c.reportLocked()
	}
}

// reportLocked tells of kills that the first process has survived: of the first one at once, of more together and later,
// because the kernel's log is read for each report.
func (c *Container) reportLocked() {
	k := c.killLocked()
	c.recent = time.Now()
	c.untold.Count += k.Count
	c.untold.Limit = k.Limit
	if c.teller == nil {
		c.tellLocked()
		c.teller = time.AfterFunc(reportPause, c.tellMore)
	}
}

func (c *Container) tellMore() {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	switch {
	case c.closed: // which has told the rest
	case c.untold.Count == 0:
		c.teller = nil
	default:
		c.tellLocked()
		c.teller.Reset(reportPause)
	}
}

func (c *Container) tellLocked() {
	k := c.untold
	c.untold = Kill{}
	go func() {
		c.explain(&k)
		c.onKill(k)
	}()
}

// killLocked takes what is pending.
func (c *Container) killLocked() Kill {
	k := Kill{Count: c.pending, Limit: c.limitLocked()}
	c.pending = 0
	return k
}

// lookLaterLocked looks again and again for a while.
func (c *Container) lookLaterLocked() {
	c.pause = firstLook
	if c.later == nil {
		c.later = time.AfterFunc(c.pause, c.lookAgain)
		return
	}
	c.later.Reset(c.pause)
}

func (c *Container) lookAgain() {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if c.closed {
		return
	}
	c.lookLocked()
	if c.pause *= 2; c.pause <= lastLook {
		c.later.Reset(c.pause)
	}
}

// Exited looks for the last time: the first process has ended with an exit status or, if sig is not 0, was killed. It
// ends the watch. A nil Container, of which nothing is known, has not been killed.
func (c *Container) Exited(status int, sig unix.Signal) Verdict {
	if c == nil {
		return Verdict{}
	}
	e := c.evidence()
	killed := false
	switch {
	case sig == unix.SIGKILL && (e.pending || e.recent || e.vanished):
		// Somebody else may have killed it, and another process or another container may have been the victim.
		hit, known := c.isVictim(e.kills)
		killed = hit || !known && (e.pending || e.vanished)
	case sig == 0 && status == killedStatus && (e.pending || e.recent):
		killed = true
	case sig == 0 && status == killedStatus && e.vanished:
		hit, known := c.hasVictim()
		killed = hit || !known
	}
	v := c.end(killed)
	v.passedOn = sig == 0
	return v
}

// evidence is what the counters say at the end.
type evidence struct {
	pending  bool  // processes were killed of which it has not been decided whether the first was one
	recent   bool  // a kill that the first process seemed to have survived is not long ago
	vanished bool  // the group has gone, and the one above counted a kill that nobody accounts for
	kills    int64 // in the group since Add, so far as they were seen
}

func (c *Container) evidence() evidence {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.lookLocked()
	e := evidence{pending: c.dying || c.pending > 0, recent: time.Since(c.recent) < passedOn, kills: c.kills - c.base}
	if !e.pending {
		e.vanished = c.vanishedLocked()
	}
	return e
}

func (c *Container) vanishedLocked() bool {
	if _, err := c.source.kills(); err == nil {
		return false
	}
	for sibling := range c.parent.children { // theirs may not have been seen yet
		sibling.lookLocked()
	}
	return c.parent.kills(c.group)-c.parent.accounted > c.unexplained
}

// end gives the verdict.
func (c *Container) end(killed bool) Verdict {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	v := Verdict{Killed: killed, container: c}
	switch {
	case killed:
		if c.pending == 0 && time.Since(c.recent) >= passedOn { // known from the group above
			c.parent.accounted++
		}
		v.Kill = c.killLocked()
		v.Kill.Count = max(v.Kill.Count, 1)
	case c.pending > 0:
		c.reportLocked()
	}
	c.closeLocked()
	return v
}

// Explain looks for the victim in the kernel's log, which takes some milliseconds.
func (v *Verdict) Explain() {
	switch {
	case !v.Killed:
	case v.passedOn:
		v.container.explain(&v.Kill)
	default:
		v.container.explainFirst(&v.Kill)
	}
}

// Close ends the watch of a container whose end is of no interest. It is idempotent; c may be nil.
func (c *Container) Close() {
	if c == nil {
		return
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.closeLocked()
}

func (c *Container) closeLocked() {
	if c.closed {
		return
	}
	c.closed = true
	if c.untold.Count > 0 {
		c.tellLocked()
	}
	for _, t := range []*time.Timer{c.timer, c.later, c.teller} {
		if t != nil {
			t.Stop()
		}
	}
	c.source.close()
	if delete(c.parent.children, c); len(c.parent.children) == 0 {
		delete(c.w.parents, c.parent.dir)
	}
}
