package journald

import (
	"fmt"
	"log/slog"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"
)

// AppendAttr appends an attribute of a log record as text, " key=value", the
// value quoted where it would be ambiguous. group, empty or ending in a dot, goes
// before the key. The members of a group follow each other; an empty attribute
// appends nothing.
func AppendAttr(dst []byte, group string, a slog.Attr) []byte {
	eachLeaf(group, a, func(key string, value slog.Value) {
		dst = append(dst, ' ')
		dst = append(dst, key...)
		dst = append(dst, '=')
		start := len(dst)
		dst = appendValue(dst, value)
		if text := dst[start:]; needsQuotes(text) {
			dst = strconv.AppendQuote(dst[:start], string(text))
		}
	})
	return dst
}

// eachLeaf calls f for an attribute, or for each one inside it if it is a group.
func eachLeaf(group string, a slog.Attr, f func(key string, value slog.Value)) {
	value := a.Value.Resolve()
	switch {
	case a.Key == "" && value.Equal(slog.Value{}):
	case value.Kind() == slog.KindGroup:
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, member := range value.Group() {
			eachLeaf(group, member, f)
		}
	default:
		f(group+a.Key, value)
	}
}

func appendValue(dst []byte, v slog.Value) []byte {
	switch v.Kind() {
	case slog.KindString:
		return append(dst, v.String()...)
	case slog.KindInt64:
		return strconv.AppendInt(dst, v.Int64(), 10)
	case slog.KindUint64:
		return strconv.AppendUint(dst, v.Uint64(), 10)
	case slog.KindBool:
		return strconv.AppendBool(dst, v.Bool())
	case slog.KindFloat64:
		return strconv.AppendFloat(dst, v.Float64(), 'g', -1, 64)
	case slog.KindDuration:
		return append(dst, v.Duration().String()...)
	case slog.KindTime:
		return v.Time().AppendFormat(dst, time.RFC3339Nano)
	}
	return append(dst, anyText(v.Any())...)
}

// anyText is fmt's: it survives methods that panic, on a nil pointer for example.
func anyText(v any) string {
	switch v := v.(type) {
	case nil:
		return "<nil>"
	case []byte:
		return string(v)
	}
	return fmt.Sprint(v)
}

func needsQuotes(text []byte) bool {
	if len(text) == 0 {
		return true
	}
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		if r == utf8.RuneError && n == 1 || r == '"' || r == '=' || unicode.IsSpace(r) || !strconv.IsPrint(r) {
			return true
		}
		text = text[n:]
	}
	return false
}
