package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// process is a line of proc_pid_stat(5).
type process struct {
	pid, parent int
	state, name string
}

func (p process) String() string {
	command, _ := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/cmdline")
	return strconv.Itoa(p.pid) + " (" + p.state + ") " + p.name + " " +
		strings.TrimSpace(string(bytes.ReplaceAll(command, []byte{0}, []byte(" "))))
}

func allProcesses() []process {
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	var all []process
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
		if fields := strings.Fields(string(b[end+1:])); len(fields) > 1 {
			pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:open])))
			parent, _ := strconv.Atoi(fields[1])
			all = append(all, process{pid: pid, parent: parent, state: fields[0], name: string(b[open+1 : end])})
		}
	}
	return all
}

func matching(wanted func(process) bool) (found []process) {
	for _, p := range allProcesses() {
		if wanted(p) {
			found = append(found, p)
		}
	}
	return found
}

// processes returns the monitor, what it has started outside containers, and the containers' processes.
func (p *pod) processes() []process {
	mark := []byte(markVariable + "=" + p.name + "\x00")
	return matching(func(proc process) bool {
		dir := "/proc/" + strconv.Itoa(proc.pid)
		environ, _ := os.ReadFile(dir + "/environ")
		cgroup, _ := os.ReadFile(dir + "/cgroup")
		return bytes.Contains(environ, mark) || bytes.Contains(cgroup, []byte(p.name+"-")) && proc.state != "Z"
	})
}

// containerProcesses returns the live processes in the container's cgroup.
func (p *pod) containerProcesses(id string) []process {
	cgroup := regexp.MustCompile(regexp.QuoteMeta(p.name+"-"+id) + `(\.scope)?(/|\n|$)`)
	return matching(func(proc process) bool {
		b, _ := os.ReadFile("/proc/" + strconv.Itoa(proc.pid) + "/cgroup")
		return proc.state != "Z" && cgroup.Match(b)
	})
}

// hasProcess tells whether a process of the container has this text in its command line.
func (p *pod) hasProcess(id, text string) bool {
	for _, proc := range p.containerProcesses(id) {
		if strings.Contains(proc.String(), text) {
			return true
		}
	}
	return false
}

// zombies returns the monitor's dead children.
func (p *pod) zombies() []process {
	return matching(func(proc process) bool { return proc.parent == p.pid && proc.state == "Z" })
}

// children returns the monitor's children.
func (p *pod) children() []process {
	return matching(func(proc process) bool { return proc.parent == p.pid })
}

// alivePID tells whether a process exists and is no zombie.
func alivePID(pid int) bool {
	return len(matching(func(proc process) bool { return proc.pid == pid && proc.state != "Z" })) > 0
}

// descriptors returns what the open descriptors of a process refer to.
func descriptors(pid int) map[int]string {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	entries, _ := os.ReadDir(dir)
	all := make(map[int]string)
	for _, e := range entries {
		fd, _ := strconv.Atoi(e.Name())
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			all[fd] = target
		}
	}
	return all
}

// statusField returns a field of proc_pid_status(5).
func statusField(pid int, name string) string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func statusNumber(pid int, name string) int {
	number, _, _ := strings.Cut(statusField(pid, name), " ")
	n, _ := strconv.Atoi(number)
	return n
}

// rss returns the resident memory of a process in KiB.
func rss(pid int) int { return statusNumber(pid, "VmRSS") }

func threads(pid int) int { return statusNumber(pid, "Threads") }

// openCount counts descriptors, but for timers: the monitor keeps one for a moment after it was used.
func openCount(pid int) (n int) {
	for _, target := range descriptors(pid) {
		if target != "anon_inode:[timerfd]" {
			n++
		}
	}
	return n
}
