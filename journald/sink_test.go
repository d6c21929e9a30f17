package journald

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const testID = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

var testTime = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

func newSink(t testing.TB, path string, o SinkOptions) *Sink {
	t.Helper()
	if o.ContainerID == "" {
		o.ContainerID = testID
	}
	s, err := NewSink(dial(t, path), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func write(t testing.TB, st *Stream, chunks ...string) {
	t.Helper()
	for _, chunk := range chunks {
		if err := st.WriteChunk(testTime, []byte(chunk), make([]byte, 0, 128<<10)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSinkFields(t *testing.T) {
	j := startJournal(t)
	s := newSink(t, j.path, SinkOptions{Name: "web", PodName: "p", PodNamespace: "ns", Extra: []Field{{"OBJECT_PID", []byte("1")}, {"LABEL", []byte("a\nb")}}})
	want := map[string]string{
		"SYSLOG_IDENTIFIER": "0123456789ab", "CONTAINER_ID": "0123456789ab", "CONTAINER_ID_FULL": testID, "CONTAINER_NAME": "web",
		"CONTAINER_POD_NAME": "p", "CONTAINER_POD_NAMESPACE": "ns", "MESSAGE": "hello", "OBJECT_PID": "1", "LABEL": "a\nb",
	}
	check := func() {
		t.Helper()
		e := j.next()
		for name, value := range want {
			if e.get(name) != value {
				t.Errorf("%s is %q, want %q", name, e.get(name), value)
			}
		}
		if len(e) != len(want) {
			t.Errorf("fields %q", e)
		}
	}
	out, errs := s.Stream("stdout"), s.Stream("stderr")
	want["PRIORITY"], want["CONTAINER_STREAM"] = "6", "stdout"
	write(t, out, "hello\n")
	check()
	want["PRIORITY"], want["CONTAINER_STREAM"] = "3", "stderr"
	write(t, errs, "hello\n")
	check()
	if err := s.SetExtra([]Field{{"OBJECT_PID", []byte("2")}, {"bad", nil}}); err == nil {
		t.Error("bad name accepted")
	}
	if err := s.SetExtra([]Field{{"OBJECT_PID", []byte("2")}}); err != nil {
		t.Error(err)
	}
	want["OBJECT_PID"] = "2"
	delete(want, "LABEL")
	write(t, errs, "hello\n")
	check()
	j.none()
}

func TestNewSinkErrors(t *testing.T) {
	c := dial(t, "/nowhere")
	for _, bad := range []string{"", "_PID", "lower", "A=B", "A\nB"} {
		if _, err := NewSink(c, SinkOptions{ContainerID: "x", Extra: []Field{{bad, nil}}}); err == nil {
			t.Errorf("name %q accepted", bad)
		}
	}
	if _, err := NewSink(c, SinkOptions{}); err == nil {
		t.Error("no container id accepted")
	}
}

func TestLines(t *testing.T) {
	byThree := func(s string) (chunks []string) {
		for ; len(s) > 3; s = s[3:] {
			chunks = append(chunks, s[:3])
		}
		return append(chunks, s)
	}
	long := strings.Repeat("0123456789", 512)
	tests := []struct {
		name   string
		chunks []string
		want   []string // after End
	}{
		{"nothing", nil, nil},
		{"one line", []string{"a\n"}, []string{"a"}},
		{"several lines", []string{"a\nb\n\nc\n"}, []string{"a", "b", "", "c"}},
		{"joined", []string{"a", "b", "c\nd", "\n"}, []string{"abc", "d"}},
		{"newline alone", []string{"a", "\n", "\n"}, []string{"a", ""}},
		{"no newline at the end", []string{"a\nb"}, []string{"a", "b"}},
		{"5 KiB in pieces of 3", byThree(long + "\n"), []string{long}},
		{"prompts", []string{"$ ", "ls\r\n", "file\r\n$ "}, []string{"$ ls", "file", "$ "}},
		{"carriage return in its own read", []string{"a\r", "\n", "b\r", "c\n"}, []string{"a", "b\rc"}},
		{"carriage returns", []string{"a\r\r\n\r\n"}, []string{"a\r", ""}},
		{"binary", []string{"\x00\xff\x80=\x1b[1m\n", "M=\nMESSAGE=x\n"}, []string{"\x00\xff\x80=\x1b[1m", "M=", "MESSAGE=x"}},
		{"empty reads", []string{"", "a", "", "\n"}, []string{"a"}},
		{"exactly the limit", []string{strings.Repeat("x", 48<<10) + "\n"}, []string{strings.Repeat("x", 48<<10)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := startJournal(t)
			st := newSink(t, j.path, SinkOptions{}).Stream("stdout")
			var got []string
			collect := func() {
				for j.wait(0) {
					e := j.next()
					for name := range e {
						if strings.HasPrefix(name, "CONTAINER_PARTIAL") {
							t.Errorf("field %s", name)
						}
					}
					got = append(got, e.get("MESSAGE"))
				}
			}
			for _, chunk := range tt.chunks {
				write(t, st, chunk)
				collect()
			}
			for range 2 {
				if err := st.End(); err != nil {
					t.Error(err)
				}
			}
			collect()
			if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", tt.want) {
				t.Errorf("got %.200q, want %.200q", got, tt.want)
			}
		})
	}
}

func TestSplitLines(t *testing.T) {
	line := strings.Repeat("0123456789", 10<<10) // 100 KiB
	chunked := func(size int) (chunks []string) {
		s := line + "\n"
		for ; len(s) > size; s = s[size:] {
			chunks = append(chunks, s[:size])
		}
		return append(chunks, s)
	}
	for _, size := range []int{200 << 10, 64 << 10, 48 << 10, 5000, 1000} {
		j := startJournal(t)
		st := newSink(t, j.path, SinkOptions{}).Stream("stdout")
		previous := ""
		for range 2 {
			write(t, st, chunked(size)...)
			var joined, id string
			for n := 1; n <= 3; n++ {
				e := j.next()
				joined += e.get("MESSAGE")
				partial, last := "true", "false"
				if n == 3 {
					partial, last = "", "true"
				}
				if e.get("CONTAINER_PARTIAL_ORDINAL") != fmt.Sprint(n) || e.get("CONTAINER_PARTIAL_MESSAGE") != partial || e.get("CONTAINER_PARTIAL_LAST") != last {
					t.Errorf("reads of %d, piece %d: %.300q", size, n, e)
				}
				if n > 1 && e.get("CONTAINER_PARTIAL_ID") != id {
					t.Errorf("id %q, then %q", id, e.get("CONTAINER_PARTIAL_ID"))
				}
				id = e.get("CONTAINER_PARTIAL_ID")
			}
			if joined != line {
				t.Errorf("reads of %d: joined text differs", size)
			}
			if id == "" || id == previous {
				t.Errorf("id %q after %q", id, previous)
			}
			previous = id
		}
		write(t, st, "short\n")
		if e := j.next(); e.get("MESSAGE") != "short" || e.get("CONTAINER_PARTIAL_ID") != "" {
			t.Errorf("%q", e)
		}
		if cap(st.pending) > keepPending {
			t.Errorf("keeps %d bytes", cap(st.pending))
		}
		j.none()
	}
}

func TestSplitAtEnd(t *testing.T) {
	j := startJournal(t)
	st := newSink(t, j.path, SinkOptions{MaxLine: 64}).Stream("stdout")
	write(t, st, strings.Repeat("x", 64), "y")
	if err := st.End(); err != nil {
		t.Fatal(err)
	}
	if e := j.next(); e.get("MESSAGE") != strings.Repeat("x", 64) || e.get("CONTAINER_PARTIAL_MESSAGE") != "true" {
		t.Errorf("%q", e)
	}
	if e := j.next(); e.get("MESSAGE") != "y" || e.get("CONTAINER_PARTIAL_LAST") != "true" || e.get("CONTAINER_PARTIAL_MESSAGE") != "" {
		t.Errorf("%q", e)
	}
}

// Characters are not cut in two where a line is split.
func TestSplitCharacters(t *testing.T) {
	j := startJournal(t)
	st := newSink(t, j.path, SinkOptions{MaxLine: 64}).Stream("stdout")
	line := "x" + strings.Repeat("é", 40)
	write(t, st, line+"\n")
	a, b := j.next().get("MESSAGE"), j.next().get("MESSAGE")
	if a+b != line || len(a) != 63 {
		t.Errorf("%q, %q", a, b)
	}
}

// The line buffer of a large entry, here with a memfd, works like any other.
func TestSinkLargeEntry(t *testing.T) {
	j := startJournal(t)
	st := newSink(t, j.path, SinkOptions{MaxLine: 1 << 20}).Stream("stdout")
	line := strings.Repeat("x", 1<<20)
	write(t, st, line+"\n")
	if e := j.next(); e.get("MESSAGE") != line {
		t.Errorf("%d bytes", len(e.get("MESSAGE")))
	}
}

// Two streams of full speed against a reader that takes its time: nothing is lost
// or reordered, and no goroutine is started.
func TestSinkOrder(t *testing.T) {
	const lines = 20000
	j := startJournal(t)
	s := newSink(t, j.path, SinkOptions{})
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for _, name := range []string{"stdout", "stderr"} {
		wg.Go(func() {
			st := s.Stream(name)
			scratch := make([]byte, 0, 128<<10)
			var chunk []byte
			for i := range lines {
				chunk = fmt.Appendf(chunk, "%s %d\n", name, i)
				if i%100 == 99 || i == lines-1 {
					half := len(chunk) - i%7
					for _, part := range [][]byte{chunk[:half], chunk[half:]} {
						if err := st.WriteChunk(testTime, part, scratch); err != nil {
							t.Error(err)
						}
					}
					chunk = chunk[:0]
				}
			}
		})
	}
	next := map[string]int{}
	for range 2 * lines {
		e := j.next()
		name := e.get("CONTAINER_STREAM")
		if want := fmt.Sprintf("%s %d", name, next[name]); e.get("MESSAGE") != want {
			t.Fatalf("got %q, want %q", e.get("MESSAGE"), want)
		}
		next[name]++
		if n := runtime.NumGoroutine(); n > before+2 {
			t.Fatalf("%d goroutines", n)
		}
	}
	wg.Wait()
	if lost := s.Lost(); lost != (Loss{}) {
		t.Errorf("lost %+v", lost)
	}
	j.none()
}

// records collects what a Sink reports.
type records struct {
	bytes.Buffer
	*slog.Logger
}

func newRecords() *records {
	r := &records{}
	r.Logger = slog.New(slog.NewTextHandler(&r.Buffer, nil))
	return r
}

func (r *records) levels() string {
	out := ""
	for line := range strings.Lines(r.String()) {
		_, level, _ := strings.Cut(line, "level=")
		out += level[:1]
	}
	return out
}

func TestSinkStuckJournal(t *testing.T) {
	j := startJournal(t)
	log := newRecords()
	s := newSink(t, j.path, SinkOptions{FullWait: 50 * time.Millisecond, Logger: log.Logger})
	st := s.Stream("stdout")
	filled := j.fill()
	start := time.Now()
	for range 10 {
		err := st.WriteChunk(testTime, []byte("lost\nlost\n"), nil)
		if !errors.Is(err, unix.EAGAIN) || !strings.Contains(err.Error(), testID) {
			t.Errorf("error %v", err)
		}
	}
	if took := time.Since(start); took < 50*time.Millisecond || took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	if lost := s.Lost(); lost != (Loss{Entries: 20, Bytes: 80}) {
		t.Errorf("lost %+v", lost)
	}
	if log.levels() != "E" {
		t.Errorf("reported\n%s", log)
	}
	for range filled {
		j.next()
	}
	write(t, st, "back\n", "again\n")
	for _, want := range []string{"back", "again"} {
		if e := j.next(); e.get("MESSAGE") != want {
			t.Errorf("%q", e)
		}
	}
	if log.levels() != "EW" || !strings.Contains(log.String(), "entries=20 bytes=80") {
		t.Errorf("reported\n%s", log)
	}
}

func TestSinkRestart(t *testing.T) {
	j := startJournal(t)
	log := newRecords()
	s := newSink(t, j.path, SinkOptions{Logger: log.Logger})
	st := s.Stream("stdout")
	write(t, st, "before\n")
	j.next()

	// A short gap is bridged.
	j.stop()
	done := make(chan error)
	go func() { done <- st.WriteChunk(testTime, []byte("in the gap\n"), nil) }()
	select {
	case err := <-done:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(3 * gapRetry):
	}
	j.start()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if e := j.next(); e.get("MESSAGE") != "in the gap" || log.Len() != 0 {
		t.Errorf("%q, reported %q", e, log)
	}

	// In a long one, only the first entry waits.
	j.stop()
	start := time.Now()
	for range 50 {
		if err := st.WriteChunk(testTime, []byte("lost\n"), nil); !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT) {
			t.Errorf("error %v", err)
		}
	}
	if took := time.Since(start); took > 2*gapWait {
		t.Errorf("took %v", took)
	}
	j.start()
	write(t, st, "after\n")
	if e := j.next(); e.get("MESSAGE") != "after" {
		t.Errorf("%q", e)
	}
	if lost := s.Lost(); lost != (Loss{Entries: 50, Bytes: 200}) || log.levels() != "EW" {
		t.Errorf("lost %+v, reported\n%s", lost, log)
	}
}

func TestSinkClosed(t *testing.T) {
	j := startJournal(t)
	log := newRecords()
	s := newSink(t, j.path, SinkOptions{Logger: log.Logger})
	_ = s.conn.Close()
	if err := s.Stream("stdout").WriteChunk(testTime, []byte("x\n"), nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("error %v", err)
	}
	if log.Len() != 0 {
		t.Errorf("reported %q", log)
	}
}

// Whole lines, and lines that are cut by the end of a read, cost no allocation.
func TestWriteChunkDoesNotAllocate(t *testing.T) {
	j := startJournal(t)
	st := newSink(t, j.path, SinkOptions{}).Stream("stdout")
	scratch, buf := make([]byte, 0, 128<<10), make([]byte, 4096)
	chunk := []byte("end of a line\n" + strings.Repeat("x", 80) + "\nbeginning of a ")
	n := testing.AllocsPerRun(100, func() {
		if err := st.WriteChunk(testTime, chunk, scratch); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := unix.Read(j.fd, buf); err != nil {
				t.Fatal(err)
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Whatever the bytes and wherever the reads end, the entries together are the
// output, in the form that the flags describe.
func FuzzStream(f *testing.F) {
	f.Add([]byte("a\nbc\r\n\nd"), uint8(3))
	f.Add(bytes.Repeat([]byte("0123456789é"), 30), uint8(50))
	f.Add([]byte("\r\n\r\r\n\x00\xff\n"), uint8(1))
	f.Add([]byte(strings.Repeat("x", 64)+"\n"+strings.Repeat("y", 65)+"\n"), uint8(64))
	j := startJournal(f)
	j.buf = make([]byte, 256<<10)
	c := dial(f, j.path)
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		if len(data) > 2000 {
			return
		}
		j := &journal{t: t, path: j.path, fd: j.fd, buf: j.buf}
		s, err := NewSink(c, SinkOptions{ContainerID: "c", MaxLine: minMaxLine})
		if err != nil {
			t.Fatal(err)
		}
		st := s.Stream("stdout")
		done := make(chan struct{})
		go func() {
			defer close(done)
			step := max(int(size), 1)
			for rest := data; len(rest) > 0; {
				n := min(step, len(rest))
				if err := st.WriteChunk(testTime, rest[:n], nil); err != nil {
					t.Error(err)
				}
				rest = rest[n:]
			}
			if err := st.End(); err != nil {
				t.Error(err)
			}
			_ = c.Send(Field{"END", nil})
		}()
		var lines []string
		open := ""
		for {
			e := j.next()
			if e["END"] != nil {
				break
			}
			if len(e.get("MESSAGE")) > minMaxLine {
				t.Errorf("%d bytes in one entry", len(e.get("MESSAGE")))
			}
			open += e.get("MESSAGE")
			if e.get("CONTAINER_PARTIAL_MESSAGE") == "" {
				lines = append(lines, open)
				open = ""
			}
		}
		<-done
		if open != "" { // a partial entry must be followed by another
			t.Fatalf("line not finished: %q", open)
		}
		var want []string
		for line := range bytes.Lines(data) {
			line = bytes.TrimSuffix(line, []byte("\n"))
			want = append(want, string(bytes.TrimSuffix(line, []byte("\r"))))
		}
		if fmt.Sprintf("%q", lines) != fmt.Sprintf("%q", want) {
			t.Errorf("got %q, want %q", lines, want)
		}
	})
}
