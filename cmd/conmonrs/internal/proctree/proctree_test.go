package proctree

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	line := "123 (a) b (c)) S 1 2 3 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 98765 1 2"
	got, ok := parseStat([]byte(line))
	if !ok || got != (proc{pid: 123, ppid: 1, group: 2, session: 3, start: "98765"}) {
		t.Errorf("%+v, %v", got, ok)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (x) S 1 2 3"))
	f.Add([]byte(")("))
	f.Add([]byte("1 (x) Z 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5 6"))
	f.Fuzz(func(_ *testing.T, b []byte) { parseStat(b) })
}

func TestOwnPart(t *testing.T) {
	for _, c := range []struct{ path, want string }{
		{"/", ""}, {"/abc", "/abc"}, {"/pod/crio-abc.scope", "/pod/crio-abc.scope"},
		{"/pod/crio-abc.scope/container", "/pod/crio-abc.scope"}, {"/pod/other", ""}, {"", ""},
		{"/abc/abc", "/abc"},
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
	p, ok := readProc(strconv.Itoa(pid))
	return ok && !p.zombie
}

func TestKillTree(t *testing.T) {
	all := func(int) bool { return true }
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
			Kill(root, marker, all)
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
	Kill(root, "_TEST_MARKER=77aa", func(int) bool { return true })
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left := 0
		for _, p := range listProcs() {
			if !p.zombie && hasMarker(p.pid, []byte("_TEST_MARKER=77aa")) {
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

func TestKillTreeKeepsInside(t *testing.T) {
	_, outside := start(t, 1, "_TEST_MARKER=99bb", "echo $$; exec sleep 1000")
	root, _ := start(t, 1, "_TEST_MARKER=99bb", "echo $$; exec sleep 1000")
	Kill(root, "_TEST_MARKER=99bb", func(pid int) bool { return pid != outside[0] })
	if !isAlive(outside[0]) || isAlive(root) {
		t.Error("the wrong process was killed")
	}
}
