// Package proctree finds and ends processes: all that one process has started, and all in the control group of a
// container. It reads proc(5) and cgroups(7), and signals through pidfds, so that a reused pid is never hit.
package proctree

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// killRounds and killPause bound how long Kill looks for processes that were forked while it looked.
const (
	killRounds = 50
	killPause  = 5 * time.Millisecond
)

// maxEnviron bounds what is read of a process's environment when its marker is looked for.
const maxEnviron = 256 << 10

// proc is what proc_pid_stat(5) says of a process.
type proc struct {
	pid, ppid, group, session int
	start                     string // field 22, with the pid the identity of a process
	zombie                    bool
}

// Kill sends SIGKILL to root (none if 0) and to all that it started, and returns when none is left alive, or after a bounded
// time. Found are: descendants of root and of whatever was found before, members of their sessions and process groups
// where a leader was found, and processes whose environment holds marker, whoever their parent is. Only those for
// which inside returns true are touched. What escapes is a process that has left its parents, session and group and
// also cleared its environment.
func Kill(root int, marker string, inside func(pid int) bool) {
	t := tree{marker: []byte(marker), inside: inside, members: make(map[int]string), refused: make(map[int]string)}
	if root > 1 {
		if p, ok := readProc(strconv.Itoa(root)); ok {
			t.members[root] = p.start
		}
	}
	for range killRounds {
		if t.round() == 0 {
			return
		}
		time.Sleep(killPause) // a killed process needs a moment to go
	}
}

type tree struct {
	marker []byte
	inside func(pid int) bool
	// members were found at some time: their children, sessions and groups belong to the tree. refused were looked at
	// and did not have the marker. Both map the pid to the start, which tells a process from a later one of that pid.
	members, refused map[int]string
}

// round kills what it finds and returns how many were alive.
func (t *tree) round() (alive int) {
	procs := listProcs()
	for i := range procs {
		if start, ok := t.members[procs[i].pid]; ok && start != procs[i].start {
			delete(t.members, procs[i].pid)
		}
	}
	for found := true; found; { // until no process is a child of one found in this round
		found = false
		for i := range procs {
			if p := &procs[i]; !t.has(p.pid) && t.belongs(p) {
				t.members[p.pid] = p.start
				found = true
			}
		}
	}
	for i := range procs {
		if p := &procs[i]; t.has(p.pid) && !p.zombie && t.inside(p.pid) {
			alive++
			killExactly(p)
		}
	}
	return alive
}

func (t *tree) has(pid int) bool {
	_, ok := t.members[pid]
	return ok
}

func (t *tree) belongs(p *proc) bool {
	if t.has(p.ppid) || t.has(p.session) || t.has(p.group) {
		return true
	}
	if t.refused[p.pid] == p.start {
		return false
	}
	if t.inside(p.pid) && hasMarker(p.pid, t.marker) {
		return true
	}
	t.refused[p.pid] = p.start // its environment does not change
	return false
}

// killExactly kills the process that was seen, not one that has its pid now.
func killExactly(p *proc) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if now, ok := readProc(strconv.Itoa(p.pid)); ok && now.start == p.start {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

func hasMarker(pid int, marker []byte) bool {
	if len(marker) == 0 {
		return false
	}
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	defer f.Close()
	buf := make([]byte, 0, 4096)
	for len(buf) < maxEnviron {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := f.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil || n == 0 {
			break
		}
	}
	return bytes.Contains(buf, marker)
}

// listProcs returns all processes that can be seen.
func listProcs() []proc {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var procs []proc
	for _, name := range names {
		if name[0] >= '0' && name[0] <= '9' {
			if p, ok := readProc(name); ok {
				procs = append(procs, p)
			}
		}
	}
	return procs
}

func readProc(pid string) (p proc, ok bool) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return proc{}, false
	}
	return parseStat(b)
}

// parseStat parses a line of proc_pid_stat(5). The name in parentheses may hold anything.
func parseStat(b []byte) (p proc, ok bool) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return proc{}, false
	}
	fields := bytes.Fields(b[end+1:])
	if len(fields) < 20 {
		return proc{}, false
	}
	var numbers [4]int
	for i, f := range [][]byte{bytes.TrimSpace(b[:open]), fields[1], fields[2], fields[3]} {
		if numbers[i], ok = atoi(f); !ok {
			return proc{}, false
		}
	}
	return proc{
		pid: numbers[0], ppid: numbers[1], group: numbers[2], session: numbers[3],
		start: string(fields[19]), zombie: fields[0][0] == 'Z' || fields[0][0] == 'X',
	}, true
}

func atoi(b []byte) (int, bool) {
	n, err := strconv.Atoi(string(b))
	return n, err == nil
}
