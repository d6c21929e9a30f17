package proctree

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxStat is more than a line of proc_pid_stat(5) has.
const maxStat = 1024

// maxRead bounds what is read of one file of a process: its environment or its control groups.
const maxRead = 256 << 10

// proc is what proc_pid_stat(5) says of a process.
type proc struct {
	pid, ppid, group, session int
	start                     uint64 // field 22, with the pid the identity of a process
	zombie                    bool
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

// kill kills the process that was seen, not one that has its pid now.
func (r *reader) kill(p proc) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err == unix.ENOSYS { // before Linux 5.3
		_ = unix.Kill(p.pid, unix.SIGKILL)
	}
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if now, ok := r.stat(p.pid); ok && now.start == p.start {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
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
	field := 3
	for word := range bytes.FieldsSeq(b[end+1:]) {
		var n uint64
		switch field {
		case 3:
			p.zombie = word[0] == 'Z' || word[0] == 'X'
		case 4, 5, 6, 22:
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
		case 22:
			p.start = n
			return p, true
		}
		field++
	}
	return proc{}, false
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
