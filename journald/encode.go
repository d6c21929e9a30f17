package journald

import "encoding/binary"

// Field is one field of an entry. The value may be any bytes.
type Field struct {
	Name  string
	Value []byte
}

// maxName is the longest field name that journald stores.
const maxName = 64

// ValidName says whether journald stores a field of this name from a client: 1 to
// 64 capital letters, digits and underscores, beginning with a letter. A leading
// underscore marks fields that journald adds itself.
func ValidName(name string) bool {
	if name == "" || len(name) > maxName || name[0] < 'A' || name[0] > 'Z' {
		return false
	}
	for i := 1; i < len(name); i++ {
		c := name[i]
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}

// AppendField appends a field to an encoded entry. The name must be valid. Only a
// value with a newline needs the form with a length.
func AppendField[T ~string | ~[]byte](dst []byte, name string, value T) []byte {
	dst = append(dst, name...)
	if !hasNewline(value) {
		dst = append(dst, '=')
		dst = append(dst, value...)
		return append(dst, '\n')
	}
	dst = append(dst, '\n')
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(value)))
	dst = append(dst, value...)
	return append(dst, '\n')
}

// ShortID returns what people type of a container's id: its first 12 characters. Entries have it as CONTAINER_ID, and
// the whole as CONTAINER_ID_FULL.
func ShortID[T ~string | ~[]byte](id T) T {
	const length = 12
	return id[:min(len(id), length)]
}

func hasNewline[T ~string | ~[]byte](value T) bool {
	for i := range len(value) {
		if value[i] == '\n' {
			return true
		}
	}
	return false
}
