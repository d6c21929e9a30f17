package oci

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// StopSignalAnnotation is set by image builders; OCI image specification, annotations.
const StopSignalAnnotation = "org.opencontainers.image.stopSignal"

// maxDepth bounds how deeply values may be nested.
const maxDepth = 64

// StateStatus returns the status in the output of a runtime's state command: "created", "running", "paused" and so on,
// empty if there is none.
func StateStatus(output []byte) string { return Lookup(output, "status") }

// StopSignal returns the stop signal that the configuration of a bundle asks for, empty if it asks for none.
func StopSignal(config []byte) string { return Lookup(config, "annotations", StopSignalAnnotation) }

// Lookup returns the text at a path of names in a JSON object, empty if there is none, it is not a text, or the object
// is broken before it. It is here because encoding/json would cost every idle pod 0.3 MiB for two words that are needed
// at the stop of a container.
func Lookup(object []byte, path ...string) string {
	s := scanner{rest: object}
	for i, name := range path {
		if !s.enter(name) {
			return ""
		}
		if i == len(path)-1 {
			text, _ := s.text()
			return string(text)
		}
	}
	return ""
}

// scanner reads JSON (RFC 8259) from the front of rest. It accepts some texts that are no JSON.
type scanner struct{ rest []byte }

func (s *scanner) space() { s.rest = bytes.TrimLeft(s.rest, " \t\r\n") }

func (s *scanner) take(c byte) bool {
	s.space()
	if len(s.rest) == 0 || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// enter moves to the value of a member of the object that comes next.
func (s *scanner) enter(name string) bool {
	if !s.take('{') {
		return false
	}
	for {
		key, ok := s.text()
		if !ok || !s.take(':') {
			return false
		}
		if string(key) == name {
			return true
		}
		if !s.skip(0) || !s.take(',') {
			return false
		}
	}
}

// skip moves behind the next value.
func (s *scanner) skip(depth int) bool {
	s.space()
	if len(s.rest) == 0 || depth > maxDepth {
		return false
	}
	switch s.rest[0] {
	case '"':
		_, _, ok := s.raw()
		return ok
	case '{', '[':
		return s.skipNested(depth)
	}
	n := bytes.IndexAny(s.rest, ",]} \t\r\n")
	if n < 1 {
		return false
	}
	s.rest = s.rest[n:]
	return true
}

func (s *scanner) skipNested(depth int) bool {
	object := s.rest[0] == '{'
	end := byte(']')
	if object {
		end = '}'
	}
	s.rest = s.rest[1:]
	if s.take(end) {
		return true
	}
	for {
		if object {
			if _, _, ok := s.raw(); !ok || !s.take(':') {
				return false
			}
		}
		if !s.skip(depth + 1) {
			return false
		}
		if s.take(end) {
			return true
		}
		if !s.take(',') {
			return false
		}
	}
}

// text reads a string. It is part of what is read, unless there are escapes in it.
func (s *scanner) text() ([]byte, bool) {
	raw, escaped, ok := s.raw()
	if ok && escaped {
		return unescape(raw)
	}
	return raw, ok
}

// raw reads a string and leaves its escapes as they are. Most strings are only passed over: nothing is made of them.
func (s *scanner) raw() (text []byte, escaped, ok bool) {
	if !s.take('"') {
		return nil, false, false
	}
	for i := 0; i < len(s.rest); i++ {
		switch s.rest[i] {
		case '"':
			text = s.rest[:i]
			s.rest = s.rest[i+1:]
			return text, escaped, true
		case '\\':
			escaped = true
			i++
		}
	}
	return nil, false, false
}

func unescape(raw []byte) (out []byte, ok bool) {
	for s := (scanner{rest: raw}); len(s.rest) > 0; {
		c := s.rest[0]
		s.rest = s.rest[1:]
		if c != '\\' {
			out = append(out, c)
		} else if out, ok = s.escape(out); !ok {
			return nil, false
		}
	}
	return out, true
}

// escape reads what follows a backslash.
func (s *scanner) escape(out []byte) ([]byte, bool) {
	if len(s.rest) == 0 {
		return out, false
	}
	c := s.rest[0]
	s.rest = s.rest[1:]
	if c != 'u' {
		i := bytes.IndexByte([]byte(`"\/bfnrt`), c)
		if i < 0 {
			return out, false
		}
		return append(out, "\"\\/\b\f\n\r\t"[i]), true
	}
	r, ok := s.unit()
	if ok && utf16.IsSurrogate(r) && bytes.HasPrefix(s.rest, []byte(`\u`)) {
		s.rest = s.rest[2:]
		var low rune
		low, ok = s.unit()
		r = utf16.DecodeRune(r, low)
	}
	return utf8.AppendRune(out, r), ok
}

// unit reads four hexadecimal digits.
func (s *scanner) unit() (r rune, ok bool) {
	if len(s.rest) < 4 {
		return 0, false
	}
	for _, c := range s.rest[:4] {
		digit := bytes.IndexByte([]byte("0123456789abcdef"), c|0x20)
		if c >= '0' && c <= '9' {
			digit = int(c - '0')
		}
		if digit < 0 {
			return 0, false
		}
		r = r<<4 | rune(digit)
	}
	s.rest = s.rest[4:]
	return r, true
}
