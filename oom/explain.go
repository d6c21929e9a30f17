package oom

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kmsg is the kernel's log; reading it needs CAP_SYSLOG on most systems.
const kmsg = "/dev/kmsg"

// kills returns what the group above has counted, which in version 1 does not include those below it.
func (p *parent) kills(g Group) int64 {
	if !g.Unified {
		return 0
	}
	n, _ := readFileCounter(filepath.Join(p.dir, "memory.events"), "oom_kill")
	return n
}

// limitHits returns how often the group's own limit was hit.
func (p *parent) limitHits(g Group) int64 {
	if !g.Unified {
		return hits(p.dir)
	}
	n, _ := readFileCounter(filepath.Join(p.dir, "memory.events.local"), "oom") // Linux 5.2
	return n
}

// limitLocked tells from the counters whose limit was hit.
func (c *Container) limitLocked() Limit {
	hits, above := c.source.hits(), c.parent.limitHits(c.group)
	own, pod := hits > c.hits, above > c.parent.hits
	c.hits, c.parent.hits = max(hits, c.hits), max(above, c.parent.hits)
	switch {
	case own:
		return LimitContainer
	case pod:
		return LimitPod
	}
	if _, err := c.source.kills(); err != nil { // the group has gone, with its counters
		return LimitUnknown
	}
	return LimitNode
}

// explain completes k with what the kernel's log says of the last kill in the group, if it can be read.
func (c *Container) explain(k *Kill) {
	readLog(c.begin, func(record []byte) {
		if v, ok := parseVictim(record); ok && (v.pid == c.pid || within(v.group, c.group.Dir)) {
			k.Victim, k.VictimPID, k.Limit = v.name, v.pid, v.limit(c.group)
		}
	})
}

// isVictim asks the kernel's log whether it killed the first process; known is false if the log cannot tell. It names
// each process that is killed, with the pid that it has in the first pid namespace.
func (c *Container) isVictim() (hit, known bool) {
	if ns, err := os.Readlink("/proc/self/ns/pid"); err != nil || ns != firstPIDNamespace {
		return false, false
	}
	known = readLog(c.begin, func(record []byte) {
		if pid, ok := parseKilled(record); ok && pid == c.pid {
			hit = true
		}
	})
	return hit, known
}

// hasVictim asks the kernel's log whether it killed any process of the group.
func (c *Container) hasVictim() (hit, known bool) {
	known = readLog(c.begin, func(record []byte) {
		if v, ok := parseVictim(record); ok && within(v.group, c.group.Dir) {
			hit = true
		}
	})
	return hit, known
}

// firstPIDNamespace has a fixed number: PROC_PID_INIT_INO of the kernel's proc_ns.h.
const firstPIDNamespace = "pid:[4026531836]"

// clockDrift is more than the clock of the kernel's log, which is that of the scheduler, goes wrong.
const clockDrift = 5 * time.Second

// logTime returns a time on the clock of the kernel's log that has passed, though not long ago.
func logTime() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano()) - clockDrift
}

// readLog gives all records of the kernel's log since a time to f. It returns false if the log cannot be read, or some of
// it has been overwritten meanwhile.
func readLog(since time.Duration, f func(record []byte)) (complete bool) {
	fd, err := unix.Open(kmsg, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	buf := make([]byte, 8<<10) // a record is never longer
	first, complete := true, true
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case err == unix.EPIPE:
			complete = complete && first
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return complete
		case err != nil || n <= 0:
			return false
		default:
			first = false
			if at, ok := parseTime(buf[:n]); ok && at >= since {
				f(buf[:n])
			}
		}
	}
}

func (v *victim) limit(g Group) Limit {
	switch {
	case v.constraint != "CONSTRAINT_MEMCG":
		return LimitNode
	case within(v.limited, g.Dir):
		return LimitContainer
	case filepath.Base(v.limited) == filepath.Base(filepath.Dir(g.Dir)):
		return LimitPod
	}
	return LimitNode
}

// within tells whether a group is that of dir or below. The kernel's paths begin at the root of the hierarchy, which in a
// cgroup namespace is further up than ours.
func within(group, dir string) bool {
	name := "/" + filepath.Base(dir)
	return strings.HasSuffix(group, name) || strings.Contains(group, name+"/")
}
