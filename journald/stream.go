package journald

import (
	"bytes"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"
)

// keepPending is the size up to which a stream keeps the buffer for unfinished
// lines: ordinary lines cut by the end of a read do not allocate, and an idle
// stream holds next to nothing.
const keepPending = 512

// Stream turns one stream of a container into entries. Pieces of a line that come
// with different reads are joined up to MaxLine. A line longer than that becomes
// several entries with CONTAINER_PARTIAL_ID, CONTAINER_PARTIAL_ORDINAL (from 1)
// and CONTAINER_PARTIAL_LAST; all but the last also have
// CONTAINER_PARTIAL_MESSAGE=true. The line's end (LF or CR LF) is not part of
// MESSAGE; everything else is kept as it is.
type Stream struct {
	sink  *Sink
	tx    *sender
	index int
	name  string

	mu      sync.Mutex
	pending []byte // beginning of a line
	ordinal int    // of the last piece of this line that was sent; 0: none
	partial []byte // CONTAINER_PARTIAL_ID of this line, if ordinal > 0
	split   uint64 // number of lines that were split
}

// WriteChunk writes the lines that data completes and keeps the rest, up to
// MaxLine bytes, for the next call. data is what one read at that time returned;
// scratch is used for formatting and not retained. An error, the first of this
// chunk, has been counted and given to the logger already. Steady use does not
// allocate.
func (s *Stream) WriteChunk(at time.Time, data, scratch []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var failure error
	for len(data) > 0 {
		rest, err := s.next(at, data, scratch)
		if failure == nil {
			failure = err
		}
		data = rest
	}
	return failure
}

// End writes what was kept back: the stream has ended, or its process has. It may be called while WriteChunk is at
// work, and more chunks may follow.
func (s *Stream) End() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) == 0 {
		return nil
	}
	err := s.emit(nil, time.Time{}, nil, false)
	s.pending = nil
	return err
}

// next handles data up to the first newline and returns what is behind it.
func (s *Stream) next(at time.Time, data, scratch []byte) (rest []byte, failure error) {
	line, whole := data, false
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		line, rest, whole = data[:i], data[i+1:], true
	}
	for len(s.pending)+len(line) > s.sink.o.MaxLine {
		n := cut(line, s.sink.o.MaxLine-len(s.pending))
		if err := s.emit(scratch, at, line[:n], true); failure == nil {
			failure = err
		}
		line = line[n:]
	}
	if !whole {
		s.pending = append(s.pending, line...)
		return rest, failure
	}
	if err := s.emit(scratch, at, line, false); failure == nil {
		failure = err
	}
	return rest, failure
}

// cut returns a length of at most n at which the text can be split: not inside a
// UTF-8 character, since journalctl shows a broken one as binary data.
func cut(text []byte, n int) int {
	for back := 0; back < utf8.UTFMax && n-back > 0; back++ {
		if utf8.RuneStart(text[n-back]) {
			return n - back
		}
	}
	return n
}

// emit sends what is pending and tail as one entry. more says that the line goes on.
func (s *Stream) emit(scratch []byte, at time.Time, tail []byte, more bool) error {
	s.ordinal++
	if more && s.ordinal == 1 {
		s.identify(at)
	}
	if !more {
		tail = s.trimReturn(tail)
	}
	e := append(scratch[:0], s.sink.prefixes.Load()[s.index]...)
	if more || s.ordinal > 1 {
		e = s.appendPartial(e, more)
	}
	e = append(e, "MESSAGE="...)
	e = append(e, s.pending...)
	e = append(e, tail...)
	e = append(e, '\n')
	n := len(s.pending) + len(tail)
	s.pending = retain(s.pending, keepPending)
	if !more {
		s.ordinal = 0
	}
	return s.sink.deliver(s.tx, e, n)
}

// trimReturn takes the carriage return of a terminal's line end away; it may have
// come with an earlier read.
func (s *Stream) trimReturn(tail []byte) []byte {
	if len(tail) > 0 {
		return bytes.TrimSuffix(tail, []byte{'\r'})
	}
	s.pending = bytes.TrimSuffix(s.pending, []byte{'\r'})
	return tail
}

// identify makes an id for a line that is about to be split, unique in the journal.
func (s *Stream) identify(at time.Time) {
	s.split++
	b := append(s.partial[:0], s.sink.o.ContainerID...)
	b = append(b, '-')
	b = append(b, s.name...)
	b = append(b, '-')
	b = strconv.AppendInt(b, at.UnixNano(), 36)
	b = append(b, '-')
	s.partial = strconv.AppendUint(b, s.split, 36)
}

func (s *Stream) appendPartial(e []byte, more bool) []byte {
	e = AppendField(e, "CONTAINER_PARTIAL_ID", s.partial)
	e = append(e, "CONTAINER_PARTIAL_ORDINAL="...)
	e = strconv.AppendInt(e, int64(s.ordinal), 10)
	if more {
		return append(e, "\nCONTAINER_PARTIAL_LAST=false\nCONTAINER_PARTIAL_MESSAGE=true\n"...)
	}
	return append(e, "\nCONTAINER_PARTIAL_LAST=true\n"...)
}
