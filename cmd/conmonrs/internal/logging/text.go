package logging

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/conmonrs/conmonrs/journald"
)

// keep is the size up to which the buffer is kept from one record to the next.
const keep = 4 << 10

// TextHandler writes records as lines:
//
//	2026-01-02T03:04:05.000006Z  INFO message key=value key="quoted value"
//
// Each record is one Write. Errors of the writer are ignored: a reader that has
// gone must not stop the monitor. A reader that does not read stops whoever logs.
type TextHandler struct {
	out   *textOutput
	level slog.Leveler
	group string // prefix of keys: empty, or ending in a dot
	attrs []byte // attributes given by WithAttrs, as text
}

// textOutput is what a TextHandler and those derived from it share.
type textOutput struct {
	buffers sync.Pool // of *[]byte

	mu sync.Mutex // guards w; held during a Write, to keep lines whole
	w  io.Writer
}

// NewTextHandler returns a handler that writes records of at least that level to
// w, which stays the caller's.
func NewTextHandler(w io.Writer, level slog.Leveler) *TextHandler {
	return &TextHandler{out: &textOutput{w: w}, level: level}
}

// Enabled reports whether records of that level are written.
func (h *TextHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level()
}

// Handle writes a record. The result is always nil.
func (h *TextHandler) Handle(_ context.Context, r slog.Record) error {
	buf, _ := h.out.buffers.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	// Without the lock: formatting calls methods of values.
	b := h.format((*buf)[:0], r)
	h.out.write(b)
	if cap(b) <= keep {
		*buf = b
		h.out.buffers.Put(buf)
	}
	return nil
}

func (o *textOutput) write(line []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = o.w.Write(line)
}

func (h *TextHandler) format(b []byte, r slog.Record) []byte {
	if !r.Time.IsZero() {
		b = r.Time.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z")
		b = append(b, ' ')
	}
	b = append(b, levelName(r.Level)...)
	b = append(b, ' ')
	b = appendMessage(b, r.Message)
	b = append(b, h.attrs...)
	r.Attrs(func(a slog.Attr) bool {
		b = journald.AppendAttr(b, h.group, a)
		return true
	})
	return append(b, '\n')
}

// WithAttrs returns a handler that adds attrs to each record.
func (h *TextHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	d := *h
	d.attrs = slices.Clone(h.attrs)
	for _, a := range attrs {
		d.attrs = journald.AppendAttr(d.attrs, h.group, a)
	}
	return &d
}

// WithGroup returns a handler that puts name and a dot before the keys that follow.
func (h *TextHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	d := *h
	d.group += name + "."
	return &d
}

// appendMessage keeps a record on one line.
func appendMessage(b []byte, message string) []byte {
	for _, r := range message {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			return strconv.AppendQuote(b, message)
		}
	}
	return append(b, message...)
}

// levelName returns five characters.
func levelName(level slog.Level) string {
	switch {
	case level >= slog.LevelError:
		return "ERROR"
	case level >= slog.LevelWarn:
		return " WARN"
	case level >= slog.LevelInfo:
		return " INFO"
	case level >= slog.LevelDebug:
		return "DEBUG"
	}
	return "TRACE"
}
