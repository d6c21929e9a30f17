package version

import (
	"strconv"
	"unicode/utf8"
)

// Text returns the form for people, several lines with a final newline.
func (i Info) Text() string {
	s := "version: " + i.Version +
		"\ntag: " + first(i.Tag, "none") +
		"\ncommit: " + i.Commit +
		"\nbuild: " + i.BuildDate +
		"\ntarget: " + i.Target +
		"\n" + i.Compiler +
		"\n" + i.ModuleTool + "\n"
	if i.Full {
		s += "\ncargo tree: " + i.Modules + "\n"
	}
	return s
}

// JSON returns the form for engines: one line with a final newline, the keys in
// the order that they have always had.
func (i Info) JSON() string {
	b := append(make([]byte, 0, 512+len(i.Modules)), `{"verbose":`...)
	b = strconv.AppendBool(b, i.Full)
	for _, member := range [...]struct{ key, value string }{
		{"version", i.Version},
		{"tag", i.Tag},
		{"commit", i.Commit},
		{"build_date", i.BuildDate},
		{"target", i.Target},
		{"rust_version", i.Compiler},
		{"cargo_version", i.ModuleTool},
		{"cargo_tree", i.Modules},
	} {
		b = append(b, `,"`...)
		b = append(b, member.key...)
		b = append(b, `":`...)
		b = appendString(b, member.value)
	}
	return string(append(b, "}\n"...))
}

// appendString appends s as a JSON string (RFC 8259, section 7). Bytes that are
// not UTF-8 become replacement characters.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
