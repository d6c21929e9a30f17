package main

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// measurePeak uses a pod as an engine does on a busy day.
func (b *bench) measurePeak() error {
	peak := b.add("peak", "VmHWM", "peak: 25 execs, 10 at once, 100 KB outputs, full-speed log", "KiB", "/proc/PID/status: VmHWM", atMost(5499))
	after := b.add("peak", "after.VmRSS", "the same, 5 s later: VmRSS", "KiB", "/proc/PID/status", nil)
	anon := b.add("peak", "after.RssAnon", "the same, 5 s later: RssAnon", "KiB", "/proc/PID/status", nil)
	for _, m := range b.monitors {
		var high, rss, private []float64
		for range b.pick(3, 1) {
			h, rest, err := b.busyPod(m)
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			high, rss, private = append(high, h), append(rss, rest.rss), append(private, rest.anon)
		}
		peak.median(m.name, high)
		after.median(m.name, rss)
		anon.median(m.name, private)
	}
	return nil
}

func (b *bench) busyPod(m monitor) (high float64, rest memory, err error) {
	p, err := b.startPod(m, nil)
	if err != nil {
		return 0, rest, err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	if err := p.idle(1); err != nil {
		return 0, rest, err
	}
	printer, err := p.create(false, waiting(logJob{writes: "bulk", bytes: b.pick(600_000_000, 200_000_000), containers: 1}.command()...)...)
	if err != nil {
		return 0, rest, err
	}
	if err := errors.Join(p.start(printer), begin(printer.bundle), p.execs(p.containers[0].id), p.ended(printer)); err != nil {
		return 0, rest, err
	}
	if high, err = peakRSS(p.pid); err != nil {
		return 0, rest, err
	}
	if err := errors.Join(p.disconnect(), b.wait(5*time.Second)); err != nil {
		return 0, rest, err
	}
	rest, err = readMemory(p.pid)
	return high, rest, err
}

// execs are 25 in a row, 10 at once, and 10 with 100 KB of output.
func (p *pod) execs(id string) error {
	for range 25 {
		if err := p.exec(id, "/bin/true"); err != nil {
			return err
		}
	}
	var calls sync.WaitGroup
	failed := make(chan error, 10)
	for range 10 {
		calls.Go(func() { failed <- p.exec(id, "/bin/true") })
	}
	calls.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			return err
		}
	}
	for range 10 {
		if err := p.exec(id, "/bin/busybox", "head", "-c", "100000", "/dev/zero"); err != nil {
			return err
		}
	}
	return nil
}
