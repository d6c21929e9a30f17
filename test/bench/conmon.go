package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// conmons are containers each under a C monitor of its own, as engines without a monitor for the pod have them.
type conmons struct {
	b         *bench
	dir, root string
	group     *group
	binary    string
	all       []*conmonContainer
}

type conmonContainer struct {
	container
	monitor int // its pid
}

func (b *bench) newConmons(g *group) (*conmons, error) {
	m := &conmons{b: b, dir: filepath.Join(b.dir, b.next("conmon")), group: g}
	m.root = filepath.Join(m.dir, "root")
	for _, name := range []string{"exits", "sockets"} {
		if err := os.MkdirAll(filepath.Join(m.dir, name), 0o755); err != nil {
			return nil, err
		}
	}
	var err error
	m.binary, err = g.wrapper(filepath.Join(m.dir, "start"), b.conmon)
	b.onCleanUp(m.end)
	return m, err
}

// bundle prepares a container.
func (m *conmons) bundle(args ...string) (*conmonContainer, error) {
	id := m.b.next("c")
	c := &conmonContainer{container: container{
		id: id, bundle: filepath.Join(m.dir, id), log: filepath.Join(m.dir, id+".log"), exit: filepath.Join(m.dir, "exits", id),
	}}
	return c, m.b.makeBundle(c.bundle, args...)
}

// create has the container created. The monitor reports the process on a pipe, as it does to an engine.
func (m *conmons) create(c *conmonContainer) error {
	report, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer report.Close()
	pidFile := filepath.Join(c.bundle, "conmon.pid")
	cmd := exec.CommandContext(m.b.ctx, m.binary,
		"--api-version=1", "-c", c.id, "-u", c.id, "-n", c.id, "-r", m.b.runtime, "--runtime-arg=--root="+m.root,
		"-b", c.bundle, "-p", filepath.Join(c.bundle, "pidfile"), "-P", pidFile, "-l", "k8s-file:"+c.log,
		"--exit-dir", filepath.Dir(c.exit), "--socket-dir-path", filepath.Join(m.dir, "sockets"), "--log-level", "error", "--no-sync-log")
	cmd.ExtraFiles = []*os.File{w}
	cmd.Env = append(os.Environ(), "_OCI_SYNCPIPE=3")
	err = cmd.Run()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("run conmon: %w", err)
	}
	if c.pid, err = reportedPID(report); err != nil {
		return err
	}
	m.all = append(m.all, c)
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	c.monitor, err = strconv.Atoi(strings.TrimSpace(string(text)))
	return err
}

// reportedPID reads conmon's message: a pid, or a negative number and the reason.
func reportedPID(report *os.File) (int, error) {
	_ = report.SetReadDeadline(time.Now().Add(30 * time.Second))
	line, err := bufio.NewReader(report).ReadBytes('\n')
	if err != nil && len(line) == 0 {
		return 0, fmt.Errorf("read conmon's report: %w", err)
	}
	var message struct {
		Data    int // a pid; "pid" in versions of the interface before 1
		Message string
	}
	if err := json.Unmarshal(line, &message); err != nil {
		return 0, fmt.Errorf("read conmon's report %q: %w", line, err)
	}
	if message.Data <= 0 {
		return 0, fmt.Errorf("create container with conmon: %s", message.Message)
	}
	return message.Data, nil
}

func (m *conmons) start(c *conmonContainer) error { return m.b.runtimeDo(m.root, "start", c.id) }

// add creates and starts containers that do nothing.
func (m *conmons) add(n int) error {
	for range n {
		c, err := m.bundle("sleep", "1000000")
		if err != nil {
			return err
		}
		if err := errors.Join(m.create(c), m.start(c)); err != nil {
			return err
		}
	}
	return nil
}

// remove ends a container, with that its monitor.
func (m *conmons) remove(c *conmonContainer) error {
	err := exec.Command(m.b.runtime, "--root="+m.root, "delete", "--force", c.id).Run()
	if err != nil {
		_ = syscall.Kill(c.monitor, syscall.SIGKILL)
	}
	if c.monitor > 0 {
		reap(c.monitor)
	}
	for i, other := range m.all {
		if other == c {
			m.all = append(m.all[:i], m.all[i+1:]...)
			break
		}
	}
	_ = os.Remove(c.log)
	return errors.Join(err, os.RemoveAll(c.bundle))
}

// end can be called again.
func (m *conmons) end() error {
	var err error
	for len(m.all) > 0 {
		err = errors.Join(err, m.remove(m.all[len(m.all)-1]))
	}
	if m.group != nil {
		err = errors.Join(err, m.group.remove())
	}
	return errors.Join(err, os.RemoveAll(m.dir))
}
