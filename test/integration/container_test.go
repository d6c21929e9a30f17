package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
	"github.com/conmonrs/conmonrs/test/logcheck"
)

// exitLimit bounds the wait for an exit that is to come soon.
const exitLimit = 20 * time.Second

// create creates a container and returns the pid of its first process.
func (p *pod) create(req *conmon.CreateContainerRequest) int {
	p.t.Helper()
	if !slices.Contains(p.ids, req.ID) {
		p.ids = append(p.ids, req.ID)
	}
	r, err := p.client.CreateContainer(p.ctx(), req)
	if err != nil {
		p.t.Fatal(err)
	}
	return int(r.ContainerPID)
}

func (p *pod) start(id string) {
	p.t.Helper()
	p.mustCommand("start", id)
}

// run creates and starts a container and returns the pid of its first process.
func (p *pod) run(id string, args ...string) int {
	p.t.Helper()
	return p.runOptions(id, bundle.Options{Args: args})
}

func (p *pod) runOptions(id string, o bundle.Options) int {
	p.t.Helper()
	pid := p.create(p.request(id, o))
	p.start(id)
	return pid
}

// remove deletes an ended container and its exit files, so that the id can be used again.
func (p *pod) remove(id string) {
	p.t.Helper()
	p.mustCommand("delete", id)
	for _, dir := range []string{"exits", "persist"} {
		if err := os.Remove(p.path(dir, id)); err != nil && !os.IsNotExist(err) {
			p.t.Fatal(err)
		}
	}
}

// exit waits for the container's exit file and returns the code in it.
func (p *pod) exit(id string) int {
	p.t.Helper()
	code, err := waitExit(p.path("exits", id), exitLimit)
	if err != nil {
		p.t.Fatalf("exit of %s: %v", id, err)
	}
	return code
}

func (p *pod) wantExit(id string, want int) {
	p.t.Helper()
	if code := p.exit(id); code != want {
		p.t.Errorf("exit code of %s is %d, want %d", id, code, want)
	}
}

// waitExit reads an exit file as soon as it exists: it has to be complete by then.
func waitExit(path string, limit time.Duration) (code int, err error) {
	var content []byte
	if !poll(limit, func() bool { content, err = os.ReadFile(path); return err == nil }) {
		return 0, err
	}
	code, err = strconv.Atoi(string(content))
	if err != nil || strconv.Itoa(code) != string(content) {
		return 0, fmt.Errorf("content of %s is %q", path, content)
	}
	return code, nil
}

// execRequest is an exec with the pod's cgroup manager.
func (p *pod) execRequest(id string, timeout time.Duration, command ...string) *conmon.ExecSyncRequest {
	return &conmon.ExecSyncRequest{
		ID: id, Timeout: timeout, Command: command, Terminal: p.v.terminal, CgroupManager: p.v.manager,
	}
}

// exec runs a command in a container.
func (p *pod) exec(id string, timeout time.Duration, command ...string) *conmon.ExecSyncResponse {
	p.t.Helper()
	r, err := p.client.ExecSync(p.ctx(), p.execRequest(id, timeout, command...))
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// wantExec runs a command that ends with code, and returns its output without carriage returns.
func (p *pod) wantExec(id string, code int32, command ...string) string {
	p.t.Helper()
	r := p.exec(id, 30*time.Second, command...)
	if r.ExitCode != code || r.TimedOut {
		p.t.Errorf("exec %q: code %d, timed out %v, stdout %.200q, stderr %.2000q; want code %d",
			command, r.ExitCode, r.TimedOut, r.Stdout, r.Stderr, code)
	}
	return strings.ReplaceAll(string(r.Stdout), "\r\n", "\n")
}

// output returns what the container's CRI log has of both streams, without carriage returns. Files of former logs are
// those that rotate made.
func (p *pod) output(id string) string {
	p.t.Helper()
	files, _ := filepath.Glob(p.path("logs", id+".old.*")) // in the order of their names
	var b []byte
	for _, file := range append(files, p.path("logs", id)) {
		more, err := os.ReadFile(file)
		if err != nil && len(files) == 0 {
			p.t.Fatal(err)
		}
		b = append(b, more...)
	}
	var out bytes.Buffer
	for line := range bytes.Lines(b) {
		record, err := logcheck.ParseCRI(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil {
			p.t.Fatalf("log of %s: %v", id, err)
		}
		out.Write(record.Content)
		if !record.Partial {
			out.WriteByte('\n')
		}
	}
	return strings.ReplaceAll(out.String(), "\r\n", "\n")
}

// waitOutput waits until the container has written text.
func (p *pod) waitOutput(id, text string) {
	p.t.Helper()
	eventually(p.t, exitLimit, fmt.Sprintf("%s writes %q", id, text), func() bool {
		return strings.Contains(p.output(id), text)
	})
}

// status returns the container's OCI state, or "" if the runtime does not know it.
func (p *pod) status(id string) string {
	out, err := p.command("state", id)
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(out, `"status": "`)
	status, _, _ := strings.Cut(rest, `"`)
	return status
}

// alive checks that the monitor answers.
func (p *pod) alive() {
	p.t.Helper()
	v, err := p.client.Version(p.ctx(), &conmon.VersionRequest{})
	if err != nil || int(v.ProcessID) != p.pid {
		p.t.Fatalf("monitor %d: %+v, %v", p.pid, v, err)
	}
}

// attachSocket attaches for a moment, so that the socket is bound.
func (p *pod) attachSocket(id, path string) error {
	ctx, cancel := context.WithCancel(p.ctx())
	defer cancel()
	attached := false
	err := p.client.Attach(ctx, client.AttachOptions{ID: id, SocketPath: path, Attached: func() { attached = true; cancel() }})
	if attached {
		return nil
	}
	return err
}

func envVar(key, value string) conmon.EnvVar { return conmon.EnvVar{Key: key, Value: value} }
