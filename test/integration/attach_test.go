package integration

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
	"github.com/conmonrs/conmonrs/test/logcheck"
)

// Each read of the monitor is a packet at once, on its stream; the last one says that there is no more.
func TestAttachOutput(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.create(p.request("c", p.script(
			await("a")+"printf 'hello world'; "+await("b")+"echo err >&2; "+await("c")+"echo; "+await("d")+"exit 3")))
		clients := []*rawClient{p.attachRaw("c", p.path("attach")), p.attachRaw("c", p.path("attach"))}
		p.start("c")
		newline, stderr := "\n", byte(packetStderr)
		if v.terminal {
			newline, stderr = "\r\n", packetStdout
		}
		for _, step := range []struct {
			name string
			kind byte
			data string
		}{{"a", packetStdout, "hello world"}, {"b", stderr, "err" + newline}, {"c", packetStdout, newline}} {
			p.release(step.name)
			for _, c := range clients {
				if v.terminal { // which may pass on text and line end one after the other
					c.wantText(step.kind, step.data)
				} else {
					c.want(step.kind, step.data)
				}
			}
		}
		p.release("d")
		for _, c := range clients {
			c.wantEnd()
		}
		p.wantExit("c", 3)
	})
}

// The end is told after both streams have ended, not after the first.
func TestAttachEndsAfterBoth(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		for first, last := range map[string]string{"exec >&-; ": "echo more >&2", "exec 2>&-; ": "echo more"} {
			p := newPod(t, v, podOptions{})
			p.create(p.request("c", p.script("echo out; "+first+"touch /mnt/closed; "+await("go")+last)))
			c := p.attachRaw("c", p.path("attach"))
			p.start("c")
			c.want(packetStdout, "out\n")
			eventually(t, exitLimit, "stream is closed", func() bool { return fileSize(p.path("shared/closed")) >= 0 })
			p.release("go")
			if strings.Contains(first, "2") {
				c.want(packetStdout, "more\n")
			} else {
				c.want(packetStderr, "more\n")
			}
			c.wantEnd()
			p.exit("c")
		}
	})
}

// R028: what a container wrote last is there before the end, however quick it was and however late the client reads.
func TestAttachTail(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		var want strings.Builder
		for i := range 80_000 { // less than what may be queued
			fmt.Fprintln(&want, i+1)
		}
		for range scaled(2) {
			for script, want := range map[string]string{"seq 1 80000 | cat": want.String(), "echo x": "x\n"} {
				p.create(p.request("c", bundle.Options{Args: []string{"sh", "-c", script}}))
				c := p.attachRaw("c", p.path("attach"))
				p.start("c")
				p.wantExit("c", 0)
				out, _, err := c.rest()
				if got := strings.ReplaceAll(string(out), "\r\n", "\n"); got != want || err != nil {
					t.Errorf("%s: %v, %s", script, err, difference(got, want))
				}
				p.remove("c")
			}
		}
	})
}

// A client that reads gets all of a container that writes line by line, in as many small packets as that makes.
func TestAttachSmallWrites(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		n := numbered{spec: logcheck.Spec{Min: 1, Max: 30, Seed: 5}, bytes: 400_000, both: !v.terminal, more: "-write-size=line"}
		p.create(p.request("c", p.script(n.command())))
		c := p.attachRaw("c", p.path("attach"))
		p.start("c")
		stdout, stderr, err := c.rest()
		if err != nil {
			t.Errorf("after %d and %d bytes: %v", len(stdout), len(stderr), err)
		}
		p.wantExit("c", 0)
		check := n.verifier(t)
		checkRaw(t, check, logcheck.Stdout, stdout)
		checkRaw(t, check, logcheck.Stderr, stderr)
		if err := check.Finish(n.lines(t)); err != nil {
			t.Error(err)
		}
	})
}

// checkRaw verifies what a client got of a stream.
func checkRaw(t *testing.T, check *logcheck.Verifier, stream logcheck.Stream, out []byte) {
	t.Helper()
	for line := range strings.Lines(strings.ReplaceAll(string(out), "\r\n", "\n")) {
		if err := check.Raw(stream, []byte(strings.TrimSuffix(line, "\n"))); err != nil {
			t.Fatal(err)
		}
	}
}

// R027: a client that never reads costs the container next to nothing, and others nothing.
func TestAttachNeverReads(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		n := numbered{spec: logcheck.Spec{Min: 1, Max: 4096, Seed: 27}, bytes: 10 << 20}
		p.create(p.request("c", p.script(n.command())))
		never := []*rawClient{p.attachRaw("c", p.path("attach")), p.attachRaw("c", p.path("attach"))}
		good := p.attachRaw("c", p.path("attach"))
		begin := time.Now()
		p.start("c")
		out, _, err := good.rest()
		if err != nil {
			t.Errorf("the client that reads got %d bytes, then %v", len(out), err)
		}
		p.wantExit("c", 0)
		if d := time.Since(begin); d > 10*time.Second {
			t.Errorf("the container took %v", d)
		}
		n.verify(t, v.format(conmon.LogDriverCRI), p.path("logs/c"))
		check := n.verifier(t)
		checkRaw(t, check, logcheck.Stdout, out)
		if err := check.Finish(n.lines(t)); err != nil {
			t.Error(err)
		}
		for _, c := range never { // what it gets is the beginning, without a packet that says that it was all
			_, _, err := c.rest()
			if !errors.Is(err, io.EOF) {
				t.Errorf("a client that was too slow: %v", err)
			}
		}
		if len(p.reported("disconnect attach client")) == 0 {
			t.Error("nothing was reported")
		}
	})
}

// R068: clients that go away in any phase leave the container and its log alone, and no descriptor behind.
func TestAttachAborted(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		n := numbered{spec: logcheck.Spec{Min: 1, Max: 4096, Seed: 68}, bytes: volume(), both: !v.terminal}
		p.interactive("c", "stty -echo 2>/dev/null; touch /mnt/quiet; "+n.command()+"; "+await("go"))
		eventually(t, exitLimit, "no echo", func() bool { return fileSize(p.path("shared/quiet")) >= 0 })
		fds := openCount(p.pid) + 1 // that of the socket
		c := p.attachRaw("c", p.path("attach"))
		parallel(3, func(worker int) {
			for i := range scaled(60) {
				c := dialRaw(t, p.path("attach"))
				switch i % 4 {
				case 1:
					_ = c.conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // there may be no output any more
					_, _ = c.conn.Read(c.buf)
				case 2:
					c.send(strings.Repeat("x", 100*worker))
				case 3:
					_ = c.conn.CloseWrite()
				}
				c.conn.Close()
			}
		})
		c.conn.Close()
		p.settled(fds)
		p.release("go")
		p.wantExit("c", 0)
		n.verify(t, v.format(conmon.LogDriverCRI), p.path("logs/c"))
	})
}

// The connections and sockets of a container that has ended are gone.
func TestAttachClientsAfterExit(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.run("warm", "true")
		p.wantExit("warm", 0)
		fds := openCount(p.pid)
		p.interactive("c", "read line; exit 4")
		var clients []*rawClient
		for i := range 10 {
			clients = append(clients, p.attachRaw("c", p.path(fmt.Sprint("attach-", i%3))))
		}
		eventually(t, exitLimit, "clients are accepted", func() bool { return openCount(p.pid) >= fds+10 })
		clients[0].send("x\n")
		for _, c := range clients {
			if v.terminal {
				c.wantText(packetStdout, "x\r\n")
			}
			c.wantEnd()
		}
		p.wantExit("c", 4)
		p.settled(fds)
		for i := range 3 {
			if _, err := os.Lstat(p.path(fmt.Sprint("attach-", i))); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("socket %d: %v", i, err)
			}
		}
	})
}
