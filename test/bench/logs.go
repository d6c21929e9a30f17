package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// lineLength is that of the lines, with the newline.
const lineLength = 80

// rate is how fast output went through, in MB (10^6 bytes of what was printed) a second and CPU seconds of the reader for a GB.
type rate struct{ speed, cpu float64 }

// logJob is output that is read and written to disk.
type logJob struct {
	id, title  string
	writes     string // loggen's -write-size
	bytes      int    // in all
	containers int
}

func (j logJob) command() []string {
	each := j.bytes / j.containers
	return []string{
		"/tools/loggen", "-bytes", fmt.Sprint(each), "-min", fmt.Sprint(lineLength - 1), "-max", fmt.Sprint(lineLength - 1),
		"-write-size", j.writes,
	}
}

func (b *bench) measureLog() error {
	size := b.pick(1_000_000_000, 250_000_000)
	bulk, bulkCPU, err := b.measureJob(logJob{"bulk", "log, 80-byte lines, 64 KiB writes", "bulk", size, 1}, true)
	if err != nil {
		return err
	}
	b.ratio("log", "bulk.vs-conmon", "  speed in parts of conmon's", bulk, cmon, atLeast(3.5))
	b.ratio("log", "bulk.cpu-vs-conmon", "  CPU in parts of conmon's", bulkCPU, cmon, atMost(0.3))
	b.ratio("log", "bulk.vs-cat", "  speed in parts of cat >file", bulk, bare, atLeast(0.5))
	line, lineCPU, err := b.measureJob(logJob{"line", "log, one write per line", "line", size / 5, 1}, true)
	if err != nil {
		return err
	}
	b.ratio("log", "line.vs-conmon", "  speed in parts of conmon's", line, cmon, atLeast(0.85))
	b.ratio("log", "line.cpu-vs-conmon", "  CPU in parts of conmon's", lineCPU, cmon, atMost(0.45))
	ten, _, err := b.measureJob(logJob{"ten", "log, 10 containers at once", "bulk", size, 10}, false)
	if err != nil {
		return err
	}
	r := b.add("log", "ten.vs-one", "  speed in parts of one container's", "x", "ratio of the figures above", atLeast(0.95))
	r.set(ours, ten.Values[ours]/bulk.Values[ours], ten.Samples[ours])
	return nil
}

// measureJob has a job done several times by each, in turns.
func (b *bench) measureJob(j logJob, withPeers bool) (speed, cpu *row, err error) {
	found := map[string][]rate{}
	for range b.pick(5, 2) {
		for _, m := range b.monitors {
			r, err := b.logByPod(m, j)
			if err != nil {
				return nil, nil, fmt.Errorf("%s, %s: %w", j.id, m.name, err)
			}
			found[m.name] = append(found[m.name], r)
		}
		if !withPeers {
			continue
		}
		if b.conmon != "" {
			r, err := b.logByConmon(j)
			if err != nil {
				return nil, nil, fmt.Errorf("%s, conmon: %w", j.id, err)
			}
			found[cmon] = append(found[cmon], r)
		}
		r, err := b.logByCat(j)
		if err != nil {
			return nil, nil, fmt.Errorf("%s, cat: %w", j.id, err)
		}
		found[bare] = append(found[bare], r)
	}
	speed = b.add("log", j.id, j.title, "MB/s", "output of the container / time to the exit file", nil)
	cpu = b.add("log", j.id+".cpu", "  CPU of the reader", "s/GB", "/proc/PID/task/*/schedstat", nil)
	for subject, rates := range found {
		var speeds, cpus []float64
		for _, r := range rates {
			speeds, cpus = append(speeds, r.speed), append(cpus, r.cpu)
		}
		speed.median(subject, speeds)
		cpu.median(subject, cpus)
	}
	return speed, cpu, nil
}

func (b *bench) logByPod(m monitor, j logJob) (r rate, err error) {
	p, err := b.startPod(m, nil)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	var all []*container
	for range j.containers {
		c, err := p.create(false, waiting(j.command()...)...)
		if err != nil {
			return r, err
		}
		if err := p.start(c); err != nil {
			return r, err
		}
		all = append(all, c)
	}
	return b.throughput(j, all, []int{p.pid})
}

func (b *bench) logByConmon(j logJob) (r rate, err error) {
	m, err := b.newConmons(nil)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, m.end()) }()
	var all []*container
	for range j.containers {
		c, err := m.bundle(waiting(j.command()...)...)
		if err != nil {
			return r, err
		}
		if err := errors.Join(m.create(c), m.start(c)); err != nil {
			return r, err
		}
		all = append(all, &c.container)
	}
	return b.throughput(j, all, m.pids())
}

// throughput lets the containers go and waits for the last exit file. The monitors' CPU is read all the while, because the C
// monitor is gone with its container.
func (b *bench) throughput(j logJob, all []*container, monitors []int) (rate, error) {
	before, used := map[int]float64{}, map[int]float64{}
	for _, pid := range monitors {
		v, err := cpuSeconds(pid)
		if err != nil {
			return rate{}, err
		}
		before[pid], used[pid] = v, v
	}
	begun := time.Now()
	for _, c := range all {
		if err := begin(c.bundle); err != nil {
			return rate{}, err
		}
	}
	done := 0
	err := b.until("end of the output", 5*time.Minute, func() bool {
		for _, pid := range monitors {
			if v, err := cpuSeconds(pid); err == nil && v > used[pid] {
				used[pid] = v
			}
		}
		for done < len(all) {
			if _, err := os.Stat(all[done].exit); err != nil {
				return false
			}
			done++
		}
		return true
	})
	if err != nil {
		return rate{}, err
	}
	took := time.Since(begun).Seconds()
	written, cpu := int64(0), 0.0
	for _, pid := range monitors {
		if v, err := cpuSeconds(pid); err == nil && v > used[pid] {
			used[pid] = v
		}
		cpu += used[pid] - before[pid]
	}
	for _, c := range all {
		info, err := os.Stat(c.log)
		if err != nil {
			return rate{}, err
		}
		written += info.Size()
	}
	// Each line has a time and more before it.
	if written < int64(j.bytes)*(lineLength+40)/lineLength {
		return rate{}, fmt.Errorf("the log has %d bytes for %d of output", written, j.bytes)
	}
	return rate{speed: float64(j.bytes) / 1e6 / took, cpu: cpu / (float64(j.bytes) / 1e9)}, nil
}

// logByCat has the same writer print into a pipe that cat copies to a file: the least that a reader has to do.
func (b *bench) logByCat(j logJob) (rate, error) {
	path := filepath.Join(b.dir, b.next("cat"))
	defer os.Remove(path)
	file, err := os.Create(path)
	if err != nil {
		return rate{}, err
	}
	defer file.Close()
	return b.pipe(j, func(cat *exec.Cmd) { cat.Stdout = file })
}

// pipe runs the writer and cat, of which set has set the output.
func (b *bench) pipe(j logJob, set func(*exec.Cmd)) (rate, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return rate{}, err
	}
	args := j.command()
	writer := exec.CommandContext(b.ctx, filepath.Join(b.tools, filepath.Base(args[0])), args[1:]...)
	writer.Stdout = write
	cat := exec.CommandContext(b.ctx, "cat")
	cat.Stdin = read
	set(cat)
	begun := time.Now()
	err = errors.Join(cat.Start(), writer.Start())
	_, _ = read.Close(), write.Close()
	if err != nil {
		return rate{}, err
	}
	if err := errors.Join(writer.Wait(), cat.Wait()); err != nil {
		return rate{}, err
	}
	took := time.Since(begun).Seconds()
	cpu := (cat.ProcessState.UserTime() + cat.ProcessState.SystemTime()).Seconds()
	return rate{speed: float64(j.bytes) / 1e6 / took, cpu: cpu / (float64(j.bytes) / 1e9)}, nil
}
