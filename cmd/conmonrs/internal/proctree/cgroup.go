package proctree

import (
	"bytes"
	"os"
	"path/filepath"
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

// CgroupOf returns the control group that belongs to container id alone: of the groups of process pid, the highest
// whose name contains the id. It is the zero value where there is none, such as for a container in a group named by
// the engine otherwise: then nobody may assume that all in the group belong to the container.
func CgroupOf(pid int, id string) Cgroup {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return Cgroup{}
	}
	var v1 Cgroup
	for line := range bytes.Lines(b) {
		// hierarchy:controllers:path, where the path may hold colons; cgroups(7).
		fields := strings.SplitN(strings.TrimRight(string(line), "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		path := ownPart(fields[2], id)
		if path == "" {
			continue
		}
		if fields[0] == "0" && fields[1] == "" {
			if dir := filepath.Join(unifiedRoot(), path); isDir(dir) {
				return Cgroup{dir: dir, unified: true}
			}
		} else if dir := v1Dir(fields[1], path); v1.dir == "" && isDir(dir) {
			v1.dir = dir
		}
	}
	return v1
}

// ownPart cuts path behind the first component that contains id.
func ownPart(path, id string) string {
	for end := 1; end <= len(path); end++ {
		if end < len(path) && path[end] != '/' {
			continue
		}
		if strings.Contains(path[strings.LastIndexByte(path[:end], '/')+1:end], id) {
			return path[:end]
		}
	}
	return ""
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
		pids := g.pids()
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			if pid > 1 && pid != os.Getpid() {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		time.Sleep(killPause)
	}
}

// pids returns the live processes in the group and below.
func (g Cgroup) pids() (pids []int) {
	var walk func(dir string)
	walk = func(dir string) {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return
		}
		for _, field := range bytes.Fields(b) {
			// 0 stands for a process outside our pid namespace.
			if pid, ok := atoi(field); ok && pid > 0 {
				if p, ok := readProc(string(field)); ok && !p.zombie {
					pids = append(pids, pid)
				}
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

// SameCgroup returns a function that tells whether a process is in the same control groups as pid, or below.
func SameCgroup(pid int) func(int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return func(int) bool { return true }
	}
	want := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	return func(other int) bool {
		got, err := os.ReadFile("/proc/" + strconv.Itoa(other) + "/cgroup")
		if err != nil {
			return false
		}
		lines := bytes.Split(bytes.TrimSpace(got), []byte("\n"))
		if len(lines) != len(want) {
			return false
		}
		for i, line := range lines {
			if !bytes.HasPrefix(line, want[i]) {
				return false
			}
		}
		return true
	}
}
