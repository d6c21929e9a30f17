package journald

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Priorities of syslog(3) as fields take them.
const (
	priorityError = '3'
	priorityWarn  = '4'
	priorityInfo  = '6'
	priorityDebug = '7'
)

// shortID is the number of characters of a container id that people type.
const shortID = 12

// HandlerOptions describe a Handler.
type HandlerOptions struct {
	Level      slog.Leveler // least severe level that is sent; nil: slog.LevelInfo
	Identifier string       // for journalctl -t; empty: no such field
}

// Handler is a slog.Handler for a program's own log. MESSAGE holds the message
// and the attributes as text; each attribute is also a field of its own: the id
// under the key "container" as CONTAINER_ID_FULL and CONTAINER_ID (12
// characters), any other key as CONMONRS_<KEY> with dots and dashes turned into
// underscores, if that is a valid name. Time and source are left to journald.
//
// It never waits and never fails: while journald is unreachable or its queue is
// full, entries are dropped and counted.
type Handler struct {
	out    *handlerOutput
	level  slog.Leveler
	group  string // prefix of keys: empty, or ending in a dot
	text   []byte // attributes given by WithAttrs, as text
	fields []byte // the same as encoded fields, after the constant ones
}

// handlerOutput is what a Handler and those derived from it share.
type handlerOutput struct {
	dropped atomic.Uint64
	buffers sync.Pool // of *handlerBuffer

	mu sync.Mutex // guards tx; held during a send, which does not wait
	tx *sender
}

// usual is more than most entries need. A buffer that grows from nothing leaves pages of the heap behind for each size.
const usual = 512

// handlerBuffer is used without a lock: formatting calls methods of values.
type handlerBuffer struct{ entry, value []byte }

// NewHandler returns a Handler that sends through conn, which stays the caller's.
func NewHandler(conn *Conn, o HandlerOptions) *Handler {
	h := &Handler{out: &handlerOutput{tx: conn.newSender()}, level: o.Level}
	if h.level == nil {
		h.level = slog.LevelInfo
	}
	if o.Identifier != "" {
		h.fields = AppendField(nil, "SYSLOG_IDENTIFIER", o.Identifier)
	}
	return h
}

// Dropped returns the number of entries that could not be sent.
func (h *Handler) Dropped() uint64 { return h.out.dropped.Load() }

// Enabled reports whether records of that level are sent.
func (h *Handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level.Level() }

// Handle sends a record. The result is always nil: a log must not stop work.
func (h *Handler) Handle(_ context.Context, r slog.Record) error {
	b, _ := h.out.buffers.Get().(*handlerBuffer)
	if b == nil {
		b = &handlerBuffer{entry: make([]byte, 0, usual), value: make([]byte, 0, usual)}
	}
	h.format(b, r)
	if h.out.send(b.entry) != nil {
		h.out.dropped.Add(1)
	}
	b.entry, b.value = retain(b.entry, keep), retain(b.value, keep)
	h.out.buffers.Put(b)
	return nil
}

func (o *handlerOutput) send(entry []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tx.send(entry, 0)
}

func (h *Handler) format(b *handlerBuffer, r slog.Record) {
	e := append(b.entry, "PRIORITY="...)
	e = append(e, priority(r.Level), '\n')
	e = append(e, h.fields...)
	message := append(b.value, r.Message...)
	message = append(message, h.text...)
	r.Attrs(func(a slog.Attr) bool {
		message = AppendAttr(message, h.group, a)
		return true
	})
	e = AppendField(e, "MESSAGE", message)
	r.Attrs(func(a slog.Attr) bool {
		e, message = appendAttrFields(e, message, h.group, a)
		return true
	})
	b.entry, b.value = e, message
}

// WithAttrs returns a Handler that adds attrs to each record.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	d := *h
	d.text, d.fields = slices.Clone(h.text), slices.Clone(h.fields)
	for _, a := range attrs {
		d.text = AppendAttr(d.text, h.group, a)
		d.fields, _ = appendAttrFields(d.fields, nil, h.group, a)
	}
	return &d
}

// WithGroup returns a Handler that puts name and a dot before the keys that follow.
func (h *Handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	d := *h
	d.group += name + "."
	return &d
}

// appendAttrFields appends the fields of an attribute to entry, using scratch for
// the values, and returns both.
func appendAttrFields(entry, scratch []byte, group string, a slog.Attr) (fields, grown []byte) {
	eachLeaf(group, a, func(key string, value slog.Value) {
		scratch = appendValue(scratch[:0], value)
		if key == "container" {
			entry = AppendField(entry, "CONTAINER_ID_FULL", scratch)
			entry = AppendField(entry, "CONTAINER_ID", scratch[:min(len(scratch), shortID)])
			return
		}
		if name := fieldName(key); name != "" {
			entry = AppendField(entry, name, scratch)
		}
	})
	return entry, scratch
}

// fieldName returns the name of the field for a key, or nothing if there is none.
func fieldName(key string) string {
	name := "CONMONRS_" + strings.Map(func(r rune) rune {
		switch {
		case r == '.' || r == '-':
			return '_'
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		}
		return r
	}, key)
	if key == "" || !ValidName(name) {
		return ""
	}
	return name
}

func priority(level slog.Level) byte {
	switch {
	case level >= slog.LevelError:
		return priorityError
	case level >= slog.LevelWarn:
		return priorityWarn
	case level >= slog.LevelInfo:
		return priorityInfo
	}
	return priorityDebug
}
