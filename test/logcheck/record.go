package logcheck

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// Record is one line of a log file.
type Record struct {
	Time    time.Time
	Stream  Stream
	Partial bool   // the fragment has no newline of its own
	Content []byte // valid until the next record is read
}

// Format parses one line, given without its newline.
type Format func(line []byte) (Record, error)

// ParseCRI parses a record of the CRI format: an RFC 3339 timestamp with nine digits,
// the stream, the tag F or P, content; single spaces between them, the one before the
// content also when that is empty.
func ParseCRI(line []byte) (Record, error) {
	var rec Record
	stamp, rest, ok1 := bytes.Cut(line, []byte(" "))
	stream, rest, ok2 := bytes.Cut(rest, []byte(" "))
	tag, content, ok3 := bytes.Cut(rest, []byte(" "))
	if !ok1 || !ok2 || !ok3 {
		return rec, errors.New("fewer than three spaces")
	}
	var err error
	if rec.Time, err = parseStamp(string(stamp)); err != nil {
		return rec, err
	}
	if rec.Stream, err = parseStream(string(stream)); err != nil {
		return rec, err
	}
	switch string(tag) {
	case "F":
	case "P":
		rec.Partial = true
	default:
		return rec, fmt.Errorf("tag %q is neither F nor P", tag)
	}
	rec.Content = content
	return rec, nil
}

// parseStamp wants exactly nine digits of the second: a fixed width is what the size
// limit of a log counts with.
func parseStamp(s string) (time.Time, error) {
	const digits = "2006-01-02T15:04:05.000000000"
	t, err := time.Parse(digits+"Z07:00", s)
	if err != nil {
		// conmon writes +00:00 where RFC 3339 also allows Z.
		t, err = time.Parse(digits+"-07:00", s)
	}
	if err != nil {
		return t, fmt.Errorf("timestamp %q: %w", s, err)
	}
	return t, nil
}

func parseStream(s string) (Stream, error) {
	if s != string(Stdout) && s != string(Stderr) {
		return "", fmt.Errorf("stream %q is neither stdout nor stderr", s)
	}
	return Stream(s), nil
}

// ParseJSON parses a record of the JSON format: the keys timestamp (Unix seconds), pipe,
// message and, for a fragment only, "partial": true, in this order and no others.
func ParseJSON(line []byte) (Record, error) {
	var rec Record
	var message string
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	if err := expectDelim(dec, '{'); err != nil {
		return rec, err
	}
	for _, key := range []string{"timestamp", "pipe", "message", "partial"} {
		if key == "partial" && !dec.More() {
			break
		}
		if err := readJSONField(dec, key, &rec, &message); err != nil {
			return rec, err
		}
	}
	if err := expectDelim(dec, '}'); err != nil {
		return rec, err
	}
	if rest := line[dec.InputOffset():]; len(rest) > 0 {
		return rec, fmt.Errorf("%q after the object", rest)
	}
	rec.Content = []byte(message)
	return rec, nil
}

func expectDelim(dec *json.Decoder, want json.Delim) error {
	got, err := dec.Token()
	if err != nil {
		return fmt.Errorf("JSON: %w", err)
	}
	if got != want {
		return fmt.Errorf("JSON: %v where %v should be", got, want)
	}
	return nil
}

func readJSONField(dec *json.Decoder, key string, rec *Record, message *string) error {
	name, err := dec.Token()
	if err != nil {
		return fmt.Errorf("JSON: %w", err)
	}
	if name != key {
		return fmt.Errorf("JSON: %v where key %q should be", name, key)
	}
	value, err := dec.Token()
	if err != nil {
		return fmt.Errorf("JSON: value of %q: %w", key, err)
	}
	ok := false
	switch key {
	case "timestamp":
		var number json.Number
		var seconds int64
		if number, ok = value.(json.Number); ok {
			seconds, err = strconv.ParseInt(number.String(), 10, 64)
			ok = err == nil
			rec.Time = time.Unix(seconds, 0)
		}
	case "pipe":
		var pipe string
		if pipe, ok = value.(string); ok {
			rec.Stream, err = parseStream(pipe)
			ok = err == nil
		}
	case "message":
		*message, ok = value.(string)
	case "partial":
		rec.Partial, ok = value.(bool)
		ok = ok && rec.Partial // false is never written
	}
	if !ok {
		return fmt.Errorf("JSON: value %v of %q", value, key)
	}
	return nil
}

// Line is a line of the container, joined from its records.
type Line struct {
	Stream  Stream
	Content []byte // without the newline; valid during the call
	// Ended is false for what a stream wrote last without a newline.
	Ended bool
	// Last is the time of the last record.
	Last time.Time
	// Records is how many records were joined, 1 or more.
	Records int
}

// Joiner makes lines out of the records of both streams. The zero value is ready.
type Joiner struct {
	pending map[Stream]*Line
}

// Add calls line when rec completes one.
func (j *Joiner) Add(rec Record, line func(Line) error) error {
	p := j.pending[rec.Stream]
	if p == nil {
		p = &Line{Stream: rec.Stream}
		if j.pending == nil {
			j.pending = map[Stream]*Line{}
		}
		j.pending[rec.Stream] = p
	}
	p.Content = append(p.Content, rec.Content...)
	p.Records++
	p.Last = rec.Time
	if rec.Partial {
		return nil
	}
	p.Ended = true
	err := line(*p)
	*p = Line{Stream: rec.Stream, Content: p.Content[:0]}
	return err
}

// Flush calls line for what the streams wrote last without a newline.
func (j *Joiner) Flush(line func(Line) error) error {
	for _, stream := range []Stream{Stdout, Stderr} {
		p := j.pending[stream]
		if p == nil || p.Records == 0 {
			continue
		}
		err := line(*p)
		*p = Line{Stream: stream}
		if err != nil {
			return err
		}
	}
	return nil
}

// ReadRecords calls record for each line of r. A last line without a newline is an
// error: the writer finishes its records.
func ReadRecords(r io.Reader, format Format, record func(Record) error) error {
	buf := bufio.NewReaderSize(r, 256<<10)
	var long []byte
	for number := 1; ; number++ {
		line, err := buf.ReadSlice('\n')
		for long = long[:0]; errors.Is(err, bufio.ErrBufferFull); line, err = buf.ReadSlice('\n') {
			long = append(long, line...)
		}
		if len(long) > 0 {
			long = append(long, line...)
			line = long
		}
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("line %d (%s): %w", number, excerpt(line), err)
		}
		rec, err := format(line[:len(line)-1])
		if err == nil {
			err = record(rec)
		}
		if err != nil {
			return fmt.Errorf("line %d (%s): %w", number, excerpt(line), err)
		}
	}
}

func excerpt(b []byte) string {
	if len(b) > 120 {
		return fmt.Sprintf("%q... %d bytes", b[:120], len(b))
	}
	return fmt.Sprintf("%q", b)
}
