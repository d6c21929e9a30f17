package oci

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestCreateArgs(t *testing.T) {
	for _, c := range []struct {
		name    string
		runtime Runtime
		create  Create
		want    string
	}{
		{
			"runc, nothing set", Runtime{Path: "/usr/bin/runc", LogLevel: "debug"},
			Create{ID: "a", Bundle: "/b", PidFile: "/b/pidfile"},
			"/usr/bin/runc create --bundle /b --pid-file /b/pidfile a",
		},
		{
			"crun, all set", Runtime{Path: "/usr/bin/crun", Root: "/run/crun", LogLevel: "debug"},
			Create{
				ID: "a", Bundle: "/b", PidFile: "/b/pidfile", ConsoleSocket: "/run/s", SystemdCgroup: true,
				GlobalArgs: []string{"--log", "x", "--debug"}, CommandArgs: []string{"--preserve-fds=1"},
			},
			"/usr/bin/crun --log=journald:a --debug --root=/run/crun --systemd-cgroup --log x --debug create " +
				"--bundle /b --pid-file /b/pidfile --preserve-fds=1 --console-socket=/run/s a",
		},
		{
			"crun, level info", Runtime{Path: "crun", LogLevel: "info"}, Create{ID: "a", Bundle: "/b", PidFile: "/p"},
			"crun --log=journald:a create --bundle /b --pid-file /p a",
		},
		{
			"a wrapper is not crun", Runtime{Path: "/x/crun-vm", LogLevel: "error"}, Create{ID: "a", Bundle: "/b", PidFile: "/p"},
			"/x/crun-vm create --bundle /b --pid-file /p a",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := strings.Join(c.runtime.CreateArgs(c.create), " "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestExecArgs(t *testing.T) {
	r := Runtime{Path: "/usr/bin/crun", Root: "/r", LogLevel: "error"}
	got := r.ExecArgs(Exec{
		ID: "a", PidFile: "/p", ConsoleSocket: "/s", SystemdCgroup: true,
		Env: []string{"A=b c"}, Command: []string{"sh", "-c", "echo --x"},
	})
	want := []string{
		"/usr/bin/crun", "--log=journald:a", "--root=/r", "--systemd-cgroup", "exec", "-d",
		"--console-socket=/s", "--tty", "--env=A=b c", "--pid-file=/p", "a", "sh", "-c", "echo --x",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestDeleteArgs(t *testing.T) {
	got := Runtime{Path: "runc", Root: "/r"}.DeleteArgs("a", true, []string{"--debug"})
	if d := cmp.Diff([]string{"runc", "--root=/r", "--systemd-cgroup", "--debug", "delete", "--force", "a"}, got); d != "" {
		t.Error(d)
	}
}

func TestEnviron(t *testing.T) {
	got := Environ(
		[]string{"PATH=/bin", "NOTIFY_SOCKET=/n", "LISTEN_PID=1", "CONMON_RUNTIME=x", "HOME=/", "PATHS=keep", "ODD"},
		[]string{"HOME=/root", "NOTIFY_SOCKET=/asked"},
	)
	if d := cmp.Diff([]string{"PATH=/bin", "PATHS=keep", "ODD", "HOME=/root", "NOTIFY_SOCKET=/asked"}, got); d != "" {
		t.Error(d)
	}
}

func TestReadPidFile(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		content string
		want    int
	}{{"123", 123}, {" 123\n", 123}, {"", 0}, {"x", 0}, {"-5", 0}, {"1", 0}, {"0", 0}, {"99999999999999", 0}, {"12 13", 0}} {
		path := filepath.Join(dir, "pidfile")
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadPidFile(path)
		if got != c.want || (err == nil) != (c.want != 0) {
			t.Errorf("%q: %d, %v", c.content, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("error without the path: %v", err)
		}
	}
	if _, err := ReadPidFile(filepath.Join(dir, "missing")); !os.IsNotExist(unwrapAll(err)) {
		t.Errorf("missing file: %v", err)
	}
	if err := os.Symlink(filepath.Join(dir, "pidfile"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPidFile(filepath.Join(dir, "link")); err == nil {
		t.Error("a symbolic link was followed")
	}
}

func unwrapAll(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = u.Unwrap()
	}
}

func FuzzErrorText(f *testing.F) {
	f.Add([]byte("runc: \xff\x00\x1b[31mred\"\n"))
	f.Add([]byte(strings.Repeat("é", MaxErrorText)))
	f.Fuzz(func(t *testing.T, message []byte) {
		got := ErrorText(message)
		if !utf8.ValidString(got) || len(got) > MaxErrorText || strings.ContainsAny(got, "\x00\x1b\r") {
			t.Errorf("%q -> %q", message, got)
		}
	})
}

func FuzzParsePid(f *testing.F) {
	f.Add([]byte("12\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if pid, err := parsePid(text); err == nil && pid < 2 {
			t.Errorf("%q -> %d", text, pid)
		}
	})
}

func TestWithConfig(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	read := func() (text string, err error) {
		text = "not called"
		err = WithConfig(dir, func(config []byte) { text = string(config) })
		return text, err
	}
	if text, err := read(); !errors.Is(err, os.ErrNotExist) || text != "not called" {
		t.Errorf("missing: %q, %v", text, err)
	}
	for _, size := range []int{0, 1, 4095, 4096, 4097, 100_000} {
		want := strings.Repeat("x", size)
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		if text, err := read(); err != nil || text != want {
			t.Errorf("%d bytes: got %d, %v", size, len(text), err)
		}
	}
	if err := os.Truncate(path, MaxConfig+1); err != nil {
		t.Fatal(err)
	}
	if text, err := read(); err != nil || len(text) != MaxConfig {
		t.Errorf("too large: got %d, %v", len(text), err)
	}
}
