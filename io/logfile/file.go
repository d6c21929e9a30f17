package logfile

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Format is the format of the records.
type Format uint8

// The formats.
const (
	CRI  Format = iota // file mode 0600
	JSON               // file mode 0644
)

const (
	// lockWait bounds how long Reopen and Close wait for a write that the
	// disk does not finish.
	lockWait = 5 * time.Second

	// calmFor is how long nothing must have failed before a trouble counts
	// as over. Without it a disk on the edge would flood the journal.
	calmFor = time.Second

	// retryRotate is the pause between attempts to put a fresh file in place.
	retryRotate = time.Second
)

// ErrBusy says that a write to the log hangs in the kernel.
var ErrBusy = errors.New("log file is busy")

// Logger takes a message and keys, each followed by its value, as *slog.Logger does.
type Logger interface {
	Warn(message string, args ...any)
	Error(message string, args ...any)
}

type noLogger struct{}

func (noLogger) Warn(string, ...any)  {}
func (noLogger) Error(string, ...any) {}

// Options describes a log file. The zero value is an unlimited CRI log.
type Options struct {
	Format  Format
	MaxSize uint64 // in bytes; 0: unlimited
	Backup  bool   // keep the file replaced last for its size as "<path>.1"

	// Logger hears of troubles and of their end; nil: nobody does.
	Logger Logger
}

// File is an open log. It owns its descriptor and has no goroutine. Its
// methods and those of its writers are safe for concurrent use; records of
// different streams are never mixed.
type File struct {
	path string
	o    Options
	log  Logger

	closing atomic.Bool
	wait    time.Duration // lockWait

	// gate is the lock (a value in it: locked) of everything below. It is a
	// channel because Reopen and Close must give up on a disk that hangs.
	gate    chan struct{}
	out     output
	closed  bool
	writers []*Writer
	last    time.Time // newest stamp in the file: they never go back
	second  int64     // of date
	date    []byte    // "2006-01-02T15:04:05" of second
	ahead   bool      // the limit did the work of a Reopen that is to come
	noRoom  time.Time // when putting a fresh file in place failed last
	trouble trouble
	lost    Stats
}

// Stats counts what could not be written.
type Stats struct {
	Size        uint64 // present size of the file in bytes
	LostBytes   uint64 // bytes of whole records
	LostRecords uint64
}

// Open opens the log at path for appending, or creates it in a directory that
// exists. It accepts regular files and character devices only and never
// blocks, whatever is at path; a symbolic link in the last place is refused
// (open(2), O_NOFOLLOW). A file that does not end with a newline, as after a
// crash, is continued on a fresh line.
func Open(path string, o Options) (*File, error) {
	f := &File{path: path, o: o, log: o.Logger, wait: lockWait, gate: make(chan struct{}, 1)}
	if f.log == nil {
		f.log = noLogger{}
	}
	f.date = make([]byte, 0, len(time.DateTime)+1)
	out, err := openOutput(path, f.mode())
	if err != nil {
		return nil, err
	}
	f.out = out
	return f, nil
}

func (f *File) mode() uint32 {
	if f.o.Format == JSON {
		return 0o644
	}
	return 0o600
}

func (f *File) lock() { f.gate <- struct{}{} }

// tryLock gives up after a while.
func (f *File) tryLock() bool {
	timer := time.NewTimer(f.wait)
	defer timer.Stop()
	select {
	case f.gate <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}

// unlock finishes a Close that did not want to wait. It looks again after
// giving up the lock: Close may have missed it in between.
func (f *File) unlock() {
	if f.closing.Load() {
		f.closeLocked()
	}
	<-f.gate
	if f.closing.Load() {
		select {
		case f.gate <- struct{}{}:
			f.closeLocked()
			<-f.gate
		default:
		}
	}
}

// Stats returns the size of the file and what has been lost since Open. It
// waits for a write under way.
func (f *File) Stats() Stats {
	f.lock()
	defer f.unlock()
	s := f.lost
	s.Size = f.out.size
	return s
}

// Reopen opens the path again, after an engine renamed the file. If the path
// still leads to the file that is open, a fresh empty file takes its place by
// rename(2). Records are neither lost nor split: each goes to the old file or
// to the new one. If it fails the old file stays in use. The old file is
// synchronised after the new one is in place. ErrBusy after five seconds if a
// write hangs.
func (f *File) Reopen() error {
	if !f.tryLock() {
		return fmt.Errorf("reopen log file %q: %w", f.path, ErrBusy)
	}
	old, err := f.reopenLocked()
	f.unlock()
	if err != nil {
		return fmt.Errorf("reopen log file: %w", err)
	}
	_ = unix.Fsync(old) // the engine compresses it next; it does not need more than our best
	_ = unix.Close(old)
	return nil
}

// reopenLocked returns the old descriptor, which the caller closes.
func (f *File) reopenLocked() (old int, err error) {
	if f.closed || f.closing.Load() {
		return -1, os.ErrClosed
	}
	next, err := openOutput(f.path, f.mode())
	if err != nil {
		return -1, err
	}
	if next.regular && next.sameFile(f.out) && !f.ahead {
		next.close()
		if next, err = replace(f.path, f.mode(), false); err != nil {
			return -1, err
		}
	}
	old = f.out.fd
	f.out = next
	f.ahead = false
	f.noRoom = time.Time{}
	return old, nil
}

// Close writes what the writers kept back, reports an open trouble and closes
// the file. Calling it again does nothing. If a write hangs for five seconds
// the result is ErrBusy, and the descriptor is closed when the write returns.
func (f *File) Close() error {
	f.closing.Store(true)
	if !f.tryLock() {
		return fmt.Errorf("close log file %q: %w", f.path, ErrBusy)
	}
	f.closeLocked()
	<-f.gate
	return nil
}

func (f *File) closeLocked() {
	if f.closed {
		return
	}
	f.closed = true
	for _, w := range f.writers {
		_ = w.endLocked() // counted, and reported below
	}
	f.reportEnd()
	f.out.close()
}

// stuckLocked says whether a fresh file could not be put in place lately.
func (f *File) stuckLocked() bool {
	return !f.noRoom.IsZero() && f.last.Sub(f.noRoom) < retryRotate
}

// rotateLocked puts a fresh file in place because of the size limit. If that
// fails the present one stays in use, above the limit.
func (f *File) rotateLocked() {
	if f.out.refresh() {
		return // somebody else cut the file: there is room again
	}
	next, err := f.freshLocked()
	if err != nil {
		if f.noRoom.IsZero() {
			f.log.Error("rotate log file", "path", f.path, "error", err)
		}
		f.noRoom = f.last
		return
	}
	f.noRoom = time.Time{}
	f.out.close()
	f.out = next
}

// freshLocked returns the file to go on with. If the engine has renamed the
// old one already, its Reopen is on the way: that is then done here, and the
// Reopen must not throw away what is written meanwhile.
func (f *File) freshLocked() (output, error) {
	if f.out.at(f.path) {
		return replace(f.path, f.mode(), f.o.Backup)
	}
	next, err := openOutput(f.path, f.mode())
	f.ahead = err == nil
	return next, err
}

// full says whether a record of n bytes must go to a fresh file.
func (f *File) full(size uint64, n int) bool {
	return f.o.MaxSize > 0 && f.out.regular && size > 0 && size+uint64(n) > f.o.MaxSize
}

// trouble is a period in which writes failed.
type trouble struct {
	on             bool
	failed         time.Time // stamp of the last failure
	bytes, records uint64    // lost in this period
}

// writeLocked writes whole records. What does not get to the file is counted.
func (f *File) writeLocked(p []byte) error {
	lost, err := f.out.append(p)
	if err == nil {
		if f.trouble.on && f.last.Sub(f.trouble.failed) >= calmFor {
			f.reportEnd()
		}
		return nil
	}
	if !f.trouble.on {
		f.trouble = trouble{on: true}
		f.log.Error("write log file, output is lost until it works again", "path", f.path, "error", err)
	}
	records := countLines(lost)
	f.trouble.failed = f.last
	f.trouble.bytes += uint64(len(lost))
	f.trouble.records += records
	f.lost.LostBytes += uint64(len(lost))
	f.lost.LostRecords += records
	return fmt.Errorf("write log file %q: %w", f.path, err)
}

func (f *File) reportEnd() {
	if f.trouble.on {
		f.log.Warn("log file lost output", "path", f.path, "bytes", f.trouble.bytes, "records", f.trouble.records)
		f.trouble = trouble{}
	}
}

// stampLocked returns at, or the newest stamp in the file if at is older, and
// brings date up to it.
func (f *File) stampLocked(at time.Time) time.Time {
	if at.Before(f.last) {
		at = f.last
	}
	f.last = at
	if s := at.Unix(); s != f.second || len(f.date) == 0 {
		f.second = s
		f.date = time.Unix(s, 0).UTC().AppendFormat(f.date[:0], "2006-01-02T15:04:05")
	}
	return at
}
