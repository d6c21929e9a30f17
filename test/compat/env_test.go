package compat

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containers/conmon-rs/pkg/client"
	"github.com/sirupsen/logrus"
)

// defaultMaxRSS is the suite's limit for release builds, in KiB of VmRSS. That for static builds, 5500, is met by a pod that
// has done little; `make bench` compares peaks with it.
const defaultMaxRSS = 10240

// managers are the names in CONMONRS_CGROUP_MANAGERS.
var managers = map[string]client.CgroupManager{
	"systemd":  client.CgroupManagerSystemd,
	"cgroupfs": client.CgroupManagerCgroupfs,
}

// TestMain makes this process the parent of what loses its own, such as the monitors: the client's Shutdown waits until the
// process is gone, and that is up to the parent. Not every machine's first process is quick about it.
func TestMain(m *testing.M) {
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0, 0, 0, 0); errno != 0 {
		fmt.Fprintln(os.Stderr, "become a subreaper:", errno)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const prSetChildSubreaper = 36 // prctl(2)

// adopt waits for a monitor's end in the background, as its parent should.
func adopt(pid uint32) {
	go func() {
		for {
			if _, err := syscall.Wait4(int(pid), nil, 0, nil); !errors.Is(err, syscall.EINTR) {
				return
			}
		}
	}()
}

// setting is what one round of the tests runs with.
type setting struct {
	binary, runtime string // absolute paths
	manager         string // of managers
	terminal        bool
}

// unavailable skips the test, or fails it where everything has to be tested.
func unavailable(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CONMONRS_REQUIRE_ALL") == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// monitorBinary is the program under test.
func monitorBinary(t *testing.T) string {
	t.Helper()
	binary := os.Getenv("CONMONRS_BINARY")
	if binary == "" {
		unavailable(t, "CONMONRS_BINARY is not set: run make compat")
	}
	if _, err := os.Stat(binary); err != nil {
		t.Fatal(err)
	}
	return binary
}

// forEach runs the test with each OCI runtime and cgroup manager that the environment names.
func forEach(t *testing.T, test func(*testing.T, setting)) {
	t.Helper()
	s := setting{binary: monitorBinary(t)}
	if os.Geteuid() != 0 {
		unavailable(t, "needs root")
	}
	for _, runtime := range runtimes(t) {
		for _, manager := range list("CONMONRS_CGROUP_MANAGERS", "cgroupfs") {
			if _, ok := managers[manager]; !ok {
				t.Fatalf("CONMONRS_CGROUP_MANAGERS: no such manager %q", manager)
			}
			s.runtime, s.manager = runtime, manager
			t.Run(filepath.Base(runtime)+"/"+manager, func(t *testing.T) { test(t, s) })
		}
	}
}

// forEachTerminal does that with a terminal and without one.
func forEachTerminal(t *testing.T, test func(*testing.T, setting)) {
	t.Helper()
	forEach(t, func(t *testing.T, s setting) {
		for name, terminal := range map[string]bool{"pipe": false, "terminal": true} {
			s.terminal = terminal
			t.Run(name, func(t *testing.T) { test(t, s) })
		}
	})
}

// runtimes are the paths in CONMONRS_RUNTIMES, or what is installed.
func runtimes(t *testing.T) []string {
	t.Helper()
	paths := list("CONMONRS_RUNTIMES", "")
	for i := 0; len(paths) == 0 && i < 2; i++ {
		if path, err := exec.LookPath([]string{"crun", "runc"}[i]); err == nil {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		unavailable(t, "no OCI runtime: set CONMONRS_RUNTIMES")
	}
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// list splits the variable at commas.
func list(name, otherwise string) []string {
	value := os.Getenv(name)
	if value == "" {
		value = otherwise
	}
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
}

// maxRSS is the limit in KiB of VmRSS that holds after each test: CONMONRS_MAX_RSS_KB, 0 for none. The race detector's
// memory is none of the monitor's.
func maxRSS(t *testing.T) uint64 {
	t.Helper()
	if os.Getenv("CONMONRS_RACE") == "1" {
		return 0
	}
	value := os.Getenv("CONMONRS_MAX_RSS_KB")
	if value == "" {
		return defaultMaxRSS
	}
	limit, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		t.Fatalf("CONMONRS_MAX_RSS_KB: %v", err)
	}
	return limit
}

// clientLog sends what the client logs to a file.
func clientLog(f *os.File) *logrus.Logger {
	logger := logrus.New()
	logger.SetOutput(f)
	logger.SetLevel(logrus.TraceLevel)
	return logger
}

// procStatus returns a number of /proc/PID/status.
func procStatus(pid uint32, field string) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			return strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("process %d has no %s", pid, field)
}
