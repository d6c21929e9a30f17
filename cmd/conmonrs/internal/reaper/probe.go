package reaper

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// probes wait until executables answer. Between clone(2), which is a vfork, and the end of execve(2) nothing else in this
// process runs: if the executable's file system hangs, if somebody holds a lease on it, or a security agent thinks about
// each open, then that time is better spent here. A file that does not answer has one thread waiting for it, whatever the
// number of starts. The zero value is ready for use.
type probes struct {
	mu      sync.Mutex
	running map[string]chan struct{} // closed when the file has answered
}

// wait returns when the file has been opened and read, with whatever outcome: what is wrong with it execve(2) says.
func (p *probes) wait(ctx context.Context, path string) error {
	answered := p.begin(path)
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("executable does not open: %w", context.Cause(ctx))
	}
}

func (p *probes) begin(path string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if answered := p.running[path]; answered != nil {
		return answered
	}
	answered := make(chan struct{})
	if p.running == nil {
		p.running = make(map[string]chan struct{})
	}
	p.running[path] = answered
	go func() {
		touch(path)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.running, path)
		close(answered)
	}()
	return answered
}

// touch opens and reads a file, unless it is none: a FIFO would not open.
func touch(path string) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var magic [1]byte
	_, _ = unix.Pread(fd, magic[:], 0)
}
