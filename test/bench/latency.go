package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// timed returns how long f took in milliseconds.
func timed(f func() error) (float64, error) {
	begin := time.Now()
	err := f()
	return float64(time.Since(begin)) / float64(time.Millisecond), err
}

// addTimes makes rows of the median and the tail.
func (b *bench) addTimes(section, title, counter string, found map[string][]float64, median, tail *target, tailPercent float64) {
	for _, p := range []struct {
		percent float64
		name    string
	}{{50, "median"}, {95, "P95"}, {99, "P99"}} {
		var t *target
		switch p.percent {
		case 50:
			t = median
		case tailPercent:
			t = tail
		}
		r := b.add(section, p.name, title+", "+p.name, "ms", counter, t)
		for subject, samples := range found {
			r.percentile(subject, samples, p.percent)
		}
	}
}

// addOver makes rows of what our times are over the bare runtime's.
func (b *bench) addOver(section, title string, found map[string][]float64, median, tail *target) {
	for _, p := range []struct {
		percent float64
		name    string
		target  *target
	}{{50, "median", median}, {95, "P95", tail}} {
		r := b.add(section, "over."+p.name, title+" over the bare runtime, "+p.name, "ms", "difference of the figures above", p.target)
		base := percentile(found[bare], p.percent)
		for subject, samples := range found {
			if subject != bare {
				r.set(subject, percentile(samples, p.percent)-base, len(samples))
			}
		}
	}
}

// measureStart has the time from the foreground command to the first answer.
func (b *bench) measureStart() error {
	found := map[string][]float64{}
	for range b.pick(50, 15) {
		for _, m := range b.monitors {
			p := &pod{b: b, dir: filepath.Join(b.dir, b.next("pod"))}
			p.root = filepath.Join(p.dir, "root")
			ms, err := timed(func() (err error) {
				p.client, err = client.Start(b.ctx, p.options(m.binary))
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			found[m.name] = append(found[m.name], ms)
			v, err := p.client.Version(b.ctx, &conmon.VersionRequest{})
			if err != nil {
				return err
			}
			p.pid = int(v.ProcessID)
			if err := p.end(); err != nil {
				return err
			}
		}
	}
	b.addTimes("start", "start to first answered RPC", "clock of the client", found, atMost(8), nil, 0)
	return nil
}

// measureCreate takes turns, so that a busy moment of the machine hits all alike.
func (b *bench) measureCreate() (err error) {
	pods, err := b.podOfEach()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endAll(pods)) }()
	creators := b.creators(pods)
	found := map[string][]float64{}
	for n := range b.pick(60, 8) + 1 {
		for _, c := range creators {
			ms, err := c.once()
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if n > 0 { // the first fills caches
				found[c.name] = append(found[c.name], ms)
			}
		}
	}
	b.addTimes("create", "create a container", "clock of the client", found, nil, nil, 0)
	b.addOver("create", "create", found, atMost(1.5), atMost(4))
	return nil
}

// creator creates one container, and removes it untimed.
type creator struct {
	name string
	once func() (float64, error)
}

func (b *bench) creators(pods map[string]*pod) []creator {
	all := []creator{{bare, b.createBare}}
	for _, m := range b.monitors {
		p := pods[m.name]
		all = append(all, creator{m.name, func() (float64, error) { return p.timeCreate() }})
	}
	if b.conmon != "" {
		all = append(all, creator{cmon, b.createConmon})
	}
	return all
}

func (p *pod) timeCreate() (float64, error) {
	id := p.b.next("c")
	c := &container{
		id: id, bundle: filepath.Join(p.dir, id), exit: filepath.Join(p.dir, "exits", id), log: filepath.Join(p.dir, id+".log"),
	}
	if err := p.b.makeBundle(c.bundle, "sleep", "1000000"); err != nil {
		return 0, err
	}
	request := p.request(c)
	request.LogDrivers = []conmon.LogDriver{{Type: conmon.LogDriverCRI, Path: c.log}}
	ms, err := timed(func() error { return p.createFrom(c, request) })
	if err != nil {
		return 0, err
	}
	return ms, p.remove(c)
}

func (b *bench) createBare() (float64, error) {
	id := b.next("c")
	dir, root := filepath.Join(b.dir, id), filepath.Join(b.dir, "root")
	if err := b.makeBundle(dir, "sleep", "1000000"); err != nil {
		return 0, err
	}
	ms, err := timed(func() error {
		return b.runtimeDo(root, "create", "--bundle", dir, "--pid-file", filepath.Join(dir, "pidfile"), id)
	})
	return ms, errors.Join(err, b.runtimeDo(root, "delete", "--force", id))
}

func (b *bench) createConmon() (float64, error) {
	m, err := b.newConmons(nil)
	if err != nil {
		return 0, err
	}
	c, err := m.bundle("sleep", "1000000")
	if err != nil {
		return 0, err
	}
	ms, err := timed(func() error { return m.create(c) })
	return ms, errors.Join(err, m.end())
}

// podOfEach starts a pod of each monitor.
func (b *bench) podOfEach() (map[string]*pod, error) {
	pods := map[string]*pod{}
	for _, m := range b.monitors {
		p, err := b.startPod(m, nil)
		if err != nil {
			return nil, errors.Join(err, endAll(pods))
		}
		pods[m.name] = p
	}
	return pods, nil
}

func endAll(pods map[string]*pod) error {
	var err error
	for _, p := range pods {
		err = errors.Join(err, p.end())
	}
	return err
}

// measureExec runs a command that does nothing.
func (b *bench) measureExec() (err error) {
	pods, err := b.podOfEach()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endAll(pods)) }()
	for _, p := range pods {
		if err := p.idle(1); err != nil {
			return err
		}
	}
	found, cpu := map[string][]float64{}, map[string]float64{}
	runs := b.pick(200, 30)
	for n := range runs + 1 {
		for _, m := range b.monitors {
			p := pods[m.name]
			if n == 1 {
				if cpu[m.name], err = cpuSeconds(p.pid); err != nil {
					return err
				}
			}
			raw, mine, err := p.timeExec()
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			if n > 0 {
				found[bare], found[m.name] = append(found[bare], raw), append(found[m.name], mine)
			}
		}
	}
	b.addTimes("exec", "exec sync of true", "clock of the client", found, nil, nil, 0)
	b.addOver("exec", "exec sync", found, atMost(0.7), atMost(3))
	r := b.add("exec", "cpu", "exec sync: the monitor's own CPU", "ms", "/proc/PID/task/*/schedstat", atMost(1))
	for name, before := range cpu {
		after, err := cpuSeconds(pods[name].pid)
		if err != nil {
			return err
		}
		r.set(name, 1000*(after-before)/float64(runs), runs)
	}
	return nil
}

// timeExec has the runtime run a command, and the monitor.
func (p *pod) timeExec() (raw, mine float64, err error) {
	id := p.containers[0].id
	raw, err = timed(func() error { return p.b.runtimeDo(p.root, "exec", id, "/bin/true") })
	if err != nil {
		return 0, 0, err
	}
	mine, err = timed(func() error { return p.exec(id, "/bin/true") })
	return raw, mine, err
}

func (p *pod) exec(id string, command ...string) error {
	r, err := p.client.ExecSync(p.b.ctx, &conmon.ExecSyncRequest{
		ID: id, Command: command, Timeout: time.Minute, CgroupManager: conmon.CgroupManagerCgroupfs,
	})
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("exec %q: exit code %d: %s%s", command, r.ExitCode, r.Stdout, r.Stderr)
	}
	return err
}
