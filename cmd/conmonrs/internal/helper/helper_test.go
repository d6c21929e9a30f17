package helper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/reaper"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/waiter"
)

func newReaper(t *testing.T) *reaper.Reaper {
	t.Helper()
	set, err := waiter.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	return reaper.New(set, nil)
}

// script makes a helper of a shell script.
func script(t *testing.T, text string) *Helper {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, Name), text)
	h, err := open(newReaper(t), []string{"XDG_RUNTIME_DIR=/run/user/1", "NOTIFY_SOCKET=/n", "SECRET=1"}, Name, []string{dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	checkLeaks(t)
	return h
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// checkLeaks fails the test if goroutines or descriptors are left at its end.
func checkLeaks(t *testing.T) {
	t.Helper()
	fds := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	goroutines, files := runtime.NumGoroutine(), fds()
	t.Cleanup(func() {
		if !eventually(func() bool { return runtime.NumGoroutine() <= goroutines && fds() <= files }) {
			t.Errorf("%d goroutines before, %d after; %d descriptors before, %d after",
				goroutines, runtime.NumGoroutine(), files, fds())
		}
	})
}

func eventually(f func() bool) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if f() {
			return true
		}
	}
	return f()
}

func timeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestRun(t *testing.T) {
	for _, test := range []struct {
		name, script string
		want         map[string]string
		err          string
	}{
		{"words", "echo unit=a.scope action=adopted x dropped=A,B",
			map[string]string{"unit": "a.scope", "action": "adopted", "dropped": "A,B"}, ""},
		{"nothing", "", map[string]string{}, ""},
		{"arguments", `echo n=$# a="$1" b="$2" name=${0##*/}`,
			map[string]string{"n": "2", "a": "one", "b": "two", "name": "3"}, ""},
		{"environment", `echo dir=$XDG_RUNTIME_DIR secret=$SECRET notify=$NOTIFY_SOCKET procs=$GOMAXPROCS`,
			map[string]string{"dir": "/run/user/1", "secret": "", "notify": "", "procs": "1"}, ""},
		{"failure", "echo out=1; echo no luck >&2; echo today >&2; exit 1", nil,
			"conmonrs-helper: no luck today (status 1)"},
		{"no systemd", "echo systemd is not running here >&2; exit 3", nil, ErrNoSystemd.Error()},
		{"killed", "kill -9 $$", nil, "killed by signal 9"},
		{"much output", "i=0; while [ $i -lt 3000 ]; do echo aaaaaaaaaaaaaaaa >&2; i=$((i+1)); done; exit 1", nil,
			"status 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := script(t, test.script).Run(timeout(t, 20*time.Second), "one", "two")
			if test.err == "" && (err != nil || !maps.Equal(got, test.want)) {
				t.Errorf("%v, %v", got, err)
			}
			if test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

func TestRunTimeout(t *testing.T) {
	h := script(t, "sleep 600 & sleep 600")
	_, err := h.Run(timeout(t, 100*time.Millisecond))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if !eventually(func() bool { return h.reaper.Known() == 0 }) {
		t.Error("still running")
	}
}

// An update of the package does not change what a running monitor executes.
func TestRunAfterUpdate(t *testing.T) {
	h := script(t, "echo version=old")
	write(t, h.file.Name()+".new", "echo version=new")
	if err := os.Rename(h.file.Name()+".new", h.file.Name()); err != nil {
		t.Fatal(err)
	}
	got, err := h.Run(timeout(t, 20*time.Second))
	if err != nil || got["version"] != "old" {
		t.Errorf("%v, %v", got, err)
	}
	if err := os.Remove(h.file.Name()); err != nil {
		t.Fatal(err)
	}
	if got, err = h.Run(timeout(t, 20*time.Second)); err != nil || got["version"] != "old" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestRunManyAtOnce(t *testing.T) {
	h := script(t, "echo n=$1")
	errs := make(chan error, 20)
	for i := range cap(errs) {
		go func() {
			got, err := h.Run(timeout(t, 60*time.Second), fmt.Sprint(i))
			if err == nil && got["n"] != fmt.Sprint(i) {
				err = fmt.Errorf("%d: %v", i, got)
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestOpen(t *testing.T) {
	r := newReaper(t)
	first, second := t.TempDir(), t.TempDir()
	_, err := open(r, nil, Name, []string{first, second})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), second) {
		t.Errorf("%v", err)
	}
	if err := os.Mkdir(filepath.Join(first, Name), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := open(r, nil, Name, []string{first}); !errors.Is(err, os.ErrPermission) {
		t.Errorf("directory: %v", err)
	}
	if err := os.WriteFile(filepath.Join(second, Name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := open(r, nil, Name, []string{second}); !errors.Is(err, os.ErrPermission) {
		t.Errorf("not executable: %v", err)
	}
	third := t.TempDir()
	write(t, filepath.Join(third, Name), "")
	h, err := open(r, nil, Name, []string{first, second, third})
	if err != nil {
		t.Fatal(err)
	}
	if h.file.Name() != filepath.Join(third, Name) {
		t.Errorf("found %s", h.file.Name())
	}
	h.Close()
}
