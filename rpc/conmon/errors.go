package conmon

import (
	"errors"
	"strconv"
	"strings"
)

// Errors that callers branch on. Their texts are part of the wire contract: an error travels as text, and
// [ParseError] recognises these at the end of it.
var (
	// ErrContainerNotFound means that the id is unknown to this monitor, or that the container has ended.
	ErrContainerNotFound = errors.New("child not available")
	// ErrContainerExists means that a container of this id is alive.
	ErrContainerExists = errors.New("container already exists")
	// ErrNoTerminal means that the container was created without a terminal.
	ErrNoTerminal = errors.New("container has no terminal")
	// ErrNotSupported means that the monitor does not implement the request.
	ErrNotSupported = errors.New("not supported")
	// ErrShuttingDown means that the monitor takes no new work.
	ErrShuttingDown = errors.New("server is shutting down")
)

const (
	exitedText   = "child command exited with: "
	signaledText = "child command exited with signal"
	invalidText  = "invalid request field "
)

// A RuntimeError says that the OCI runtime ended without success.
type RuntimeError struct {
	// ExitCode is the exit status of the runtime, or negative if it was killed by a signal.
	ExitCode int
	// Stderr is what the runtime printed, possibly cut, possibly empty.
	Stderr string
}

// Error returns the text engines know, followed by the runtime's own message if there is one.
func (e *RuntimeError) Error() string {
	text := signaledText
	if e.ExitCode >= 0 {
		text = exitedText + strconv.Itoa(e.ExitCode)
	}
	if e.Stderr != "" {
		text += ": " + e.Stderr
	}
	return text
}

// An InvalidError says which field of a request cannot be used, and why.
type InvalidError struct {
	// Field is the name in the schema, with an index for lists, for example logDrivers[1].path.
	Field string
	// Reason completes the sentence "the field is invalid:".
	Reason string
}

// Error names the field and the reason.
func (e *InvalidError) Error() string {
	return invalidText + e.Field + ": " + e.Reason
}

// ParseError turns the text of an error that crossed the wire into an error with the same text, for which
// [errors.Is] and [errors.As] find the sentinel or type that the server used. An unknown text gives an error
// with nothing behind it; the empty text gives nil.
//
// The typed errors are looked for first, because the message of a runtime may end in any words.
func ParseError(text string) error {
	if text == "" {
		return nil
	}
	if e := parseRuntimeError(text); e != nil {
		return &textError{text, e}
	}
	if e := parseInvalidError(text); e != nil {
		return &textError{text, e}
	}
	for _, e := range []error{ErrContainerNotFound, ErrContainerExists, ErrNoTerminal, ErrNotSupported, ErrShuttingDown} {
		if rest, ok := strings.CutSuffix(text, e.Error()); ok && (rest == "" || strings.HasSuffix(rest, ": ")) {
			return &textError{text, e}
		}
	}
	return &textError{text, nil}
}

// textError keeps the whole text of a remote error, and what it means.
type textError struct {
	text  string
	cause error
}

func (e *textError) Error() string { return e.text }
func (e *textError) Unwrap() error { return e.cause }

func parseRuntimeError(text string) *RuntimeError {
	if _, rest, ok := cutStart(text, exitedText); ok {
		code, stderr, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(code); err == nil && n >= 0 {
			return &RuntimeError{ExitCode: n, Stderr: stderr}
		}
	}
	if _, rest, ok := cutStart(text, signaledText); ok {
		return &RuntimeError{ExitCode: -1, Stderr: strings.TrimPrefix(rest, ": ")}
	}
	return nil
}

func parseInvalidError(text string) *InvalidError {
	_, rest, ok := cutStart(text, invalidText)
	if !ok {
		return nil
	}
	field, reason, ok := strings.Cut(rest, ": ")
	if !ok || field == "" {
		return nil
	}
	return &InvalidError{Field: field, Reason: reason}
}

// cutStart is strings.Cut for a separator that starts a part of an error chain.
func cutStart(text, sep string) (before, after string, found bool) {
	if rest, ok := strings.CutPrefix(text, sep); ok {
		return "", rest, true
	}
	return strings.Cut(text, ": "+sep)
}
