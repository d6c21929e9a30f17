package logfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// output is the file that is open at the moment.
type output struct {
	fd       int
	regular  bool   // not a device: has a size, an end and a place in a directory
	size     uint64 // in bytes
	torn     bool   // does not end with a newline: the next record needs one first
	dev, ino uint64
}

const openFlags = unix.O_RDWR | unix.O_APPEND | unix.O_CLOEXEC | unix.O_NOFOLLOW |
	unix.O_NONBLOCK | // a FIFO, a lease or a device must not stop us
	unix.O_NOCTTY

// openOutput opens what is at path, or creates a file with exactly this mode.
func openOutput(path string, mode uint32) (output, error) {
	fd, err := openOrCreate(path, mode)
	if err != nil {
		return output{}, openError(path, err)
	}
	o, err := examine(fd)
	if err != nil {
		_ = unix.Close(fd)
		return output{}, openError(path, err)
	}
	return o, nil
}

// openError uses the words that engines know from the existing servers.
func openError(path string, err error) error {
	return fmt.Errorf("open log file path '%s': %w", path, err)
}

func openOrCreate(path string, mode uint32) (int, error) {
	for range 10 { // two racing with a creator and a remover would be bad luck already
		fd, err := open(path, openFlags, 0)
		if err != unix.ENOENT {
			return fd, err
		}
		fd, err = create(path, mode)
		if err != unix.EEXIST {
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// create makes a new file. The mode does not depend on the umask.
func create(path string, mode uint32) (int, error) {
	fd, err := open(path, openFlags|unix.O_CREAT|unix.O_EXCL, mode)
	if err != nil {
		return -1, err
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func open(path string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Open(path, flags, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// examine finds out what was opened and how it ends.
func examine(fd int) (output, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return output{}, err
	}
	o := output{fd: fd, dev: st.Dev, ino: st.Ino}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		return o, nil
	case unix.S_IFREG:
		o.regular = true
	default:
		return output{}, errors.New("not a regular file or character device")
	}
	o.size = uint64(st.Size)
	if o.size > 0 {
		var end [1]byte
		n, err := unix.Pread(fd, end[:], st.Size-1)
		o.torn = err != nil || n != 1 || end[0] != '\n'
	}
	return o, nil
}

func (o output) sameFile(p output) bool { return o.dev == p.dev && o.ino == p.ino }

// at says whether path leads to this file.
func (o output) at(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Dev == o.dev && st.Ino == o.ino
}

func (o output) close() { _ = unix.Close(o.fd) }

// replace puts a fresh empty file at path and leaves the file that was there
// to those who have it open. With backup that file stays as "<path>.1".
func replace(path string, mode uint32, backup bool) (output, error) {
	temp := path + ".tmp"
	if err := unix.Unlink(temp); err != nil && err != unix.ENOENT {
		return output{}, openError(temp, err)
	}
	fd, err := create(temp, mode)
	if err != nil {
		return output{}, openError(temp, err)
	}
	o, err := examine(fd)
	if err == nil {
		err = swap(temp, path, backup)
	}
	if err != nil {
		_ = unix.Close(fd)
		_ = unix.Unlink(temp)
		return output{}, openError(path, err)
	}
	return o, nil
}

// swap moves temp to path. At no moment is nothing at path.
func swap(temp, path string, backup bool) error {
	if !backup {
		return unix.Rename(temp, path)
	}
	err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	if err == nil {
		// The fresh file is in place. A backup that cannot be named is
		// removed by the next replacement.
		_ = unix.Rename(temp, path+".1")
		return nil
	}
	// Nothing at path, or a file system that cannot exchange: no backup then.
	return unix.Rename(temp, path)
}

// refresh learns the real size. It says whether the file has become smaller
// than what was counted.
func (o *output) refresh() bool {
	var st unix.Stat_t
	if !o.regular || unix.Fstat(o.fd, &st) != nil || uint64(st.Size) >= o.size {
		return false
	}
	o.size = uint64(st.Size)
	return true
}

// append writes p, which consists of whole records. After an error it returns
// the records that are not in the file.
func (o *output) append(p []byte) (lost []byte, err error) {
	if o.torn {
		if _, err := o.write([]byte{'\n'}); err != nil {
			return p, err
		}
		o.torn = false
	}
	n, err := o.write(p)
	if err == nil {
		return nil, nil
	}
	whole := bytes.LastIndexByte(p[:n], '\n') + 1
	o.cut(n - whole)
	return p[whole:], err
}

// write writes all of p unless an error prevents it.
func (o *output) write(p []byte) (n int, err error) {
	for n < len(p) {
		m, err := unix.Write(o.fd, p[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, os.NewSyscallError("write", err)
		}
		if m <= 0 {
			return n, os.NewSyscallError("write", unix.EIO)
		}
		n += m
		if o.regular {
			o.size += uint64(m)
		}
	}
	return n, nil
}

// cut removes the n bytes of a record that could not be completed. If even
// that fails the next record starts on a fresh line.
func (o *output) cut(n int) {
	if n == 0 {
		return
	}
	var st unix.Stat_t
	if o.regular && unix.Fstat(o.fd, &st) == nil && st.Size >= int64(n) &&
		unix.Ftruncate(o.fd, st.Size-int64(n)) == nil {
		o.size -= uint64(n)
		return
	}
	o.torn = true
}

func countLines(p []byte) uint64 { return uint64(bytes.Count(p, []byte{'\n'})) }
