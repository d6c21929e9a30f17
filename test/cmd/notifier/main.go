// Notifier sends each of its arguments, in which \n, \x00 and so on are replaced as in Go strings, as one datagram to the
// socket that NOTIFY_SOCKET names. With -fds it adds descriptors to each, with -n it sends all of them several times.
// With -barrier it closes with one as sd_notify_barrier(3) does, and waits for the answer; status 1 says that none came.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"
)

func main() {
	count := flag.Int("n", 1, "`NUMBER` of times")
	fds := flag.Int("fds", 0, "`NUMBER` of descriptors with each message")
	barrier := flag.Duration("barrier", 0, "`TIME` to wait for the answer to a barrier; 0: send none")
	flag.Parse()
	if err := run(*count, *fds, *barrier, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "notifier:", err)
		os.Exit(1)
	}
}

func run(count, fds int, barrier time.Duration, texts []string) error {
	// Package net sends no descriptors on a connected datagram socket.
	socket, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(socket)
	if err := syscall.Connect(socket, &syscall.SockaddrUnix{Name: os.Getenv("NOTIFY_SOCKET")}); err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	passed := make([]int, fds)
	for i := range passed {
		passed[i] = int(null.Fd())
	}
	for range count {
		for _, text := range texts {
			if err := send(socket, text, passed); err != nil {
				return err
			}
		}
	}
	if barrier > 0 {
		return wait(socket, barrier)
	}
	return nil
}

func send(socket int, text string, fds []int) error {
	message, err := strconv.Unquote(`"` + text + `"`)
	if err != nil {
		return fmt.Errorf("message %q: %w", text, err)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = syscall.UnixRights(fds...)
	}
	return syscall.Sendmsg(socket, []byte(message), rights, nil, 0)
}

// wait sends one end of a pipe and reads from the other until the receiver has closed its copy.
func wait(socket int, limit time.Duration) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	err = send(socket, "BARRIER=1", []int{int(w.Fd())})
	w.Close()
	if err != nil {
		return err
	}
	if err := r.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("barrier: %w", err)
	}
	return nil
}
