package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
)

// measureAttach has output through the attach socket, beside the same through cat and two pipes.
func (b *bench) measureAttach() error {
	j := logJob{"attach", "", "bulk", b.pick(500_000_000, 100_000_000), 1}
	found := map[string][]float64{}
	for range b.pick(5, 2) {
		for _, m := range b.monitors {
			speed, err := b.attachOutput(m, j)
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			found[m.name] = append(found[m.name], speed)
		}
		speed, err := b.catOutput(j)
		if err != nil {
			return fmt.Errorf("cat: %w", err)
		}
		found[bare] = append(found[bare], speed)
	}
	r := b.add("attach", "output", "attach socket, output (bare: cat between pipes)", "MB/s", "bytes / time from the first to the last", nil)
	for subject, samples := range found {
		r.median(subject, samples)
	}
	b.ratio("attach", "vs-cat", "  speed in parts of cat's", r, bare, atLeast(0.5))
	return nil
}

func (b *bench) attachOutput(m monitor, j logJob) (speed float64, err error) {
	p, err := b.startPod(m, nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	c, err := p.create(true, waiting(j.command()...)...)
	if err != nil {
		return 0, err
	}
	if err := p.start(c); err != nil {
		return 0, err
	}
	counter := &counter{}
	err = p.client.Attach(b.ctx, client.AttachOptions{
		ID: c.id, SocketPath: filepath.Join(p.dir, "attach"), Stdout: counter,
		Attached: func() { _ = begin(c.bundle) },
	})
	if err != nil {
		return 0, err
	}
	return counter.speed(j)
}

func (b *bench) catOutput(j logJob) (float64, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer read.Close()
	counter, done := &counter{}, make(chan error, 1)
	go func() {
		_, err := io.CopyBuffer(counter, struct{ io.Reader }{read}, make([]byte, 64<<10))
		done <- err
	}()
	_, err = b.pipe(j, func(cat *exec.Cmd) { cat.Stdout = write })
	if err := errors.Join(err, write.Close(), <-done); err != nil {
		return 0, err
	}
	return counter.speed(j)
}

// counter counts what comes, and when.
type counter struct {
	bytes       int
	first, last time.Time
}

func (c *counter) Write(p []byte) (int, error) {
	c.last = time.Now()
	if c.bytes == 0 {
		c.first = c.last
	}
	c.bytes += len(p)
	return len(p), nil
}

func (c *counter) speed(j logJob) (float64, error) {
	if c.bytes < j.bytes {
		return 0, fmt.Errorf("%d of %d bytes came", c.bytes, j.bytes)
	}
	return float64(c.bytes) / 1e6 / c.last.Sub(c.first).Seconds(), nil
}
