package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestValidate(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil { // not executable: not asked for
		t.Fatal(err)
	}
	link := filepath.Join(root, "link")
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(root, "dangling")
	if err := os.Symlink("nothing", dangling); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(root, "missing")
	tests := []struct {
		name                 string
		runtime, dir, rtroot string
		want                 string // empty: valid
	}{
		{"valid", file, root, "", ""},
		{"valid, all directories there", file, root, root, ""},
		{"valid by link", link, root, "", ""},
		{"1 runtime not UTF-8", "\xff", " ", "", "--runtime does not parse as string"},
		{"2 runtime not given", blank, "\xff", "", "--runtime flag not set"},
		{"2 runtime of blanks", " \t ", root, "", "--runtime flag not set"},
		{"3 directory not UTF-8", missing, "/\xff", "", "--runtime-dir does not parse as string"},
		{"4 directory not given", missing, blank, "", "--runtime-dir flag not set"},
		{"5 runtime missing", missing, filepath.Join(root, "never"), "", "--runtime '" + missing + "' does not exist"},
		{"5 runtime a dangling link", dangling, root, "", "--runtime '" + dangling + "' does not exist"},
		{"5 runtime not searched in PATH", "sh", root, "", "--runtime 'sh' does not exist"},
		{"5 runtime is a directory", root, root, "", "--runtime '" + root + "' is a directory"},
		{"5 runtime below a file", file + "/x", root, "", "look up --runtime: "},
		{"6 directory below a file", file, file + "/x", "", "look up --runtime-dir: "},
		{"6 directory is a file", file, file, "", "--runtime-dir '" + file + "' is not a directory"},
		{"6 directory cannot be created", file, "/proc/nowhere/x", "", "create --runtime-dir: "},
		{"7 root is a file", file, root, file, "--runtime-root '" + file + "' is not a directory"},
		{"7 root cannot be created", file, root, "/proc/nowhere/x", "create --runtime-root: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newConfig()
			c.Runtime, c.RuntimeDir, c.RuntimeRoot = tt.runtime, tt.dir, tt.rtroot
			err := c.Validate()
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(root, "never")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a failed check 5 created the runtime directory")
	}
}

func TestValidateCreatesDirectories(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	root := t.TempDir()
	c := newConfig()
	c.Runtime = "/proc/self/exe"
	c.RuntimeDir = filepath.Join(root, "a/b/c")
	c.RuntimeRoot = filepath.Join(root, "d/e")
	for range 2 {
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{c.RuntimeDir, c.RuntimeRoot} {
		if st, err := os.Stat(dir); err != nil || st.Mode() != os.ModeDir|0o755 {
			t.Errorf("%s: %v, %v", dir, st, err)
		}
	}
}
