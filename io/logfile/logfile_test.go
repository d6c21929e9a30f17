package logfile

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

var at = time.Date(2026, 3, 4, 5, 6, 7, 80_000_000, time.FixedZone("half", 5*3600+1800))

// scratch is like what a pump gives.
func scratch() []byte { return make([]byte, 0, 128<<10) }

func openLog(t testing.TB, path string, o Options) *File {
	t.Helper()
	f, err := Open(path, o)
	check(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestFormats(t *testing.T) {
	const stamp = "2026-03-03T23:36:07.080000000Z "
	const head = `{"timestamp":1772580967,"pipe":"stdout","message":"`
	for _, tc := range []struct {
		name   string
		format Format
		chunks []string
		want   string
	}{
		{"lines", CRI, []string{"a\nb\n"}, stamp + "stdout F a\n" + stamp + "stdout F b\n"},
		{"partial, then its newline", CRI, []string{"foo", "\n"}, stamp + "stdout P foo\n" + stamp + "stdout F \n"},
		{"empty line", CRI, []string{"\n"}, stamp + "stdout F \n"},
		{"bytes as they are", CRI, []string{"\xed\xab\x00\x80\x1b[0m \r\n"}, stamp + "stdout F \xed\xab\x00\x80\x1b[0m \r\n"},
		{"nothing", CRI, []string{""}, ""},
		{"line", JSON, []string{"  a \n"}, head + "  a \"}\n"},
		{"crlf", JSON, []string{"a\r\nb\r\r\n"}, head + "a\"}\n" + head + "b\\r\"}\n"},
		{"partial", JSON, []string{"foo", "\n"}, head + "foo\",\"partial\":true}\n" + head + "\"}\n"},
		{"escapes", JSON, []string{"\"\\\t\x01\x1f\x7f</\n"}, head + `\"\\\t\u0001\u001f` + "\x7f</\"}\n"},
		{"not utf-8", JSON, []string{"a\xff\xedb\n"}, head + "a\ufffd\ufffdb\"}\n"},
		{"cut character", JSON, []string{"a\xf0\x9f", "\x98", "\x80b\n"}, head + "a\",\"partial\":true}\n" + head + "😀b\"}\n"},
		{"cut character that does not go on", JSON, []string{"\xe2\x82", "x\n"}, head + "\ufffd\ufffdx\"}\n"},
		{"cut character, newline", JSON, []string{"\xe2\x82", "\n"}, head + "\ufffd\ufffd\"}\n"},
		{"cut character at the end", JSON, []string{"x\n\xe2\x82"}, head + "x\"}\n" + head + "\ufffd\ufffd\",\"partial\":true}\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			f := openLog(t, path, Options{Format: tc.format})
			w := f.Stream("stdout")
			for _, c := range tc.chunks {
				check(t, w.WriteChunk(at, []byte(c), scratch()))
			}
			check(t, w.End())
			check(t, f.Close())
			got, err := os.ReadFile(path)
			check(t, err)
			if string(got) != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestModes(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	for _, tc := range []struct {
		format Format
		want   os.FileMode
	}{{CRI, 0o600}, {JSON, 0o644}} {
		path := filepath.Join(t.TempDir(), "log")
		f := openLog(t, path, Options{Format: tc.format, MaxSize: 10})
		for range 2 {
			st, err := os.Stat(path)
			check(t, err)
			if st.Mode() != tc.want {
				t.Errorf("format %d: mode %v, want %v", tc.format, st.Mode(), tc.want)
			}
			check(t, f.Reopen())
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	check(t, unix.Mkfifo(path("fifo"), 0o600))
	check(t, unix.Mkfifo(path("fifo with a reader"), 0o600))
	r, err := unix.Open(path("fifo with a reader"), unix.O_RDONLY|unix.O_NONBLOCK, 0)
	check(t, err)
	defer unix.Close(r)
	check(t, os.Mkdir(path("directory"), 0o700))
	check(t, os.Symlink(path("target"), path("link")))
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	check(t, err)
	defer unix.Close(s)
	check(t, unix.Bind(s, &unix.SockaddrUnix{Name: path("socket")}))

	for _, name := range []string{"fifo", "fifo with a reader", "directory", "link", "socket", "missing/log"} {
		t.Run(name, func(t *testing.T) {
			f, err := Open(path(name), Options{})
			if err == nil {
				f.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), "open log file path '"+path(name)+"'") {
				t.Errorf("error %q", err)
			}
		})
	}
	if _, err := Open(path("missing/log"), Options{}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("errno is lost: %v", err)
	}
	f := openLog(t, "/dev/null", Options{MaxSize: 10})
	check(t, f.Stream("stdout").WriteChunk(at, []byte("to nowhere\n"), scratch()))
	check(t, f.Reopen())
	if s := f.Stats(); s != (Stats{}) {
		t.Errorf("stats of a device %+v", s)
	}
}

func TestAppendsAndRepairsTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	torn := strings.Repeat("\x00", 100) + "2026-03-03T23:36:07.08"
	check(t, os.WriteFile(path, []byte(torn), 0o600))
	f := openLog(t, path, Options{})
	check(t, f.Stream("stdout").WriteChunk(at, []byte("next\n"), scratch()))
	data, err := os.ReadFile(path)
	check(t, err)
	rest, ok := bytes.CutPrefix(data, []byte(torn+"\n"))
	if !ok {
		t.Fatalf("got %q", data)
	}
	if e, err := parseCRI(rest); err != nil || len(e) != 1 || e[0].text != "next" {
		t.Errorf("entries %v, %v", e, err)
	}
	if s := f.Stats().Size; s != uint64(len(data)) {
		t.Errorf("size %d, want %d", s, len(data))
	}
}

func TestStampsNeverGoBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f := openLog(t, path, Options{})
	out, errs := f.Stream("stdout"), f.Stream("stderr")
	check(t, out.WriteChunk(at, []byte("1\n"), scratch()))
	check(t, errs.WriteChunk(at.Add(-time.Hour), []byte("2\n"), scratch()))
	check(t, out.WriteChunk(at.Add(1500*time.Millisecond), []byte("3\n"), scratch()))
	check(t, out.WriteChunk(at, []byte("4\n"), scratch()))
	entries := readCRI(t, path) // checks the order
	if len(entries) != 4 || entries[1].stamp != entries[0].stamp || entries[3].stamp != entries[2].stamp {
		t.Errorf("entries %v", entries)
	}
}

// A chunk that makes more text than the scratch space holds.
func TestLargeChunks(t *testing.T) {
	for name, data := range map[string]string{
		"newlines":          strings.Repeat("\n", 64<<10),
		"one line":          strings.Repeat("x", 64<<10) + "\n",
		"longer than space": strings.Repeat("x", 300<<10) + "\ny",
		"to be escaped":     strings.Repeat("\x01", 64<<10) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cri := openLog(t, filepath.Join(dir, "cri"), Options{})
			check(t, cri.Stream("stdout").WriteChunk(at, []byte(data), scratch()))
			if join(readCRI(t, cri.path), "stdout") != data {
				t.Error("CRI: text differs")
			}
			js := openLog(t, filepath.Join(dir, "json"), Options{Format: JSON})
			check(t, js.Stream("stdout").WriteChunk(at, []byte(data), scratch()))
			if join(readJSON(t, js.path), "stdout") != data {
				t.Error("JSON: text differs")
			}
		})
	}
}

func TestWriteDoesNotAllocate(t *testing.T) {
	lines := bytes.Repeat([]byte("\"a\" line of é and of \x01 and more\n"), 1500)
	space := scratch()
	for _, o := range []Options{{}, {Format: JSON}} {
		f := openLog(t, filepath.Join(t.TempDir(), "log"), o)
		w := f.Stream("stdout")
		now := at
		allocs := testing.AllocsPerRun(50, func() {
			now = now.Add(400 * time.Millisecond) // the date changes now and then
			if err := w.WriteChunk(now, lines, space); err != nil {
				t.Fatal(err)
			}
		})
		if allocs >= 1 {
			t.Errorf("format %d: %v allocations per chunk", o.Format, allocs)
		}
	}
}

func TestConcurrentStreams(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f := openLog(t, path, Options{})
	text := map[string]string{"stdout": strings.Repeat("out\n", 5000), "stderr": strings.Repeat("an error\n", 5000)}
	var group sync.WaitGroup
	for name, s := range text {
		w := f.Stream(name)
		group.Go(func() {
			space := scratch()
			for rest := []byte(s); len(rest) > 0; {
				n := min(len(rest), 1000)
				if err := w.WriteChunk(time.Now(), rest[:n], space); err != nil {
					t.Error(err)
				}
				rest = rest[n:]
			}
		})
	}
	group.Wait()
	entries := readCRI(t, path)
	for name, want := range text {
		if join(entries, name) != want {
			t.Errorf("%s differs", name)
		}
	}
}

func TestClosed(t *testing.T) {
	f := openLog(t, filepath.Join(t.TempDir(), "log"), Options{})
	w := f.Stream("stdout")
	check(t, f.Close())
	check(t, f.Close())
	for what, err := range map[string]error{
		"write": w.WriteChunk(at, []byte("x"), scratch()), "end": w.End(), "reopen": f.Reopen(),
	} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzCRI(f *testing.F) {
	f.Add([]byte("a\nb"), uint8(1), uint16(0))
	f.Add([]byte("\n\n\r\n\x00\xff 2026 P"), uint8(3), uint16(100))
	f.Fuzz(func(t *testing.T, data []byte, step uint8, room uint16) {
		log := openLog(t, filepath.Join(t.TempDir(), "log"), Options{})
		feed(t, log.Stream("stderr"), data, step, room)
		check(t, log.Close())
		if got := join(readCRI(t, log.path), "stderr"); got != string(data) {
			t.Errorf("got %q, want %q", got, data)
		}
	})
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte("a\r\nb\"\\"), uint8(1), uint16(0))
	f.Add([]byte("h\xc3\xa9 \xf0\x9f\x98\x80\xe2\x82\n\xed\xa0\x80"), uint8(2), uint16(100))
	f.Fuzz(func(t *testing.T, data []byte, step uint8, room uint16) {
		log := openLog(t, filepath.Join(t.TempDir(), "log"), Options{Format: JSON})
		feed(t, log.Stream("stdout"), data, step, room)
		check(t, log.Close())
		got := join(readJSON(t, log.path), "stdout")
		if bytes.IndexByte(data, '\r') >= 0 {
			return // whether it ends a line depends on where reads fall
		}
		// Nothing else depends on that, characters least of all.
		if want := replaceInvalid(data); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// replaceInvalid does, independently, what the format promises: each byte
// that is not part of a character is one replacement character.
func replaceInvalid(data []byte) string {
	var b strings.Builder
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		b.WriteRune(r)
		data = data[n:]
	}
	return b.String()
}

// feed writes data in pieces.
func feed(t *testing.T, w *Writer, data []byte, step uint8, room uint16) {
	space := make([]byte, 0, spare+int(room))
	for len(data) > 0 {
		n := min(len(data), 1+int(step))
		check(t, w.WriteChunk(at, data[:n], space))
		data = data[n:]
	}
	check(t, w.End())
}

// logs collects what goes to the logger.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func BenchmarkWrite(b *testing.B) {
	line := append(bytes.Repeat([]byte("x"), 79), '\n')
	data := bytes.Repeat(line, 64<<10/len(line))
	space := scratch()
	for name, o := range map[string]Options{"CRI": {}, "JSON": {Format: JSON}} {
		b.Run(name, func(b *testing.B) {
			f := openLog(b, os.DevNull, o)
			w := f.Stream("stdout")
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				check(b, w.WriteChunk(at, data, space))
			}
		})
	}
}
