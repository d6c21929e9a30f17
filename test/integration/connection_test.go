package integration

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// slowRuntime returns a runtime that says that a create has begun, and goes on when it is told to.
func slowRuntime(t *testing.T, v variant) (path, begun, proceed string) {
	t.Helper()
	dir := t.TempDir()
	begun, proceed = dir+"/begun", dir+"/proceed"
	script := "#!/bin/sh\ncase \" $* \" in *' create '*) : >" + begun + "; while [ ! -e " + proceed +
		" ]; do sleep 0.01; done;; esac\nexec " + v.runtime + " \"$@\"\n"
	return writeScript(t, filepath.Base(v.runtime), script), begun, proceed
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// A create is completed, and its container watched, though the connection has been closed meanwhile.
func TestCreateSurvivesConnection(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		runtime, begun, proceed := slowRuntime(t, v)
		p := newPod(t, v, podOptions{runtime: runtime})
		c, err := client.Dial(p.ctx(), p.path("run", "conmon.sock"))
		if err != nil {
			t.Fatal(err)
		}
		p.ids = append(p.ids, "c")
		req := p.request("c", bundle.Options{Args: []string{"sh", "-c", "echo out; exit 3"}})
		var call sync.WaitGroup
		call.Go(func() {
			if _, err := c.CreateContainer(p.ctx(), req); err == nil {
				t.Error("the create was answered")
			}
		})
		eventually(t, exitLimit, "create begins", func() bool { return exists(begun) })
		p.alive() // other calls are answered meanwhile
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		call.Wait()
		if err := os.WriteFile(proceed, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		eventually(t, exitLimit, "container is registered", func() bool {
			return p.client.ReopenLog(p.ctx(), &conmon.ReopenLogRequest{ID: "c"}) == nil
		})
		p.start("c")
		p.wantExit("c", 3)
		if out := p.output("c"); out != "out\n" {
			t.Errorf("log is %q", out)
		}
	})
}

// R016, R143: without any client logs go on and exits are published; a client that returns finds the monitor.
func TestNoClient(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		const lines = 2_000_000
		pid := p.run("c", "sh", "-c", "yes 0123456 | head -n 2000000")
		p.run("long", "sleep", "1000")
		if err := p.client.Close(); err != nil {
			t.Fatal(err)
		}
		p.wantExit("c", 0)
		if alivePID(pid) {
			t.Error("the container is alive")
		}
		out := p.output("c")
		if n := strings.Count(out, "0123456\n"); n != lines || len(out) != lines*8 {
			t.Errorf("%d lines, %d bytes in the log", n, len(out))
		}
		p.dial()
		p.wantExec("long", 0, "true")
	})
}
