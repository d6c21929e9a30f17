package compat

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/containers/conmon-rs/pkg/client"
)

// patience bounds what a person would wait for at a terminal.
const patience = 10 * time.Second

// typist is the writing end of a pipe.
type typist struct{ *io.PipeWriter }

func pipe() (*io.PipeReader, typist) {
	r, w := io.Pipe()
	return r, typist{w}
}

func (w typist) write(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatalf("type %q: %v", text, err)
	}
}

// attach attaches to the pod's container in the background.
func (p *pod) attach(config *client.AttachConfig) <-chan error {
	config.ID, config.SocketPath, config.Tty = p.id, p.path("attach"), p.terminal
	done := make(chan error, 1)
	go func() { done <- p.client.AttachContainer(p.t.Context(), config) }()
	return done
}

func await(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatal("attach does not end")
		return nil
	}
}

// TestAttachShell types commands into a shell. Without a terminal each output has to arrive as it was written: one write of
// the command, one write to the caller's stream.
func TestAttachShell(t *testing.T) {
	forEachTerminal(t, func(t *testing.T, s setting) {
		for _, stream := range []string{"stdout", "stderr"} {
			if s.terminal && stream == "stderr" {
				continue // a terminal has no standard error
			}
			t.Run(stream, func(t *testing.T) { attachShell(t, newPod(t, s, "sh"), stream) })
		}
	})
}

func attachShell(t *testing.T, p *pod, stream string) {
	p.running()
	// What the shell prints first is not for who attaches later.
	if p.terminal && !eventually(patience, func() bool { return strings.Contains(p.read("log"), "/ # ") }) {
		t.Fatalf("no prompt in the log: %q", p.read("log"))
	}
	stdin, typed := pipe()
	output, written := io.Pipe()
	config := &client.AttachConfig{
		StopAfterStdinEOF: true, Streams: client.AttachStreams{Stdin: &client.In{ReadCloser: stdin}},
	}
	command := "busybox echo -n " + stream
	out := &client.Out{WriteCloser: written}
	if stream == "stderr" {
		config.Streams.Stderr, command = out, command+" >&2"
	} else {
		config.Streams.Stdout = out
	}
	done := p.attach(config)
	want := stream
	if p.terminal {
		// Echo, output and the next prompt, which asks where the cursor is.
		want = command + "\r\n" + stream + "/ # \x1b[6n"
	}
	for range 2 {
		typed.write(t, command+"\n")
		if got := readOutput(t, output, len(want), p.terminal); got != want {
			t.Fatalf("output %q, want %q", got, want)
		}
	}
	typed.write(t, "exit\n")
	output.Close()
	// Whether the last output finds the reader closed is left to chance.
	if err := await(t, done); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("attach: %v", err)
	}
	p.awaitStatus("stopped")
	if got := p.read("exit"); got != "0" {
		t.Errorf("exit file %q", got)
	}
}

// readOutput reads once, or until it has n bytes.
func readOutput(t *testing.T, r io.Reader, n int, many bool) string {
	t.Helper()
	late := time.AfterFunc(patience, func() { r.(io.Closer).Close() })
	defer late.Stop()
	buf := make([]byte, 8191)
	got := ""
	for {
		read, err := r.Read(buf)
		got += string(buf[:read])
		if err != nil {
			t.Fatalf("output %q: %v", got, err)
		}
		if !many || len(got) >= n {
			return got
		}
	}
}

// TestAttachStdin sends any bytes in packets of 32 KiB, of which the container has to get all, although the client closes its
// socket right behind the last one. The end of input has to reach it as well.
func TestAttachStdin(t *testing.T) {
	forEach(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "sha256sum")
		p.running()
		data := make([]byte, 500_000)
		for i := range data {
			data[i] = byte(i * i / 7)
		}
		done := p.attach(&client.AttachConfig{
			StopAfterStdinEOF: true,
			Streams:           client.AttachStreams{Stdin: &client.In{ReadCloser: io.NopCloser(bytes.NewReader(data))}},
		})
		if err := await(t, done); err != nil {
			t.Errorf("attach: %v", err)
		}
		p.awaitStatus("stopped")
		if got, want := p.read("log"), fmt.Sprintf("%x", sha256.Sum256(data)); !strings.Contains(got, want) {
			t.Errorf("log %q, want sum %s", got, want)
		}
	})
}

// TestAttachBeforeStart starts the container when the client is connected, as engines do for "run": no byte is lost.
func TestAttachBeforeStart(t *testing.T) {
	const lines = 20_000
	forEach(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "sh", "-c", fmt.Sprintf("echo to two >&2; seq 1 %d", lines))
		config := p.config()
		config.Stdin = false
		p.createContainer(config)
		var stdout, stderr buffer
		done := p.attach(&client.AttachConfig{
			Streams: client.AttachStreams{
				Stdout: &client.Out{WriteCloser: &stdout}, Stderr: &client.Out{WriteCloser: &stderr},
			},
			PreAttachFunc: func() error {
				out, err := p.runtimeCommand("start", p.id)
				if err != nil {
					err = fmt.Errorf("%w: %s", err, out)
				}
				return err
			},
		})
		if err := await(t, done); err != nil {
			t.Errorf("attach: %v", err)
		}
		if got := stderr.String(); got != "to two\n" {
			t.Errorf("stderr %q", got)
		}
		var want strings.Builder
		for n := range lines {
			fmt.Fprintln(&want, n+1)
		}
		if got := stdout.String(); got != want.String() {
			t.Errorf("stdout has %d bytes and ends with %q, want %d", len(got), got[max(0, len(got)-20):], want.Len())
		}
	})
}

// buffer is a stream of the client's, which writes and closes it before it returns.
type buffer struct{ bytes.Buffer }

func (*buffer) Close() error { return nil }
