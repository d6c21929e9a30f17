// Package proctree finds and ends processes: all that one process has started, and all in the control group of a
// container. It reads proc(5) and cgroups(7), and signals through pidfds, so that a reused pid is never hit.
package proctree

import (
	"bytes"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// killRounds and killPause bound how long Kill looks for processes that were forked while it looked.
const (
	killRounds = 50
	killPause  = 5 * time.Millisecond
)

// A process with only a marker to be known by may not have it yet: a runtime's child gets it by execve(2). So nothing
// has to be found for a while, patience, before it is taken for nothing. Each look costs a scan of all processes.
const (
	patience      = 100 * time.Millisecond
	patiencePause = 20 * time.Millisecond
)

// Target says which processes Kill ends.
type Target struct {
	// Root is a process, 0 for none. All that it started belongs to it.
	Root int
	// Marker is a KEY=VALUE word; a process with it in its environment belongs to it. Empty for none.
	Marker string
	// Within bounds what is touched to some control groups.
	Within Group
}

// Kill sends SIGKILL to the processes of a target, and returns when none is left alive, or after a
// bounded time. Found are: descendants of the root and of whatever was found before, members of their sessions and
// process groups where a leader was found or the root's has gone, and processes with the marker, whoever their parent
// is. What escapes is a process that has left its parents, session and group and is not marked.
//
// This process is never killed, nor is anything for being in its session or process group.
func Kill(target Target) {
	t := newTree(target)
	wait := time.Duration(0)
	if len(t.marker) > 0 && len(t.members) == 0 && target.Within != nowhere {
		wait = patience
	}
	empty := time.Duration(0)
	for range killRounds {
		pause := killPause // a killed process needs a moment to go
		if t.round() > 0 {
			empty = 0
		} else {
			if empty >= wait {
				return
			}
			pause = patiencePause
			empty += pause
		}
		time.Sleep(pause)
	}
}

type tree struct {
	reader
	target Target
	marker []byte
	self   proc
	procs  []proc
	// session and group of the root, 0 if somebody else leads them. crun starts a process in the session of one of its
	// own, which is gone by then: nobody but the process and its children can be in it.
	session, group int
	// members were found at some time: their children, sessions and groups belong to the tree. They map the pid to the
	// start, which tells a process from a later one of that pid.
	members map[int]uint64
	// refused were looked at and did not have the marker.
	refused map[int]look
}

// look is what a process was when its environment was read. That costs more than anything else of a round.
type look struct {
	start uint64
	env   [2]uint64
}

func newTree(target Target) *tree {
	t := &tree{
		target: target, marker: []byte(target.Marker), members: make(map[int]uint64), refused: make(map[int]look),
	}
	t.self, _ = t.stat(os.Getpid())
	if target.Root <= 1 || target.Root == os.Getpid() {
		return t
	}
	if p, ok := t.stat(target.Root); ok {
		t.members[target.Root] = p.start
		if p.session != t.self.session {
			t.session = t.orphaned(p.session)
		}
		if p.group != t.self.group {
			t.group = t.orphaned(p.group)
		}
	}
	return t
}

// round kills what it finds and returns how many were alive.
func (t *tree) round() (alive int) {
	t.procs = t.list(t.procs[:0])
	for i := range t.procs {
		if start, ok := t.members[t.procs[i].pid]; ok && start != t.procs[i].start {
			delete(t.members, t.procs[i].pid)
		}
	}
	for found := true; found; { // until no process is a child of one found in this round
		found = false
		for i := range t.procs {
			if p := &t.procs[i]; p.pid != t.self.pid && !t.has(p.pid) && t.belongs(p) {
				t.members[p.pid] = p.start
				found = true
			}
		}
	}
	for i := range t.procs {
		if p := &t.procs[i]; t.has(p.pid) && !p.zombie && t.inside(p.pid) {
			alive++
			t.kill(p)
		}
	}
	return alive
}

// orphaned returns the number of a session or group whose leader has gone, else 0. That number is not given to a new
// process as long as there is a member.
func (t *tree) orphaned(id int) int {
	if leader, there := t.stat(id); id <= 1 || there && !leader.zombie {
		return 0
	}
	return id
}

func (t *tree) led(p *proc) bool {
	return p.session != 0 && p.session == t.session || p.group != 0 && p.group == t.group
}

func (t *tree) has(pid int) bool {
	_, ok := t.members[pid]
	return ok
}

func (t *tree) belongs(p *proc) bool {
	if t.has(p.ppid) || t.has(p.session) || t.has(p.group) || t.led(p) {
		return true
	}
	seen := look{p.start, p.env}
	if len(t.marker) == 0 || t.refused[p.pid] == seen || !t.inside(p.pid) {
		return false
	}
	if bytes.Contains(t.read(p.pid, "environ"), t.marker) {
		return true
	}
	t.refused[p.pid] = seen
	return false
}

func (t *tree) inside(pid int) bool {
	return t.target.Within == "" || t.target.Within.has(t.read(pid, "cgroup"))
}

// kill kills the process that was seen, not one that has its pid now.
func (t *tree) kill(p *proc) {
	fd, ok := openPidfd(p.pid)
	if !ok {
		return
	}
	if now, ok := t.stat(p.pid); ok && now.start == p.start {
		sendKill(p.pid, fd)
	}
	if fd >= 0 {
		unix.Close(fd)
	}
}

// openPidfd returns a pidfd of a process, which the caller closes, -1 where the kernel has none (before Linux 5.3).
// It is not ok if there is no such process or no descriptor left.
func openPidfd(pid int) (fd int, ok bool) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, errors.Is(err, unix.ENOSYS)
	}
	return fd, true
}

// sendKill sends SIGKILL by the pidfd, by the pid if that is -1.
func sendKill(pid, fd int) {
	if fd < 0 {
		_ = unix.Kill(pid, unix.SIGKILL)
		return
	}
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}
