package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// memoryLimit is enough for a shell, and soon reached by what only takes memory.
const memoryLimit = 24 << 20

// hog takes memory until it is killed.
const hog = "tail /dev/zero"

// needMemoryLimits skips where containers cannot be limited.
func needMemoryLimits(t *testing.T) {
	t.Helper()
	for _, path := range []string{"/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory/cgroup.event_control"} {
		if _, err := os.Stat(path); err == nil {
			return
		}
	}
	controllers, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if !strings.Contains(string(controllers), "memory") {
		t.Skip("no memory controller; the native run or the virtual machine has one")
	}
}

// limited is a container with a memory limit whose OOM mark is expected at oomPath.
func (p *pod) limited(id, script string) *conmon.CreateContainerRequest {
	p.t.Helper()
	req := p.request(id, bundle.Options{Args: []string{"sh", "-c", script}, Memory: memoryLimit})
	req.OOMExitPaths = []string{p.oomPath(id)}
	return req
}

func (p *pod) oomPath(id string) string { return p.path("exits", id+".oom") }

// marked tells whether the container that has ended has an OOM mark, which has to be an empty file.
func (p *pod) marked(id string) bool {
	p.t.Helper()
	info, err := os.Stat(p.oomPath(id))
	if err == nil && info.Size() != 0 {
		p.t.Errorf("mark of %s has %d bytes", id, info.Size())
	}
	return err == nil
}

// wantReports waits for that many lines with text in the monitor's log: what they say is looked for in the kernel's.
func (p *pod) wantReports(text string, n int) []string {
	p.t.Helper()
	eventually(p.t, exitLimit, text, func() bool { return len(p.reported(text)) >= n })
	reports := p.reported(text)
	if len(reports) != n {
		p.t.Errorf("reported: %q", reports)
	}
	return reports
}

// R071, R072: the mark is there before the exit code, once.
func TestOOM(t *testing.T) {
	needMemoryLimits(t)
	each(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		for i := range scaled(2) {
			id := fmt.Sprint("c", i)
			req := p.limited(id, "exec "+hog)
			p.create(req)
			var names []string
			for _, e := range watch(t, p.path("exits"), func() { p.start(id) }, id) {
				if !strings.HasPrefix(e.name, ".") && e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
					names = append(names, e.name)
				}
			}
			if got, want := strings.Join(names, " "), id+".oom "+id; got != want {
				t.Errorf("files appeared: %s; want %s", got, want)
			}
			p.wantExit(id, 137)
			if !p.marked(id) {
				t.Error("no mark")
			}
			p.wantReports("container killed by the OOM killer", i+1)
		}
	})
}

// R073: a child that the OOM killer took long before the end is no mark, however the container ends then.
func TestOOMOfChild(t *testing.T) {
	needMemoryLimits(t)
	each(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		for id, end := range map[string]int{"exits": 3, "killed": 137, "stopped": 143} {
			p.runRequest(p.limited(id, "trap 'exit 143' TERM; "+hog+"; echo child $?; while ! test -e /dev/go; do usleep 1000; done; exit 3"))
			p.waitOutput(id, "child 137")
			switch end {
			case 3:
				p.wantExec(id, 0, "touch", "/dev/go")
			case 137:
				p.mustCommand("kill", id, "KILL")
			case 143:
				p.mustCommand("kill", id, "TERM")
			}
			p.wantExit(id, end)
			if p.marked(id) {
				t.Errorf("%s is marked", id)
			}
		}
		p.wantReports("process killed by the OOM killer", 3)
	})
}

// A container is not marked for what happens to its siblings, before, during or after.
func TestOOMOfSibling(t *testing.T) {
	needMemoryLimits(t)
	each(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.runRequest(p.limited("before", "exec sleep 1000"))
		for i := range scaled(2) {
			id := fmt.Sprint("c", i)
			p.runRequest(p.limited(id, "exec "+hog))
			p.wantExit(id, 137)
			if !p.marked(id) {
				t.Errorf("%s is not marked", id)
			}
			neighbour := fmt.Sprint("n", i)
			p.runRequest(p.limited(neighbour, "exec sleep 1000"))
			p.mustCommand("kill", neighbour, "KILL")
			p.wantExit(neighbour, 137)
			if p.marked(neighbour) {
				t.Errorf("%s is marked", neighbour)
			}
		}
		p.mustCommand("kill", "before", "KILL")
		p.wantExit("before", 137)
		if p.marked("before") {
			t.Error("the one that was there before is marked")
		}
	})
}

// memoryCgroup returns the directory of the memory cgroup of a process, and the name of the file for the limit.
func memoryCgroup(t *testing.T, pid int) (dir, limit string) {
	t.Helper()
	for line := range strings.Lines(readFile(t, "/proc/"+strconv.Itoa(pid)+"/cgroup")) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil && fields[0] == "0" {
			return filepath.Join("/sys/fs/cgroup", fields[2]), "memory.max"
		} else if fields[1] == "memory" {
			return filepath.Join("/sys/fs/cgroup/memory", fields[2]), "memory.limit_in_bytes"
		}
	}
	t.Fatalf("process %d has no memory cgroup", pid)
	return "", ""
}

// The limit of the pod is hit: the victim is marked, the other is not, and the log says whose limit it was.
func TestOOMOfPod(t *testing.T) {
	needMemoryLimits(t)
	each(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		parent := "/" + p.name + "-pod/"
		if v.manager == conmon.CgroupManagerSystemd {
			parent = strings.ReplaceAll(p.name, "-", "_") + "pod.slice:" + p.name + ":"
		}
		request := func(id, script string) *conmon.CreateContainerRequest {
			score := 0
			if script != "exec sleep 1000" {
				score = 1000 // the kernel takes this one
			}
			o := bundle.Options{Args: []string{"sh", "-c", script}, CgroupsPath: parent + id, OOMScoreAdj: &score}
			req := p.request(id, o)
			req.OOMExitPaths = []string{p.oomPath(id)}
			return req
		}
		quiet := p.runRequest(request("quiet", "exec sleep 1000"))
		dir, limit := memoryCgroup(t, quiet)
		if filepath.Base(dir) == "container" { // crun's own
			dir = filepath.Dir(dir)
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(dir), limit), []byte(strconv.Itoa(memoryLimit)), 0o644); err != nil {
			t.Fatal(err)
		}
		p.runRequest(request("loud", "exec "+hog))
		p.wantExit("loud", 137)
		if !p.marked("loud") {
			t.Error("the victim is not marked")
		}
		if reports := p.wantReports("container killed by the OOM killer", 1); !strings.Contains(reports[0], "limit=pod") {
			t.Errorf("reported: %q", reports)
		}
		p.mustCommand("kill", "quiet", "KILL")
		p.wantExit("quiet", 137)
		if p.marked("quiet") {
			t.Error("the other one is marked")
		}
		for _, id := range []string{"quiet", "loud"} {
			p.mustCommand("delete", id)
		}
		_ = os.Remove(filepath.Dir(dir)) // where systemd does not see to it
	})
}

// memory.oom.group: all processes of the container end together.
func TestOOMGroup(t *testing.T) {
	needMemoryLimits(t)
	each(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		pid := p.create(p.limited("c", "sleep 1000 & "+hog+"; wait"))
		dir, limit := memoryCgroup(t, pid)
		if limit != "memory.max" {
			t.Skip("no memory.oom.group in this cgroup hierarchy; the virtual machine has it")
		}
		if err := os.WriteFile(filepath.Join(dir, "memory.oom.group"), []byte("1"), 0o644); err != nil {
			t.Fatal(err)
		}
		p.start("c")
		p.wantExit("c", 137)
		if !p.marked("c") {
			t.Error("not marked")
		}
	})
}

// R076: one inotify instance for the pod, however many containers and execs there are.
func TestOOMWatchIsShared(t *testing.T) {
	needMemoryLimits(t)
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		for i := range 5 {
			p.runRequest(p.limited(fmt.Sprint("c", i), "exec sleep 1000"))
			p.wantExec(fmt.Sprint("c", i), 0, "true")
		}
		instances := 0
		for _, target := range descriptors(p.pid) {
			if strings.Contains(target, "inotify") {
				instances++
			}
		}
		if instances > 1 {
			t.Errorf("%d inotify instances", instances)
		}
	})
}

// The container ends by itself while a child is killed: whichever is first, it is the container's own exit.
func TestOOMDuringExit(t *testing.T) {
	needMemoryLimits(t)
	each(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		for i := range scaled(4) {
			id := fmt.Sprint("c", i)
			pid := p.runRequest(p.limited(id, "trap 'exit 7' TERM; echo ready; "+hog+" & while :; do usleep 1000; done"))
			p.waitOutput(id, "ready")
			time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond) // to hit any moment, not to wait for one
			if err := unix.Kill(pid, unix.SIGTERM); err != nil {
				t.Error(err)
			}
			p.wantExit(id, 7)
			if p.marked(id) {
				t.Errorf("%s is marked", id)
			}
		}
	})
}

// R079: containers that have gone before anybody looks are nothing to warn of.
func TestOOMWatchOfShortLives(t *testing.T) {
	needMemoryLimits(t)
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		for i := range scaled(5) {
			id := fmt.Sprint("c", i)
			p.runRequest(p.limited(id, "exit 0"))
			p.wantExit(id, 0)
			p.mustCommand("delete", id)
			if p.marked(id) {
				t.Errorf("%s is marked", id)
			}
		}
		for _, level := range []string{" WARN ", "ERROR "} {
			if lines := p.reported(level); len(lines) > 0 {
				t.Errorf("reported: %q", lines)
			}
		}
	})
}

// A mark that an earlier container of the same id has left is none of the next one's.
func TestOOMMarkOfPredecessor(t *testing.T) {
	needMemoryLimits(t)
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.runRequest(p.limited("c", "exec "+hog))
		p.wantExit("c", 137)
		if !p.marked("c") {
			t.Error("not marked")
		}
		p.remove("c")
		p.runRequest(p.limited("c", "exit 3"))
		p.wantExit("c", 3)
		if p.marked("c") {
			t.Error("the next one is marked")
		}
	})
}
