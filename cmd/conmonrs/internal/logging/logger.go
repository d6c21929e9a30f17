package logging

import (
	"sync"
	"time"
)

// Level is the severity of a record.
type Level int8

// The levels, least severe first.
const (
	Debug Level = iota
	Info
	Warn
	Error
)

// keep is the size up to which a buffer is kept from one record to the next; usual is more than most records need. A
// buffer that grows from nothing leaves pages of the heap behind for each size.
const (
	usual = 512
	keep  = 4 << 10
)

// Logger writes records: a message, and arguments that are keys, each followed by its value. It is safe for concurrent
// use. A nil Logger discards everything. Values are formatted while the caller waits.
type Logger struct {
	*core
	pairs pairs // given by With
}

// core is what a logger and those derived from it share.
type core struct {
	out   output
	level Level
	// records holds buffers of *record. Formatting calls methods of values, so it is done without a lock.
	records sync.Pool
}

func newLogger(out output, level Level) *Logger {
	return &Logger{core: &core{out: out, level: level, records: sync.Pool{New: newRecord}}}
}

// output is a destination of records. Errors are its own business: a log must not stop work.
type output interface {
	write(r *record)
}

// record is one record while it is written.
type record struct {
	at      time.Time
	level   Level
	message string
	with    *pairs // of the logger
	args    []any
	line    []byte // buffers for the output to use
	value   []byte
}

func newRecord() any { return &record{line: make([]byte, 0, usual), value: make([]byte, 0, usual)} }

// Debug writes a record for those who look for a fault.
func (l *Logger) Debug(message string, args ...any) { l.log(Debug, message, args) }

// Info writes a record of something ordinary.
func (l *Logger) Info(message string, args ...any) { l.log(Info, message, args) }

// Warn writes a record of something that may be wrong.
func (l *Logger) Warn(message string, args ...any) { l.log(Warn, message, args) }

// Error writes a record of something that went wrong.
func (l *Logger) Error(message string, args ...any) { l.log(Error, message, args) }

// With returns a logger that adds args to each record.
func (l *Logger) With(args ...any) *Logger {
	if l == nil {
		return nil
	}
	return &Logger{core: l.core, pairs: l.pairs.with(args)}
}

func (l *Logger) log(level Level, message string, args []any) {
	if l == nil || level < l.level {
		return
	}
	r, _ := l.records.Get().(*record)
	r.at, r.level, r.message, r.with, r.args = time.Now(), level, message, &l.pairs, args
	l.out.write(r)
	r.message, r.with, r.args = "", nil, nil
	r.line, r.value = retain(r.line), retain(r.value)
	l.records.Put(r)
}

func retain(b []byte) []byte {
	if cap(b) > keep {
		return make([]byte, 0, usual)
	}
	return b[:0]
}
