package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
	"github.com/conmonrs/conmonrs/test/logcheck"
)

// eachRuntimeIO runs f with every runtime and one cgroup manager, with pipes and with a terminal: who moves a container
// between cgroups has no part in its output.
func eachRuntimeIO(t *testing.T, f func(t *testing.T, v variant)) {
	eachRuntime(t, func(t *testing.T, v variant) {
		for _, name := range []string{"pipe", "terminal"} {
			v.terminal = name == "terminal"
			t.Run(name, func(t *testing.T) { f(t, v) })
		}
	})
}

// await is a shell command that waits for a file in the shared directory: see release.
func await(name string) string { return "while ! test -e /mnt/" + name + "; do usleep 2000; done; " }

// release lets containers go on that await name.
func (p *pod) release(name string) {
	p.t.Helper()
	if err := os.WriteFile(p.path("shared", name), nil, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// shared makes the pod's directory that its containers see as /mnt, with loggen in it.
func (p *pod) shared() bundle.Mount {
	p.t.Helper()
	dir := p.path("shared")
	if _, err := os.Stat(dir); err != nil {
		b, err := os.ReadFile(tool(p.t, "loggen"))
		if err == nil {
			err = os.Mkdir(dir, 0o755)
		}
		if err == nil {
			err = os.WriteFile(dir+"/loggen", b, 0o755)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
	return bundle.Mount{Source: dir, Destination: "/mnt"}
}

// script is a container that runs a shell script and sees the shared directory.
func (p *pod) script(script string) bundle.Options {
	p.t.Helper()
	return bundle.Options{Args: []string{"sh", "-c", script}, Mounts: []bundle.Mount{p.shared()}}
}

// numbered says which lines loggen writes.
type numbered struct {
	spec  logcheck.Spec
	bytes int64 // of each stream
	both  bool  // streams, else only stdout
	more  string
}

func (n numbered) command() string {
	streams := "stdout"
	if n.both {
		streams = "both"
	}
	return fmt.Sprintf("/mnt/loggen -bytes=%d -min=%d -max=%d -seed=%d -streams=%s %s",
		n.bytes, n.spec.Min, n.spec.Max, n.spec.Seed, streams, n.more)
}

// lines counts what the command writes.
func (n numbered) lines(t *testing.T) map[logcheck.Stream]uint64 {
	t.Helper()
	lines, err := logcheck.NewLines(n.spec)
	if err != nil {
		t.Fatal(err)
	}
	all := map[logcheck.Stream]uint64{logcheck.Stdout: 0}
	if n.both {
		all[logcheck.Stderr] = 0
	}
	for stream := range all {
		for written := int64(0); written < n.bytes; all[stream]++ {
			written += int64(len(lines.Line(stream, all[stream])) + 1)
		}
	}
	return all
}

// verify checks that the files together, in this order, have all lines and nothing else.
func (n numbered) verify(t *testing.T, format logcheck.Format, files ...string) {
	t.Helper()
	v := n.verifier(t)
	for _, file := range files {
		readLog(t, v, format, file)
	}
	if err := v.Finish(n.lines(t)); err != nil {
		t.Errorf("%d files, the last is %s: %v", len(files), files[len(files)-1], err)
	}
}

func (n numbered) verifier(t *testing.T) *logcheck.Verifier {
	t.Helper()
	v, err := logcheck.NewVerifier(n.spec)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func readLog(t *testing.T, v *logcheck.Verifier, format logcheck.Format, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := v.ReadLog(f, format); err != nil {
		t.Fatalf("%s: %v", filepath.Base(file), err)
	}
}

// format is the parser for a kind of log. From a terminal lines come with a carriage return.
func (v variant) format(kind conmon.LogDriverType) logcheck.Format {
	parse := logcheck.ParseCRI
	if kind == conmon.LogDriverJSON {
		parse = logcheck.ParseJSON
	}
	if !v.terminal {
		return parse
	}
	return func(line []byte) (logcheck.Record, error) {
		record, err := parse(line)
		record.Content = bytes.ReplaceAll(record.Content, []byte("\r"), nil)
		return record, err
	}
}

// records returns the contents of a log.
func records(t *testing.T, format logcheck.Format, file string) (all []logcheck.Record) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = logcheck.ReadRecords(f, format, func(r logcheck.Record) error {
		r.Content = slices.Clone(r.Content)
		all = append(all, r)
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v", filepath.Base(file), err)
	}
	return all
}

// quoted is for messages.
func quoted(records []logcheck.Record) (all []string) {
	for _, r := range records {
		all = append(all, fmt.Sprintf("%s %v %s", r.Stream, r.Partial, r.Content))
	}
	return all
}

// joined is what the records of a stream say that the container wrote.
func joined(records []logcheck.Record, stream logcheck.Stream) string {
	var b strings.Builder
	for _, r := range records {
		if r.Stream != stream {
			continue
		}
		b.Write(r.Content)
		if !r.Partial {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// bothLogs is a request with a CRI log and a JSON log.
func (p *pod) bothLogs(id string, o bundle.Options, maxSize uint64) *conmon.CreateContainerRequest {
	p.t.Helper()
	req := p.request(id, o)
	req.LogDrivers = []conmon.LogDriver{
		{Type: conmon.LogDriverCRI, Path: p.path("logs", id), MaxSize: maxSize},
		{Type: conmon.LogDriverJSON, Path: p.path("logs", id+".json"), MaxSize: maxSize},
	}
	return req
}

// runRequest creates and starts.
func (p *pod) runRequest(req *conmon.CreateContainerRequest) int {
	p.t.Helper()
	pid := p.create(req)
	p.start(req.ID)
	return pid
}

func (p *pod) reopen(id string) {
	p.t.Helper()
	if err := p.client.ReopenLog(p.ctx(), &conmon.ReopenLogRequest{ID: id}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pod) exited(id string) bool {
	_, err := os.Lstat(p.path("exits", id))
	return err == nil
}

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return -1
	}
	return info.Size()
}

// volume is how much a test of bulk output writes on each stream: 100 MB in the long run.
func volume() int64 { return max(4<<20, int64(scaled(1<<20))) }

// reported returns the lines of the monitor's log with text.
func (p *pod) reported(text string) (lines []string) {
	for line := range strings.Lines(string(tail(p.log, 8<<20))) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// number reads key=N out of a line of the monitor's log.
func number(t *testing.T, line, key string) int64 {
	t.Helper()
	_, rest, _ := strings.Cut(line, " "+key+"=")
	digits, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		t.Fatalf("no %s in %q", key, line)
	}
	return n
}
