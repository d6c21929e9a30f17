package logging

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/config"
)

type nilStringer struct{ s string }

func (n *nilStringer) String() string { return n.s }

const id = "0123456789abcdef0123456789abcdef"

// forms are messages with arguments, what they are as text, and as fields beside MESSAGE.
var forms = []struct {
	name    string
	message string
	args    []any
	text    string
	fields  string
}{
	{"plain", "hello there", nil, "hello there", ""},
	{"values", "m", []any{"a", 1, "b", "x y", "c", errors.New(`say "no"`), "d", "", "e", "k=v", "g", "\xff", "h", "é", "i", true, "j", 2 * time.Second, "l", nil, "n", uint64(9), "o", 1.5, "p", []byte("raw"), "q", (*nilStringer)(nil)},
		`m a=1 b="x y" c="say \"no\"" d="" e="k=v" g="\xff" h=é i=true j=2s l=<nil> n=9 o=1.5 p=raw q=<nil>`,
		"CONMONRS_A=1\nCONMONRS_B=x y\nCONMONRS_C=say \"no\"\nCONMONRS_D=\nCONMONRS_E=k=v\nCONMONRS_G=\xff\nCONMONRS_H=é\nCONMONRS_I=true\nCONMONRS_J=2s\nCONMONRS_L=<nil>\nCONMONRS_N=9\nCONMONRS_O=1.5\nCONMONRS_P=raw\nCONMONRS_Q=<nil>\n"},
	{"value of two lines", "m", []any{"f", "a\nb"}, `m f="a\nb"`, "CONMONRS_F\n\x03\x00\x00\x00\x00\x00\x00\x00a\nb\n"},
	{"container", "started", []any{"container", id, "pid", 7}, "started container=" + id + " pid=7",
		"CONTAINER_ID_FULL=" + id + "\nCONTAINER_ID=0123456789ab\nCONMONRS_PID=7\n"},
	{"short container", "m", []any{"container", "abc"}, "m container=abc", "CONTAINER_ID_FULL=abc\nCONTAINER_ID=abc\n"},
	{"names", "m", []any{"exit-code", 1, "bad key", 2, "é", 3, strings.Repeat("k", 60), 4}, "m exit-code=1 bad key=2 é=3 " + strings.Repeat("k", 60) + "=4", "CONMONRS_EXIT_CODE=1\n"},
	{"no key", "m", []any{1, "b"}, "m !BADKEY=1 !BADKEY=b", ""},
}

var at = time.Date(2026, 1, 2, 3, 4, 5, 6789, time.FixedZone("x", 3600))

func TestText(t *testing.T) {
	const stamp = "2026-01-02T02:04:05.000006Z "
	for _, tt := range forms {
		got := appendLine(nil, &record{at: at, level: Info, message: tt.message, with: &pairs{}, args: tt.args})
		if want := stamp + " INFO " + tt.text + "\n"; string(got) != want {
			t.Errorf("%s: got\n%swant\n%s", tt.name, got, want)
		}
	}
	for level, want := range []string{"DEBUG m", " INFO m", " WARN m", "ERROR m"} {
		if got := appendLine(nil, &record{at: at, level: Level(level), message: "m", with: &pairs{}}); string(got) != stamp+want+"\n" {
			t.Errorf("%q", got)
		}
	}
	for message, want := range map[string]string{"a\nb": `"a\nb"`, "a\xff": `"a\xff"`} {
		if got := appendLine(nil, &record{at: at, level: Info, message: message, with: &pairs{}}); string(got) != stamp+" INFO "+want+"\n" {
			t.Errorf("%q", got)
		}
	}
}

func TestWith(t *testing.T) {
	var b bytes.Buffer
	log := newLogger(&text{w: &b}, Info)
	child := log.With("a", 1).With("b", "x y")
	other := log.With("a", 2)
	child.Info("m", "c", 3)
	other.Info("m")
	log.Info("plain")
	log.With("d", 1).Debug("not written")
	lines := strings.Split(b.String(), "\n")
	if len(lines) != 4 || !strings.HasSuffix(lines[0], ` m a=1 b="x y" c=3`) || !strings.HasSuffix(lines[1], " m a=2") || !strings.HasSuffix(lines[2], " plain") {
		t.Errorf("%q", lines)
	}
	var none *Logger
	none.With("a", 1).Error("nobody hears")
}

// countingWriter fails, and checks that a Write is a whole line.
type countingWriter struct {
	t      *testing.T
	writes int // the output's lock guards it
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.writes++
	if bytes.Count(p, []byte("\n")) != 1 || p[len(p)-1] != '\n' {
		w.t.Errorf("not one line: %q", p)
	}
	return 0, unix.EPIPE
}

func TestOneWriteEach(t *testing.T) {
	w := &countingWriter{t: t}
	log := newLogger(&text{w: w}, Info)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				log.Info(strings.Repeat("m", 5000), "a", "b")
			}
		})
	}
	wg.Wait()
	if w.writes != 400 {
		t.Errorf("%d writes", w.writes)
	}
}

// listen binds a socket in the place of journald's.
func listen(t *testing.T) (path string, journal *os.File) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "socket")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	journal = os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { journal.Close() })
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	return path, journal
}

func TestJournal(t *testing.T) {
	path, journal := listen(t)
	log, closeLog, err := New(Options{Driver: config.DriverSystemd, Level: config.LevelDebug, Journal: path})
	if err != nil {
		t.Fatal(err)
	}
	drain(nil, journal)
	for _, tt := range forms {
		log.Info(tt.message, tt.args...)
		want := "PRIORITY=6\nSYSLOG_IDENTIFIER=conmonrs\nMESSAGE=" + tt.text + "\n" + tt.fields
		if got := drain(nil, journal); got != want {
			t.Errorf("%s: got\n%q\nwant\n%q", tt.name, got, want)
		}
	}
	for priority, print := range map[string]func(string, ...any){"7": log.Debug, "4": log.Warn, "3": log.Error} {
		print("m")
		if got := drain(nil, journal); got != "PRIORITY="+priority+"\nSYSLOG_IDENTIFIER=conmonrs\nMESSAGE=m\n" {
			t.Errorf("%q", got)
		}
	}
	log.With("container", "abc").Info("a\nb", "c", 1)
	want := "PRIORITY=6\nSYSLOG_IDENTIFIER=conmonrs\nCONTAINER_ID_FULL=abc\nCONTAINER_ID=abc\nMESSAGE\n" +
		"\x15\x00\x00\x00\x00\x00\x00\x00a\nb container=abc c=1\nCONMONRS_C=1\n"
	if got := drain(nil, journal); got != want {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	if err := closeLog(); err != nil {
		t.Error(err)
	}
}

func TestNew(t *testing.T) {
	path, journal := listen(t)
	const all = "debug info warn error"
	tests := []struct {
		driver config.LogDriver
		level  config.LogLevel
		want   string // levels that get through
	}{
		{config.DriverStdout, config.LevelTrace, all},
		{config.DriverStdout, config.LevelDebug, all},
		{config.DriverStdout, config.LevelInfo, "info warn error"},
		{config.DriverStdout, config.LevelWarn, "warn error"},
		{config.DriverStdout, config.LevelError, "error"},
		{config.DriverStdout, config.LevelOff, ""},
		{config.DriverSystemd, config.LevelTrace, all},
		{config.DriverSystemd, config.LevelError, "error"},
		{config.DriverSystemd, config.LevelOff, ""},
		{config.DriverNone, config.LevelTrace, ""},
	}
	for _, tt := range tests {
		t.Run(string(tt.driver)+" "+string(tt.level), func(t *testing.T) {
			var out bytes.Buffer
			log, closeLog, err := New(Options{Driver: tt.driver, Level: tt.level, Stdout: &out, Journal: path})
			if err != nil {
				t.Fatal(err)
			}
			first := drain(&out, journal)
			if shown := strings.Contains(first, "logging driver="+string(tt.driver)+" level="+string(tt.level)); shown != strings.Contains(tt.want, "info") {
				t.Errorf("first record %q", first)
			}
			var got []string
			for i, print := range []func(string, ...any){log.Debug, log.Info, log.Warn, log.Error} {
				print("probe")
				if strings.Contains(drain(&out, journal), "probe") {
					got = append(got, strings.Fields(all)[i])
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if err := closeLog(); err != nil {
				t.Error(err)
			}
		})
	}
}

// drain returns what was logged, wherever it went.
func drain(out *bytes.Buffer, journal *os.File) (text string) {
	if out != nil {
		text = out.String()
		out.Reset()
	}
	raw, _ := journal.SyscallConn()
	_ = raw.Control(func(fd uintptr) {
		buf := make([]byte, 4096)
		for {
			n, err := unix.Read(int(fd), buf)
			if err != nil {
				return
			}
			text += string(buf[:n])
		}
	})
	return text
}

func TestNewWithoutJournal(t *testing.T) {
	log, closeLog, err := New(Options{Driver: config.DriverSystemd, Level: config.LevelInfo, Journal: "/nowhere/socket"})
	if err != nil {
		t.Fatal(err)
	}
	log.Info("dropped")
	if err := closeLog(); err != nil {
		t.Error(err)
	}
	if _, _, err := New(Options{Driver: config.DriverSystemd, Level: config.LevelInfo, Journal: strings.Repeat("x", 200)}); err == nil {
		t.Error("a path that is no address was accepted")
	}
}
