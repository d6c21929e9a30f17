// Package pages gives back memory that a process which has started and will rest does not need: the pages of its own
// executable, proc_pid_maps(5) and madvise(2).
package pages

import (
	"bytes"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxOwn bounds how many mappings the executable has: four, as the Go linker makes it.
const maxOwn = 8

// Pages are those of the process's own executable. The zero value is none.
type Pages struct {
	own   [maxOwn]mapping
	count int
}

// Own finds the pages of this process's executable. What goes wrong is of no consequence: there is nothing to drop then.
func Own() (p Pages) {
	fd, err := unix.Open("/proc/self/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return p
	}
	defer func() { _ = unix.Close(fd) }()
	var buf [1024]byte // the mappings of the executable come first
	n, err := unix.Read(fd, buf[:])
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, buf[:])
	}
	var file []byte
	for line := range bytes.Lines(buf[:max(n, 0)]) {
		m, ok := parseMapping(line)
		if !ok || file != nil && !bytes.Equal(m.file, file) || p.count == maxOwn {
			break
		}
		file = m.file
		p.own[p.count] = m
		p.count++
	}
	return p
}

// Drop takes what the start needed of the executable out of the memory of this process: most of its code never runs
// again. The pages stay in the page cache, and what is needed after all is mapped again when it is touched. Pages that are
// written to are left alone.
func (p *Pages) Drop() {
	for _, m := range p.own[:p.count] {
		if !m.writable {
			_ = madvise(m.start, m.end-m.start, unix.MADV_DONTNEED)
		}
	}
}

func madvise(start, length uintptr, advice int) error {
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, start, length, uintptr(advice))
	if errno != 0 {
		return errno
	}
	return nil
}

// mapping is a line of proc_pid_maps(5) for a file.
type mapping struct {
	start, end uintptr
	writable   bool
	file       []byte // its inode and path
}

func parseMapping(line []byte) (m mapping, ok bool) {
	fields := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(" "), 5)
	if len(fields) != 5 || len(fields[1]) != 4 || bytes.HasPrefix(fields[4], []byte("0 ")) {
		return mapping{}, false
	}
	from, to, found := bytes.Cut(fields[0], []byte("-"))
	start, err := strconv.ParseUint(string(from), 16, 64)
	end, err2 := strconv.ParseUint(string(to), 16, 64)
	if !found || err != nil || err2 != nil || start >= end {
		return mapping{}, false
	}
	return mapping{
		start: uintptr(start), end: uintptr(end), writable: fields[1][1] == 'w', file: fields[4],
	}, true
}
