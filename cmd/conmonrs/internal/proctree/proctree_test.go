package proctree

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	line := "123 (a) b (c)) S 1 2 3 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 98765 1 2"
	got, ok := parseStat([]byte(line))
	if !ok || got != (proc{pid: 123, ppid: 1, group: 2, session: 3, start: 98765}) {
		t.Errorf("%+v, %v", got, ok)
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
	_, pids := start(t, 2, "A=b", `(sh -c 'echo $$; (sleep 1000 & echo $!); exec sleep 1000' &); exit`)
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

// The environment of a process is another one after execve(2): whoever is about to get the marker is found.
func TestMarkerComesLate(t *testing.T) {
	const marker = "_TEST_MARKER=late"
	dir := t.TempDir()
	_, pids := start(t, 1, "A=b", "echo $$; while ! test -e "+dir+"/go; do :; done; exec env "+marker+" sleep 1000")
	tree := tree{marker: []byte(marker), members: make(map[int]uint64), refused: make(map[int]uint64)}
	if n := tree.round(); n != 0 {
		t.Fatalf("%d found too early", n)
	}
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var r reader
	for end := time.Now().Add(20 * time.Second); !bytes.Contains(r.read(pids[0], "environ"), []byte(marker)); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no execve")
		}
	}
	if n := tree.round(); n != 1 {
		t.Errorf("%d found", n)
	}
	begin := time.Now()
	Kill(Target{Marker: "_TEST_MARKER=nobody's"})
	if d := time.Since(begin); d < markerWait {
		t.Errorf("looked for %v only", d)
	}
}

const ownEnv = "CONMONRS_TEST_OWN_SESSION"

func TestMain(m *testing.M) {
	if os.Getenv(ownEnv) != "" {
		killInOwnSession()
		return
	}
	os.Exit(m.Run())
}

// killInOwnSession is a process whose session and group have lost their leader. It kills a child in the same.
func killInOwnSession() {
	var r reader
	for {
		self, _ := r.stat(os.Getpid())
		if _, there := r.stat(self.session); !there {
			break
		}
		time.Sleep(time.Millisecond)
	}
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		panic(err)
	}
	Kill(Target{Root: child.Process.Pid})
	_ = child.Wait()
	_, _ = os.Stdout.WriteString("alive\n")
}

func TestKillSparesItself(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", `"$0" &`, os.Args[0])
	cmd.Env = append(os.Environ(), ownEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if out, err := cmd.Output(); err != nil || string(out) != "alive\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestGroupOfNobody(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if g := GroupOf(cmd.Process.Pid); g == "" || g.has([]byte("0::/x")) || g.has(nil) {
		t.Errorf("group %q of a process that has gone", g)
	}
}
