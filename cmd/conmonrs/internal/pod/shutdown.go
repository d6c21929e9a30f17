package pod

import (
	"context"
	"time"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/container"
)

// askLimit bounds the question whether systemd stops the containers itself, and sliceMargin is how much longer they are
// waited for then. systemd waits longer for the monitor.
const (
	askLimit    = 2 * time.Second
	sliceMargin = 8 * time.Second
)

// Stop asks all containers to end and waits until they have, for at most grace, or until hurry is closed. If systemd
// stops the slice that they are in, it has asked them itself: twice would be once too often. New work is refused from now
// on. Kill follows in any case.
func (p *Pod) Stop(grace time.Duration, hurry <-chan struct{}) {
	p.close()
	begin := time.Now()
	asked := p.askedBySystemd(min(askLimit, grace), hurry)
	if asked {
		grace += sliceMargin
		p.host.Log.Info("containers are stopped by systemd", "slice_stopping", true)
	}
	ctx, cancel := context.WithDeadline(context.Background(), begin.Add(grace))
	defer cancel()
	if !asked {
		for _, c := range p.list() {
			go c.Stop(ctx) // not waited for: its bundle may be on a file system that does not answer
		}
	}
	p.wait(ctx.Done(), hurry)
}

func (p *Pod) askedBySystemd(limit time.Duration, hurry <-chan struct{}) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	go func() {
		select {
		case <-hurry:
			cancel()
		case <-ctx.Done():
		}
	}()
	return p.scope.SliceStopping(ctx)
}

// Drain waits until all containers have ended, or hurry is closed. New work is refused from now on.
func (p *Pod) Drain(hurry <-chan struct{}) {
	p.close()
	p.wait(nil, hurry)
}

func (p *Pod) wait(done, hurry <-chan struct{}) {
	for _, c := range p.list() {
		select {
		case <-c.Settled():
		case <-done:
			return
		case <-hurry:
			return
		}
	}
}

// Kill ends all execs and containers at once and waits until their exits have been published, for a bounded time. It
// returns how many have not. New work is refused from now on.
func (p *Pod) Kill() (left int) {
	p.close()
	p.stop() // creates and execs under way
	deadline := time.NewTimer(settleLimit)
	defer deadline.Stop()
	look := time.NewTicker(settlePause)
	defer look.Stop()
	killed := make(map[*container.Container]bool)
	for {
		containers := p.list()
		if len(containers) == 0 && p.execCount() == 0 {
			return 0
		}
		for _, c := range containers {
			if c.State() == container.Running && !killed[c] {
				killed[c] = true
				go c.Kill()
			}
		}
		if !p.waitAny(containers, look.C, deadline.C) {
			return len(p.list())
		}
	}
}

// waitAny waits until the first container has settled or it is time to look again; false if the time is over.
func (p *Pod) waitAny(containers []*container.Container, look, deadline <-chan time.Time) bool {
	var settled <-chan struct{}
	if len(containers) > 0 {
		settled = containers[0].Settled()
	}
	select {
	case <-settled:
	case <-look:
	case <-deadline:
		return false
	}
	return true
}

func (p *Pod) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = true
}

func (p *Pod) list() []*container.Container {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*container.Container, 0, len(p.containers))
	for _, c := range p.containers {
		all = append(all, c)
	}
	return all
}

func (p *Pod) execCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.execs)
}
