package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// findRuntime returns RUNTIME_PATH, or what works here: crun refuses hybrid cgroups.
func findRuntime() (string, error) {
	if path := os.Getenv("RUNTIME_PATH"); path != "" {
		return path, nil
	}
	names := []string{"crun", "runc"}
	if cgroupLayout() != "v2" {
		names = []string{"runc"}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no OCI runtime that works here: install runc or crun")
}

// runtimeDo runs the OCI runtime. Its standard streams are null: a container that it creates keeps them.
func (b *bench) runtimeDo(root string, args ...string) error {
	var stderr strings.Builder
	cmd := exec.CommandContext(b.ctx, b.runtime, append([]string{"--root=" + root}, args...)...)
	if args[0] != "create" {
		cmd.Stderr = &stderr
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(b.runtime), strings.Join(args, " "), err, stderr.String())
	}
	return nil
}

// waiting is a command for a container that begins when its bundle's rootfs/go exists.
func waiting(args ...string) []string {
	return append([]string{"sh", "-c", `while ! [ -e /go ]; do usleep 1000; done; exec "$@"`, "sh"}, args...)
}

// begin lets the container of that bundle go on.
func begin(bundleDir string) error {
	return os.WriteFile(filepath.Join(bundleDir, "rootfs", "go"), nil, 0o644)
}

// makeBundle makes a bundle under the scratch directory.
func (b *bench) makeBundle(dir string, args ...string) error {
	return bundle.Make(dir, bundle.Options{
		Args: args, CgroupsPath: "/conmonrs-bench/" + b.next("c"), Mounts: []bundle.Mount{{Source: b.tools, Destination: "/tools"}},
	})
}

// pod is a monitor with its containers.
type pod struct {
	b          *bench
	dir, root  string
	client     *client.Client
	pid        int
	group      *group
	containers []*container
}

type container struct {
	id, bundle, log, exit string
	pid                   int
}

// startPod starts a monitor, in a memory cgroup of its own if there is one.
func (b *bench) startPod(m monitor, g *group) (*pod, error) {
	p := &pod{b: b, dir: filepath.Join(b.dir, b.next("pod")), group: g}
	p.root = filepath.Join(p.dir, "root")
	if err := os.MkdirAll(filepath.Join(p.dir, "exits"), 0o755); err != nil {
		return nil, err
	}
	binary, err := g.wrapper(filepath.Join(p.dir, "start"), m.binary)
	if err != nil {
		return nil, err
	}
	if p.client, err = client.Start(b.ctx, p.options(binary)); err != nil {
		return nil, err
	}
	v, err := p.client.Version(b.ctx, &conmon.VersionRequest{})
	if err != nil {
		return nil, errors.Join(err, p.client.Shutdown(b.ctx), p.client.Close())
	}
	p.pid = int(v.ProcessID)
	b.onCleanUp(p.end)
	return p, nil
}

func (p *pod) options(binary string) client.StartOptions {
	driver := "systemd" // what engines use
	if _, err := os.Stat("/run/systemd/journal/socket"); err != nil {
		driver = "none"
	}
	return client.StartOptions{
		Binary: binary, Runtime: p.b.runtime, RuntimeDir: p.dir, RuntimeRoot: p.root, LogDriver: driver, LogLevel: "info",
	}
}

// create has a container created, with pipes and unless noLog with a CRI log.
func (p *pod) create(noLog bool, args ...string) (*container, error) {
	id := p.b.next("c")
	c := &container{id: id, bundle: filepath.Join(p.dir, id), exit: filepath.Join(p.dir, "exits", id)}
	if err := p.b.makeBundle(c.bundle, args...); err != nil {
		return nil, err
	}
	request := p.request(c)
	if !noLog {
		c.log = filepath.Join(p.dir, id+".log")
		request.LogDrivers = []conmon.LogDriver{{Type: conmon.LogDriverCRI, Path: c.log}}
	}
	return c, p.createFrom(c, request)
}

func (p *pod) request(c *container) *conmon.CreateContainerRequest {
	return &conmon.CreateContainerRequest{
		ID: c.id, BundlePath: c.bundle, ExitPaths: []string{c.exit}, OOMExitPaths: []string{c.exit + ".oom"},
		CgroupManager: conmon.CgroupManagerCgroupfs,
	}
}

func (p *pod) createFrom(c *container, request *conmon.CreateContainerRequest) error {
	r, err := p.client.CreateContainer(p.b.ctx, request)
	if err != nil {
		return err
	}
	c.pid = int(r.ContainerPID)
	p.containers = append(p.containers, c)
	return nil
}

func (p *pod) start(c *container) error { return p.b.runtimeDo(p.root, "start", c.id) }

// idle adds containers that do nothing, with all that an engine gives them: log, exit files, attach socket.
func (p *pod) idle(n int) error {
	for range n {
		c, err := p.create(false, "sleep", "1000000")
		if err != nil {
			return err
		}
		if err := p.start(c); err != nil {
			return err
		}
		if err := p.attachSocket(c); err != nil {
			return err
		}
	}
	return nil
}

// attachSocket has the socket made, as the first attach does, and goes away.
func (p *pod) attachSocket(c *container) error {
	ctx, cancel := context.WithCancel(p.b.ctx)
	defer cancel()
	err := p.client.Attach(ctx, client.AttachOptions{
		ID: c.id, SocketPath: filepath.Join(p.dir, c.id+".attach"), Attached: cancel,
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// ended waits for the exit file.
func (p *pod) ended(c *container) error {
	return p.b.until("exit of "+c.id, time.Minute, func() bool { _, err := os.Stat(c.exit); return err == nil })
}

// remove removes a container of which nothing is needed any more.
func (p *pod) remove(c *container) error {
	err := p.b.runtimeDo(p.root, "delete", "--force", c.id)
	if c.log != "" {
		err = errors.Join(err, os.Remove(c.log))
	}
	for i, other := range p.containers {
		if other == c {
			p.containers = append(p.containers[:i], p.containers[i+1:]...)
			break
		}
	}
	return errors.Join(err, os.RemoveAll(c.bundle))
}

// disconnect closes the client's connection: an idle pod has none.
func (p *pod) disconnect() error {
	err := p.client.Close()
	p.client = nil
	return err
}

func (p *pod) connect() (err error) {
	if p.client == nil {
		p.client, err = client.Dial(p.b.ctx, filepath.Join(p.dir, "conmon.sock"))
	}
	return err
}

// end ends the monitor and its containers. It can be called again.
func (p *pod) end() error {
	if p.pid == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.b.ctx), 15*time.Second)
	defer cancel()
	err := p.connect()
	if err == nil {
		err = errors.Join(p.client.Shutdown(ctx), p.client.Close())
	}
	if err == nil {
		reap(p.pid)
	}
	p.pid, p.client = 0, nil
	for _, c := range p.containers {
		_ = exec.Command(p.b.runtime, "--root="+p.root, "delete", "--force", c.id).Run()
	}
	if p.group != nil {
		err = errors.Join(err, p.group.remove())
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}
