package logfile

import (
	"strconv"
	"time"
	"unicode/utf8"
)

const (
	criTail   = len("F \n")
	jsonTail  = len(`","partial":true}` + "\n")
	maxEscape = len(`\u0000`)
)

// appendCRIHead appends time and stream name. date is the time's whole
// seconds in UTC.
func appendCRIHead(b, date []byte, at time.Time, name string) []byte {
	b = append(b, date...)
	b = append(b, '.')
	b = appendNano(b, at.Nanosecond())
	b = append(b, 'Z', ' ')
	b = append(b, name...)
	return append(b, ' ')
}

// appendNano appends exactly nine digits.
func appendNano(b []byte, n int) []byte {
	var d [9]byte
	for i := len(d) - 1; i >= 0; i-- {
		d[i] = byte('0' + n%10)
		n /= 10
	}
	return append(b, d[:]...)
}

func appendJSONHead(b []byte, at time.Time, name string) []byte {
	b = append(b, `{"timestamp":`...)
	b = strconv.AppendInt(b, at.Unix(), 10)
	b = append(b, `,"pipe":"`...)
	b = append(b, name...)
	return append(b, `","message":"`...)
}

func appendTail(b []byte, whole bool) []byte {
	if whole {
		return append(b, `"}`+"\n"...)
	}
	return append(b, `","partial":true}`+"\n"...)
}

// appendInvalid appends n replacement characters.
func appendInvalid(b []byte, n int) []byte {
	for range n {
		b = utf8.AppendRune(b, utf8.RuneError)
	}
	return b
}

// appendEscaped appends text as the inside of a JSON string (RFC 8259,
// section 7) as long as the result has at most limit bytes. It returns how
// much of text that was.
func appendEscaped(b, text []byte, limit int) (next []byte, used int) {
	for used < len(text) {
		c := text[used]
		if c >= utf8.RuneSelf {
			if len(b)+utf8.UTFMax > limit {
				break
			}
			r, size := utf8.DecodeRune(text[used:])
			b = utf8.AppendRune(b, r) // RuneError for a byte that is not UTF-8
			used += size
			continue
		}
		if plain(c) {
			n := plainRun(text[used:min(len(text), used+max(limit-len(b), 0))])
			if n == 0 {
				break
			}
			b = append(b, text[used:used+n]...)
			used += n
			continue
		}
		if len(b)+maxEscape > limit {
			break
		}
		b = appendEscape(b, c)
		used++
	}
	return b, used
}

func plain(c byte) bool { return c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' }

func plainRun(text []byte) int {
	for i, c := range text {
		if !plain(c) {
			return i
		}
	}
	return len(text)
}

func appendEscape(b []byte, c byte) []byte {
	const hex = "0123456789abcdef"
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	}
	return append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}

// tailCut returns how many bytes at the end of text are the start of a
// character that is not complete.
func tailCut(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if tail := text[len(text)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// completeCut appends the character whose start was kept back from the chunk
// before, and returns how many bytes of line belong to it. If they do not
// complete it, each byte kept back is one replacement character.
func (w *Writer) completeCut(b, line []byte) (next []byte, used int) {
	if len(w.cut) == 0 {
		return b, 0
	}
	var tmp [utf8.UTFMax]byte
	n := copy(tmp[:], w.cut)
	for n < len(tmp) && used < len(line) && !utf8.FullRune(tmp[:n]) {
		tmp[n] = line[used]
		n, used = n+1, used+1
	}
	if r, size := utf8.DecodeRune(tmp[:n]); size == n && size > 1 {
		return utf8.AppendRune(b, r), used
	}
	return appendInvalid(b, len(w.cut)), 0
}

// growCut keeps line back too if it does not complete the character kept back
// from the chunk before.
func (w *Writer) growCut(line []byte) bool {
	n := len(w.cut)
	if n == 0 || n+len(line) >= utf8.UTFMax {
		return false
	}
	w.cut = append(w.cut, line...)
	if utf8.FullRune(w.cut) {
		w.cut = w.cut[:n]
		return false
	}
	return true
}
