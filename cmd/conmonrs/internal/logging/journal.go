package logging

import (
	"strings"

	"github.com/conmonrs/conmonrs/journald"
)

// identifier is what people give to journalctl -t.
const identifier = "conmonrs"

// journal sends records to journald. MESSAGE holds the message and the arguments as text; each argument is also a field
// of its own: the id under the key "container" as journald.ShortID says, any other key as
// CONMONRS_<KEY> with dots and dashes turned into underscores, if that is a valid name.
type journal struct{ log *journald.Log }

func (j journal) write(r *record) {
	e := append(r.line, heads[r.level]...)
	e = append(e, r.with.fields...)
	message := append(r.value, r.message...)
	message = append(message, r.with.text...)
	message = appendText(message, r.args)
	e = journald.AppendField(e, "MESSAGE", message)
	e, r.value = appendFields(e, message, r.args)
	r.line = e
	j.log.Send(e)
}

// heads begin an entry: the priorities are those of syslog(3).
var heads = [...]string{
	Debug: "PRIORITY=7\nSYSLOG_IDENTIFIER=" + identifier + "\n",
	Info:  "PRIORITY=6\nSYSLOG_IDENTIFIER=" + identifier + "\n",
	Warn:  "PRIORITY=4\nSYSLOG_IDENTIFIER=" + identifier + "\n",
	Error: "PRIORITY=3\nSYSLOG_IDENTIFIER=" + identifier + "\n",
}

// appendFields appends the fields of arguments to entry, using scratch for the values, and returns both.
func appendFields(entry, scratch []byte, args []any) (fields, grown []byte) {
	each(args, func(key string, value any) {
		scratch = appendValue(scratch[:0], value)
		if key == "container" {
			entry = journald.AppendField(entry, "CONTAINER_ID_FULL", scratch)
			entry = journald.AppendField(entry, "CONTAINER_ID", journald.ShortID(scratch))
			return
		}
		if name := fieldName(key); name != "" {
			entry = journald.AppendField(entry, name, scratch)
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
	if key == "" || !journald.ValidName(name) {
		return ""
	}
	return name
}
