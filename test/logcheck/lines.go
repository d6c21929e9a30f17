// Package logcheck checks container logs without mercy: strict parsers of the CRI and
// JSON line formats, and a verifier for the numbered lines of test/cmd/loggen that finds
// every lost, split, repeated, reordered or altered byte. It reads files that are
// complete or still written, and has no part in the product.
//
// The CRI format is that of the kubelet: timestamp, stream, F or P tag, content.
package logcheck

import (
	"fmt"
	"math/bits"
	"strconv"
)

// maxLength bounds Spec.Max: the pattern table is a multiple of it.
const maxLength = 1 << 20

// Spec says which lines a generator writes. Two equal values give the same lines, on
// both ends: the writer and the verifier need not talk to each other.
type Spec struct {
	// Seed selects the pattern and the lengths.
	Seed uint64
	// Min and Max bound a line's length in bytes without its newline, 1 to 1 MiB.
	// Lengths are spread over the powers of two between them, so that short and long
	// lines are both frequent. Zero means 1 and 1024.
	Min, Max int
	// Binary makes the content any byte except newline; otherwise it is printable
	// ASCII without space at the ends.
	Binary bool
}

// Lines makes the lines of a Spec. It is not safe for concurrent use.
type Lines struct {
	spec  Spec
	table []byte // pattern, 2*Max long: a line's filling is a window of it
	buf   []byte
}

// NewLines checks spec.
func NewLines(spec Spec) (*Lines, error) {
	if spec.Min == 0 {
		spec.Min = 1
	}
	if spec.Max == 0 {
		spec.Max = max(1024, spec.Min)
	}
	if spec.Min < 1 || spec.Max < spec.Min || spec.Max > maxLength {
		return nil, fmt.Errorf("line lengths %d to %d: want 1 <= min <= max <= %d", spec.Min, spec.Max, maxLength)
	}
	l := &Lines{spec: spec, table: make([]byte, 2*max(spec.Max, 4096))}
	state := spec.Seed
	for i := range l.table {
		state += 0x9e3779b97f4a7c15
		l.table[i] = l.letter(byte(mix(state)))
	}
	return l, nil
}

func (l *Lines) letter(b byte) byte {
	if !l.spec.Binary {
		const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
		return letters[b&63]
	}
	if b == '\n' {
		return 0
	}
	return b
}

// mix is the finalizer of splitmix64: neighbouring inputs give unrelated outputs.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hash is what varies between lines: length and window.
func (l *Lines) hash(stream Stream, seq uint64) uint64 {
	return mix(mix(l.spec.Seed^uint64(stream[0])<<56) + seq)
}

// length spreads over powers of two: log files have many short lines and few long ones,
// and the borders of read buffers are met by both.
func (l *Lines) length(h uint64) int {
	low, high := bits.Len(uint(l.spec.Min)), bits.Len(uint(l.spec.Max))
	bucket := low + int(h>>32%uint64(high-low+1))
	from := max(l.spec.Min, 1<<(bucket-1))
	to := min(l.spec.Max, 1<<bucket-1)
	return from + int(h%uint64(to-from+1))
}

// Append appends line seq of the stream and its newline to dst. A line is
// "<o|e><seq> <length> <filling>" cut to its length: whatever is long enough names itself.
func (l *Lines) Append(dst []byte, stream Stream, seq uint64) []byte {
	h := l.hash(stream, seq)
	size := l.length(h)
	start := len(dst)
	dst = append(dst, stream.tag())
	dst = strconv.AppendUint(dst, seq, 10)
	dst = append(dst, ' ')
	dst = strconv.AppendInt(dst, int64(size), 10)
	dst = append(dst, ' ')
	if rest := size - (len(dst) - start); rest > 0 {
		window := int(h >> 16 % uint64(len(l.table)-l.spec.Max))
		dst = append(dst, l.table[window:window+rest]...)
	}
	dst = dst[:start+size]
	if last := &dst[len(dst)-1]; *last == ' ' {
		*last = '.' // a cut must not leave a space, which loggers may trim
	}
	return append(dst, '\n')
}

// Line returns line seq of the stream without its newline, valid until the next call.
func (l *Lines) Line(stream Stream, seq uint64) []byte {
	l.buf = l.Append(l.buf[:0], stream, seq)
	return l.buf[:len(l.buf)-1]
}

// Stream names an output of a process as log records do.
type Stream string

// The two streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

func (s Stream) tag() byte {
	if s == Stderr {
		return 'e'
	}
	return 'o'
}
