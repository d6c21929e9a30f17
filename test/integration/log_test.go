package integration

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
	"github.com/conmonrs/conmonrs/test/logcheck"
)

// anyBytes has what text-minded loggers trip over; it ends with a line "ok".
func anyBytes() []byte {
	var b bytes.Buffer
	b.WriteString("\xed\xab\xee\xdb\x00\x80 \x1b[31mred\x1b[0m \u2028\n\n \tindented \n\"quoted\\\" </tag> \xf0\x9f\x98\n")
	for c := range 256 {
		if c != '\n' {
			b.WriteByte(byte(c))
		}
	}
	b.WriteString(".\n")
	for _, border := range []int{4096, 8192, 65536, 131072} { // where reads are likely to end
		for b.Len() < border-2 {
			b.WriteByte('x')
		}
		b.WriteString("\U0001f600\u00e9\n")
	}
	b.WriteString("ok\n")
	return b.Bytes()
}

// R008: the CRI log has the bytes as they are, the JSON log what can be said of them in JSON.
func TestLogBytes(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		o := p.script("cat /mnt/data")
		data := anyBytes()
		if err := os.WriteFile(p.path("shared/data"), data, 0o644); err != nil {
			t.Fatal(err)
		}
		p.runRequest(p.bothLogs("c", o, 0))
		p.wantExit("c", 0)
		want := string(data)
		if v.terminal {
			want = strings.ReplaceAll(want, "\n", "\r\n")
		}
		if got := joined(records(t, logcheck.ParseCRI, p.path("logs/c")), logcheck.Stdout); got != want {
			t.Errorf("CRI log: %s", difference(got, want))
		}
		// One replacement character for each byte that is not UTF-8; from a terminal the terminator is "\r\n".
		want = string([]rune(string(data)))
		got := joined(records(t, logcheck.ParseJSON, p.path("logs/c.json")), logcheck.Stdout)
		if got = strings.ReplaceAll(got, "\r\n", "\n"); got != want {
			t.Errorf("JSON log: %s", difference(got, want))
		}
	})
}

func difference(got, want string) string {
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	from := max(0, i-20)
	return fmt.Sprintf("%d bytes, want %d; at %d: %.60q, want %.60q", len(got), len(want), i, got[from:], want[from:])
}

// A character that is cut by a read is whole in both logs.
func TestLogCutCharacter(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.runRequest(p.bothLogs("c", p.script(`printf 'a\360\237'; `+await("go")+`printf '\230\200b\n'`), 0))
		eventually(t, exitLimit, "first half is logged", func() bool { return fileSize(p.path("logs/c")) > 0 })
		p.release("go")
		p.wantExit("c", 0)
		cri := records(t, v.format(conmon.LogDriverCRI), p.path("logs/c"))
		if len(cri) < 2 || string(cri[0].Content) != "a\xf0\x9f" || !cri[0].Partial {
			t.Errorf("CRI records %q", quoted(cri))
		}
		for kind, path := range map[conmon.LogDriverType]string{conmon.LogDriverCRI: "logs/c", conmon.LogDriverJSON: "logs/c.json"} {
			if got := joined(records(t, v.format(kind), p.path(path)), logcheck.Stdout); got != "a\U0001f600b\n" {
				t.Errorf("%v: %q", kind, got)
			}
		}
	})
}

// R017: tags say whether a record ends a line, and nothing else; a line is never in two full records, nor two in one.
func TestLogTags(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.runRequest(p.bothLogs("c", p.script("printf foo; "+await("go")+`echo bar; echo; printf ' one\n\ttwo\nthree \n'; printf tail`), 0))
		eventually(t, exitLimit, "foo is logged", func() bool { return fileSize(p.path("logs/c")) > 0 })
		p.release("go")
		p.wantExit("c", 0)
		for kind, path := range map[conmon.LogDriverType]string{conmon.LogDriverCRI: "logs/c", conmon.LogDriverJSON: "logs/c.json"} {
			all := records(t, v.format(kind), p.path(path))
			full := 0
			for _, r := range all {
				if !r.Partial {
					full++
				}
			}
			first, last := all[0], all[len(all)-1]
			if full != 5 || string(first.Content) != "foo" || !first.Partial || !last.Partial {
				t.Errorf("%v: records %q", kind, quoted(all))
			}
			if got := joined(all, logcheck.Stdout); got != "foobar\n\n one\n\ttwo\nthree \ntail" {
				t.Errorf("%v: %q", kind, got)
			}
		}
	})
}

// R009: one shape of timestamp, whatever the time zone, never backwards in a stream.
func TestLogTimestamps(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{env: []string{"TZ=Asia/Kolkata"}})
		n := numbered{spec: logcheck.Spec{Min: 1, Max: 60}, bytes: 300_000, both: true, more: "-write-size=line"}
		before := time.Now()
		p.runOptions("c", p.script(n.command()))
		p.wantExit("c", 0)
		after := time.Now()
		n.verify(t, v.format(conmon.LogDriverCRI), p.path("logs/c"))
		shape := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) [FP] `)
		stamps := make(map[string][]string)
		for line := range bytes.Lines(tail(p.path("logs/c"), 1<<30)) {
			if !shape.Match(line) {
				t.Fatalf("record %.80q", line)
			}
			fields := strings.SplitN(string(line), " ", 3)
			stamps[fields[1]] = append(stamps[fields[1]], fields[0])
		}
		for stream, all := range stamps {
			if !slices.IsSorted(all) {
				t.Errorf("times of %s go backwards", stream)
			}
			first, last := stampTime(t, all[0]), stampTime(t, all[len(all)-1])
			if first.Before(before) || last.After(after) {
				t.Errorf("times of %s from %v to %v, it was %v to %v", stream, first, last, before, after)
			}
		}
		if len(stamps) != 2 {
			t.Errorf("%d streams", len(stamps))
		}
	})
}

func stampTime(t *testing.T, stamp string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// R019, and a container that is made again on its log: what is there stays, and what comes is on lines of its own.
func TestLogAppends(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	torn := map[string]string{
		"logs/c":      "2026-01-02T03:04:05.000000006Z stdout F before\n2026-01-02T03:04:05.0000" + strings.Repeat("\x00", 100),
		"logs/c.json": `{"timestamp":1767323045,"pipe":"stdout","message":"before"}` + "\n" + `{"timest` + strings.Repeat("\x00", 100),
	}
	for path, content := range torn {
		if err := os.WriteFile(p.path(path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		p.runRequest(p.bothLogs("c", bundle.Options{Args: []string{"echo", "after"}}, 0))
		p.wantExit("c", 0)
		p.remove("c")
	}
	for path, content := range torn {
		rest, ok := bytes.CutPrefix(tail(p.path(path), 1<<20), []byte(content+"\n"))
		if !ok {
			t.Fatalf("%s is %q", path, tail(p.path(path), 1<<20))
		}
		kind := conmon.LogDriverCRI
		if strings.HasSuffix(path, ".json") {
			kind = conmon.LogDriverJSON
		}
		if err := os.WriteFile(p.path("rest"), rest, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := joined(records(t, p.v.format(kind), p.path("rest")), logcheck.Stdout); got != "after\nafter\n" {
			t.Errorf("%s: %q", path, got)
		}
	}
}

// R005: what is in the file at the start counts for its limit.
func TestLogLimitOverRestarts(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		const limit = 4096
		for i := range scaled(8) {
			word := fmt.Sprintf("%03d", i%1000)
			p.runRequest(p.bothLogs("c", bundle.Options{Args: []string{"printf", strings.Repeat(word+"\n", 20)}}, limit))
			p.wantExit("c", 0)
			p.remove("c")
			for _, path := range []string{"logs/c", "logs/c.json"} {
				if n := fileSize(p.path(path)); n > limit || n < 0 {
					t.Fatalf("%s has %d bytes after %d runs", path, n, i+1)
				}
			}
			all := records(t, logcheck.ParseCRI, p.path("logs/c"))
			if last := all[len(all)-1]; string(last.Content) != word {
				t.Fatalf("the last record of run %d is %q", i, last.Content)
			}
		}
	})
}

// R021: a log that could block is refused, and siblings do not notice.
func TestLogNotAFile(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	p.runOptions("sibling", p.script(await("go")+"echo still here; exit 4"))
	fds := openCount(p.pid)
	for name, occupy := range map[string]func(path string) error{
		"fifo":          func(path string) error { return unix.Mkfifo(path, 0o600) },
		"socket":        func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) },
		"directory":     func(path string) error { return os.Mkdir(path, 0o755) },
		"symbolic link": func(path string) error { return os.Symlink(p.path("monitor.log"), path) },
	} {
		path := p.path("logs", name)
		if err := occupy(path); err != nil {
			t.Fatal(err)
		}
		for _, kind := range []conmon.LogDriverType{conmon.LogDriverCRI, conmon.LogDriverJSON} {
			req := p.request("c", bundle.Options{Args: []string{"true"}})
			req.LogDrivers = append(req.LogDrivers, conmon.LogDriver{Type: kind, Path: path})
			begin := time.Now()
			_, err := p.client.CreateContainer(p.ctx(), req)
			if err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v", name, err)
			}
			if d := time.Since(begin); d > 3*time.Second {
				t.Errorf("%s: refused after %v", name, d)
			}
		}
	}
	p.settled(fds)
	if list := p.mustCommand("list", "-q"); strings.TrimSpace(list) != "sibling" {
		t.Errorf("the runtime knows %q", list)
	}
	p.release("go")
	p.wantExit("sibling", 4)
	if got := p.output("sibling"); got != "still here\n" {
		t.Errorf("output of the sibling: %q", got)
	}
}
