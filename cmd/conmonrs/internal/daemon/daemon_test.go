package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
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
		panic(err)
	case in == nil:
		os.Exit(m.Run())
	case os.Getenv("TEST_FAIL") != "":
		in.Fail(os.ErrInvalid)
		os.Exit(1)
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
