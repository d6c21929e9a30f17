package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestOrphans(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "orphans")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, args := range [][]string{{"-hold=false"}, {"-setsid"}} {
		cmd := exec.Command(bin, append(args, "-n=3", "-after=100ms", "-exit=7")...)
		out, err := cmd.Output()
		if cmd.ProcessState.ExitCode() != 7 {
			t.Errorf("%q: %v, want status 7", args, err)
		}
		pids := strings.Fields(string(out))
		if len(pids) != 3 {
			t.Fatalf("%q printed %q, want three pids", args, out)
		}
		for _, pid := range pids {
			waitGone(t, pid)
		}
	}
}

// waitGone waits until the process has ended. A zombie counts: who adopted it is not
// this test's business.
func waitGone(t *testing.T, pid string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %s is still there", pid)
}
