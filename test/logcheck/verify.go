package logcheck

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"time"
)

// searchAhead is how many lines a short line, which does not name itself, is looked for.
const searchAhead = 1 << 16

// Verifier compares joined lines with those that loggen must have written. Several
// files of one container (before and after a reopen) go through the same Verifier in
// the order in which they were written.
type Verifier struct {
	// AllowGaps accepts lines that are missing between others, as the size limit of a
	// log makes them, and counts them in Lost. The first line of a file may then also be
	// the rest of one whose beginning went with the old file.
	AllowGaps bool

	lines   *Lines
	joiner  Joiner
	streams map[Stream]*progress
}

type progress struct {
	next, seen, lost uint64
	bytes            int64
	partial          []byte // unended line at the end of the input
	last             time.Time
	first            bool // the next line is the stream's first of a file
}

// NewVerifier checks lines that spec describes.
func NewVerifier(spec Spec) (*Verifier, error) {
	lines, err := NewLines(spec)
	if err != nil {
		return nil, err
	}
	return &Verifier{lines: lines, streams: map[Stream]*progress{Stdout: {}, Stderr: {}}}, nil
}

// ReadLog verifies one log file. A line that the file ends in the middle of may go on
// in the file of the next call.
func (v *Verifier) ReadLog(r io.Reader, format Format) error {
	for _, p := range v.streams {
		p.first = true
	}
	return ReadRecords(r, format, v.Record)
}

// Record verifies one record. A stream's timestamps must not go backwards; those of two
// streams may cross, because a record is stamped when it is read and written later.
func (v *Verifier) Record(rec Record) error {
	p := v.streams[rec.Stream]
	if rec.Time.Before(p.last) {
		return fmt.Errorf("time %s after %s", rec.Time.Format(time.RFC3339Nano), p.last.Format(time.RFC3339Nano))
	}
	p.last = rec.Time
	return v.joiner.Add(rec, v.line)
}

// Raw verifies one line of a stream that did not pass a log, as an attach client gets it.
// The line comes without its newline.
func (v *Verifier) Raw(stream Stream, line []byte) error {
	return v.line(Line{Stream: stream, Content: line, Ended: true, Records: 1})
}

func (v *Verifier) line(line Line) error {
	p := v.streams[line.Stream]
	first := p.first
	p.first = false
	if !line.Ended {
		p.partial = append(p.partial, line.Content...)
		return nil
	}
	want := v.lines.Line(line.Stream, p.next)
	if !bytes.Equal(want, line.Content) {
		if !v.AllowGaps {
			return fmt.Errorf("%s line %d: got %s, want %s%s", line.Stream, p.next,
				excerpt(line.Content), excerpt(want), v.diagnose(line, p.next))
		}
		found, ok := v.find(line.Stream, p.next, line.Content)
		if !ok && first {
			return nil // the end of a line whose beginning is gone
		}
		if !ok {
			return fmt.Errorf("%s line %d or later: got %s, which is none of them%s", line.Stream, p.next,
				excerpt(line.Content), v.diagnose(line, p.next))
		}
		p.lost += found - p.next
		p.next = found
	}
	p.next++
	p.seen++
	p.bytes += int64(len(line.Content)) + 1
	return nil
}

// find looks for content among the lines from seq on.
func (v *Verifier) find(stream Stream, seq uint64, content []byte) (uint64, bool) {
	if n, ok := named(stream, content); ok {
		return n, n >= seq && bytes.Equal(v.lines.Line(stream, n), content)
	}
	for n := seq; n < seq+searchAhead; n++ {
		if bytes.Equal(v.lines.Line(stream, n), content) {
			return n, true
		}
	}
	return 0, false
}

// named reads the number out of a line that is long enough to carry it.
func named(stream Stream, content []byte) (uint64, bool) {
	if len(content) == 0 || content[0] != stream.tag() {
		return 0, false
	}
	number, rest, ok := bytes.Cut(content[1:], []byte(" "))
	if !ok {
		return 0, false
	}
	size, _, ok := bytes.Cut(rest, []byte(" "))
	if n, err := strconv.Atoi(string(size)); !ok || err != nil || n != len(content) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(number), 10, 64)
	return n, err == nil
}

// diagnose says in words what happened to a wrong line, as far as that can be told.
func (v *Verifier) diagnose(line Line, next uint64) string {
	other := Stdout
	if line.Stream == Stdout {
		other = Stderr
	}
	if n, ok := named(other, line.Content); ok && bytes.Equal(v.lines.Line(other, n), line.Content) {
		return fmt.Sprintf(" (it is line %d of %s)", n, other)
	}
	n, ok := named(line.Stream, line.Content)
	switch {
	case ok && !bytes.Equal(v.lines.Line(line.Stream, n), line.Content):
		return fmt.Sprintf(" (altered copy of line %d)", n)
	case ok && n > next:
		return fmt.Sprintf(" (%d lines lost)", n-next)
	case ok:
		return fmt.Sprintf(" (line %d again)", n)
	}
	want := v.lines.Line(line.Stream, next)
	switch {
	case bytes.HasPrefix(want, line.Content):
		return " (cut)"
	case bytes.HasPrefix(line.Content, want):
		return " (joined with what follows)"
	case bytes.HasSuffix(want, line.Content):
		return " (beginning lost)"
	}
	return ""
}

// Summary is what was found on one stream.
type Summary struct {
	Lines uint64 // seen, whole and right
	Lost  uint64 // missing before the last one seen (AllowGaps)
	Next  uint64 // number after the last one seen
	Bytes int64  // of the lines seen, with newlines
}

// Summary returns what was found so far.
func (v *Verifier) Summary(stream Stream) Summary {
	p := v.streams[stream]
	return Summary{Lines: p.seen, Lost: p.lost, Next: p.next, Bytes: p.bytes}
}

// Finish checks that each stream in want ended with exactly that many lines written, and
// that no unfinished line is left. With AllowGaps fewer lines were seen than written, but
// the last of them must be there.
func (v *Verifier) Finish(want map[Stream]uint64) error {
	if err := v.joiner.Flush(v.line); err != nil {
		return err
	}
	for stream, p := range v.streams {
		if len(p.partial) > 0 {
			return fmt.Errorf("%s ends with an unfinished line %s", stream, excerpt(p.partial))
		}
		if p.next != want[stream] {
			return fmt.Errorf("%s ends after line %d (%d seen, %d lost), want %d lines", stream, p.next, p.seen, p.lost, want[stream])
		}
	}
	return nil
}
