package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
	"github.com/conmonrs/conmonrs/test/logcheck"
)

// kinds are the drivers of bothLogs.
var kinds = map[conmon.LogDriverType]string{conmon.LogDriverCRI: "logs/c", conmon.LogDriverJSON: "logs/c.json"}

// rotate renames the container's logs and has them reopened until the container ends, as engines do. It returns the
// names of each driver's files in the order in which they were written.
func (p *pod) rotate(id string) map[conmon.LogDriverType][]string {
	p.t.Helper()
	files := make(map[conmon.LogDriverType][]string)
	for n := 0; !p.exited(id); n++ {
		for kind, path := range kinds {
			old := fmt.Sprintf("%s.%06d", p.path(path), n)
			if err := os.Rename(p.path(path), old); err != nil {
				p.t.Fatal(err)
			}
			files[kind] = append(files[kind], old)
		}
		err := p.client.ReopenLog(p.ctx(), &conmon.ReopenLogRequest{ID: id})
		if errors.Is(err, conmon.ErrContainerNotFound) {
			break // it has just ended
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
	for kind, path := range kinds {
		if fileSize(p.path(path)) >= 0 {
			files[kind] = append(files[kind], p.path(path))
		}
	}
	return files
}

// R004 without a limit: no byte is lost, split or out of order when the logs are renamed and reopened all the time.
func TestLogReopened(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		n := numbered{spec: logcheck.Spec{Min: 1, Max: 64 << 10, Seed: 4}, bytes: volume(), both: !v.terminal}
		p.runRequest(p.bothLogs("c", p.script(n.command()), 0))
		files := p.rotate("c")
		p.wantExit("c", 0)
		for kind, all := range files {
			t.Logf("%v: %d files", kind, len(all))
			n.verify(t, v.format(kind), all...)
		}
		if len(files[conmon.LogDriverCRI]) < 2 {
			t.Error("only one file: the container was too fast")
		}
	})
}

// generations keeps a descriptor of each file that was seen at a path.
type generations struct {
	path  string
	files []*os.File
	last  os.FileInfo
}

// look keeps the file that is there now, unless it is known. Later ones make it a sample.
func (g *generations) look(t *testing.T, final bool) {
	t.Helper()
	now, err := os.Stat(g.path)
	if err != nil {
		t.Fatal(err) // a fresh file takes the place of the old one: there is always one
	}
	if g.last != nil && os.SameFile(g.last, now) || len(g.files) > 200 && !final {
		return
	}
	f, err := os.Open(g.path)
	if err == nil {
		g.last, err = f.Stat()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	g.files = append(g.files, f)
}

// R004, R012: with a limit, each file is within it, whole lines only, and the newest is there.
func TestLogSizeLimit(t *testing.T) {
	const limit, longest = 64 << 10, 20_000
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		for _, reopen := range []bool{false, true} {
			t.Run(fmt.Sprintf("reopen=%v", reopen), func(t *testing.T) {
				p := newPod(t, v, podOptions{})
				n := numbered{spec: logcheck.Spec{Min: 1, Max: longest, Seed: 12}, bytes: volume() / 2, both: !v.terminal}
				p.create(p.bothLogs("c", p.script(n.command()), limit))
				seen := make(map[conmon.LogDriverType]*generations)
				for kind, path := range kinds {
					seen[kind] = &generations{path: p.path(path)}
				}
				p.start("c")
				for ended := false; !ended; {
					ended = p.exited("c")
					for _, g := range seen {
						g.look(t, ended)
					}
					if !reopen || ended {
						continue
					}
					err := p.client.ReopenLog(p.ctx(), &conmon.ReopenLogRequest{ID: "c"})
					if err != nil && !errors.Is(err, conmon.ErrContainerNotFound) {
						t.Fatal(err)
					}
				}
				p.wantExit("c", 0)
				for kind, g := range seen {
					checkLimited(t, n, v.format(kind), g, limit, reopen)
				}
			})
		}
	})
}

func checkLimited(t *testing.T, n numbered, format logcheck.Format, g *generations, limit int64, reopened bool) {
	t.Helper()
	v := n.verifier(t)
	v.AllowGaps = true
	for i, f := range g.files {
		if err := v.ReadLog(f, format); err != nil {
			t.Fatalf("%s, file %d of %d: %v", filepath.Base(g.path), i+1, len(g.files), err)
		}
		size, err := f.Seek(0, io.SeekEnd)
		if err != nil || size > limit {
			t.Errorf("file %d has %d bytes, %v", i+1, size, err)
		}
		// Not before it is full either. The longest record is no longer than twice its line, as JSON or in pieces.
		if last := i == len(g.files)-1; !last && !reopened && size < limit-2*int64(n.spec.Max) {
			t.Errorf("file %d of %d has only %d bytes", i+1, len(g.files), size)
		}
	}
	if len(g.files) < 2 { // more has been written than the limit, and the last file is no larger: that is checked all the same
		t.Logf("only %d files seen: the container was too fast", len(g.files))
	}
	if !reopened { // which may have emptied the log after the last line
		checkNewest(t, n, records(t, format, g.path))
	}
}

// checkNewest checks that a log ends with the end of a stream's last line: its beginning may have been a record of the
// file before.
func checkNewest(t *testing.T, n numbered, all []logcheck.Record) {
	t.Helper()
	lines, err := logcheck.NewLines(n.spec)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("the log is empty")
	}
	last := all[len(all)-1]
	if want := lines.Line(last.Stream, n.lines(t)[last.Stream]-1); last.Partial || !bytes.HasSuffix(want, last.Content) {
		t.Errorf("the last record is %.100q, want the end of %.100q", last.Content, want)
	}
}

// R013: an engine that rotates below the limit loses nothing, even if the limit is reached between its renaming and its
// reopening.
func TestLogRotatedOutside(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		const stages, lines = 12, 5000 // some 235 KB a stage
		p := newPod(t, v, podOptions{})
		req := p.request("c", p.script(fmt.Sprintf(
			"n=0; while test $n -lt %d; do while ! test -e /mnt/go.$n; do usleep 2000; done; seq $((n*%d+1)) $(((n+1)*%d)); n=$((n+1)); done",
			stages, lines, lines)))
		req.LogDrivers[0].MaxSize = 1 << 20
		p.runRequest(req)
		path := req.LogDrivers[0].Path
		var files []string
		stage := func(n int, file func() string) {
			p.release(fmt.Sprint("go.", n))
			last := fmt.Sprintf("F %d\n", (n+1)*lines)
			eventually(t, exitLimit, "stage is logged", func() bool { return strings.HasSuffix(string(tail(file(), 100)), last) })
		}
		current := func() string { return path }
		for n := 0; n < stages; {
			stage(n, current)
			if n++; n == stages {
				break
			}
			files = append(files, fmt.Sprintf("%s.%d", path, n))
			if err := os.Rename(path, files[len(files)-1]); err != nil {
				t.Fatal(err)
			}
			if n == 2 { // now the limit is reached: the monitor has to begin a new file
				for ; n < 8; n++ {
					stage(n, func() string {
						if fileSize(path) >= 0 {
							return path
						}
						return files[len(files)-1]
					})
				}
				if fileSize(path) < 0 {
					t.Fatal("the limit was not reached")
				}
			}
			p.reopen("c")
		}
		p.wantExit("c", 0)
		var got strings.Builder
		for _, file := range append(files, path) {
			got.WriteString(joined(records(t, logcheck.ParseCRI, file), logcheck.Stdout))
		}
		var want strings.Builder
		for i := range stages * lines {
			fmt.Fprintln(&want, i+1)
		}
		if got.String() != want.String() {
			t.Error(difference(got.String(), want.String()))
		}
	})
}

// R016: the log does not depend on any client.
func TestLogWithoutClient(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		n := numbered{spec: logcheck.Spec{Min: 1, Max: 4096, Seed: 16}, bytes: volume(), both: true}
		p.create(p.request("c", p.script(n.command())))
		pid := p.pid
		if err := p.client.Close(); err != nil {
			t.Fatal(err)
		}
		p.start("c")
		p.wantExit("c", 0)
		c, err := client.Dial(p.ctx(), p.runDir+"/conmon.sock")
		if err != nil {
			t.Fatal(err)
		}
		p.use(c)
		p.pid = pid // the client does not know it
		p.alive()
		n.verify(t, v.format(conmon.LogDriverCRI), p.path("logs/c"))
	})
}

// R173: without drivers the output is read all the same, and costs nothing.
func TestNoLog(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		req := p.request("c", bundle.Options{Args: []string{"sh", "-c", "yes 0123456789 | head -c 5000000; exit 3"}})
		req.LogDrivers = nil
		p.runRequest(req)
		p.wantExit("c", 3)
		p.checkFlat("yes", func() {
			req := p.request("yes", bundle.Options{Args: []string{"yes"}})
			req.LogDrivers = nil
			p.runRequest(req)
		})
	})
}
