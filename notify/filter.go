package notify

import "bytes"

// What a container may say about itself. The rest would let it speak for the whole unit: name another main process,
// store descriptors in the manager, change who may notify, or how long the unit may take. It is the filter of conmon.
var (
	passedLines    = [...]string{"READY=1", "RELOADING=1", "STOPPING=1", "WATCHDOG=1", "WATCHDOG=trigger"}
	passedPrefixes = [...]string{"STATUS=", "ERRNO=", "BUSERROR=", "MONOTONIC_USEC="}
)

// filter returns what of a datagram is passed on, or nothing: the allowed lines in their order, separated by newlines.
// Lines end at a newline or a carriage return, and the text at the first NUL. With cut, the datagram was longer: its last
// line is not known and not passed, if no NUL comes before. The result is in the memory of message.
func filter(message []byte, cut bool) []byte {
	if end := bytes.IndexByte(message, 0); end >= 0 {
		message, cut = message[:end], false
	}
	// Writing never overtakes reading: each line that is written has been read with its separator.
	passed := message[:0]
	for len(message) > 0 {
		line, rest := message, []byte(nil)
		if end := bytes.IndexAny(message, "\n\r"); end >= 0 {
			line, rest = message[:end], message[end+1:]
		} else if cut {
			break
		}
		if isPassed(line) {
			if len(passed) > 0 {
				passed = append(passed, '\n')
			}
			passed = append(passed, line...)
		}
		message = rest
	}
	return passed
}

func isPassed(line []byte) bool {
	for _, whole := range passedLines {
		if string(line) == whole {
			return true
		}
	}
	for _, prefix := range passedPrefixes {
		if len(line) >= len(prefix) && string(line[:len(prefix)]) == prefix {
			return true
		}
	}
	return false
}
