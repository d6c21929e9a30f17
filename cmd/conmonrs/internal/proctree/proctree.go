// Package proctree finds and ends processes: all that one process has started, and all in the control group of a
// container. It reads proc(5) and cgroups(7), and signals through pidfds, so that a reused pid is never hit.
package proctree

import (
	"bytes"
	"os"
	"time"
)

// killRounds and killPause bound how long Kill looks for processes that were forked while it looked. Without a root it
// looks for at least markerWait: whoever is to have the marker may be about to get it, by execve(2).
const (
	killRounds = 50
	killPause  = 5 * time.Millisecond
	markerWait = 100 * time.Millisecond
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
// bounded time. Found are: descendants of the root and of whatever was found before, members of their sessions and process
// groups where a leader was found or the root's has gone, and processes with the marker, whoever their parent is.
// What escapes is a process that has left its parents, session and group and is not marked. This process, its session and
// its group are never part of it.
func Kill(target Target) {
	t := tree{target: target, marker: []byte(target.Marker), members: make(map[int]uint64), refused: make(map[int]uint64)}
	t.self, _ = t.stat(os.Getpid())
	if target.Root > 1 && target.Root != t.self.pid {
		if p, ok := t.stat(target.Root); ok {
			t.members[target.Root] = p.start
			t.session, t.group = t.orphaned(p.session, t.self.session), t.orphaned(p.group, t.self.group)
		}
	}
	begin := time.Now()
	for range killRounds {
		if t.round() == 0 && (target.Root != 0 || time.Since(begin) > markerWait) {
			return
		}
		time.Sleep(killPause) // a killed process needs a moment to go
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
	// members were found at some time: their children, sessions and groups belong to the tree. refused were looked at
	// and did not have the marker. Both map the pid to the start, which tells a process from a later one of that pid.
	members, refused map[int]uint64
}

// round kills what it finds and returns how many were alive.
func (t *tree) round() (alive int) {
	t.procs = t.list(t.procs[:0])
	clear(t.refused) // execve(2) changes the environment
	for i := range t.procs {
		if start, ok := t.members[t.procs[i].pid]; ok && start != t.procs[i].start {
			delete(t.members, t.procs[i].pid)
		}
	}
	for found := true; found; { // until no process is a child of one found in this round
		found = false
		for i := range t.procs {
			if p := &t.procs[i]; !t.has(p.pid) && t.belongs(p) {
				t.members[p.pid] = p.start
				found = true
			}
		}
	}
	for i := range t.procs {
		if p := &t.procs[i]; t.has(p.pid) && !p.zombie && t.inside(p.pid) {
			alive++
			t.kill(*p)
		}
	}
	return alive
}

// orphaned returns the number of a session or group whose leader has gone, else 0, and 0 for our own. That number is not
// given to a new process as long as there is a member.
func (t *tree) orphaned(id, own int) int {
	if leader, there := t.stat(id); id <= 1 || id == own || there && !leader.zombie {
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
	if p.pid == t.self.pid {
		return false
	}
	if t.has(p.ppid) || t.has(p.session) || t.has(p.group) || t.led(p) {
		return true
	}
	if len(t.marker) == 0 || t.refused[p.pid] == p.start {
		return false
	}
	if t.inside(p.pid) && bytes.Contains(t.read(p.pid, "environ"), t.marker) {
		return true
	}
	t.refused[p.pid] = p.start // not read again in this round
	return false
}

func (t *tree) inside(pid int) bool {
	return t.target.Within == "" || t.target.Within.has(t.read(pid, "cgroup"))
}
