package conmon_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// The texts engines look for.
func TestTexts(t *testing.T) {
	for want, err := range map[string]error{
		"child not available":                     conmon.ErrContainerNotFound,
		"container has no terminal":               conmon.ErrNoTerminal,
		"child command exited with: 1":            &conmon.RuntimeError{ExitCode: 1},
		"child command exited with: 127: no such": &conmon.RuntimeError{ExitCode: 127, Stderr: "no such"},
		"child command exited with signal":        &conmon.RuntimeError{ExitCode: -1},
		"child command exited with signal: cut":   &conmon.RuntimeError{ExitCode: -1, Stderr: "cut"},
		"invalid request field id: is empty":      &conmon.InvalidError{Field: "id", Reason: "is empty"},
	} {
		if got := err.Error(); got != want {
			t.Errorf("text %q, want %q", got, want)
		}
	}
}

func TestParseErrorSentinels(t *testing.T) {
	all := []error{conmon.ErrContainerNotFound, conmon.ErrContainerExists, conmon.ErrNoTerminal, conmon.ErrNotSupported, conmon.ErrShuttingDown}
	for i, want := range all {
		for _, text := range []string{want.Error(), fmt.Errorf("do %q: %w", "x", want).Error()} {
			got := conmon.ParseError(text)
			if got.Error() != text {
				t.Errorf("text %q became %q", text, got)
			}
			for j, other := range all {
				if errors.Is(got, other) != (i == j) {
					t.Errorf("%q is %v: %v", text, other, errors.Is(got, other))
				}
			}
		}
	}
}

func TestParseErrorTypes(t *testing.T) {
	for _, want := range []conmon.RuntimeError{
		{ExitCode: 0}, {ExitCode: 1}, {ExitCode: 255, Stderr: "a: b\nc: child not available"}, {ExitCode: -1}, {ExitCode: -1, Stderr: "x: y"},
	} {
		got := conmon.ParseError(fmt.Errorf("create container: %w", &want).Error())
		var e *conmon.RuntimeError
		if !errors.As(got, &e) || *e != want {
			t.Errorf("%+v became %+v", want, e)
		}
		if errors.Is(got, conmon.ErrContainerNotFound) {
			t.Errorf("%q is mistaken for %v", got, conmon.ErrContainerNotFound)
		}
	}
	want := conmon.InvalidError{Field: "logDrivers[1].path", Reason: "is relative: x"}
	var e *conmon.InvalidError
	if got := conmon.ParseError("create: " + want.Error()); !errors.As(got, &e) || *e != want {
		t.Errorf("%+v became %+v", want, e)
	}
}

func TestParseErrorUnknown(t *testing.T) {
	if err := conmon.ParseError(""); err != nil {
		t.Errorf("empty text is %v", err)
	}
	for _, text := range []string{
		"something else", "grandchild not available", "child not available now", "child command exited with: x",
		"invalid request field ", "invalid request field : x",
	} {
		err := conmon.ParseError(text)
		if err.Error() != text || errors.Unwrap(err) != nil {
			t.Errorf("%q became %v with %v behind it", text, err, errors.Unwrap(err))
		}
	}
}

func FuzzParseError(f *testing.F) {
	f.Add("create container: child command exited with: 1: runc: no such file")
	f.Add("invalid request field id: empty")
	f.Add("attach: child not available")
	f.Fuzz(func(t *testing.T, text string) {
		err := conmon.ParseError(text)
		if text == "" {
			return
		}
		if err.Error() != text {
			t.Errorf("%q became %q", text, err)
		}
		var r *conmon.RuntimeError
		if errors.As(err, &r) && !strings.Contains(text, r.Stderr) {
			t.Errorf("%q contains no %q", text, r.Stderr)
		}
	})
}

func TestEnumNames(t *testing.T) {
	for want, v := range map[string]fmt.Stringer{
		"cri": conmon.LogDriverCRI, "json": conmon.LogDriverJSON, "journald": conmon.LogDriverJournald,
		"systemd": conmon.CgroupManagerSystemd, "cgroupfs": conmon.CgroupManagerCgroupfs,
		"ipc": conmon.NamespaceIPC, "net": conmon.NamespaceNet, "pid": conmon.NamespacePID, "user": conmon.NamespaceUser, "uts": conmon.NamespaceUTS,
		"unknown log driver 3": conmon.LogDriverType(3), "unknown cgroup manager 9": conmon.CgroupManager(9), "unknown namespace 5": conmon.Namespace(5),
	} {
		if got := v.String(); got != want {
			t.Errorf("%d is %q, want %q", v, got, want)
		}
	}
}
