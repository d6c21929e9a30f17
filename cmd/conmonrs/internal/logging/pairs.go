package logging

import (
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"
)

// pairs are arguments in all forms that outputs need.
type pairs struct {
	text   []byte // as appendText makes it
	fields []byte // as appendFields makes it
}

func (p *pairs) with(args []any) pairs {
	fields, _ := appendFields(slices.Clone(p.fields), nil, args)
	return pairs{text: appendText(slices.Clone(p.text), args), fields: fields}
}

// noKey is the key of an argument that has none, a mistake of the caller.
const noKey = "!BADKEY"

// each calls f for each key and its value.
func each(args []any, f func(key string, value any)) {
	for len(args) > 0 {
		key, ok := args[0].(string)
		switch {
		case !ok || len(args) == 1:
			f(noKey, args[0])
			args = args[1:]
		default:
			f(key, args[1])
			args = args[2:]
		}
	}
}

// appendText appends arguments as " key=value", the value quoted where it would be ambiguous.
func appendText(dst []byte, args []any) []byte {
	each(args, func(key string, value any) {
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

func appendValue(dst []byte, value any) []byte {
	switch v := value.(type) {
	case string:
		return append(dst, v...)
	case []byte:
		return append(dst, v...)
	case int:
		return strconv.AppendInt(dst, int64(v), 10)
	case bool:
		return strconv.AppendBool(dst, v)
	case time.Duration:
		return append(dst, v.String()...)
	case nil:
		return append(dst, "<nil>"...)
	}
	return append(dst, fmt.Sprint(value)...) // it survives methods that panic, on a nil pointer for example
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
