package proctree

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const (
		old  = " 1 2 3 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 98765 1 2"
		long = old + " 3 4 5 6 7 8 9 10 11 12 13 14 15 16 -1 18 19 20 21 22 23 24 25 26 27 1111 2222 30"
	)
	for _, c := range []struct {
		name, line string
		want       proc
	}{
		{"before Linux 3.5", "123 (a) b (c)) S" + old, proc{pid: 123, ppid: 1, group: 2, session: 3, start: 98765}},
		{"environment", "123 (a) b (c)) S" + long,
			proc{pid: 123, ppid: 1, group: 2, session: 3, start: 98765, env: [2]uint64{1111, 2222}}},
		{"zombie", "9 (a) Z" + old, proc{pid: 9, ppid: 1, group: 2, session: 3, start: 98765, zombie: true}},
		{"exiting", "9 (a) S" + strings.Replace(old, "4194304", "4194308", 1),
			proc{pid: 9, ppid: 1, group: 2, session: 3, start: 98765, exiting: true}},
		{"first thread has ended", "9 (a) Z" + strings.Replace(old, "20 0 1 0", "20 0 2 0", 1),
			proc{pid: 9, ppid: 1, group: 2, session: 3, start: 98765}},
	} {
		if got, ok := parseStat([]byte(c.line)); !ok || got != c.want {
			t.Errorf("%s: %+v, %v", c.name, got, ok)
		}
	}
}

func TestParseStatOfThisProcess(t *testing.T) {
	var r reader
	p, ok := r.stat(os.Getpid())
	if !ok || p.pid != os.Getpid() || p.ppid != os.Getppid() || p.zombie || p.exiting {
		t.Errorf("%+v, %v", p, ok)
	}
	if p.env[0] == 0 || p.env[1] <= p.env[0] {
		t.Errorf("%+v, %v", p, ok)
	}
}

// A short id is part of many names. Nothing but the container's own group may be killed.
func TestCgroupOfIsNeverOurOwn(t *testing.T) {
	for path := range strings.SplitSeq(string(GroupOf(os.Getpid())), "/") {
		for _, id := range []string{path, "c", "a", "e", "1", ""} {
			if g := CgroupOf(os.Getpid(), id); g.dir != "" {
				t.Errorf("id %q: %s", id, g.dir)
			}
		}
	}
}

func FuzzPaths(f *testing.F) {
	f.Add([]byte("0::/a:b\n3:cpu,cpuacct:/x\n"))
	f.Add([]byte(":::\n"))
	f.Fuzz(func(_ *testing.T, b []byte) { paths(b) })
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (x) S 1 2 3"))
	f.Add([]byte(")("))
	f.Add([]byte("1 (x) Z 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5 6"))
	f.Fuzz(func(_ *testing.T, b []byte) { parseStat(b) })
}

func TestOwnPart(t *testing.T) {
	for _, c := range []struct{ path, want string }{
		{"/", ""}, {"/abc", "/abc"}, {"/pod/crio-abc.scope", "/pod/crio-abc.scope"}, {"", ""},
		{"/pod/crio-abc.scope/container", "/pod/crio-abc.scope"}, {"/pod/other", ""}, {"/abc/abc", "/abc/abc"},
		{"/pod-abc/crun-abc.scope/x", ""}, {"/n-abc-pod-abc/first", ""}, {"/container", ""}, {"/xabc", ""}, {"/abcd", ""}, {"/x-abc-y", ""},
		{"/system.slice:crio:abc", "/system.slice:crio:abc"}, {"/abc.slice", ""}, {"/kabc/x", ""},
	} {
		if got := ownPart(c.path, "abc"); got != c.want {
			t.Errorf("%q: got %q, want %q", c.path, got, c.want)
		}
	}
}

// start runs a shell script that prints a pid a line, and returns those.
func start(t *testing.T, n int, env, script string) (root int, pids []int) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Env = append(os.Environ(), env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // as runtimes start processes
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	for len(pids) < n && lines.Scan() {
		pid, err := strconv.Atoi(strings.TrimSpace(lines.Text()))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return cmd.Process.Pid, pids
}

func isAlive(pid int) bool {
	var r reader
	p, ok := r.stat(pid)
	return ok && !p.zombie
}

func TestKillTree(t *testing.T) {
	const marker = "_TEST_MARKER=5f3a"
	_, bystander := start(t, 1, "A=b", "echo $$; exec sleep 1000")
	for _, c := range []struct {
		name, script string
		n            int
	}{
		{"child and grandchild", "sleep 1000 & echo $!; sh -c 'sleep 1000 & echo $!; wait' & wait", 2},
		{"own session", "setsid sh -c 'echo $$; exec sleep 1000' & wait", 1},
		{"orphan in its own session", "(setsid sh -c 'echo $$; exec sleep 1000' &) ; exec sleep 1000", 1},
		{"orphan of an orphan", "(setsid sh -c '(setsid sh -c \"echo \\$\\$; exec sleep 1000\" &)' &) ; exec sleep 1000", 1},
		{"many", "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 1000 & echo $!; done; wait", 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, pids := start(t, c.n, marker, c.script)
			Kill(Target{Root: root, Marker: marker})
			for _, pid := range append(pids, root) {
				if isAlive(pid) {
					t.Errorf("process %d is alive", pid)
				}
			}
		})
	}
	if !isAlive(bystander[0]) {
		t.Error("a bystander was killed")
	}
}

func TestKillTreeOfForkingProcesses(t *testing.T) {
	root, _ := start(t, 1, "_TEST_MARKER=77aa", "echo 1; while :; do (sleep 1000 & ) ; done")
	Kill(Target{Root: root, Marker: "_TEST_MARKER=77aa"})
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left := 0
		var r reader
		for _, p := range r.list(nil) {
			if !p.zombie && bytes.Contains(r.read(p.pid, "environ"), []byte("_TEST_MARKER=77aa")) {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d processes left", left)
		}
	}
}

// Without a marker, as for runtimes that cannot set one, what has a parent, session or group in the tree is found.
func TestKillTreeWithoutMarker(t *testing.T) {
	root, pids := start(t, 3, "A=b", "setsid sh -c 'echo $$; exec sleep 1000' & (sleep 1000 & echo $!) ; sleep 1000 & echo $!; wait")
	Kill(Target{Root: root})
	for _, pid := range append(pids, root) {
		if isAlive(pid) {
			t.Errorf("process %d is alive", pid)
		}
	}
}

// crun starts a process in a session whose leader has gone.
func TestKillTreeInAnOrphanedSession(t *testing.T) {
	leader, pids := start(t, 2, "A=b", `(sh -c 'echo $$; (sleep 1000 & echo $!); exec sleep 1000' &); exit`)
	for end := time.Now().Add(20 * time.Second); isAlive(leader); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the leader does not end")
		}
	}
	Kill(Target{Root: pids[0]})
	for _, pid := range pids {
		if isAlive(pid) {
			t.Errorf("process %d is alive", pid)
		}
	}
}

// A session that somebody else leads is not the root's.
func TestKillTreeSparesTheSession(t *testing.T) {
	leader, pids := start(t, 2, "A=b", "sleep 1000 & echo $!; sleep 1000 & echo $!; wait")
	Kill(Target{Root: pids[0]})
	if isAlive(pids[0]) || !isAlive(pids[1]) || !isAlive(leader) {
		t.Error("the wrong processes were killed")
	}
}

func TestGroupHas(t *testing.T) {
	const group = Group("2:cpu:/a\n1:name=systemd:/a/b\n0::/a")
	for list, want := range map[string]bool{
		"2:cpu:/a\n1:name=systemd:/a/b\n0::/a\n":           true,
		"2:cpu:/a/x\n1:name=systemd:/a/b/y/z\n0::/a/c\n":   true,
		"2:cpu:/ab\n1:name=systemd:/a/b\n0::/a\n":          false,
		"2:cpu:/\n1:name=systemd:/a/b\n0::/a\n":            false,
		"2:cpu:/a\n1:name=systemd:/a/b\n":                  false,
		"2:cpu:/a\n1:name=systemd:/a/b\n0::/a\n3:more:/\n": false,
		"": false,
	} {
		if got := group.has([]byte(list)); got != want {
			t.Errorf("%q: %v", list, got)
		}
	}
	if !Group("0::/").has([]byte("0::/x")) {
		t.Error("the root group has no process below it")
	}
	if !GroupOf(os.Getpid()).has([]byte(GroupOf(os.Getpid()))) {
		t.Error("this process is not in its own groups")
	}
}

// Of a process that has gone nobody knows where it was: that is not everywhere.
func TestGroupOfAProcessThatHasGone(t *testing.T) {
	cmd := exec.Command("/bin/true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var r reader
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if p, ok := r.stat(cmd.Process.Pid); !ok || p.zombie {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the process does not end")
		}
	}
	zombie := GroupOf(cmd.Process.Pid)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	const marker = "_TEST_MARKER=31c7"
	root, _ := start(t, 1, marker, "echo $$; exec sleep 1000")
	for name, g := range map[string]Group{"zombie": zombie, "reaped": GroupOf(cmd.Process.Pid)} {
		if g == "" || g.has(r.read(os.Getpid(), "cgroup")) {
			t.Errorf("%s: this process is in group %q", name, g)
		}
		Kill(Target{Root: root, Marker: marker, Within: g})
		if !isAlive(root) {
			t.Fatalf("%s: a process was killed", name)
		}
	}
}

// A runtime's process gets its environment by execve(2), after it has been looked at, maybe.
func TestMarkerIsNoticedAfterExec(t *testing.T) {
	const marker = "_TEST_MARKER=5ee1"
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("/bin/sh", "-c", `read x; `+marker+` exec sleep 1000`)
	cmd.Stdin = in
	err = cmd.Start()
	in.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	tree := newTree(Target{Marker: marker})
	for range 2 {
		if n := tree.round(); n != 0 {
			t.Fatalf("%d processes before there is one", n)
		}
	}
	if _, err := out.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	var r reader
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if bytes.Contains(r.read(cmd.Process.Pid, "environ"), []byte(marker)) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no exec")
		}
	}
	if n := tree.round(); n != 1 {
		t.Errorf("%d processes found", n)
	}
}

// The process with the marker may be about to come.
func TestKillByMarkerAlonePersists(t *testing.T) {
	began := time.Now()
	Kill(Target{Marker: "_TEST_MARKER=00aa"})
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("given up after %v", took)
	}
}

func TestMain(m *testing.M) {
	if os.Getenv("TEST_SHARED_SESSION") != "" {
		os.Exit(killInSharedSession())
	}
	os.Exit(m.Run())
}

// killInSharedSession kills a child that is in the session and group of this process, of which the leader has gone.
func killInSharedSession() int {
	var r reader
	for { // the shell that started this process is the leader
		if self, _ := r.stat(os.Getpid()); self.session != os.Getpid() {
			if _, there := r.stat(self.session); !there {
				break
			}
		}
		time.Sleep(time.Millisecond)
	}
	target, other := exec.Command("sleep", "1000"), exec.Command("sleep", "1000")
	for _, cmd := range []*exec.Cmd{target, other} {
		if err := cmd.Start(); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	Kill(Target{Root: target.Process.Pid, Marker: "_TEST_MARKER=c0de"})
	fmt.Printf("target %v, other %v\n", isAlive(target.Process.Pid), isAlive(other.Process.Pid))
	// Nor does the marker count here. The children have it from this process.
	Kill(Target{Marker: "TEST_SHARED_SESSION=" + os.Getenv("TEST_SHARED_SESSION")})
	fmt.Printf("other %v\n", isAlive(other.Process.Pid))
	_ = other.Wait()
	_ = target.Wait()
	return 0
}

// A monitor in the foreground is in the session and group of what started it, which may have gone.
func TestKillSparesThisProcess(t *testing.T) {
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("/bin/sh", "-c", `"$0" & exit 0`, "/proc/"+strconv.Itoa(os.Getpid())+"/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("TEST_SHARED_SESSION=%d-%d", os.Getpid(), time.Now().UnixNano()))
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Run()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(out); err != nil || string(got) != "target false, other true\nother false\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// The same in the session and group of this test, whose leader may be there.
func TestKillSparesSiblings(t *testing.T) {
	var pids []int
	for range 2 {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		pids = append(pids, cmd.Process.Pid)
	}
	Kill(Target{Root: pids[0]})
	if isAlive(pids[0]) || !isAlive(pids[1]) {
		t.Error("the wrong process was killed")
	}
	Kill(Target{Root: os.Getpid()})
	if !isAlive(pids[1]) {
		t.Error("a child was killed with this process as the root")
	}
}

// In a group that the tree is not in, nothing is killed.
func TestKillTreeKeepsToTheGroup(t *testing.T) {
	root, _ := start(t, 1, "_TEST_MARKER=99bb", "echo $$; exec sleep 1000")
	Kill(Target{Root: root, Marker: "_TEST_MARKER=99bb", Within: "0::/elsewhere"})
	if !isAlive(root) {
		t.Error("a process outside the group was killed")
	}
}

func TestScanDoesNotAllocatePerProcess(t *testing.T) {
	var r reader
	procs := r.list(make([]proc, 0, 4096))
	if allocated := testing.AllocsPerRun(5, func() { procs = r.list(procs[:0]) }); allocated > float64(5*len(procs)+50) {
		t.Errorf("%v allocations for %d processes", allocated, len(procs))
	}
}

// R077: other hierarchies may come first, and have names that look alike.
func TestMemoryPath(t *testing.T) {
	for list, want := range map[string]string{
		"0::/u\n":                                 "/u",
		"5:net_cls:/n\n0::/u\n":                   "/u",
		"0::/u\n5:net_cls:/n\n":                   "/u",
		"3:memory:/m\n0::/u\n":                    "v1 /m",
		"4:name=memory:/x\n0::/u\n":               "/u",
		"4:memoryx,cpu:/x\n0::/u:with:colons\n":   "/u:with:colons",
		"2:cpu,memory:/both\n1:name=systemd:/s\n": "v1 /both",
		"": "",
	} {
		path, unified := memoryPath(paths([]byte(list)))
		if !unified {
			path = "v1 " + path
		}
		if path != want {
			t.Errorf("%q: %s, want %s", list, path, want)
		}
	}
}

func TestUnitIn(t *testing.T) {
	for path, want := range map[string]string{
		"/a.slice/crio-x.scope": "crio-x.scope", "/a.slice/crio-x.scope/container": "crio-x.scope", "/system.slice/a.service": "a.service",
		"/user.slice/user@0.service/app.slice/b.scope/x/y": "b.scope", "/kubepods/pod/x": "", "/": "", "": "", "/a.slice": "",
	} {
		if got := unitIn(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}
