package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pollInterval is how often it is looked whether a process has ended. There is nothing to wait for that would
// tell about a process of somebody else's, short of a poll on its pidfd, and package os keeps that to itself.
const pollInterval = 10 * time.Millisecond

// process refers to a monitor. The os.Process holds a pidfd where the kernel has them (since 5.4), so that the
// reference stays right when the pid is used again.
type process struct {
	pid int
	os  *os.Process
}

// openProcess returns nil if there is no process of this pid.
func openProcess(pid int) (*process, error) {
	if pid <= 1 {
		return nil, fmt.Errorf("open process %d: not a monitor", pid)
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	ref := &process{pid: pid, os: p}
	if ref.gone() {
		ref.release()
		return nil, nil
	}
	return ref, nil
}

// dup returns a reference of its own, so that the original can be released while this one is in use, or nil if
// the process has ended.
func (p *process) dup() (*process, error) {
	other, err := openProcess(p.pid)
	// The pid means the same process if the original is alive after it was looked up.
	if err == nil && other != nil && p.gone() {
		other.release()
		other = nil
	}
	return other, err
}

// release gives the descriptor back. It may be called on nil.
func (p *process) release() {
	if p != nil {
		_ = p.os.Release()
	}
}

// interrupt sends SIGINT. A process that has ended is not an error.
func (p *process) interrupt() error {
	if err := p.os.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal monitor %d: %w", p.pid, err)
	}
	return nil
}

// gone reports whether the process has ended. One that nobody has waited for (a zombie) has.
func (p *process) gone() bool {
	if zombie(p.pid) {
		return true
	}
	err := p.os.Signal(syscall.Signal(0))
	return err != nil && !errors.Is(err, syscall.EPERM)
}

// wait returns when the process has ended.
func (p *process) wait(ctx context.Context) error {
	for !p.gone() {
		if !sleep(ctx, pollInterval) {
			return fmt.Errorf("wait for monitor %d: %w", p.pid, context.Cause(ctx))
		}
	}
	return nil
}

// sleep returns false if the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// zombie looks at the state in /proc, which follows the name in parentheses. If the pid means another process
// by now, the one asked about has ended all the same.
func zombie(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	rest := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
	return strings.HasPrefix(rest, " Z") || strings.HasPrefix(rest, " X")
}
