// Package integration runs the monitor with real OCI runtimes and real containers. test/env/run-integration compiles it
// and sets its environment: CONMONRS_BINARY, CONMONRS_RUNTIMES and CONMONRS_CGROUP_MANAGERS (lists with commas),
// CONMONRS_TEST_TOOLS, CONMONRS_TEST_SCALE, CONMONRS_RACE, CONMONRS_REQUIRE_ALL.
package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/conmon"
)

func TestMain(m *testing.M) {
	if conditions := os.Getenv(launchVariable); conditions != "" {
		fmt.Fprintln(os.Stderr, "launch:", launch(conditions)) // does not return if all went well
		os.Exit(1)
	}
	if why := unfit(); why != "" {
		fmt.Fprintln(os.Stderr, "integration tests not run:", why)
		if os.Getenv("CONMONRS_REQUIRE_ALL") == "1" {
			os.Exit(1)
		}
		os.Exit(0)
	}
	before := consoleSockets()
	status := m.Run()
	var left []string
	if !poll(5*time.Second, func() bool { left = consoleSockets(); return len(left) <= len(before) }) {
		fmt.Fprintf(os.Stderr, "console sockets left behind: %q, before %q\n", left, before)
		status = 1
	}
	os.Exit(status)
}

// unfit says why the tests cannot be run, if so.
func unfit() string {
	switch {
	case os.Getuid() != 0:
		return "not root"
	case os.Getenv("CONMONRS_BINARY") == "":
		return "CONMONRS_BINARY is not set (use make integration)"
	case os.Getenv("CONMONRS_RUNTIMES") == "":
		return "CONMONRS_RUNTIMES is not set (use make integration)"
	}
	return ""
}

func consoleSockets() []string {
	names, _ := filepath.Glob("/run/conmon-*")
	return names
}

// scaled multiplies a count by CONMONRS_TEST_SCALE.
func scaled(n int) int {
	if scale, err := strconv.Atoi(os.Getenv("CONMONRS_TEST_SCALE")); err == nil && scale > 0 {
		return n * scale
	}
	return n
}

// unable skips a test that cannot work here.
func unable(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CONMONRS_REQUIRE_ALL") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// tool returns one of the programs of test/cmd.
func tool(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(os.Getenv("CONMONRS_TEST_TOOLS"), name)
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		unable(t, "no "+name+" in CONMONRS_TEST_TOOLS (make test-tools)")
	}
	return path
}

// variant is one cell of the matrix.
type variant struct {
	runtime  string // absolute path
	manager  conmon.CgroupManager
	terminal bool
}

func (v variant) isCrun() bool { return filepath.Base(v.runtime) == "crun" }

func runtimes() []string { return strings.Split(os.Getenv("CONMONRS_RUNTIMES"), ",") }

func managers() []conmon.CgroupManager {
	var all []conmon.CgroupManager
	for name := range strings.SplitSeq(os.Getenv("CONMONRS_CGROUP_MANAGERS"), ",") {
		if name == "systemd" {
			all = append(all, conmon.CgroupManagerSystemd)
		} else {
			all = append(all, conmon.CgroupManagerCgroupfs)
		}
	}
	return all
}

// eachRuntime runs f with every runtime and one cgroup manager, with pipes.
func eachRuntime(t *testing.T, f func(t *testing.T, v variant)) {
	for _, runtime := range runtimes() {
		t.Run(filepath.Base(runtime), func(t *testing.T) { f(t, variant{runtime: runtime, manager: managers()[0]}) })
	}
}

// each runs f with every runtime and cgroup manager, with pipes.
func each(t *testing.T, f func(t *testing.T, v variant)) {
	for _, runtime := range runtimes() {
		for _, manager := range managers() {
			t.Run(filepath.Base(runtime)+"/"+manager.String(), func(t *testing.T) {
				f(t, variant{runtime: runtime, manager: manager})
			})
		}
	}
}

// eachIO runs f with every runtime and cgroup manager, with pipes and with a terminal.
func eachIO(t *testing.T, f func(t *testing.T, v variant)) {
	each(t, func(t *testing.T, v variant) {
		for _, name := range []string{"pipe", "terminal"} {
			v.terminal = name == "terminal"
			t.Run(name, func(t *testing.T) { f(t, v) })
		}
	})
}

// anyVariant is for tests in which the runtime does not matter, or is a script.
func anyVariant() variant { return variant{runtime: runtimes()[0], manager: managers()[0]} }
