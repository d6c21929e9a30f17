package reaper

import (
	"os"
	"strings"
)

// scorePath is the monitor's own adjustment, proc_pid_oom_score_adj(5).
const scorePath = "/proc/self/oom_score_adj"

// protected is the monitor's adjustment: the kernel never picks it.
const protected = "-1000"

// OOMScore is the monitor's protection against the OOM killer. Children must not inherit it: a container whose
// configuration sets none would be unkillable. Since Go has no hook between fork and exec, the original value is put
// back for the moment of each start. A nil OOMScore does nothing.
type OOMScore struct {
	file          *os.File
	own, original string
}

// ProtectFromOOM protects this process. Without the privilege it returns an error that callers log and go on with; then
// nothing has changed. The errors of package os say what was done to which file; more is not formatted, since this is
// part of each start.
func ProtectFromOOM() (*OOMScore, error) { return adjust(protected) }

// adjust sets the adjustment of this process.
func adjust(own string) (*OOMScore, error) {
	b, err := os.ReadFile(scorePath)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(scorePath, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	s := &OOMScore{file: f, own: own, original: strings.TrimSpace(string(b))}
	if s.original == protected {
		// Inherited from an engine that protects itself. Containers must be killable all the same.
		s.original = "0"
	}
	if _, err := f.WriteString(own); err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

// lend puts the original value in force until restore is called.
func (s *OOMScore) lend() (restore func()) {
	if s == nil {
		return func() {}
	}
	_, _ = s.file.WriteString(s.original) // raising it needs no privilege
	return func() { _, _ = s.file.WriteString(s.own) }
}

// Close gives up the descriptor; the adjustment stays.
func (s *OOMScore) Close() error {
	if s == nil {
		return nil
	}
	return s.file.Close()
}
