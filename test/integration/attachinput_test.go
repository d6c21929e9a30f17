package integration

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// What is typed comes back by the terminal's echo and by the program; end of input is a character.
func TestAttachTerminal(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		v.terminal = true
		p := newPod(t, v, podOptions{})
		p.interactive("c", "exec cat")
		c := p.attachRaw("c", p.path("attach"))
		c.send("hi\n")
		c.wantText(packetStdout, "hi\r\nhi\r\n")
		c.send("a\x7fb\n") // the terminal edits lines
		c.wantText(packetStdout, "a\b \bb\r\nb\r\n")
		_ = c.conn.CloseWrite()
		other := p.attachRaw("c", p.path("attach"))
		other.send("still\n")
		c.wantText(packetStdout, "still\r\nstill\r\n")
		other.send("\x04")
		c.wantEnd()
		p.wantExit("c", 0)
	})
}

// R032: what was sent before the end of input arrives, and the end itself only if that was asked for.
func TestAttachShortSessions(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		noise := p.request("noise", bundle.Options{Args: []string{"yes"}})
		noise.LogDrivers[0].MaxSize = 1 << 20
		p.runRequest(noise)
		p.interactive("open", "cat && echo stdin closed")
		for i := range scaled(20) {
			if i%2 == 0 {
				c := p.attachRaw("open", p.path("attach-open"))
				c.send("abcd1234\n")
				c.conn.Close()
			} else {
				s := p.attach("open", p.path("attach-open"), false, strings.NewReader("abcd1234\n"))
				eventually(t, exitLimit, "output", func() bool { return s.output() == "abcd1234\n" })
				s.cancel()
			}
			want := strings.Repeat("abcd1234\n", i+1)
			eventually(t, exitLimit, "input arrives", func() bool { return p.output("open") == want })
		}
		for i := range scaled(20) {
			p.interactive("closed", "cat && echo stdin closed")
			if i%2 == 0 { // the published client is gone before anything has been read
				s := p.attach("closed", p.path("attach"), true, nil)
				c := dialRaw(t, p.path("attach"))
				c.send("abcd")
				c.send("1234\n")
				c.conn.Close()
				s.wait(t)
				checkSession(t, s)
			} else {
				s := p.attach("closed", p.path("attach"), true, strings.NewReader("abcd1234\n"))
				s.wait(t)
				checkSession(t, s)
			}
			p.wantExit("closed", 0)
			p.remove("closed")
		}
		if p.exited("open") {
			t.Error("standard input was closed")
		}
	})
}

func checkSession(t *testing.T, s *session) {
	t.Helper()
	if got := s.output(); got != "abcd1234\nstdin closed\n" {
		t.Errorf("output %q", got)
	}
}

// R033: clients share output and input, and leave without disturbing each other.
func TestAttachShared(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.interactive("c", "exec cat")
		clients := []*rawClient{
			p.attachRaw("c", p.path("attach")), p.attachRaw("c", p.path("attach")), p.attachRaw("c", p.path("other")),
		}
		for len(clients) > 0 {
			for i, c := range clients {
				line := fmt.Sprintf("line of %d of %d\n", i, len(clients))
				want := line
				if v.terminal {
					want = strings.Repeat(strings.ReplaceAll(line, "\n", "\r\n"), 2)
				}
				c.send(line)
				for _, reader := range clients {
					reader.wantText(packetStdout, want)
				}
			}
			clients[0].conn.Close()
			clients = clients[1:]
		}
		p.mustCommand("kill", "c", "KILL")
		p.wantExit("c", 137)
	})
}

// R044: input is bytes, and the borders of packets mean nothing. Packets of 32 KiB are what clients send.
func TestAttachBinaryInput(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		random := rand.NewChaCha8([32]byte{44})
		data := make([]byte, 1<<20)
		_, _ = random.Read(data)
		for i := 0; i < len(data); i += 1 + int(random.Uint64()%200) {
			data[i] = 0
		}
		want := fmt.Sprintf("%x  -\n", sha256.Sum256(data))
		for name, next := range map[string]func() int{
			"random": func() int { return 1 + int(random.Uint64()%(32<<10)) },
			"32 KiB": func() int { return 32 << 10 },
			"64 KiB": func() int { return 64 << 10 },
			"small":  func() int { return 1 + int(random.Uint64()%1000) },
		} {
			p.interactive("c", fmt.Sprintf("usleep 100000; head -c %d | sha256sum", len(data)))
			c := p.attachRaw("c", p.path("attach"))
			for rest := data; len(rest) > 0; {
				n := min(next(), len(rest))
				c.send(string(rest[:n]))
				rest = rest[n:]
			}
			if kind, got, err := c.receive(); kind != packetStdout || string(got) != want || err != nil {
				t.Errorf("%s: packet %d %q, %v; want %q", name, kind, got, err, want)
			}
			p.wantExit("c", 0)
			p.remove("c")
		}
		// By the client library, with the end of input.
		p.interactive("c", "sha256sum")
		s := p.attach("c", p.path("attach"), true, &pieces{rest: data, next: func() int { return 1 + int(random.Uint64()%(32<<10)) }})
		s.wait(t)
		if got := s.output(); got != want {
			t.Errorf("output %q, want %q", got, want)
		}
		p.wantExit("c", 0)
	})
}

// pieces is read in pieces of given sizes.
type pieces struct {
	rest []byte
	next func() int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.next())], p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// Input that the container does not take waits in the client, delays neither its output nor its exit, and is not lost.
func TestAttachInputNotTaken(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.interactive("c", "stty -echo -icanon 2>/dev/null; echo ready; "+await("go")+"head -c 1000000 | wc -c; exit 6")
		c := p.attachRaw("c", p.path("attach"))
		p.waitOutput("c", "ready")
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for range 100 {
				_ = c.conn.SetWriteDeadline(time.Now().Add(exitLimit))
				if _, err := c.conn.Write([]byte(strings.Repeat("y", 10_000))); err != nil {
					t.Errorf("send: %v", err)
					return
				}
			}
		}()
		other := p.attachRaw("c", p.path("attach"))
		p.wantExec("c", 0, "true")
		p.release("go")
		<-sent
		other.wantText(packetStdout, strings.ReplaceAll("1000000\n", "\n", map[bool]string{true: "\r\n", false: "\n"}[v.terminal]))
		other.wantEnd()
		p.wantExit("c", 6)
	})
}

// A client that has closed its sending half gets output to the end.
func TestAttachHalfClose(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		for _, stop := range []bool{false, true} {
			p := newPod(t, v, podOptions{})
			p.interactive("c", await("a")+"echo one; "+await("b")+"echo two; exit 2")
			holder := p.attach("c", p.path("attach"), stop, nil)
			c := dialRaw(t, p.path("attach"))
			if err := c.conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			newline := "\n"
			if v.terminal {
				newline = "\r\n"
			}
			p.release("a")
			c.wantText(packetStdout, "one"+newline)
			p.release("b")
			c.wantText(packetStdout, "two"+newline)
			c.wantEnd()
			holder.wait(t)
			p.wantExit("c", 2)
		}
	})
}

// R035, R036: a size that comes before the program is the one it starts with, and of many the last one stays.
func TestWindowSize(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		if !v.terminal {
			return
		}
		p := newPod(t, v, podOptions{})
		resize := func(width, height int) error {
			return p.client.SetWindowSize(p.ctx(), &conmon.SetWindowSizeRequest{
				ID: "c", WindowSize: conmon.WindowSize{Width: uint16(width), Height: uint16(height)},
			})
		}
		for i := range scaled(3) {
			p.create(p.request("c", p.script("stty size; "+await("go")+"stty size")))
			for _, size := range [][2]int{{80, 24}, {101 + i, 51}} {
				if err := resize(size[0], size[1]); err != nil {
					t.Fatal(err)
				}
			}
			p.start("c")
			first := fmt.Sprintf("51 %d\n", 101+i)
			p.waitOutput("c", first)
			for n := range 1000 {
				if err := resize(1+n, 2000-n); err != nil {
					t.Fatal(err)
				}
			}
			for _, size := range [][2]int{{0, 0}, {0, 30}, {30, 0}} { // not sizes
				_ = resize(size[0], size[1])
			}
			p.release("go")
			p.wantExit("c", 0)
			if got, want := p.output("c"), first+"1001 1000\n"; !strings.HasSuffix(got, want) {
				t.Errorf("sizes %q, want %q", got, want)
			}
			p.remove("c")
			if err := os.Remove(p.path("shared/go")); err != nil {
				t.Fatal(err)
			}
		}
	})
}
