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

// together is how long after each other containers may end that one hit of the pod's limit kills.
const together = time.Second

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
	if above > c.parent.hits { // it may be the end of several containers, which come here one after the other
		c.parent.hits, c.parent.hit = above, time.Now()
	}
	own, pod := hits > c.hits, !c.parent.hit.IsZero() && time.Since(c.parent.hit) < together
	c.hits = max(hits, c.hits)
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
		if v, ok := parseVictim(record); ok && within(v.group, c.group.Dir) {
			k.Victim, k.VictimPID, k.Limit = v.name, v.pid, v.limit(c.group)
		}
	})
}

// explainFirst is explain for a kill that hit the first process, or all of the group. The record that tells the limit is
// made for one of them, and ten times in five seconds at most, so that the last one in the group may be of an earlier kill.
func (c *Container) explainFirst(k *Kill) {
	readLog(c.begin, func(record []byte) {
		if v, ok := parseVictim(record); ok && v.pid == c.pid {
			k.Limit = v.limit(c.group)
		}
		if pid, name, ok := parseKilled(record); ok && pid == c.pid {
			k.Victim, k.VictimPID = name, pid
		}
	})
}

// isVictim asks the kernel's log whether it killed the first process; known is false if the log cannot tell. It names
// each process that is killed, with the pid that it has in the first pid namespace. kills is how many the group has
// counted since the container was added.
func (c *Container) isVictim(kills int64) (hit, known bool) {
	if ns, err := os.Readlink("/proc/self/ns/pid"); err != nil || ns != firstPIDNamespace {
		return false, false
	}
	w := witness{pid: c.pid}
	complete := readLog(c.begin, w.hear)
	return w.says(complete, kills)
}

// witness is what the kernel's log has to say of a process. That it does not name one means something only if it names
// enough others: the record of a kill is made after the signal is sent, and may not be there yet; a kernel may have
// other words for it; and the clock of the log may be behind by more than was thought.
type witness struct {
	pid    int
	hit    bool
	others int64 // how many others were killed
}

func (w *witness) hear(record []byte) {
	switch pid, _, ok := parseKilled(record); {
	case !ok:
	case pid == w.pid:
		w.hit = true
	default:
		w.others++
	}
}

// says concludes from all records, of which none is missing if complete.
func (w *witness) says(complete bool, kills int64) (hit, known bool) {
	return w.hit, w.hit || complete && w.others >= kills
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

// logTime returns a time on the clock of the kernel's log that has passed, though not long ago.
func logTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	now := time.Duration(ts.Nano())
	return now - drift(now)
}

// drift bounds how far the clock of the kernel's log, which is that of the scheduler, may be behind CLOCK_MONOTONIC.
// Nobody corrects it, and adjtimex(2) corrects the other by up to 500 in a million: minutes on a machine that runs for
// weeks.
func drift(uptime time.Duration) time.Duration { return 5*time.Second + uptime/1000 }

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
