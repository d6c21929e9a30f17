package systemdunit

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"strings"

	sd "github.com/coreos/go-systemd/v22/dbus"
)

// enginePrefixes begin the names of scopes that engines make for one monitor each.
var enginePrefixes = []string{"crio-conmon-", "libpod-conmon-"}

// madeFor tells whether a unit is a scope that somebody has made for process pid. One whose name does not say so must
// hold nothing but the process and what it has started; else it is that of a login session, or of whatever the engine
// runs in, and not ours to describe.
func (s *session) madeFor(ctx context.Context, unit string, pid int) (bool, error) {
	if !strings.HasSuffix(unit, scopeSuffix) || strings.HasPrefix(unit, "session-") || unit == "init.scope" {
		return false, nil
	}
	for _, prefix := range enginePrefixes {
		if strings.HasPrefix(unit, prefix) {
			return true, nil
		}
	}
	pids, err := s.processes(ctx, unit)
	if isError(err, noSuchUnit) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, p := range pids {
		if !descends(p, pid) {
			return false, nil
		}
	}
	return len(pids) > 0, nil
}

// maxDepth bounds the way up to a process's ancestors, which may change meanwhile.
const maxDepth = 64

// descends tells whether process pid is ancestor, or was started by it or by what it has started. One that has ended
// meanwhile counts.
func descends(pid, ancestor int) bool {
	for range maxDepth {
		if pid == ancestor {
			return true
		}
		parent, ok := parentOf(pid)
		if !ok {
			return true
		}
		if pid = parent; pid <= 1 {
			return false
		}
	}
	return false
}

// parentOf reads the parent from proc_pid_stat(5). The name before it may contain anything.
func parentOf(pid int) (int, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(string(fields[1]))
	return parent, err == nil
}

// adopt describes a scope that a process is in. Nothing else is changed: kill signal and time-out belong to who made
// it, and systemd would not change them.
func (s *session) adopt(ctx context.Context, unit, text string) (Result, error) {
	result := Result{Unit: unit, Action: Adopted, Described: true}
	err := s.describe(ctx, unit, text)
	if isError(err, "org.freedesktop.DBus.Error.PropertyReadOnly") {
		result.Described = false
		return result, nil
	}
	return result, err
}

func (s *session) describe(ctx context.Context, unit, text string) error {
	const runtimeOnly = true
	properties := []sd.Property{sd.PropDescription(description(text))}
	return s.call(ctx, "SetUnitProperties", unit, runtimeOnly, properties).Err
}
