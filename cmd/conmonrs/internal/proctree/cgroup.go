package proctree

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cgroup is the control group of one container, in one hierarchy. The zero value is none.
type Cgroup struct {
	dir     string // below /sys/fs/cgroup
	unified bool
}

// CgroupOf returns the control group that belongs to container id alone: the one that process pid is in,
// if it is named after the id. It is the zero value where there is none, such as for a container in a group named by the engine
// otherwise: then nobody may assume that all in the group belong to the container. It never is a group that this process
// is in.
func CgroupOf(pid int, id string) Cgroup {
	var r reader
	own := paths(r.read(os.Getpid(), "cgroup"))
	var v1 Cgroup
	for hierarchy, path := range paths(r.read(pid, "cgroup")) {
		path = ownPart(path, id)
		if path == "" || own[hierarchy] == path || strings.HasPrefix(own[hierarchy], path+"/") {
			continue
		}
		if hierarchy == "" {
			if dir := filepath.Join(unifiedRoot(), path); isDir(dir) {
				return Cgroup{dir: dir, unified: true}
			}
		} else if dir := v1Dir(hierarchy, path); v1.dir == "" && isDir(dir) {
			v1.dir = dir
		}
	}
	return v1
}

// MemoryOf returns the directory of the control group in which the memory of container id is counted, whose first process
// is pid: the one that is named after the id, else the one that the process is in, and never that of this process. The
// directory is empty if there is none.
func MemoryOf(pid int, id string) (dir string, unified bool) {
	var r reader
	own, _ := memoryPath(paths(r.read(os.Getpid(), "cgroup")))
	path, unified := memoryPath(paths(r.read(pid, "cgroup")))
	if part := ownPart(path, id); part != "" {
		path = part
	} else {
		path = strings.TrimSuffix(path, "/container") // crun's own
	}
	switch {
	case path == own || path == "" || path == "/":
		return "", unified
	case unified:
		return filepath.Join(unifiedRoot(), path), true
	}
	return v1Dir(memory, path), false
}

// UnitOf returns the systemd unit that process pid is in, a scope or a service, empty if there is none.
func UnitOf(pid int) string {
	var r reader
	groups := paths(r.read(pid, "cgroup"))
	path, ok := groups["name=systemd"] // where it is there, units are in that hierarchy
	if !ok {
		path = groups[""]
	}
	return unitIn(path)
}

// unitIn returns the last unit in a path: below it, groups belong to those in the unit.
func unitIn(path string) string {
	for path != "" {
		i := strings.LastIndexByte(path, '/')
		if name := path[i+1:]; strings.HasSuffix(name, ".scope") || strings.HasSuffix(name, ".service") {
			return name
		}
		path = path[:max(i, 0)]
	}
	return ""
}

// memory is the name of the controller in version 1.
const memory = "memory"

// memoryPath returns the path in the hierarchy that counts memory: the one of version 1 that has the controller, else the
// unified one. Others may come first in the list.
func memoryPath(groups map[string]string) (path string, unified bool) {
	for controllers, path := range groups {
		if slices.Contains(strings.Split(controllers, ","), memory) {
			return path, false
		}
	}
	return groups[""], true
}

// paths maps the controllers of a hierarchy, none for the unified one, to the path in it. The lines of
// proc_pid_cgroup(5) are hierarchy:controllers:path, where the path may hold colons.
func paths(list []byte) map[string]string {
	m := make(map[string]string)
	for line := range bytes.Lines(list) {
		fields := strings.SplitN(strings.TrimRight(string(line), "\n"), ":", 3)
		if len(fields) == 3 && (fields[0] == "0") == (fields[1] == "") {
			m[fields[1]] = fields[2]
		}
	}
	return m
}

// ownPart returns path if its last component is named after id, without the group that crun puts below a container's
// own. A name further up may be that of the pod, which has more containers.
func ownPart(path, id string) string {
	path = strings.TrimSuffix(path, "/container")
	if isNamedAfter(path[strings.LastIndexByte(path, '/')+1:], id) {
		return path
	}
	return ""
}

// isNamedAfter knows the names that engines and runtimes give: the id, with a prefix that ends in a dash or a colon, as a
// scope or not.
func isNamedAfter(name, id string) bool {
	prefix, ok := strings.CutSuffix(strings.TrimSuffix(name, ".scope"), id)
	return ok && id != "" && (prefix == "" || strings.HasSuffix(prefix, "-") || strings.HasSuffix(prefix, ":"))
}

func v1Dir(controllers, path string) string {
	if name, ok := strings.CutPrefix(controllers, "name="); ok {
		controllers = name
	}
	return filepath.Join("/sys/fs/cgroup", controllers, path)
}

func unifiedRoot() string {
	const root = "/sys/fs/cgroup"
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
		return root
	}
	return root + "/unified"
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// Follow moves a child into the control groups that this process is in, in each hierarchy in which it is in another one,
// cgroups(7): children that are older than a move of this process stay where they were born.
func Follow(pid int) error {
	var r reader
	own := paths(r.read(os.Getpid(), "cgroup"))
	its := paths(r.read(pid, "cgroup"))
	var errs []error
	for hierarchy, path := range own {
		old, known := its[hierarchy]
		if !known || old == path {
			continue
		}
		dir := filepath.Join(unifiedRoot(), path)
		if hierarchy != "" {
			dir = v1Dir(hierarchy, path)
		}
		f, err := os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(strconv.Itoa(pid))
			err = errors.Join(err, f.Close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// killAtOnce is how many pidfds are open at the same time.
const killAtOnce = 64

// Kill sends SIGKILL to every process in the group and the groups below it, again until none is left or a bounded time
// has passed: a container that shares the pid namespace of others does not end with its first process.
func (g Cgroup) Kill() {
	if g.dir == "" {
		return
	}
	if g.unified && os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0) == nil { // Linux 5.14
		return
	}
	for range killRounds {
		pids := g.live()
		if len(pids) == 0 {
			return
		}
		for some := range slices.Chunk(pids, killAtOnce) {
			g.kill(some)
		}
		time.Sleep(killPause)
	}
}

// kill kills those of pids that are in the group. A pid may belong to another process than when it was listed; but once
// there is a pidfd for it, it either still is that of the same process, or the signal fails.
func (g Cgroup) kill(pids []int) {
	fds := make([]int, len(pids))
	there := make([]bool, len(pids))
	for i, pid := range pids {
		fds[i], there[i] = openPidfd(pid)
	}
	members := g.members()
	for i, pid := range pids {
		if there[i] && slices.Contains(members, pid) {
			sendKill(pid, fds[i])
		}
		if fds[i] >= 0 {
			unix.Close(fds[i])
		}
	}
}

// live returns the processes in the group and below that may be killed and have not ended.
func (g Cgroup) live() []int {
	var r reader
	return slices.DeleteFunc(g.members(), func(pid int) bool {
		p, ok := r.stat(pid)
		return !ok || p.zombie || pid <= 1 || pid == os.Getpid()
	})
}

// members returns all processes that are listed in the group and below.
func (g Cgroup) members() (pids []int) {
	var walk func(dir string)
	walk = func(dir string) {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return
		}
		for field := range bytes.FieldsSeq(b) {
			// 0 stands for a process outside our pid namespace.
			if pid, ok := number(field); ok && pid > 0 {
				pids = append(pids, int(pid))
			}
		}
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if e.IsDir() {
				walk(filepath.Join(dir, e.Name()))
			}
		}
	}
	walk(g.dir)
	return pids
}

// Group names the control groups of a process as proc_pid_cgroup(5) lists them. The empty Group is all processes.
type Group string

// nowhere is a Group that no process is in: the lines of others begin with a number.
const nowhere Group = "gone"

// GroupOf returns the groups that process pid is in. If it has gone, or is about to, nothing is in the Group returned.
func GroupOf(pid int) Group {
	var r reader
	list := Group(bytes.TrimSpace(r.read(pid, "cgroup")))
	// Looked at afterwards: a process that exits is listed in the root groups, where everything is.
	if p, ok := r.stat(pid); !ok || p.exiting || p.zombie || list == "" {
		return nowhere
	}
	return list
}

// has tells whether a process with that list is in the same groups, or below.
func (g Group) has(list []byte) bool {
	list = bytes.TrimSpace(list)
	if len(list) == 0 {
		return false
	}
	for want := range strings.SplitSeq(string(g), "\n") {
		line, rest, _ := bytes.Cut(list, []byte("\n"))
		list = rest
		below, ok := bytes.CutPrefix(line, []byte(want))
		if !ok || len(below) > 0 && below[0] != '/' && !strings.HasSuffix(want, "/") {
			return false
		}
	}
	return len(list) == 0
}
