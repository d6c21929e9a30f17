package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLock(t *testing.T) {
	dir := t.TempDir()
	first, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), "another server is running") {
		t.Errorf("second lock: %v", err)
	}
	first.Close()
	second, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
	if _, err := Lock(filepath.Join(dir, "missing")); err == nil {
		t.Error("locked a directory that is not there")
	}
}

// The lock is held as long as any process has the descriptor: the monitor's own copy survives its starter.
func TestLockIsInherited(t *testing.T) {
	dir := t.TempDir()
	lock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("/bin/sh", "-c", "read x")
	child.ExtraFiles = []*os.File{lock}
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	if again, err := Lock(dir); err == nil {
		again.Close()
		t.Error("locked twice")
	}
	stdin.Close()
	_ = child.Wait()
	again, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestWritePid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pidfile")
	if err := os.WriteFile(path, []byte("old content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writePid(path, 4711); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "4711" {
		t.Errorf("%q, %v", got, err)
	}
	if err := writePid("/nonexistent/pidfile", 1); err == nil {
		t.Error("no error")
	}
}

func TestEnvironKeepsWhatTheEngineHad(t *testing.T) {
	t.Setenv("GOGC", "77")
	t.Setenv("GOMAXPROCS", "")
	env := environ("background")
	for _, want := range []string{
		marker + "=background", saved + "GOGC=77", saved + "GOMAXPROCS=", "GOGC=25", "GOMAXPROCS=1",
	} {
		if !slices.Contains(env, want) {
			t.Errorf("no %s", want)
		}
	}
	if slices.Contains(env, "GOGC=77") {
		t.Error("two values of GOGC")
	}
}

// TestMain lets the test binary stand in for the monitor: it reports what Enter gave it.
func TestMain(m *testing.M) {
	switch in, err := Enter(); {
	case err != nil:
		in.Fail(err)
		os.Exit(1)
	case in == nil:
		os.Exit(m.Run())
	case os.Getenv("TEST_FAIL") != "":
		in.Fail(os.ErrInvalid)
		os.Exit(1)
	case os.Getenv("TEST_FAULT") != "":
		crash(in, os.Getenv("TEST_FAULT"))
	case os.Getenv("TEST_CRASH") != "":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	default:
		report := []string{os.Getenv("GOGC"), os.Getenv("GOMAXPROCS"), os.Getenv(marker)}
		comm, _ := os.ReadFile("/proc/self/comm")
		report = append(report, strings.TrimSpace(string(comm)))
		_ = os.WriteFile(os.Getenv("TEST_REPORT"), []byte(strings.Join(report, ",")), 0o600)
		_ = in.Ready()
		os.Exit(0)
	}
}

func background(t *testing.T) (pidFile string, err error) {
	t.Helper()
	dir := t.TempDir()
	lock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	pidFile = filepath.Join(dir, "pidfile")
	return pidFile, Background([]string{"monitor"}, lock, pidFile)
}

func TestBackground(t *testing.T) {
	report := filepath.Join(t.TempDir(), "report")
	t.Setenv("TEST_REPORT", report)
	t.Setenv("GOGC", "50")
	pidFile, err := background(t)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(pidFile); err != nil || strings.Trim(string(b), "0123456789") != "" || len(b) == 0 {
		t.Errorf("pid file: %q, %v", b, err)
	}
	if got, err := os.ReadFile(report); err != nil || string(got) != "50,,,conmonrs" {
		t.Errorf("the monitor saw %q, %v", got, err)
	}
}

// The name of the process is for people; where it cannot be set, the monitor has another one.
func TestBackgroundWithReadOnlyProc(t *testing.T) {
	report := filepath.Join(t.TempDir(), "report")
	t.Setenv("TEST_REPORT", report)
	err := withReadOnlyProc(func() error {
		_, err := background(t)
		return err
	})
	if errors.Is(err, errNoNamespace) {
		if os.Getenv("CI") == "true" || os.Getenv("CONMONRS_REQUIRE_ALL") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(report); err != nil || strings.HasSuffix(string(got), ",conmonrs") {
		t.Errorf("the monitor saw %q, %v; was /proc read-only?", got, err)
	}
}

var errNoNamespace = errors.New("no mount namespace")

// withReadOnlyProc calls f on a thread whose children have a read-only /proc. The thread ends with it.
func withReadOnlyProc(f func() error) error {
	result := make(chan error, 1)
	go func() {
		defer close(result) // f may end its goroutine
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		for _, m := range []struct {
			source, target string
			flags          uintptr
		}{
			{"", "/", unix.MS_REC | unix.MS_PRIVATE},
			{"/proc", "/proc", unix.MS_BIND | unix.MS_REC},
			{"", "/proc", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY},
		} {
			if err == nil {
				err = unix.Mount(m.source, m.target, "", m.flags, "")
			}
		}
		if err != nil {
			result <- fmt.Errorf("%w: %w", errNoNamespace, err)
			return
		}
		result <- f()
	}()
	return <-result
}

// A leader of a process group cannot start a session. Whatever goes wrong in Enter, the starter learns it.
func TestEnterFails(t *testing.T) {
	lock, err := Lock(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command(executable())
	cmd.Env = environ("background")
	cmd.ExtraFiles = []*os.File{lock, w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || !strings.HasPrefix(string(text), "start session: ") {
		t.Errorf("told %q, %v", text, err)
	}
	if cmd.Wait() == nil {
		t.Error("the monitor went on")
	}
}

func TestBackgroundFails(t *testing.T) {
	for _, c := range []struct{ variable, want string }{
		{"TEST_FAIL", os.ErrInvalid.Error()}, {"TEST_CRASH", "server ended before it was ready: killed"},
	} {
		t.Run(c.variable, func(t *testing.T) {
			t.Setenv(c.variable, "1")
			pidFile, err := background(t)
			if err == nil || err.Error() != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if _, err := os.Stat(pidFile); err == nil {
				t.Error("a pid file was written")
			}
		})
	}
}

func TestParseMask(t *testing.T) {
	status := []byte("Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n")
	if mask, err := parseMask(status, "SigIgn:"); err != nil || mask != 0x1001 {
		t.Errorf("%x, %v", mask, err)
	}
	if _, err := parseMask(status, "SigCgt:"); err == nil {
		t.Error("no error for a missing line")
	}
}

func FuzzParseMask(f *testing.F) {
	f.Add([]byte("SigIgn:\tfffffffe7ffbfeff\n"))
	f.Add([]byte("SigIgn:"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = parseMask(b, "SigIgn:") })
}

func TestHideInheritedKeepsStandardStreams(t *testing.T) {
	if _, err := unix.FcntlInt(0, unix.F_GETFD, 0); err != nil {
		t.Skip("no standard input")
	}
	HideInherited()
	if flags, err := unix.FcntlInt(0, unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
		t.Errorf("standard input: %x, %v", flags, err)
	}
}
