package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// markVariable is in the environment of a pod's monitor and of what it starts outside containers.
const markVariable = "CONMONRS_TEST_POD"

// callLimit bounds calls that are to succeed.
const callLimit = 60 * time.Second

// podOptions change how a monitor is started. The zero value is right for most tests.
type podOptions struct {
	runtime    string   // instead of the variant's
	args       []string // more of the command line
	env        []string // more of the environment
	runDir     string   // instead of a short one
	conditions conditions
}

// pod is a monitor with its directories and containers. It is shut down, and checked to have left nothing behind, at
// the end of the test.
type pod struct {
	t *testing.T
	v variant
	// name is part of the names of the containers' cgroups; dir holds all files; runDir is the monitor's; root the
	// runtime's; log the monitor's own log.
	name, dir, runDir, root, log string
	runtimePath                  string
	client                       *client.Client
	pid                          int
	ids                          []string
}

// newPod starts a monitor.
func newPod(t *testing.T, v variant, o podOptions) *pod {
	t.Helper()
	p := preparePod(t, v, o)
	if err := p.startMonitor(o); err != nil {
		t.Fatal(err)
	}
	return p
}

// preparePod makes the directories of a pod, and has it cleaned up.
func preparePod(t *testing.T, v variant, o podOptions) *pod {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "cmi-")
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{
		t: t, v: v, dir: dir, name: filepath.Base(dir), runDir: dir + "/run", root: dir + "/root", log: dir + "/monitor.log",
		runtimePath: v.runtime,
	}
	if o.runDir != "" {
		p.runDir = o.runDir
	}
	if o.runtime != "" {
		p.runtimePath = o.runtime
	}
	for _, name := range []string{"exits", "persist", "logs", "bundles"} {
		if err := os.Mkdir(p.path(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(p.close)
	return p
}

func (p *pod) path(elem ...string) string { return filepath.Join(append([]string{p.dir}, elem...)...) }

// startMonitor starts the monitor, or one in place of one that was killed.
func (p *pod) startMonitor(o podOptions) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	c, err := client.Start(p.ctx(), client.StartOptions{
		Binary: o.binary(), Runtime: p.runtimePath, RuntimeDir: p.runDir, RuntimeRoot: p.root,
		LogLevel: "debug", LogDriver: "stdout", Stdout: log, Stderr: log, ExtraArgs: o.args, Env: p.environ(o),
		Timeout: callLimit,
	})
	if err != nil {
		return err
	}
	p.use(c)
	return nil
}

// use makes c the pod's client.
func (p *pod) use(c *client.Client) {
	if p.client != nil {
		_ = p.client.Close()
	}
	p.client, p.pid = c, c.PID()
}

// binary is what to execute as the monitor: itself, or what puts the conditions in force first.
func (o podOptions) binary() string {
	if o.conditions.env() != nil {
		return "/proc/self/exe"
	}
	return os.Getenv("CONMONRS_BINARY")
}

func (p *pod) environ(o podOptions) []string {
	env := slices.Concat(os.Environ(), []string{markVariable + "=" + p.name}, o.env, o.conditions.env())
	if os.Getenv("CONMONRS_RACE") != "" {
		env = append(env, "GORACE=exitcode=0 atexit_sleep_ms=0") // reports are looked for in the log
	}
	return env
}

// ctx is for a call that is to succeed soon.
func (p *pod) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	p.t.Cleanup(cancel)
	return ctx
}

// command runs the pod's real runtime, which is not the monitor's if that is a script.
func (p *pod) command(args ...string) (string, error) {
	global := []string{"--root=" + p.root}
	if p.v.manager == conmon.CgroupManagerSystemd {
		global = append(global, "--systemd-cgroup")
	}
	cmd := exec.Command(p.v.runtime, append(global, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(p.v.runtime), strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), err
}

func (p *pod) mustCommand(args ...string) string {
	p.t.Helper()
	out, err := p.command(args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// close ends the pod and checks that nothing is left.
func (p *pod) close() {
	if p.client != nil {
		p.shutdown()
		_ = p.client.Close()
	}
	p.deleteContainers()
	p.checkNothingLeft()
	p.checkMonitorLog()
	if p.t.Failed() || os.Getenv("CONMONRS_TEST_VERBOSE") != "" {
		p.t.Logf("end of the monitor's log:\n%s", tail(p.log, 6000))
	}
	if err := os.RemoveAll(p.dir); err != nil {
		p.t.Error(err)
	}
}

// shutdown ends the monitor as engines do. It may be called again.
func (p *pod) shutdown() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.client.Shutdown(ctx); err != nil {
		p.t.Errorf("shutdown: %v", err)
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
}

func (p *pod) deleteContainers() {
	for _, id := range p.ids {
		_, _ = p.command("delete", "--force", id)
	}
	if _, err := os.Stat(p.root); errors.Is(err, os.ErrNotExist) {
		return
	}
	if left, err := p.command("list", "-q"); err != nil || strings.TrimSpace(left) != "" {
		p.t.Errorf("containers left behind: %q, %v", left, err)
		for id := range strings.FieldsSeq(left) {
			_, _ = p.command("delete", "--force", id)
		}
	}
}

// checkNothingLeft looks for processes and for files in the monitor's directory.
func (p *pod) checkNothingLeft() {
	var left []process
	if !poll(5*time.Second, func() bool { left = p.processes(); return len(left) == 0 }) {
		p.t.Errorf("processes left behind: %v", left)
		for _, proc := range left {
			_ = syscall.Kill(proc.pid, syscall.SIGKILL)
		}
	}
	entries, err := os.ReadDir(p.runDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Error(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			p.t.Errorf("%s left behind in the runtime directory", e.Name())
		}
	}
}

// checkMonitorLog looks for what must never be there.
func (p *pod) checkMonitorLog() {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return
	}
	for _, bad := range []string{"DATA RACE", "internal error", "panic", "goroutine 1 ["} {
		if i := bytes.Index(b, []byte(bad)); i >= 0 {
			p.t.Errorf("%q in the monitor's log:\n%s", bad, b[i:min(len(b), i+4000)])
		}
	}
}

func tail(path string, n int) []byte {
	b, _ := os.ReadFile(path)
	return b[max(0, len(b)-n):]
}

// poll calls done until it returns true; false if that does not happen within limit.
func poll(limit time.Duration, done func() bool) bool {
	for end := time.Now().Add(limit); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			return done()
		}
	}
	return true
}

// eventually fails the test if done does not become true within limit.
func eventually(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	if !poll(limit, done) {
		t.Fatalf("not within %v: %s", limit, what)
	}
}

// cgroupsPath names a cgroup that only this container of this pod has.
func (p *pod) cgroupsPath(id string) string {
	if p.v.manager == conmon.CgroupManagerSystemd {
		return "system.slice:" + p.name + ":" + id
	}
	return "/" + p.name + "-" + id
}

// request makes a bundle and returns what creates a container of it.
func (p *pod) request(id string, o bundle.Options) *conmon.CreateContainerRequest {
	p.t.Helper()
	o.Terminal = o.Terminal || p.v.terminal
	if o.CgroupsPath == "" {
		o.CgroupsPath = p.cgroupsPath(id)
	}
	dir := p.path("bundles", id)
	if err := bundle.Make(dir, o); err != nil {
		p.t.Fatal(err)
	}
	return &conmon.CreateContainerRequest{
		ID: id, BundlePath: dir, Terminal: o.Terminal, ExitPaths: []string{p.path("exits", id), p.path("persist", id)},
		LogDrivers: []conmon.LogDriver{{Type: conmon.LogDriverCRI, Path: p.path("logs", id)}}, CgroupManager: p.v.manager,
	}
}
