package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// memory is what a process holds, in KiB. See proc(5): status and smaps_rollup.
type memory struct{ rss, anon, privateDirty, pss, threads float64 }

func readMemory(pid int) (memory, error) {
	status, err := numbers(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, err
	}
	rollup, err := numbers(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return memory{}, err
	}
	return memory{
		rss: status["VmRSS"], anon: status["RssAnon"], threads: status["Threads"],
		privateDirty: rollup["Private_Dirty"], pss: rollup["Pss"],
	}, nil
}

// peakRSS is VmHWM in KiB.
func peakRSS(pid int) (float64, error) {
	status, err := numbers(fmt.Sprintf("/proc/%d/status", pid))
	return status["VmHWM"], err
}

// contextSwitches are those of all threads since they began.
func contextSwitches(pid int) (float64, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err == nil && len(tasks) == 0 {
		err = fmt.Errorf("process %d has gone", pid)
	}
	total := 0.0
	for _, path := range tasks {
		status, readErr := numbers(path)
		err = errors.Join(err, readErr)
		total += status["voluntary_ctxt_switches"] + status["nonvoluntary_ctxt_switches"]
	}
	return total, err
}

// cpuSeconds is what the scheduler gave to all threads, in user mode and in the kernel, to the nanosecond. Threads that have
// ended are not in it, but neither monitor ends any.
func cpuSeconds(pid int) (float64, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err == nil && len(tasks) == 0 {
		err = fmt.Errorf("process %d has gone", pid)
	}
	total := 0.0
	for _, path := range tasks {
		content, readErr := os.ReadFile(path)
		first, _, _ := strings.Cut(string(content), " ")
		ns, parseErr := strconv.ParseFloat(first, 64)
		err = errors.Join(err, readErr, parseErr)
		total += ns / 1e9
	}
	return total, err
}

// numbers reads a file of lines with a name and a number, with a colon between them or not.
func numbers(path string) (map[string]float64, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	found := map[string]float64{}
	for line := range strings.Lines(string(content)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if v, err := strconv.ParseFloat(f[1], 64); err == nil {
			found[strings.TrimSuffix(f[0], ":")] = v
		}
	}
	return found, nil
}

// becomeSubreaper makes this process the parent of monitors in the background, so that they are waited for.
func becomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	return nil
}

// reap waits for a process that has ended or is about to.
func reap(pid int) {
	for {
		if _, err := syscall.Wait4(pid, nil, 0, nil); !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}
