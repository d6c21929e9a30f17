package proctree

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// procsFile is a cgroup.procs that says content when it is first read, and nothing after that.
func procsFile(t *testing.T, content string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	path := filepath.Join(dir, "cgroup.procs")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	done := make(chan error)
	go func() {
		defer close(done)
		for said := false; ; said = true {
			f, err := os.OpenFile(path, os.O_WRONLY, 0) // waits for a reader
			if err == nil && !said {
				_, err = f.WriteString(content)
			}
			if err != nil || stop.Load() {
				done <- err
				return
			}
			f.Close()
		}
	}()
	t.Cleanup(func() {
		stop.Store(true)
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return dir
}

// A pid that is not in the group any more may be anybody's.
func TestCgroupKillSparesAReusedPid(t *testing.T) {
	cmd := sleeper(t)
	Cgroup{dir: procsFile(t, strconv.Itoa(cmd.Process.Pid)+"\n")}.Kill()
	if !isAlive(cmd.Process.Pid) {
		t.Error("a process was killed that has left the group")
	}
}

// testCgroup makes a control group of version 1, or of version 2 as before Linux 5.14, with one below it.
func testCgroup(t *testing.T) (dir, below string) {
	t.Helper()
	var err error
	for _, root := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if dir, err = os.MkdirTemp(root, "conmonrs-test-"); err != nil {
			continue
		}
		if _, err = os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			break
		}
		_ = os.Remove(dir)
	}
	if err != nil {
		if os.Getenv("CI") == "true" || os.Getenv("CONMONRS_REQUIRE_ALL") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	below = filepath.Join(dir, "below")
	t.Cleanup(func() { _ = unix.Rmdir(dir) })
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Rmdir(below) })
	return dir, below
}

func TestCgroupKill(t *testing.T) {
	for _, c := range []struct {
		name string
		n    int
		kill func(t *testing.T, g Cgroup)
	}{
		{"a few", 3, func(_ *testing.T, g Cgroup) { g.Kill() }},
		{"many", 2*killAtOnce + 3, func(_ *testing.T, g Cgroup) { g.Kill() }},
		{"without pidfds", 3, func(t *testing.T, g Cgroup) { withoutPidfds(t, g.Kill) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, below := testCgroup(t)
			bystander := sleeper(t)
			var members []*exec.Cmd
			for i := range c.n {
				cmd := sleeper(t)
				members = append(members, cmd)
				procs := filepath.Join([]string{dir, below}[i%2], "cgroup.procs")
				if err := os.WriteFile(procs, []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
					t.Fatal(err)
				}
			}
			c.kill(t, Cgroup{dir: dir})
			for _, cmd := range members {
				if isAlive(cmd.Process.Pid) {
					t.Errorf("process %d is alive", cmd.Process.Pid)
				}
				_ = cmd.Process.Kill()
				_ = cmd.Wait() // or the group cannot be removed
			}
			if !isAlive(bystander.Process.Pid) {
				t.Error("a bystander was killed")
			}
		})
	}
}

func TestKillTreeWithoutPidfds(t *testing.T) {
	cmd := sleeper(t)
	withoutPidfds(t, func() { Kill(Target{Root: cmd.Process.Pid}) })
	if isAlive(cmd.Process.Pid) {
		t.Error("the process is alive")
	}
}

var errFilter = errors.New("filter without effect")

// withoutPidfds calls f on a thread for which pidfd_open(2) fails as before Linux 5.3. The thread ends with it.
func withoutPidfds(t *testing.T, f func()) {
	t.Helper()
	filter := []unix.SockFilter{ // the number of the call is the first word of struct seccomp_data
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PIDFD_OPEN, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	result := make(chan error, 1)
	go func() {
		defer close(result)
		runtime.LockOSThread()
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
			err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
		}
		if err != nil {
			result <- err
			return
		}
		if _, err := unix.PidfdOpen(os.Getpid(), 0); !errors.Is(err, unix.ENOSYS) {
			result <- fmt.Errorf("pidfd_open with the filter: %w", errors.Join(errFilter, err))
			return
		}
		f()
	}()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
}
