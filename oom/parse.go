package oom

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// value returns the value of a key in lines of "key value".
func value(b []byte, key string) (n int64, ok bool) {
	for line := range bytes.Lines(b) {
		if rest, found := bytes.CutPrefix(line, []byte(key+" ")); found {
			return number(rest)
		}
	}
	return 0, false
}

func number(b []byte) (n int64, ok bool) {
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	return n, err == nil && n >= 0
}

// errNoCounter says that a file does not have a counter.
var errNoCounter = errors.New("no such counter")

// readCounter reads a counter from the beginning of an open file.
func readCounter(fd int, key string) (int64, error) {
	var buf [512]byte
	got, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		return 0, err
	}
	if n, ok := value(buf[:got], key); ok {
		return n, nil
	}
	return 0, errNoCounter
}

func readFileCounter(path, key string) (n int64, ok bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	return value(b, key)
}

// victim is what the kernel's log says of a kill.
type victim struct {
	constraint string // CONSTRAINT_MEMCG: a limit of a group
	limited    string // path of the group whose limit was hit
	group      string // path of the victim's group
	name       string
	pid        int
}

// parseVictim reads a record of the kernel's log as /dev/kmsg gives it.
func parseVictim(record []byte) (v victim, ok bool) {
	record, text, ok := bytes.Cut(record, []byte(";oom-kill:"))
	if !ok || !isKernels(record) {
		return victim{}, false
	}
	text, _, _ = bytes.Cut(text, []byte("\n"))
	// The name may hold commas: it is between ",task=" and the last ",pid=".
	head, tail, ok := bytes.Cut(text, []byte(",task="))
	i := bytes.LastIndex(tail, []byte(",pid="))
	if !ok || i < 0 {
		return victim{}, false
	}
	v.name = string(tail[:i])
	pid, _, _ := bytes.Cut(tail[i+len(",pid="):], []byte(","))
	n, ok := number(pid)
	if !ok || n > 1<<30 {
		return victim{}, false
	}
	v.pid = int(n)
	for word := range bytes.SplitSeq(head, []byte(",")) {
		key, value, _ := bytes.Cut(word, []byte("="))
		switch string(key) {
		case "constraint":
			v.constraint = string(value)
		case "oom_memcg":
			v.limited = string(value)
		case "task_memcg":
			v.group = string(value)
		}
	}
	return v, true
}

// parseTime returns when a record of the kernel's log was made: "priority,sequence,microseconds,flags;text".
func parseTime(record []byte) (at time.Duration, ok bool) {
	head, _, _ := bytes.Cut(record, []byte(";"))
	fields := bytes.SplitN(head, []byte(","), 4)
	if len(fields) < 3 {
		return 0, false
	}
	n, ok := number(fields[2])
	return time.Duration(n) * time.Microsecond, ok && n < 1<<50
}

// parseKilled returns the pid and the name of a process that the kernel's log says the OOM killer killed. Before Linux 5.1
// a record begins with "Killed process"; later ones have the cause before it.
func parseKilled(record []byte) (pid int, name string, ok bool) {
	head, text, _ := bytes.Cut(record, []byte(";"))
	if !isKernels(head) {
		return 0, "", false
	}
	text, _, _ = bytes.Cut(text, []byte("\n"))
	rest, ok := bytes.CutPrefix(text, []byte("Killed process "))
	if !ok {
		var cause []byte
		cause, rest, ok = bytes.Cut(text, []byte(": Killed process "))
		ok = ok && (bytes.HasSuffix(bytes.ToLower(cause), []byte("out of memory")) ||
			bytes.Contains(cause, []byte("oom_kill")))
	}
	if !ok {
		return 0, "", false
	}
	word, rest, _ := bytes.Cut(rest, []byte(" ("))
	n, ok := number(word)
	if !ok || n > 1<<30 {
		return 0, "", false
	}
	title, _, _ := bytes.Cut(rest, []byte(") total-vm:"))
	return int(n), string(title), true
}

// isKernels tells whether a record was made by the kernel itself, facility 0; others may be written by anybody who may
// write to the log, but never with that facility.
func isKernels(head []byte) bool {
	priority, _, _ := bytes.Cut(head, []byte(","))
	n, ok := number(priority)
	return ok && n < 8
}

// isDying tells whether a process has ended, is ending, or has been told to by SIGKILL; see proc_pid_stat(5) and
// proc_pid_status(5).
func isDying(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/"
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return isGone(err)
	}
	ending, alone := isEnding(stat)
	if ending && alone {
		return true
	}
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return isGone(err)
	}
	// For the process SIGKILL stays pending until its end. The first thread may have ended before, by itself.
	return hasKill(status, "ShdPnd:") || !ending && hasKill(status, "SigPnd:")
}

func isGone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// isEnding reads a line of proc_pid_stat(5): whether the first thread has ended or is ending, and whether there are no
// others.
func isEnding(stat []byte) (ending, alone bool) {
	const exiting = 0x4 // PF_EXITING of the kernel's sched.h
	end := bytes.LastIndexByte(stat, ')')
	fields := bytes.Fields(stat[end+1:])
	if end < 0 || len(fields) < 18 {
		return false, false
	}
	flags, _ := number(fields[6])
	threads, _ := number(fields[17])
	state := fields[0][0]
	return state == 'Z' || state == 'X' || flags&exiting != 0, threads <= 1
}

// hasKill tells whether SIGKILL is in a set of signals of proc_pid_status(5).
func hasKill(status []byte, set string) bool {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte(set)); ok {
			mask, err := strconv.ParseUint(string(bytes.TrimSpace(rest)), 16, 64)
			return err == nil && mask&(1<<(unix.SIGKILL-1)) != 0
		}
	}
	return false
}
