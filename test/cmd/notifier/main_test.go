package main

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestNotifier(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	t.Setenv("NOTIFY_SOCKET", path)
	if err := run(1, 0, 0, nil); err == nil {
		t.Error("sent to a socket that is not there")
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- run(2, 3, 10*time.Second, []string{`READY=1\nSTATUS=\x00`}) }()
	for i, want := range []string{"READY=1\nSTATUS=\x00", "READY=1\nSTATUS=\x00", "BARRIER=1"} {
		text, fds := receive(t, conn)
		if text != want || len(fds) != []int{3, 3, 1}[i] {
			t.Errorf("message %d: %q with %d descriptors", i, text, len(fds))
		}
		for _, fd := range fds {
			_ = syscall.Close(fd)
		}
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
	if err := run(1, 0, time.Millisecond, nil); err == nil {
		t.Error("a barrier that nobody answers is answered")
	}
	if err := run(1, 0, 0, []string{`"`}); err == nil {
		t.Error("a message with a bad escape is sent")
	}
}

func receive(t *testing.T, conn *net.UnixConn) (text string, fds []int) {
	t.Helper()
	message, control := make([]byte, 1000), make([]byte, 1000)
	n, controls, _, _, err := conn.ReadMsgUnix(message, control)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := syscall.ParseSocketControlMessage(control[:controls])
	if err != nil {
		t.Fatal(err)
	}
	for i := range messages {
		got, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, got...)
	}
	return string(message[:n]), fds
}
