package integration

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// badIDs are refused everywhere (R155).
var badIDs = []string{"", "..", ".", "a/b", "../../x", "a\x00b", "a\nb", "-x", "--root=/tmp", strings.Repeat("i", 300), "é", "a b"}

// create requests with one bad field, by the name that the error has to give it.
func badCreates(dir string) map[string][]func(r *conmon.CreateContainerRequest) {
	type request = conmon.CreateContainerRequest
	bad := map[string][]func(r *request){
		"exitPaths[1]":    {func(r *request) { r.ExitPaths[1] = "relative" }, func(r *request) { r.ExitPaths[1] = "" }, func(r *request) { r.ExitPaths[1] = "/x\x00y" }},
		"oomExitPaths[0]": {func(r *request) { r.OOMExitPaths = []string{"relative"} }, func(r *request) { r.OOMExitPaths = []string{"/\x00"} }},
		"envVars[0]":      {func(r *request) { r.Env = append(r.Env, envVar("A=B", "x")) }, func(r *request) { r.Env = append(r.Env, envVar("A", "x\x00")) }},
		"globalArgs[1]":   {func(r *request) { r.GlobalArgs = []string{"--debug", "a\x00b"} }},
		"commandArgs[0]":  {func(r *request) { r.CommandArgs = []string{"a\x00b"} }},
		"cleanupCmd[0]":   {func(r *request) { r.CleanupCommand = []string{"a\x00b"} }},
		"slot 7":          {func(r *request) { r.AdditionalFDs = []uint64{7} }, func(r *request) { r.LeakFDs = []uint64{7} }},
		"sdnotifySocket":  {func(r *request) { r.SdNotifySocket = "run/x" }, func(r *request) { r.SdNotifySocket = "/run/x\x00" }},
		"cgroupManager":   {func(r *request) { r.CgroupManager = 17 }},
		"/no/such/dir/x":  {func(r *request) { r.LogDrivers[0].Path = "/no/such/dir/x" }},
		"logDrivers[0].":  {func(r *request) { r.LogDrivers[0].Type = 9 }},
		dir + "/notafile": {func(r *request) { r.LogDrivers[0].Path = dir + "/notafile" }},
		"logDrivers[0].path": {
			func(r *request) { r.LogDrivers[0].Path = "relative" }, func(r *request) { r.LogDrivers[0].Path = "" },
			func(r *request) { r.LogDrivers[0].Path = "/x\x00y" },
		},
	}
	for _, id := range badIDs {
		bad["id"] = append(bad["id"], func(r *request) { r.ID = id })
	}
	for _, path := range []string{"", "relative", "/no/such/bundle", "/etc/passwd", "/x\x00y", dir + "/empty"} {
		bad["bundlePath"] = append(bad["bundlePath"], func(r *request) { r.BundlePath = path })
	}
	return bad
}

func TestBadCreates(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		for _, dir := range []string{"notafile", "empty"} {
			if err := os.Mkdir(p.path(dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		p.run("bystander", "sleep", "1000")
		good := p.request("c", bundle.Options{Args: []string{"true"}})
		before, fds := p.files(), openCount(p.pid)
		for field, edits := range badCreates(p.dir) {
			for i, edit := range edits {
				req := *good
				req.ExitPaths, req.LogDrivers = slices.Clone(good.ExitPaths), slices.Clone(good.LogDrivers)
				edit(&req)
				if _, err := p.client.CreateContainer(p.ctx(), &req); err == nil || !strings.Contains(strings.TrimPrefix(err.Error(), "create container"), field) {
					t.Errorf("%s, case %d: %v", field, i, err)
					_, _ = p.command("delete", "--force", "c")
				}
			}
		}
		if after := p.files(); !slices.Equal(before, after) {
			t.Errorf("files before %q, after %q", before, after)
		}
		if list := p.mustCommand("list", "-q"); strings.TrimSpace(list) != "bystander" {
			t.Errorf("the runtime knows %q", list)
		}
		p.settled(fds)
		p.alive()
		p.create(good)
	})
}

// Configurations that nobody can use.
func TestBadConfigurations(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		for name, write := range map[string]func(path string) error{
			"empty":           func(path string) error { return os.WriteFile(path, nil, 0o644) },
			"no JSON":         func(path string) error { return os.WriteFile(path, []byte("{"), 0o644) },
			"of another kind": func(path string) error { return os.WriteFile(path, []byte(`{"ociVersion": 3}`), 0o644) },
			"directory":       func(path string) error { return os.Mkdir(path, 0o755) },
			"FIFO":            func(path string) error { return unix.Mkfifo(path, 0o600) },
			"dangling link":   func(path string) error { return os.Symlink("/no/such/file", path) },
		} {
			req := p.request("c", bundle.Options{Args: []string{"true"}})
			path := filepath.Join(req.BundlePath, "config.json")
			if err := errors.Join(os.Remove(path), write(path)); err != nil {
				t.Fatal(err)
			}
			_, err := p.client.CreateContainer(p.ctx(), req)
			var failed *conmon.RuntimeError
			if err == nil || errors.As(err, &failed) && len(failed.Stderr) == 0 || failed == nil && !strings.Contains(err.Error(), "config.json") {
				t.Errorf("%s: %v", name, err)
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
		if list := p.mustCommand("list", "-q"); list != "" {
			t.Errorf("the runtime knows %q", list)
		}
	})
}

// files lists the pod's files without contents of bundles.
func (p *pod) files() (all []string) {
	err := filepath.WalkDir(p.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "rootfs" {
			return filepath.SkipDir
		}
		all = append(all, path)
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return all
}

func TestBadCalls(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	p.run("c", "sleep", "1000")
	before := p.files()
	type execRequest = conmon.ExecSyncRequest
	execs := map[string]func(r *execRequest){
		"command": func(r *execRequest) { r.Command = nil }, "command[1]": func(r *execRequest) { r.Command = []string{"echo", "a\x00"} },
		"envVars[0]":    func(r *execRequest) { r.Env = []conmon.EnvVar{envVar("", "x")} },
		"cgroupManager": func(r *execRequest) { r.CgroupManager = 17 },
	}
	for field, edit := range execs {
		req := p.execRequest("c", 0, "true")
		edit(req)
		if r, err := p.client.ExecSync(p.ctx(), req); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("exec with bad %s: %+v, %v", field, r, err)
		}
	}
	for _, id := range badIDs {
		var bad *conmon.InvalidError
		if _, err := p.client.ExecSync(p.ctx(), p.execRequest(id, 0, "true")); !errors.As(err, &bad) || bad.Field != "id" {
			t.Errorf("exec in %q: %v", id, err)
		}
		for what, err := range map[string]error{
			"reopen": p.client.ReopenLog(p.ctx(), &conmon.ReopenLogRequest{ID: id}),
			"resize": p.client.SetWindowSize(p.ctx(), &conmon.SetWindowSizeRequest{ID: id}),
			"attach": p.attachSocket(id, p.path("attach")),
		} {
			var bad *conmon.InvalidError
			refused := errors.As(err, &bad) && bad.Field == "id"
			if !refused && !errors.Is(err, conmon.ErrContainerNotFound) {
				t.Errorf("%s of %q: %v", what, id, err)
			}
		}
	}
	if err := p.client.SetWindowSize(p.ctx(), &conmon.SetWindowSizeRequest{ID: "c"}); !errors.Is(err, conmon.ErrNoTerminal) {
		t.Errorf("resize without terminal: %v", err)
	}
	p.checkBadSockets()
	if after := p.files(); !slices.Equal(before, after) {
		t.Errorf("files before %q, after %q", before, after)
	}
	p.alive()
}

// checkBadSockets tries paths at which no attach socket can be.
func (p *pod) checkBadSockets() {
	p.t.Helper()
	taken := p.path("exits", "..", "monitor.log")
	for _, path := range []string{"", "relative", "/x\x00y", taken, p.path(strings.Repeat("n", 300)), p.dir} {
		if err := p.attachSocket("c", path); err == nil {
			p.t.Errorf("attach at %q went well", path)
		}
	}
}

// connect connects to the monitor's socket.
func (p *pod) connect() net.Conn {
	p.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(p.runDir, "conmon.sock"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	return conn
}

// What is no message, or too large a one, ends its connection and disturbs nobody else.
func TestMalformedMessages(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	p.run("c", "sleep", "1000")
	before, fds := statusNumber(p.pid, "VmRSS"), openCount(p.pid)
	large := append([]byte{0, 0, 0, 0, 0, 0, 0x80, 0}, make([]byte, 64<<20)...) // one segment of 64 MiB
	for name, message := range map[string][]byte{
		"text": []byte(strings.Repeat("GET / HTTP/1.1\r\n", 64)), "segments": []byte("\xff\xff\xff\xff\x00\x00\x00\x00"),
		"length": []byte("\x00\x00\x00\x00\xff\xff\xff\xff"), "pointer": append([]byte{0, 0, 0, 0, 1, 0, 0, 0}, "\xff\xff\xff\xff\xff\xff\xff\xff"...),
		"cut": []byte("\x00\x00\x00\x00\x10\x00\x00\x00\x00"), "large": large, "nothing": nil,
	} {
		conn := p.connect()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = conn.Write(message) // may fail half way
		if name == "cut" || name == "nothing" {
			conn.Close()
			continue
		}
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection was not closed", name)
		}
		conn.Close()
		p.alive()
	}
	p.settled(fds)
	if after := statusNumber(p.pid, "VmRSS"); after > before+16<<10 {
		t.Errorf("memory grew from %d to %d KiB", before, after)
	}
	c, err := client.Dial(p.ctx(), filepath.Join(p.runDir, "conmon.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.ExecSync(p.ctx(), p.execRequest("c", 0, "true")); err != nil {
		t.Error(err)
	}
}
