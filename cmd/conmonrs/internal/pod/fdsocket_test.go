package pod

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/container"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/waiter"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

func newTestFDSocket(t *testing.T, dir string) *fdSocket {
	t.Helper()
	set, err := waiter.New()
	if err != nil {
		t.Fatal(err)
	}
	s := newFDSocket(&container.Host{RuntimeDir: dir, Waiter: set})
	t.Cleanup(func() {
		s.close()
		if n := set.Len(); n != 0 {
			t.Errorf("%d descriptors are still watched", n)
		}
		set.Close()
	})
	return s
}

func TestFDSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	s := newTestFDSocket(t, dir)
	for range 2 {
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Lstat(s.path())
	if err != nil || info.Mode() != os.ModeSocket|0o700 || filepath.Base(s.path()) != "conmon-fd.sock" {
		t.Errorf("%s: %v, %v", s.path(), info.Mode(), err)
	}
	if err := os.Remove(s.path()); err != nil {
		t.Fatal(err)
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(s.path()); err != nil {
		t.Errorf("not bound anew: %v", err)
	}
	s.close()
	if _, err := os.Lstat(s.path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("not removed: %v", err)
	}
	if err := s.start(); !errors.Is(err, conmon.ErrShuttingDown) {
		t.Errorf("after the end: %v", err)
	}
}

func TestFDSocketNotBound(t *testing.T) {
	s := newTestFDSocket(t, t.TempDir())
	if err := os.WriteFile(s.path(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.start(); err == nil || !strings.HasPrefix(err.Error(), "bind server socket: ") {
		t.Errorf("error %v", err)
	}
	if err := os.Remove(s.path()); err != nil {
		t.Fatal(err)
	}
	if err := s.start(); err != nil {
		t.Errorf("with room: %v", err)
	}
}

// Errors name the field and the slot; also before there is a socket.
func TestTakeNamesTheField(t *testing.T) {
	s := newTestFDSocket(t, t.TempDir())
	for range 2 {
		for field, req := range map[string]*conmon.CreateContainerRequest{
			"additionalFds[0]": {AdditionalFDs: []uint64{5, 6}, LeakFDs: []uint64{7}},
			"leakFds[0]":       {LeakFDs: []uint64{5}},
		} {
			var invalid *conmon.InvalidError
			_, err := s.take(req)
			if !errors.As(err, &invalid) || invalid.Field != field || invalid.Reason != "no file descriptor in slot 5" {
				t.Errorf("%s: %v", field, err)
			}
		}
		if files, err := s.take(&conmon.CreateContainerRequest{}); err != nil || files != (container.Files{}) {
			t.Errorf("none: %v, %v", files, err)
		}
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCheckPreserved(t *testing.T) {
	listen := []conmon.EnvVar{{Key: "LISTEN_FDS", Value: "1"}}
	for _, c := range []struct {
		name string
		args []string
		env  []conmon.EnvVar
		told uint64 // of descriptors
	}{
		{"nothing", nil, nil, 0},
		{"others", []string{"--no-pivot", "--x=9", "preserve-fds=9", "preserve-fds", "9"}, nil, 0},
		{"joined", []string{"--preserve-fds=2"}, nil, 2},
		{"apart", []string{"--preserve-fds", "2"}, nil, 2},
		{"one dash", []string{"-preserve-fds=2"}, nil, 2},
		{"last", []string{"--preserve-fds", "9", "--preserve-fds=2"}, nil, 2},
		{"cut", []string{"--preserve-fds"}, nil, 0},
		{"no number", []string{"--preserve-fds=-1"}, nil, 0},
		{"environment", []string{"--preserve-fds=2"}, listen, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := &conmon.CreateContainerRequest{CommandArgs: c.args, Env: c.env, AdditionalFDs: make([]uint64, c.told)}
			if err := checkPreserved(req); err != nil {
				t.Error(err)
			}
			if c.told == 0 {
				return
			}
			req.AdditionalFDs = req.AdditionalFDs[1:]
			var invalid *conmon.InvalidError
			if err := checkPreserved(req); !errors.As(err, &invalid) || invalid.Field != "additionalFds" {
				t.Errorf("too few: %v", err)
			}
		})
	}
}
