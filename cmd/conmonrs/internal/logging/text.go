package logging

import (
	"io"
	"strconv"
	"sync"
	"unicode/utf8"
)

// text writes records as lines:
//
//	2026-01-02T03:04:05.000006Z  INFO message key=value key="quoted value"
//
// Each record is one Write. A reader that does not read stops whoever logs.
type text struct {
	mu sync.Mutex // guards w; held during a Write, to keep lines whole
	w  io.Writer
}

func (t *text) write(r *record) {
	r.line = appendLine(r.line, r)
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = t.w.Write(r.line)
}

func appendLine(b []byte, r *record) []byte {
	b = r.at.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z")
	b = append(b, levelNames[r.level]...)
	b = appendMessage(b, r.message)
	b = append(b, r.with.text...)
	b = appendText(b, r.args)
	return append(b, '\n')
}

var levelNames = [...]string{Debug: " DEBUG ", Info: "  INFO ", Warn: "  WARN ", Error: " ERROR "}

// appendMessage keeps a record on one line.
func appendMessage(b []byte, message string) []byte {
	for _, r := range message {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			return strconv.AppendQuote(b, message)
		}
	}
	return append(b, message...)
}
