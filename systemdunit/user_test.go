package systemdunit

import (
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// userManager starts a service manager for a user, and returns its runtime directory.
func userManager(t *testing.T, u *user.User) string {
	t.Helper()
	name := "conmonrs-user-" + unique()
	dir := filepath.Join("/run", name)
	out, err := exec.Command("systemd-run", "--unit", name, "--uid", u.Username, "--property=Delegate=yes",
		"--property=RuntimeDirectory="+name, "--property=Type=notify",
		"--setenv=XDG_RUNTIME_DIR="+dir, "--setenv=HOME="+dir,
		"--setenv=DBUS_SESSION_BUS_ADDRESS=unix:path="+dir+"/none", "/lib/systemd/systemd", "--user").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { systemctl(t, "stop", name) })
	return dir
}

// child is set where a test runs itself again, as another user or in another namespace.
const child = "CONMONRS_TEST_CHILD"

func TestRealUserManager(t *testing.T) {
	if os.Getenv(child) != "" {
		registerAsUser(t)
		return
	}
	realManager(t)
	u, err := user.Lookup("daemon")
	if err != nil {
		t.Skip(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	dir := userManager(t, u)
	binary := filepath.Join(dir, "test")
	copyFile(t, binary, "/proc/self/exe")
	cmd := exec.Command(binary, "-test.run=^TestRealUserManager$", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "XDG_RUNTIME_DIR=" + dir, child + "=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestRealUserManager") {
		t.Errorf("%v\n%s", err, out)
	}
}

func copyFile(t *testing.T, to, from string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if closeErr := out.Close(); err != nil || closeErr != nil {
		t.Fatal(err, closeErr)
	}
}

func registerAsUser(t *testing.T) {
	m := New(DefaultInstance)
	for _, test := range []struct{ slice, group string }{
		{"", "/user.slice/"}, {"a-b.slice", "/a.slice/a-b.slice/"},
	} {
		pid, unit := sleeper(t), scope(t, unique())
		result, err := register(t, m, Request{Unit: unit, PID: pid, Slice: test.slice, Description: "rootless"})
		if err != nil || result.Action != Registered {
			t.Fatalf("%+v, %v", result, err)
		}
		if got := group(t, pid); !strings.HasSuffix(got, test.group+unit) {
			t.Errorf("process is in %s", got)
		}
		if stopping, err := m.Stopping(timeout(t, 20*time.Second), unit); err != nil || stopping {
			t.Errorf("stopping %v, %v", stopping, err)
		}
		if err := m.Describe(timeout(t, 20*time.Second), unit, "changed"); err != nil {
			t.Error(err)
		}
	}
}

// Where our pids mean others to the manager, nothing is registered.
func TestRealOtherPidNamespace(t *testing.T) {
	if os.Getenv(child) != "" {
		_, err := register(t, New(DefaultInstance), Request{Unit: scope(t, unique()), PID: 2})
		if err == nil || !strings.Contains(err.Error(), "pid namespace") {
			t.Errorf("%v", err)
		}
		return
	}
	realManager(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestRealOtherPidNamespace$", "-test.v")
	cmd.Env = []string{child + "=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestRealOtherPidNamespace") {
		t.Errorf("%v\n%s", err, out)
	}
}
