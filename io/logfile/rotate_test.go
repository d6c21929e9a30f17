package logfile

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const criHead = 40 // bytes of a record before its text

func TestMaxSizeIsExact(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	record := uint64(criHead + len("line\n"))
	f := openLog(t, path, Options{MaxSize: 3 * record})
	w := f.Stream("stdout")
	for i, want := range []uint64{1, 2, 3, 1, 2, 3, 1} {
		check(t, w.WriteChunk(at, []byte("line\n"), scratch()))
		st, err := os.Stat(path)
		check(t, err)
		if uint64(st.Size()) != want*record || f.Stats().Size != want*record {
			t.Errorf("write %d: size %d, counted %d, want %d", i, st.Size(), f.Stats().Size, want*record)
		}
	}
}

func TestMaxSizeOfTwoLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f := openLog(t, path, Options{MaxSize: 50})
	check(t, f.Stream("stdout").WriteChunk(at, []byte("hello\nworld\n"), scratch()))
	if e := readCRI(t, path); len(e) != 1 || e[0].text != "world" {
		t.Errorf("entries %v", e)
	}
}

func TestMaxSizeCountsWhatWasThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for range 100 {
		f := openLog(t, path, Options{MaxSize: 16 << 10})
		check(t, f.Stream("stdout").WriteChunk(at, []byte(strings.Repeat("x", 1<<10)+"\n"), scratch()))
		check(t, f.Close())
		st, err := os.Stat(path)
		check(t, err)
		if st.Size() > 16<<10 {
			t.Fatalf("size %d", st.Size())
		}
	}
}

func TestRecordAboveMaxSizeIsWhole(t *testing.T) {
	for _, format := range []Format{CRI, JSON} {
		path := filepath.Join(t.TempDir(), "log")
		f := openLog(t, path, Options{Format: format, MaxSize: 100})
		long := strings.Repeat("x", 5000)
		check(t, f.Stream("stdout").WriteChunk(at, []byte("a\n"+long+"\n"), scratch()))
		read := readCRI
		if format == JSON {
			read = readJSON
		}
		if e := read(t, path); len(e) != 1 || e[0].text != long || !e[0].whole {
			t.Errorf("format %d: %d entries", format, len(e))
		}
	}
}

func TestReaderOfOldFileIsNotDisturbed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f := openLog(t, path, Options{MaxSize: 2 * (criHead + 2)})
	w := f.Stream("stdout")
	check(t, w.WriteChunk(at, []byte("1\n"), scratch()))
	old, err := os.Open(path)
	check(t, err)
	defer old.Close()
	check(t, w.WriteChunk(at, []byte("2\n3\n"), scratch()))
	data, err := io.ReadAll(old)
	check(t, err)
	if e, err := parseCRI(data); err != nil || join(e, "stdout") != "1\n2\n" {
		t.Errorf("old file: %v %v", e, err)
	}
	if e := readCRI(t, path); join(e, "stdout") != "3\n" {
		t.Errorf("new file: %v", e)
	}
}

func TestBackupHoldsNewestText(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	f := openLog(t, path, Options{MaxSize: 4 << 10, Backup: true})
	w := f.Stream("stdout")
	for i := range 1000 {
		check(t, w.WriteChunk(at, []byte(strconv.Itoa(i)+"\n"), scratch()))
	}
	entries := append(readCRI(t, path+".1"), readCRI(t, path)...)
	if len(entries) < 4<<10/60 || entries[len(entries)-1].text != "999" {
		t.Fatalf("%d entries, the last %v", len(entries), entries[len(entries)-1])
	}
	for i, e := range entries {
		if e.text != strconv.Itoa(1000-len(entries)+i) {
			t.Fatalf("entry %d is %q", i, e.text)
		}
	}
	names, err := os.ReadDir(dir)
	check(t, err)
	if len(names) != 2 {
		t.Errorf("files %v", names)
	}
}

func TestRotationFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	check(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, "log")
	var l logs
	f := openLog(t, path, Options{MaxSize: 100, Logger: l.logger()})
	w := f.Stream("stdout")
	// A directory in the place of the temporary file: root, too, fails then.
	check(t, os.MkdirAll(path+".tmp/x", 0o700))
	for i := range 20 {
		check(t, w.WriteChunk(at.Add(time.Duration(i)*300*time.Millisecond), []byte("line\nline\n"), scratch()))
	}
	if e := readCRI(t, path); len(e) != 40 {
		t.Errorf("%d entries: the old file must stay in use", len(e))
	}
	if n := strings.Count(l.String(), "level=ERROR"); n != 1 {
		t.Errorf("reported %d times: %s", n, l.String())
	}
	check(t, os.RemoveAll(path+".tmp"))
	check(t, w.WriteChunk(at.Add(time.Minute), []byte("fresh\n"), scratch()))
	if e := readCRI(t, path); len(e) != 1 || e[0].text != "fresh" {
		t.Errorf("entries %v", e)
	}
}

func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f := openLog(t, path, Options{})
	w := f.Stream("stdout")
	write := func(s string) { check(t, w.WriteChunk(at, []byte(s), scratch())) }
	expect := func(name, want string) {
		t.Helper()
		if got := join(readCRI(t, name), "stdout"); got != want {
			t.Errorf("%s: %q, want %q", filepath.Base(name), got, want)
		}
	}
	write("1\n")
	check(t, os.Rename(path, path+".a"))
	write("2\n") // the engine has renamed, but not said so yet
	check(t, f.Reopen())
	write("3\n")
	expect(path+".a", "1\n2\n")
	expect(path, "3\n")

	check(t, f.Reopen()) // nobody renamed: empty afterwards
	expect(path, "")
	if s := f.Stats().Size; s != 0 {
		t.Errorf("size %d", s)
	}
	write("4\n")
	expect(path, "4\n")

	check(t, os.RemoveAll(filepath.Dir(path)))
	if err := f.Reopen(); err == nil {
		t.Error("reopened in a directory that is gone")
	}
	write("5\n") // still goes to the old file
}

// The limit is reached between the engine's rename and its Reopen: what is
// written in between must not be thrown away by it.
func TestLimitBetweenRenameAndReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f := openLog(t, path, Options{MaxSize: 2 * (criHead + 2)})
	w := f.Stream("stdout")
	check(t, w.WriteChunk(at, []byte("1\n2\n"), scratch()))
	check(t, os.Rename(path, path+".a"))
	check(t, w.WriteChunk(at, []byte("3\n"), scratch()))
	check(t, f.Reopen())
	check(t, w.WriteChunk(at, []byte("4\n"), scratch()))
	if got := join(readCRI(t, path+".a"), "stdout") + join(readCRI(t, path), "stdout"); got != "1\n2\n3\n4\n" {
		t.Errorf("got %q", got)
	}
}

// Numbered lines of mixed length on both streams, reopening without pause,
// with and without a size limit: every line in every file is whole, numbers
// rise, and without a limit none is missing.
func TestReopenLoop(t *testing.T) {
	for _, limit := range []uint64{0, 64 << 10} {
		t.Run(fmt.Sprint("limit ", limit), func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "log")
			f := openLog(t, path, Options{MaxSize: limit})
			var writers sync.WaitGroup
			for _, name := range []string{"stdout", "stderr"} {
				w := f.Stream(name)
				writers.Go(func() { writeNumbers(t, w, 3000) })
			}
			stop := make(chan struct{})
			go func() { writers.Wait(); close(stop) }()
			files := reopenUntil(t, f, path, stop)

			next := map[string]int{}
			for _, name := range files {
				for _, e := range readCRI(t, name) {
					n, err := strconv.Atoi(strings.TrimRight(e.text, "."))
					if err != nil || !e.whole {
						t.Fatalf("%s: record %q", name, e.text)
					}
					if n < next[e.stream] || limit == 0 && n > next[e.stream] {
						t.Fatalf("%s: %s has %d, want %d", name, e.stream, n, next[e.stream])
					}
					next[e.stream] = n + 1
				}
			}
			if limit == 0 && (next["stdout"] != 3000 || next["stderr"] != 3000) {
				t.Errorf("ends at %v", next)
			}
			t.Logf("%d files", len(files))
		})
	}
}

func writeNumbers(t *testing.T, w *Writer, count int) {
	space := scratch()
	var chunk []byte
	for i := range count {
		chunk = strconv.AppendInt(chunk, int64(i), 10)
		chunk = append(chunk, strings.Repeat(".", i*7919%20000)...)
		chunk = append(chunk, '\n')
		if len(chunk) > 40<<10 || i%7 == 0 || i == count-1 {
			if err := w.WriteChunk(time.Now(), chunk, space); err != nil {
				t.Error(err)
			}
			chunk = chunk[:0]
		}
	}
}

// reopenUntil does what an engine does and returns all files, oldest first.
func reopenUntil(t *testing.T, f *File, path string, stop <-chan struct{}) (files []string) {
	for i := 0; ; i++ {
		old := fmt.Sprintf("%s.%03d", path, i)
		if err := os.Rename(path, old); err != nil {
			t.Fatal(err)
		}
		files = append(files, old)
		check(t, f.Reopen())
		select {
		case <-stop:
			return append(files, path)
		default:
		}
	}
}
