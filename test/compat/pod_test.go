package compat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/test/bundle"
	"github.com/containers/conmon-rs/pkg/client"
)

// shutdownLimit is how long the client's Shutdown waits.
const shutdownLimit = 10 * time.Second

// pod is one directory that is everything at once, as in the suite: bundle, directory of the monitor's sockets, logs and
// exit files. It holds one container.
type pod struct {
	setting
	t      *testing.T
	dir    string
	id     string
	client *client.ConmonClient
	pids   []uint32 // of containers
}

// newPod makes a bundle and starts a monitor, which ends with the test; nothing may be left of it then.
func newPod(t *testing.T, s setting, args ...string) *pod {
	t.Helper()
	return newPodIn(t, s, t.TempDir(), args...)
}

func newPodIn(t *testing.T, s setting, dir string, args ...string) *pod {
	t.Helper()
	p := &pod{setting: s, t: t, dir: dir, id: fmt.Sprintf("compat-%d-%x", os.Getpid(), time.Now().UnixNano())}
	options := bundle.Options{Args: args, Terminal: s.terminal}
	if s.manager == "cgroupfs" {
		options.CgroupsPath = "/conmonrs-compat/" + p.id
	}
	if err := bundle.Make(dir, options); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.path("log"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	log := p.create("server.log")
	p.client = p.connect(log)
	adopt(p.client.PID())
	t.Cleanup(func() { p.cleanUp(log) })
	return p
}

func (p *pod) path(name string) string { return filepath.Join(p.dir, name) }

// create opens a file for appending, which ends with the test.
func (p *pod) create(name string) *os.File {
	p.t.Helper()
	f, err := os.OpenFile(p.path(name), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { f.Close() })
	return f
}

// connect is the client's New with the settings of the suite.
func (p *pod) connect(log *os.File) *client.ConmonClient {
	p.t.Helper()
	config := client.NewConmonServerConfig(p.runtime, p.path("root"), p.dir)
	config.ConmonServerPath = p.binary
	config.LogDriver = client.LogDriverStdout
	if driver := os.Getenv("CONMONRS_TEST_LOG_DRIVER"); driver != "" { // the run under systemd has the journal
		config.LogDriver = client.LogDriver(driver)
	}
	config.Stdout, config.Stderr = log, log
	config.ClientLogger = clientLog(p.create("client.log"))
	config.CgroupManager = managers[p.manager]
	c, err := client.New(config)
	if err != nil {
		p.t.Fatalf("start the monitor: %v\n%s", err, p.read("server.log"))
	}
	return c
}

// config is the container that most tests create.
func (p *pod) config() *client.CreateContainerConfig {
	return &client.CreateContainerConfig{
		ID: p.id, BundlePath: p.dir, Terminal: p.terminal, Stdin: true,
		ExitPaths: []string{p.path("exit")}, OOMExitPaths: []string{p.path("oom_exit")},
		LogDrivers: []client.ContainerLogDriver{{
			Type: client.LogDriverTypeContainerRuntimeInterface, Path: p.path("log"),
		}},
		CleanupCmd: []string{}, GlobalArgs: []string{}, CommandArgs: []string{},
	}
}

// createContainer has the container created and sees that the runtime says so.
func (p *pod) createContainer(config *client.CreateContainerConfig) {
	p.t.Helper()
	response, err := p.client.CreateContainer(p.t.Context(), config)
	if err != nil {
		p.t.Fatalf("create container: %v", err)
	}
	if response.PID == 0 {
		p.t.Error("create container: process 0")
	}
	p.pids = append(p.pids, response.PID)
	p.awaitStatus("created")
}

// start starts the container and returns when the runtime sees it running, or ended already.
func (p *pod) start() {
	p.t.Helper()
	if out, err := p.runtimeCommand("start", p.id); err != nil {
		p.t.Fatalf("start container: %v: %s", err, out)
	}
	p.awaitStatus("running", "stopped")
}

// finish creates and starts a container that ends by itself, and has a look when the runtime says that it has ended: one
// look, because engines and the suite take the runtime's word for it. The word may come a moment too early on a busy
// machine; the suite then repeats the test with everything new, and so does this. A monitor that is late as a rule
// fails however often.
func finish(t *testing.T, s setting, args []string, change func(*pod, *client.CreateContainerConfig), look func(*pod) error) {
	t.Helper()
	const attempts = 10
	for n := range attempts {
		p := newPod(t, s, args...)
		config := p.config()
		change(p, config)
		p.createContainer(config)
		if out, err := p.runtimeCommand("start", p.id); err != nil {
			t.Fatalf("start container: %v: %s", err, out)
		}
		p.awaitStatus("stopped")
		err := look(p)
		if err == nil {
			return
		}
		t.Logf("attempt %d: %v", n+1, err)
	}
	t.Errorf("not once in %d attempts", attempts)
}

// unchanged is a change for finish.
func unchanged(*pod, *client.CreateContainerConfig) {}

// running creates and starts the container.
func (p *pod) running() {
	p.t.Helper()
	p.createContainer(p.config())
	p.start()
}

// awaitStatus waits for the runtime to list the container with one of the states.
func (p *pod) awaitStatus(states ...string) {
	p.t.Helper()
	last := ""
	if !eventually(10*time.Second, func() bool {
		last = p.status()
		for _, s := range states {
			if s == last {
				return true
			}
		}
		return false
	}) {
		p.t.Fatalf("container is %q, not %q", last, states)
	}
}

// status is what the runtime lists: "created", "running", "stopped", or "" for no such container. A listing takes the
// runtime some milliseconds from its look at the container to its end.
func (p *pod) status() string {
	out, err := p.runtimeCommand("list", "--format", "json")
	if err != nil {
		return ""
	}
	var listed []struct{ ID, Status string }
	if json.Unmarshal(out, &listed) != nil {
		return ""
	}
	for _, c := range listed {
		if c.ID == p.id {
			return c.Status
		}
	}
	return ""
}

func (p *pod) runtimeCommand(args ...string) ([]byte, error) {
	return exec.Command(p.runtime, append([]string{"--root", p.path("root")}, args...)...).CombinedOutput()
}

// read returns a file of the pod as it is now; one that is missing fails the test.
func (p *pod) read(name string) string {
	p.t.Helper()
	b, err := os.ReadFile(p.path(name))
	if err != nil {
		p.t.Error(err)
	}
	return string(b)
}

// now returns a file of the pod as it is now, or nothing if there is none.
func (p *pod) now(name string) string {
	b, _ := os.ReadFile(p.path(name))
	return string(b)
}

// expect reads a file and compares.
func (p *pod) expect(name, want string) error {
	b, err := os.ReadFile(p.path(name))
	if err == nil && string(b) != want {
		err = fmt.Errorf("%s has %q, want %q", name, b, want)
	}
	return err
}

// rss is the monitor's VmRSS in KiB.
func (p *pod) rss() uint64 {
	p.t.Helper()
	rss, err := procStatus(p.client.PID(), "VmRSS")
	if err != nil {
		p.t.Fatal(err)
	}
	return rss
}

func (p *pod) cleanUp(log *os.File) {
	p.t.Helper()
	pid := p.client.PID()
	if rss, err := procStatus(pid, "VmRSS"); err == nil {
		p.t.Logf("VmRSS %d KiB", rss)
		if limit := maxRSS(p.t); limit > 0 && rss >= limit {
			p.t.Errorf("VmRSS %d KiB, limit %d", rss, limit)
		}
	}
	if out, err := p.runtimeCommand("delete", "--force", p.id); err != nil && p.status() != "" {
		p.t.Errorf("delete container: %v: %s", err, out)
	}
	p.shutdown()
	if p.t.Failed() {
		b, _ := os.ReadFile(log.Name())
		p.t.Logf("log of the monitor:\n%s", bytes.TrimSpace(b))
	}
}

// shutdown ends the monitor and looks for what it may have left. It can be called again.
func (p *pod) shutdown() {
	p.t.Helper()
	begin := time.Now()
	if err := p.client.Shutdown(); err != nil {
		p.t.Errorf("shutdown: %v", err)
	}
	if took := time.Since(begin); took >= shutdownLimit {
		p.t.Errorf("shutdown took %v", took)
	}
	for _, name := range []string{"conmon.sock", "conmon-fd.sock", "pidfile"} {
		if name == "pidfile" && len(p.pids) > 0 {
			continue // the runtime's, which has the same name here
		}
		if _, err := os.Lstat(p.path(name)); !errors.Is(err, fs.ErrNotExist) {
			p.t.Errorf("%s is left: %v", name, err)
		}
	}
	if !eventually(5*time.Second, func() bool { return len(p.left()) == 0 }) {
		p.t.Errorf("processes are left: %q", p.left())
	}
}

// left lists the processes that belong to this pod: by their command line, and the containers.
func (p *pod) left() []string {
	var found []string
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		line, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(line), p.dir) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	for _, pid := range p.pids {
		_, _ = syscall.Wait4(int(pid), nil, syscall.WNOHANG, nil) // ours when the monitor has left it behind
		if syscall.Kill(int(pid), 0) == nil {
			found = append(found, fmt.Sprintf("container %d", pid))
		}
	}
	return found
}

// eventually asks until it is so, or the time is over.
func eventually(limit time.Duration, holds func() bool) bool {
	for deadline := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		if holds() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}
