package integration

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
)

// First bytes of the packets from the monitor.
const (
	packetDone   = 0
	packetStdout = 2
	packetStderr = 3
)

// rawClient is a connection to an attach socket, packet by packet.
type rawClient struct {
	t    *testing.T
	conn *net.UnixConn
	buf  []byte
}

// attachRaw connects to an attach socket that does not close the container's input.
func (p *pod) attachRaw(id, path string) *rawClient {
	p.t.Helper()
	if err := p.attachSocket(id, path); err != nil {
		p.t.Fatal(err)
	}
	return dialRaw(p.t, path)
}

// dialRaw connects to an attach socket that is there.
func dialRaw(t *testing.T, path string) *rawClient {
	t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &rawClient{t: t, conn: conn, buf: make([]byte, 128<<10)}
}

func (c *rawClient) send(packet string) {
	c.t.Helper()
	_ = c.conn.SetWriteDeadline(time.Now().Add(exitLimit))
	if _, err := c.conn.Write([]byte(packet)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rawClient) receive() (kind byte, data []byte, err error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(exitLimit))
	n, err := c.conn.Read(c.buf)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return 0, nil, err
	}
	if n > 8192 {
		c.t.Errorf("packet of %d bytes", n)
	}
	return c.buf[0], c.buf[1:n], nil
}

// want receives one packet.
func (c *rawClient) want(kind byte, data string) {
	c.t.Helper()
	gotKind, got, err := c.receive()
	if err != nil || gotKind != kind || string(got) != data {
		c.t.Fatalf("packet %d %.200q, %v; want %d %q", gotKind, got, err, kind, data)
	}
}

// wantText receives packets of one kind until they have said exactly this.
func (c *rawClient) wantText(kind byte, text string) {
	c.t.Helper()
	var got []byte
	for len(got) < len(text) {
		k, data, err := c.receive()
		if err != nil || k != kind {
			c.t.Fatalf("packet %d %.200q, %v after %.200q; want %q", k, data, err, got, text)
		}
		got = append(got, data...)
	}
	if string(got) != text {
		c.t.Fatalf("got %.200q, want %.200q", got, text)
	}
}

// wantEnd receives the packet that says that there is no more, and the end.
func (c *rawClient) wantEnd() {
	c.t.Helper()
	c.want(packetDone, "")
	if kind, data, err := c.receive(); !errors.Is(err, io.EOF) {
		c.t.Errorf("after the last packet: %d %.200q, %v", kind, data, err)
	}
}

// rest receives all output until the end.
func (c *rawClient) rest() (stdout, stderr []byte, err error) {
	for {
		kind, data, err := c.receive()
		switch {
		case err != nil:
			return stdout, stderr, err
		case kind == packetDone && len(data) == 0:
			return stdout, stderr, nil
		case kind == packetStdout:
			stdout = append(stdout, data...)
		case kind == packetStderr:
			stderr = append(stderr, data...)
		default:
			c.t.Errorf("packet %d %.200q", kind, data)
		}
	}
}

// session is an attach by the client library that runs beside the test.
type session struct {
	cancel context.CancelFunc
	done   chan error
	mu     sync.Mutex
	out    bytes.Buffer
}

// Write takes the output of both streams.
func (s *session) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(b)
}

func (s *session) output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// wait returns when the session has ended by itself.
func (s *session) wait(t *testing.T) {
	t.Helper()
	select {
	case err := <-s.done:
		if err != nil {
			t.Errorf("attach: %v", err)
		}
	case <-time.After(exitLimit):
		t.Error("attach has not ended")
	}
}

// attach starts a session and returns when it is connected.
func (p *pod) attach(id, path string, stopAfterEOF bool, stdin io.Reader) *session {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.ctx())
	s := &session{cancel: cancel, done: make(chan error, 1)}
	attached := make(chan struct{})
	go func() {
		s.done <- p.client.Attach(ctx, client.AttachOptions{
			ID: id, SocketPath: path, StopAfterStdinEOF: stopAfterEOF, Stdin: stdin, Stdout: s, Stderr: s,
			Attached: func() { close(attached) },
		})
	}()
	select {
	case <-attached:
	case err := <-s.done:
		p.t.Fatal(err)
	}
	p.t.Cleanup(cancel)
	return s
}

// interactive is a container with a standard input that runs a shell script.
func (p *pod) interactive(id, script string) {
	p.t.Helper()
	req := p.request(id, p.script(script))
	req.Stdin = true
	p.runRequest(req)
}
