package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// measureBinary has the size of the daemon's file, which its pages come from.
func (b *bench) measureBinary() error {
	r := b.add("binary", "size", "daemon's executable", "kB", "file size / 1000", atMost(3800))
	for _, m := range b.monitors {
		info, err := os.Stat(m.binary)
		if err != nil {
			return err
		}
		r.set(m.name, float64(info.Size())/1000, 1)
	}
	if info, err := os.Stat(b.conmon); err == nil {
		r.set(cmon, float64(info.Size())/1000, 1)
	}
	return nil
}

// counters are the columns of memory that have a row.
var counters = []struct {
	id, unit, from string
	value          func(memory) float64
}{
	{"VmRSS", "KiB", "/proc/PID/status", func(m memory) float64 { return m.rss }},
	{"RssAnon", "KiB", "/proc/PID/status", func(m memory) float64 { return m.anon }},
	{"Private_Dirty", "KiB", "/proc/PID/smaps_rollup", func(m memory) float64 { return m.privateDirty }},
	{"Pss", "KiB", "/proc/PID/smaps_rollup", func(m memory) float64 { return m.pss }},
	{"threads", "", "/proc/PID/status", func(m memory) float64 { return m.threads }},
}

// emptyPod are the targets of a pod without containers.
var emptyPod = map[string]*target{"VmRSS": atMost(3.6 * 1024), "RssAnon": atMost(0.7 * 1024), "threads": atMost(5)}

// footprint is what a monitor, or a monitor for each container, holds.
type footprint struct {
	memory
	charge
}

// measureMemory has idle pods with more and more containers.
func (b *bench) measureMemory() error {
	sizes := []int{0, 1, 10, 50}
	if b.short {
		sizes = sizes[:3]
	}
	found := map[string]map[int][]footprint{} // by subject and number of containers
	var counter string
	for range b.pick(3, 1) {
		for _, n := range sizes {
			for _, m := range b.monitors {
				f, from, err := b.podFootprint(m, n)
				if err != nil {
					return fmt.Errorf("%s with %d containers: %w", m.name, n, err)
				}
				counter = from
				note(found, m.name, n, f)
			}
			if b.conmon != "" && n > 0 && n <= 10 {
				f, err := b.conmonFootprint(n)
				if err != nil {
					return fmt.Errorf("conmon with %d containers: %w", n, err)
				}
				note(found, cmon, n, f)
			}
		}
	}
	b.addFootprints(sizes, found)
	b.addMarginal(sizes, found, counter)
	return b.measureConnection()
}

// measureConnection has what a client costs that stays connected, as engines do.
func (b *bench) measureConnection() error {
	r := b.add("memory", "connection.RssAnon", "one idle client connection: RssAnon", "KiB", "/proc/PID/status", nil)
	for _, m := range b.monitors {
		var samples []float64
		for range b.pick(3, 1) {
			more, err := b.connection(m)
			if err != nil {
				return fmt.Errorf("%s with a connection: %w", m.name, err)
			}
			samples = append(samples, more)
		}
		r.median(m.name, samples)
	}
	return nil
}

func (b *bench) connection(m monitor) (more float64, err error) {
	p, err := b.startPod(m, nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	if err := errors.Join(p.disconnect(), b.settle()); err != nil {
		return 0, err
	}
	before, err := readMemory(p.pid)
	if err != nil {
		return 0, err
	}
	if err := p.connect(); err != nil {
		return 0, err
	}
	if _, err := p.client.Version(b.ctx, &conmon.VersionRequest{}); err != nil {
		return 0, err
	}
	if err := b.settle(); err != nil {
		return 0, err
	}
	after, err := readMemory(p.pid)
	return after.anon - before.anon, err
}

func note(found map[string]map[int][]footprint, subject string, n int, f footprint) {
	if found[subject] == nil {
		found[subject] = map[int][]footprint{}
	}
	found[subject][n] = append(found[subject][n], f)
}

func (b *bench) addFootprints(sizes []int, found map[string]map[int][]footprint) {
	for _, n := range sizes {
		for _, c := range counters {
			var t *target
			if n == 0 {
				t = emptyPod[c.id]
			}
			r := b.add("memory", fmt.Sprintf("%d.%s", n, c.id), fmt.Sprintf("idle pod, %d containers: %s", n, c.id), c.unit, c.from, t)
			for subject, by := range found {
				r.median(subject, values(by[n], func(f footprint) float64 { return c.value(f.memory) }))
			}
		}
	}
}

// addMarginal divides what many containers cost over one.
func (b *bench) addMarginal(sizes []int, found map[string]map[int][]footprint, counter string) {
	few, many := 1, sizes[len(sizes)-1]
	anon := b.add("memory", "more.RssAnon", "one more idle container: RssAnon", "KiB", "/proc/PID/status", atMost(8))
	all := b.add("memory", "more.charge", "one more idle container: charged", "KiB", counter, nil)
	for subject, by := range found {
		over := func(value func(footprint) float64) (float64, int) {
			more, less := values(by[many], value), values(by[few], value)
			return (percentile(more, 50) - percentile(less, 50)) / float64(many-few), len(more)
		}
		each, n := over(func(f footprint) float64 { return f.memory.anon })
		anon.set(subject, each, n)
		if each, n = over(func(f footprint) float64 { return f.charge.anon + f.kernel }); each != 0 {
			all.set(subject, each, n)
		}
	}
}

func values(of []footprint, value func(footprint) float64) []float64 {
	var all []float64
	for _, f := range of {
		all = append(all, value(f))
	}
	return all
}

// settle lets a monitor come to rest, and has what was written, so that it is not taken for memory of its own.
func (b *bench) settle() error {
	settleKernel()
	return b.wait(time.Duration(b.pick(3000, 2500)) * time.Millisecond)
}

func (b *bench) podFootprint(m monitor, n int) (f footprint, counter string, err error) {
	g := b.newGroup()
	p, err := b.startPod(m, g)
	if err != nil {
		return f, "", err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	if err := errors.Join(p.idle(n), p.disconnect(), b.settle()); err != nil {
		return f, "", err
	}
	f, err = b.footprint(g, p.pid)
	return f, g.counter(), err
}

func (b *bench) conmonFootprint(n int) (f footprint, err error) {
	g := b.newGroup()
	m, err := b.newConmons(g)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, m.end()) }()
	if err := errors.Join(m.add(n), b.settle()); err != nil {
		return f, err
	}
	return b.footprint(g, m.pids()...)
}

func (m *conmons) pids() []int {
	var all []int
	for _, c := range m.all {
		all = append(all, c.monitor)
	}
	return all
}

// footprint adds up processes that share a group.
func (b *bench) footprint(g *group, pids ...int) (footprint, error) {
	var f footprint
	for _, pid := range pids {
		m, err := readMemory(pid)
		if err != nil {
			return f, err
		}
		f.rss += m.rss
		f.memory.anon += m.anon
		f.privateDirty += m.privateDirty
		f.pss += m.pss
		f.threads += m.threads
	}
	var err error
	if g != nil {
		f.charge, err = g.charge()
	}
	return f, err
}

// measurePods has many pods at once, which share the executable's pages.
func (b *bench) measurePods() error {
	const pods = 20
	pss := b.add("pods", "Pss", "20 idle pods, each: Pss", "KiB", "/proc/PID/smaps_rollup", atMost(0.80*1024))
	anon := b.add("pods", "RssAnon", "20 idle pods, each: RssAnon", "KiB", "/proc/PID/status", nil)
	kernel := b.add("pods", "kernel", "20 idle pods, each: kernel memory", "KiB", "", nil)
	charged := b.add("pods", "charge", "20 idle pods, each: charged (anon + kernel)", "KiB", "", atMost(0.85*1024))
	for _, m := range b.monitors {
		found, counter, err := b.manyPods(m, pods, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		kernel.Counter, charged.Counter = counter, counter
		set := func(r *row, value func(footprint) float64) {
			if v := mean(found, value); v > 0 {
				r.set(m.name, v, len(found))
			}
		}
		set(pss, func(f footprint) float64 { return f.pss })
		set(anon, func(f footprint) float64 { return f.memory.anon })
		set(kernel, func(f footprint) float64 { return f.kernel })
		set(charged, func(f footprint) float64 { return f.charge.anon + f.kernel })
	}
	return nil
}

func (b *bench) manyPods(m monitor, n, containers int) (found []footprint, counter string, err error) {
	var pods []*pod
	defer func() {
		for _, p := range pods {
			err = errors.Join(err, p.end())
		}
	}()
	for range n {
		p, err := b.startPod(m, b.newGroup())
		if err != nil {
			return nil, "", err
		}
		pods = append(pods, p)
		if err := errors.Join(p.idle(containers), p.disconnect()); err != nil {
			return nil, "", err
		}
	}
	if err := b.settle(); err != nil {
		return nil, "", err
	}
	for _, p := range pods {
		f, err := b.footprint(p.group, p.pid)
		if err != nil {
			return nil, "", err
		}
		found, counter = append(found, f), p.group.counter()
	}
	return found, counter, nil
}

// measureThree has pods as most are, the sandbox and two containers: one alone, which carries the executable's pages on its
// own, and as many as a machine has, which share them. The C monitors share theirs as well.
func (b *bench) measureThree() error {
	const containers = 3
	for _, pods := range []int{1, b.pick(20, 3)} {
		id, title := fmt.Sprintf("%d", pods), fmt.Sprintf("%d pods of 3 containers, each", pods)
		var t *target
		if pods > 1 {
			id, t = "many", atMost(0.6)
		}
		r := b.add("three", id, title+": Pss + kernel", "KiB", "smaps_rollup + kernel memory of the cgroup", nil)
		for _, m := range b.monitors {
			found, _, err := b.manyPods(m, pods, containers)
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			r.set(m.name, mean(found, func(f footprint) float64 { return f.pss + f.kernel }), pods)
		}
		if b.conmon != "" {
			f, err := b.conmonFootprint(pods * containers)
			if err != nil {
				return fmt.Errorf("conmon: %w", err)
			}
			r.set(cmon, (f.pss+f.kernel)/float64(pods), pods)
		}
		b.ratio("three", id+".vs-conmon", "  in parts of 3 conmon", r, cmon, t)
	}
	return nil
}

func mean(found []footprint, value func(footprint) float64) float64 {
	sum := 0.0
	for _, f := range found {
		sum += value(f)
	}
	return sum / float64(len(found))
}

// measureIdle counts wake-ups.
func (b *bench) measureIdle() error {
	seconds := b.pick(60, 5)
	for _, n := range []int{0, 10} {
		r := b.add("idle", fmt.Sprintf("%d.switches", n), fmt.Sprintf("idle pod, %d containers: context switches in %d s", n, seconds),
			"", "/proc/PID/task/*/status: both kinds", atMost(0))
		for _, m := range b.monitors {
			switches, err := b.idleSwitches(m, n, time.Duration(seconds)*time.Second)
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			r.set(m.name, switches, 1)
		}
		if n == 0 && b.short {
			return nil
		}
	}
	return nil
}

func (b *bench) idleSwitches(m monitor, n int, d time.Duration) (switches float64, err error) {
	p, err := b.startPod(m, nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	if err := errors.Join(p.idle(n), p.disconnect(), b.settle()); err != nil {
		return 0, err
	}
	before, err := contextSwitches(p.pid)
	if err != nil {
		return 0, err
	}
	if err := b.wait(d); err != nil {
		return 0, err
	}
	after, err := contextSwitches(p.pid)
	return after - before, err
}
