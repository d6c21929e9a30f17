package logging

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/config"
)

func record(level slog.Level, message string, args ...any) slog.Record {
	r := slog.NewRecord(time.Date(2026, 1, 2, 3, 4, 5, 6789, time.FixedZone("x", 3600)), level, message, 0)
	r.Add(args...)
	return r
}

func TestTextHandler(t *testing.T) {
	const stamp = "2026-01-02T02:04:05.000006Z "
	tests := []struct {
		name   string
		record slog.Record
		want   string
	}{
		{"info", record(slog.LevelInfo, "hello there"), stamp + " INFO hello there\n"},
		{"warn", record(slog.LevelWarn, "w"), stamp + " WARN w\n"},
		{"error", record(slog.LevelError, "e"), stamp + "ERROR e\n"},
		{"debug", record(slog.LevelDebug, "d"), stamp + "DEBUG d\n"},
		{"trace", record(LevelTrace, "t"), stamp + "TRACE t\n"},
		{"between", record(slog.LevelInfo+1, "m"), stamp + " INFO m\n"},
		{"attributes", record(slog.LevelInfo, "m", "a", 1, "b", "x y", "c", errors.New(`say "no"`), "d", "", "e", "k=v", "f", "a\nb", "g", "\xff", "h", "é"),
			stamp + ` INFO m a=1 b="x y" c="say \"no\"" d="" e="k=v" f="a\nb" g="\xff" h=é` + "\n"},
		{"group", record(slog.LevelInfo, "m", slog.Group("g", "a", 1, slog.Group("h", "b", 2))), stamp + " INFO m g.a=1 g.h.b=2\n"},
		{"message of two lines", record(slog.LevelInfo, "a\nb"), stamp + ` INFO "a\nb"` + "\n"},
		{"message not UTF-8", record(slog.LevelInfo, "a\xff"), stamp + ` INFO "a\xff"` + "\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b bytes.Buffer
			if err := NewTextHandler(&b, LevelTrace).Handle(context.Background(), tt.record); err != nil || b.String() != tt.want {
				t.Errorf("got\n%swant\n%s%v", b.String(), tt.want, err)
			}
		})
	}
}

func TestTextHandlerDerived(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(NewTextHandler(&b, slog.LevelInfo))
	child := log.With("a", 1).WithGroup("g").WithGroup("").With("b", 2)
	child.Info("m", "c", 3)
	log.Info("plain")
	log.Debug("not written")
	lines := strings.Split(b.String(), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], " m a=1 g.b=2 g.c=3") || !strings.HasSuffix(lines[1], " plain") {
		t.Errorf("%q", lines)
	}
}

// countingWriter fails, and checks that a Write is a whole line.
type countingWriter struct {
	t      *testing.T
	writes int // the handler's lock guards it
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
	log := slog.New(NewTextHandler(w, slog.LevelInfo))
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

func TestNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	journal := os.NewFile(uintptr(fd), path)
	defer journal.Close()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	const all = "trace debug info warn error"
	tests := []struct {
		driver config.LogDriver
		level  config.LogLevel
		want   string // levels that get through
	}{
		{config.DriverStdout, config.LevelTrace, all},
		{config.DriverStdout, config.LevelDebug, "debug info warn error"},
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
			for i, name := range strings.Fields(all) {
				log.Log(context.Background(), []slog.Level{LevelTrace, slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}[i], "probe")
				if strings.Contains(drain(&out, journal), "probe") {
					got = append(got, name)
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
func drain(out *bytes.Buffer, journal *os.File) string {
	text := out.String()
	out.Reset()
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
