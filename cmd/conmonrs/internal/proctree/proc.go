package proctree

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxStat is more than a line of proc_pid_stat(5) has.
const maxStat = 1024

// exiting is PF_EXITING in the flags of proc_pid_stat(5), from include/linux/sched.h.
const exiting = 4

// maxRead bounds what is read of one file of a process: its environment or its control groups.
const maxRead = 256 << 10

// proc is what proc_pid_stat(5) says of a process.
type proc struct {
	pid, ppid, group, session int
	start                     uint64 // field 22, with the pid the identity of a process
	// env is where the environment begins and ends, which execve(2) changes; zero where that may not be read, as the
	// environment itself, and before Linux 3.5.
	env [2]uint64
	// exiting: it will run no more, and has left its cgroups of version 1. zombie: it has ended.
	exiting, zombie bool
}

// reader reads files of processes into one buffer: a scan looks at every process of the machine, and what it allocated
// for each would stay with the monitor.
type reader struct{ buf []byte }

// read returns the content of /proc/<pid>/<name>, valid until the next call, nil if there is none.
func (r *reader) read(pid int, name string) []byte {
	path := append(strconv.AppendInt(append(make([]byte, 0, 64), "/proc/"...), int64(pid), 10), '/')
	fd, err := unix.Open(string(append(path, name...)), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	if r.buf == nil {
		r.buf = make([]byte, 4096)
	}
	n := 0
	for {
		if n == len(r.buf) {
			if n >= maxRead {
				return r.buf
			}
			r.buf = append(r.buf, make([]byte, n)...)
		}
		got, err := unix.Read(fd, r.buf[n:])
		if err != nil || got <= 0 {
			return r.buf[:n]
		}
		n += got
	}
}

// stat reads what is known of one process.
func (r *reader) stat(pid int) (proc, bool) { return parseStat(r.read(pid, "stat")) }

// list appends all processes that can be seen to procs.
func (r *reader) list(procs []proc) []proc {
	dir, err := os.Open("/proc")
	if err != nil {
		return procs
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(64)
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil {
				if p, ok := r.stat(pid); ok {
					procs = append(procs, p)
				}
			}
		}
		if err != nil {
			return procs
		}
	}
}

// parseStat parses a line of proc_pid_stat(5). The name in parentheses may hold anything.
func parseStat(b []byte) (p proc, ok bool) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open || len(b) > maxStat {
		return proc{}, false
	}
	pid, ok := number(bytes.TrimSpace(b[:open]))
	if !ok {
		return proc{}, false
	}
	p.pid = int(pid)
	var state byte
	var threads uint64
	field := 3
	for word := range bytes.FieldsSeq(b[end+1:]) {
		var n uint64
		switch field {
		case 3:
			state = word[0]
		case 4, 5, 6, 9, 20, 22, 50, 51:
			if n, ok = number(word); !ok {
				return proc{}, false
			}
		}
		switch field {
		case 4:
			p.ppid = int(n)
		case 5:
			p.group = int(n)
		case 6:
			p.session = int(n)
		case 9:
			p.exiting = n&exiting != 0
		case 20:
			threads = n
		case 22:
			p.start = n
		case 50, 51:
			p.env[field-50] = n
		}
		field++
	}
	// A process whose first thread has ended goes on if there are others.
	p.zombie = threads <= 1 && (state == 'Z' || state == 'X')
	return p, field > 22
}

func number(b []byte) (n uint64, ok bool) {
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, true
}
