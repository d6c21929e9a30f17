package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/conmonrs/conmonrs/test/bundle"
)

// spyRuntime returns a runtime that copies files of a child's /proc directory to where record says, and then is the real
// one. (The shell itself blocks all signals while it forks.)
func spyRuntime(t *testing.T, v variant) (path string, record func(verb, name string) string) {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\nfor verb; do case $verb in create|exec|delete) break; esac; done\n" +
		"for f in environ limits status oom_score_adj; do cat /proc/self/$f >" + dir + "/$verb.$f; done\n" +
		"ls /proc/$$/fd >" + dir + "/$verb.fds\n" +
		"exec " + v.runtime + " \"$@\"\n"
	return writeScript(t, filepath.Base(v.runtime), script), func(verb, name string) string {
		b, err := os.ReadFile(filepath.Join(dir, verb+"."+name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
}

func writeScript(t *testing.T, name, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// waitProgram waits until the process runs this program: after start, the runtime's own code runs for a moment.
func waitProgram(t *testing.T, pid int, name string) {
	t.Helper()
	eventually(t, exitLimit, "process runs "+name, func() bool {
		b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		return strings.HasPrefix(string(b), name+"\x00")
	})
}

// R139: no ignored or blocked signal reaches a child, whatever the monitor was started with.
func TestSignalDispositions(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		runtime, record := spyRuntime(t, v)
		p := newPod(t, v, podOptions{
			runtime:    runtime,
			conditions: conditions{Ignore: []int{1, 2, 3, 10, 13, 32, 40}, Block: []int{1, 12, 15, 17, 34, 64}},
		})
		req := p.request("c", bundle.Options{Args: []string{"sleep", "1000"}})
		req.CleanupCommand = []string{"sh", "-c", "exec cat /proc/self/status >" + p.path("cleanup")}
		pid := p.create(req)
		p.start("c")
		waitProgram(t, pid, "sleep")
		container, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		texts := map[string]string{
			"container": string(container), "exec": p.wantExec("c", 0, "cat", "/proc/self/status"),
			"create": record("create", "status"), "runtime exec": record("exec", "status"),
		}
		p.mustCommand("kill", "c", "KILL")
		p.wantExit("c", 137)
		eventually(t, exitLimit, "cleanup command writes", func() bool {
			b, _ := os.ReadFile(p.path("cleanup"))
			texts["cleanup"] = string(b)
			return strings.HasSuffix(texts["cleanup"], "\n")
		})
		for who, text := range texts {
			for _, field := range []string{"SigIgn", "SigBlk"} {
				if _, rest, ok := strings.Cut(text, "\n"+field+":\t"); !ok || !strings.HasPrefix(rest, "0000000000000000") {
					t.Errorf("%s: %s is %.16s", who, field, rest)
				}
			}
		}
	})
}

func TestRuntimeEnvironment(t *testing.T) {
	forbidden := []string{
		"NOTIFY_SOCKET=/run/x", "WATCHDOG_USEC=1000000", "WATCHDOG_PID=1", "LISTEN_FDS=1", "LISTEN_PID=1", "LISTEN_FDNAMES=x",
		"CONMON_STOP_TIMEOUT=3",
	}
	for name, given := range map[string][]string{
		"set":   {"GOGC=77", "GOMAXPROCS=3", "GODEBUG=madvdontneed=1", "GOMEMLIMIT=3GiB", "GOTRACEBACK=all"},
		"unset": nil,
	} {
		t.Run(name, func(t *testing.T) {
			v := anyVariant()
			runtime, record := spyRuntime(t, v)
			p := newPod(t, v, podOptions{runtime: runtime, env: append(forbidden, given...)})
			req := p.request("c", bundle.Options{Args: []string{"sleep", "1000"}})
			req.Env = append(req.Env, envVar("OF_THE_RUNTIME", "a b=c"))
			req.CleanupCommand = []string{"sh", "-c", "exec cat /proc/self/environ >" + p.path("cleanup")}
			p.create(req)
			p.start("c")
			if env := p.wantExec("c", 0, "env"); strings.Contains(env, "OF_THE_RUNTIME") || strings.Contains(env, "GOGC") {
				t.Errorf("environment of an exec: %q", env)
			}
			p.mustCommand("kill", "c", "KILL")
			p.wantExit("c", 137)
			cleanup := ""
			eventually(t, exitLimit, "cleanup command writes", func() bool {
				b, _ := os.ReadFile(p.path("cleanup"))
				cleanup = string(b)
				return cleanup != ""
			})
			want := []string{markVariable + "=" + p.name, "PATH=" + os.Getenv("PATH")}
			create := record("create", "environ")
			checkEnvironment(t, "create", create, append(want, given...))
			checkEnvironment(t, "exec", record("exec", "environ"), append(want, given...))
			checkEnvironment(t, "cleanup", cleanup, append(want, given...))
			if !strings.Contains("\x00"+create, "\x00OF_THE_RUNTIME=a b=c\x00") {
				t.Errorf("the request's variable is missing in %q", create)
			}
		})
	}
}

// checkEnvironment checks that env, as in /proc, has all of want, and of certain variables nothing else.
func checkEnvironment(t *testing.T, who, env string, want []string) {
	t.Helper()
	words := strings.Split(env, "\x00")
	for _, w := range want {
		if !slices.Contains(words, w) {
			t.Errorf("%s: no %s in the environment", who, w)
		}
	}
	suspicious := []string{"NOTIFY_", "WATCHDOG_", "LISTEN_", "CONMON_", "_CONMONRS_", "GOGC=", "GOMAXPROCS=", "GODEBUG=", "GOMEMLIMIT="}
	for _, w := range words {
		bad := slices.ContainsFunc(suspicious, func(prefix string) bool { return strings.HasPrefix(w, prefix) })
		if bad && !slices.Contains(want, w) && !strings.HasPrefix(w, "_CONMONRS_EXEC=") {
			t.Errorf("%s: %s in the environment", who, w)
		}
	}
}

// R080: the monitor's protection is its own.
func TestOOMScore(t *testing.T) {
	each(t, func(t *testing.T, v variant) {
		runtime, record := spyRuntime(t, v)
		p := newPod(t, v, podOptions{runtime: runtime, conditions: conditions{OOMScore: "123"}})
		own, adj := readFile(t, fmt.Sprintf("/proc/%d/oom_score_adj", p.pid)), 500
		unprivileged := own == "123\n" && strings.Contains(string(tail(p.log, 1<<20)), "not protected")
		if own != "-1000\n" && !unprivileged {
			t.Errorf("score of the monitor is %q", own)
		}
		for id, score := range map[string]*int{"without": nil, "with": &adj} {
			want := "123\n"
			if score != nil {
				want = "500\n"
			}
			pid := p.runOptions(id, bundle.Options{Args: []string{"sleep", "1000"}, OOMScoreAdj: score})
			if got := readFile(t, fmt.Sprintf("/proc/%d/oom_score_adj", pid)); got != want {
				t.Errorf("container %s: score %q, want %q", id, got, want)
			}
		}
		if got := p.wantExec("without", 0, "cat", "/proc/self/oom_score_adj"); got != "123\n" {
			t.Errorf("score of an exec is %q", got)
		}
		for _, verb := range []string{"create", "exec"} {
			if got := record(verb, "oom_score_adj"); got != "123\n" {
				t.Errorf("score of the runtime's %s is %q", verb, got)
			}
		}
		if again := readFile(t, fmt.Sprintf("/proc/%d/oom_score_adj", p.pid)); again != own {
			t.Errorf("score of the monitor is %q, was %q", again, own)
		}
	})
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// R153: modes do not depend on the umask of the starter.
func TestModes(t *testing.T) {
	for _, umask := range []string{"0", "077"} {
		t.Run(umask, func(t *testing.T) {
			p := newPod(t, anyVariant(), podOptions{conditions: conditions{Umask: umask}})
			p.run("c", "sh", "-c", "umask; sleep 1000")
			p.waitOutput("c", "0022")
			attach := p.path("run", "c", "attach")
			if err := p.attachSocket("c", attach); err != nil {
				t.Fatal(err)
			}
			modes := map[string]os.FileMode{
				p.path("run", "conmon.sock"): os.ModeSocket | 0o700, attach: os.ModeSocket | 0o700, p.path("logs", "c"): 0o600,
			}
			checkModes(t, modes)
			p.mustCommand("kill", "c", "KILL")
			p.wantExit("c", 137)
			checkModes(t, map[string]os.FileMode{p.path("exits", "c"): 0o644, p.path("persist", "c"): 0o644})
		})
	}
}

func checkModes(t *testing.T, modes map[string]os.FileMode) {
	t.Helper()
	for path, want := range modes {
		if info, err := os.Lstat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want mode %v", path, info.Mode(), err, want)
		}
	}
}

func TestResourceLimits(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		runtime, record := spyRuntime(t, v)
		p := newPod(t, v, podOptions{runtime: runtime, conditions: conditions{NoFile: [2]uint64{1111, 4242}, Core: 8192}})
		pid := p.run("c", "sleep", "1000")
		p.wantExec("c", 0, "true")
		for who, text := range map[string]string{
			"create": record("create", "limits"), "exec": record("exec", "limits"),
		} {
			checkLimit(t, who, text, "Max open files", "1111", "4242")
			checkLimit(t, who, text, "Max core file size", "8192", "8192")
		}
		checkLimit(t, "container", readFile(t, fmt.Sprintf("/proc/%d/limits", pid)), "Max core file size", "8192", "8192")
	})
}

func checkLimit(t *testing.T, who, text, name, soft, hard string) {
	t.Helper()
	_, rest, _ := strings.Cut(text, name)
	if fields := strings.Fields(rest); len(fields) < 2 || fields[0] != soft || fields[1] != hard {
		t.Errorf("%s: %s is %.60q, want %s %s", who, name, rest, soft, hard)
	}
}

// Containers, execs and runtimes have the standard streams and nothing else.
func TestDescriptors(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		runtime, record := spyRuntime(t, v)
		p := newPod(t, v, podOptions{runtime: runtime})
		p.run("other", "sleep", "1000")
		pid := p.run("c", "sleep", "1000")
		waitProgram(t, pid, "sleep")
		fds := descriptors(pid)
		for fd, target := range fds {
			if fd > 2 {
				t.Errorf("container has descriptor %d: %s", fd, target)
			}
		}
		wantStdin := "/dev/null"
		if v.terminal {
			wantStdin = "/dev/pts/0"
		}
		if fds[0] != wantStdin {
			t.Errorf("standard input of the container is %q", fds[0])
		}
		got := strings.Fields(p.wantExec("c", 0, "sh", "-c", "ls /proc/$$/fd; true"))
		if !slices.Equal(got, []string{"0", "1", "2"}) {
			t.Errorf("descriptors of an exec: %q", got)
		}
		for _, verb := range []string{"create", "exec"} {
			if got := record(verb, "fds"); got != "0\n1\n10\n11\n2\n" { // 10 and 11 are the shell's own
				t.Errorf("descriptors of the runtime's %s: %q", verb, got)
			}
		}
	})
}
