package logfile

import (
	"bytes"
	"os"
	"time"
)

// spare is the least capacity of scratch that makes sense; with less, or
// none, a buffer is allocated.
const spare = 4 << 10

// Writer writes the records of one stream. Chunks of one stream must come one
// after the other; different writers may be used concurrently.
type Writer struct {
	f    *File
	name string
	head []byte // of each record of the present chunk
	cut  []byte // JSON: start of a character whose rest was not read yet
}

// Stream returns the writer for a stream, "stdout" or "stderr". The name goes
// into the records as it is.
func (f *File) Stream(name string) *Writer {
	w := &Writer{f: f, name: name, head: make([]byte, 0, 64), cut: make([]byte, 0, 4)}
	f.lock()
	defer f.unlock()
	f.writers = append(f.writers, w)
	return w
}

// WriteChunk writes the records made from data, with one write(2) unless they
// exceed the capacity of scratch or the size limit of the file. It does not
// allocate. An error has been counted and given to the logger already. What
// could not be written is gone; the next chunk is tried again.
func (w *Writer) WriteChunk(at time.Time, data, scratch []byte) error {
	w.f.lock()
	defer w.f.unlock()
	if w.f.closed {
		return os.ErrClosed
	}
	return w.writeLocked(at, data, scratch)
}

// End writes what was kept back at the end of the last chunk: the stream has
// ended. More chunks may follow.
func (w *Writer) End() error {
	w.f.lock()
	defer w.f.unlock()
	if w.f.closed {
		return os.ErrClosed
	}
	return w.endLocked()
}

func (w *Writer) endLocked() error {
	if len(w.cut) == 0 {
		return nil
	}
	w.prepare(w.f.stampLocked(w.f.last))
	b := appendInvalid(append([]byte(nil), w.head...), len(w.cut))
	b = appendTail(b, false)
	w.cut = w.cut[:0]
	b, err := w.fit(b, 0)
	if werr := w.f.writeLocked(b); werr != nil {
		err = werr
	}
	return err
}

// prepare builds the part that all records of a chunk have in common.
func (w *Writer) prepare(at time.Time) {
	if w.f.o.Format == JSON {
		w.head = appendJSONHead(w.head[:0], at, w.name)
	} else {
		w.head = appendCRIHead(w.head[:0], w.f.date, at, w.name)
	}
}

// writeLocked formats into buf and writes it whenever the next record does
// not fit, always at the end of a record.
func (w *Writer) writeLocked(at time.Time, data, buf []byte) (err error) {
	if cap(buf) < spare {
		buf = make([]byte, 0, 128<<10)
	}
	buf = buf[:0]
	w.prepare(w.f.stampLocked(at))
	note := func(e error) {
		if e != nil && err == nil {
			err = e
		}
	}
	for len(data) > 0 {
		line, whole := data, false
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			line, whole = data[:i], true
		}
		start := len(buf)
		next, used, rest := w.record(buf, line, whole)
		if rest && start > 0 {
			note(w.f.writeLocked(buf))
			buf = buf[:0]
			continue // the same line again, with all the room there is
		}
		if len(next) > start {
			var e error
			next, e = w.fit(next, start)
			note(e)
		}
		buf = next
		data = data[used:]
		if whole && !rest {
			data = data[1:]
		}
	}
	if len(buf) > 0 {
		note(w.f.writeLocked(buf))
	}
	return err
}

// fit sees to the size limit. The record in buf[start:] is the newest; if it
// does not fit into the file, the records before it are written, a fresh
// file is put in place, and only the record stays in buf.
func (w *Writer) fit(buf []byte, start int) ([]byte, error) {
	f := w.f
	if f.stuckLocked() {
		return buf, nil
	}
	before := f.out.size + uint64(start)
	if f.out.torn {
		before++
	}
	if !f.full(before, len(buf)-start) {
		return buf, nil
	}
	var err error
	if start > 0 {
		err = f.writeLocked(buf[:start])
	}
	f.rotateLocked()
	n := copy(buf, buf[start:])
	return buf[:n], err
}

// record appends the record for line. rest is set if the scratch space has no
// room for all of it: then used bytes of line were made a partial record,
// and the caller either discards it or goes on with the rest.
func (w *Writer) record(buf, line []byte, whole bool) (next []byte, used int, rest bool) {
	if w.f.o.Format == JSON {
		return w.recordJSON(buf, line, whole)
	}
	return w.recordCRI(buf, line, whole)
}

func (w *Writer) recordCRI(buf, line []byte, whole bool) (next []byte, used int, rest bool) {
	room := cap(buf) - len(buf) - len(w.head) - criTail
	if room < 1 && len(buf) > 0 {
		return buf, 0, true
	}
	used = min(len(line), room)
	rest = used < len(line)
	buf = append(buf, w.head...)
	if whole && !rest {
		buf = append(buf, 'F', ' ')
	} else {
		buf = append(buf, 'P', ' ')
	}
	buf = append(buf, line[:used]...)
	return append(buf, '\n'), used, rest
}

func (w *Writer) recordJSON(buf, line []byte, whole bool) (next []byte, used int, rest bool) {
	room := cap(buf) - len(buf) - len(w.head) - jsonTail
	if room < 4*maxEscape && len(buf) > 0 {
		return buf, 0, true
	}
	if !whole && w.growCut(line) {
		return buf, len(line), false
	}
	start, limit := len(buf), cap(buf)-jsonTail
	buf = append(buf, w.head...)
	buf, used = w.completeCut(buf, line)
	text := line[used:]
	if whole {
		text = bytes.TrimSuffix(text, []byte{'\r'})
	} else {
		text = text[:len(text)-tailCut(text)]
	}
	body := len(buf)
	buf, n := appendEscaped(buf, text, limit)
	rest = n < len(text)
	if rest && start > 0 {
		return buf[:start], 0, true // w.cut as it was
	}
	w.cut = w.cut[:0]
	if rest {
		return appendTail(buf, false), used + n, true
	}
	if whole {
		return appendTail(buf, true), len(line), false
	}
	w.cut = append(w.cut, line[used+n:]...)
	if len(text) == 0 && body == start+len(w.head) {
		buf = buf[:start] // nothing but the start of a character: no record yet
		return buf, len(line), false
	}
	return appendTail(buf, false), len(line), false
}
