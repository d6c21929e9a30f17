package namespace

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/cmd/internal/podns"
)

// killStranger kills the process that the pod's pid file names, which need not be a child of this monitor, if it is the
// one that holds the pod's pid namespace: pids are used again.
func killStranger(req *podns.Request) error {
	pid, err := readPID(req)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, strconv.ErrSyntax) {
		return nil // not that far: then the process ends by itself
	}
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if !holds(pid, req) { // looked at with its pidfd open: whoever is signalled has been looked at, or has gone
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	if !ended(fd) {
		return fmt.Errorf("process %d does not end", pid)
	}
	return nil
}

// holds tells whether a process is one of conmonrs-pause for this pod.
func holds(pid int, req *podns.Request) bool {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && string(content) == podns.HolderArgs(req.PodID)
}

// ended waits until a process has ended. It is for the start and for failures: it takes a thread meanwhile.
func ended(pidfd int) bool {
	deadline := time.Now().Add(killLimit)
	for {
		left := max(time.Until(deadline), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if err == nil || !errors.Is(err, unix.EINTR) {
			return n == 1
		}
	}
}
