package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// event is one line of the stream; its fields are described by "go doc test2json".
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// testRun is one test that has started.
type testRun struct {
	output      []string
	started     bool // there were events of its own: a slash in a name does not make its first part a test
	done        bool
	hasSubtests bool
	subFailed   bool
}

// packageRun is one test binary's run.
type packageRun struct {
	name                    string
	tests                   map[string]*testRun
	output                  []string // what belongs to no test: a panic, a leak report
	passed, failed, skipped int
}

// reader gathers the events of a run.
type reader struct {
	out      io.Writer
	res      *result
	packages map[string]*packageRun
	builds   map[string][]string // compiler messages by import path
}

// readEvents reads the stream to its end, prints as it goes and adds to res. Lines that
// are no events, as a wrapper of the test binary may print, are copied to out.
func readEvents(in io.Reader, out io.Writer, res *result) error {
	r := &reader{out: out, res: res, packages: map[string]*packageRun{}, builds: map[string][]string{}}
	buf := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := buf.ReadBytes('\n')
		if len(line) > 0 {
			var ev event
			if line[0] != '{' || json.Unmarshal(line, &ev) != nil {
				fmt.Fprintf(out, "%s", line)
			} else {
				r.take(ev)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.packages)) {
		r.endPackage(r.packages[name], event{Action: "fail", Output: "ended without a result"})
	}
	return nil
}

func (r *reader) take(ev event) {
	switch ev.Action {
	case "build-output":
		r.builds[ev.ImportPath] = append(r.builds[ev.ImportPath], ev.Output)
		return
	case "build-fail":
		return // its package's own failure follows
	}
	pkg := r.packages[ev.Package]
	if pkg == nil {
		pkg = &packageRun{name: ev.Package, tests: map[string]*testRun{}}
		r.packages[ev.Package] = pkg
	}
	if ev.Test == "" {
		r.takePackageEvent(pkg, ev)
		return
	}
	t := pkg.test(ev.Test)
	t.started = true
	switch ev.Action {
	case "output":
		t.output = append(t.output, ev.Output)
	case "pass", "fail", "skip":
		r.endTest(pkg, ev.Test, t, ev.Action)
	}
}

func (r *reader) takePackageEvent(pkg *packageRun, ev event) {
	switch ev.Action {
	case "output":
		pkg.output = append(pkg.output, ev.Output)
	case "pass", "fail", "skip":
		r.endPackage(pkg, ev)
		delete(r.packages, pkg.name)
	}
}

// test returns the run of the named test, and notes it with the tests it is part of.
func (p *packageRun) test(name string) *testRun {
	t := p.tests[name]
	if t == nil {
		t = &testRun{}
		p.tests[name] = t
		if parent := parentOf(name); parent != "" {
			p.test(parent).hasSubtests = true
		}
	}
	return t
}

func parentOf(name string) string {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i]
	}
	return ""
}

// endTest counts a test unless its subtests were counted for it.
func (r *reader) endTest(pkg *packageRun, name string, t *testRun, action string) {
	t.done = true
	switch action {
	case "pass":
		if !t.hasSubtests {
			pkg.passed++
		}
	case "skip":
		pkg.skipped++
		r.res.Skipped = append(r.res.Skipped, skip{Package: pkg.name, Test: name, Reason: skipReason(t.output)})
	case "fail":
		for parent := parentOf(name); parent != ""; parent = parentOf(parent) {
			pkg.test(parent).subFailed = true
		}
		if !t.subFailed {
			r.fail(pkg, name)
		}
		r.print(t.output)
	}
	t.output = nil
}

func (r *reader) fail(pkg *packageRun, name string) {
	pkg.failed++
	r.res.Failed = append(r.res.Failed, strings.TrimSuffix(pkg.name+" "+name, " "))
}

// endPackage prints the package's line. A failure that no test accounts for (it did not
// compile, it crashed, it was killed) counts as one.
func (r *reader) endPackage(pkg *packageRun, ev event) {
	if ev.Action == "fail" {
		r.endUnfinished(pkg)
		r.print(r.builds[ev.FailedBuild])
		r.print(pkg.output)
		if pkg.failed == 0 {
			r.fail(pkg, "")
		}
	}
	r.res.Passed += pkg.passed
	if pkg.passed+pkg.failed+pkg.skipped == 0 {
		return // no tests: a line for each such package would hide the others
	}
	mark := "ok  "
	if pkg.failed > 0 || ev.Action == "fail" {
		mark = "FAIL"
	}
	fmt.Fprintf(r.out, "%s %-60s %4d passed", mark, pkg.name, pkg.passed)
	if pkg.failed > 0 {
		fmt.Fprintf(r.out, ", %d failed", pkg.failed)
	}
	if pkg.skipped > 0 {
		fmt.Fprintf(r.out, ", %d skipped", pkg.skipped)
	}
	fmt.Fprintf(r.out, "  %.1fs\n", ev.Elapsed)
}

// endUnfinished fails the tests that a crash of their binary cut short.
func (r *reader) endUnfinished(pkg *packageRun) {
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(pkg.tests))) { // subtests first
		if t := pkg.tests[name]; t.started && !t.done {
			r.endTest(pkg, name, t, "fail")
		}
	}
}

func (r *reader) print(lines []string) {
	for _, line := range lines {
		fmt.Fprint(r.out, line)
	}
}

// skipReason picks the text of t.Skip out of a test's output: "    file.go:12: reason".
func skipReason(output []string) string {
	var reason []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		if _, text, ok := strings.Cut(line, ".go:"); ok {
			if _, text, ok = strings.Cut(text, ": "); ok {
				line = text
			}
		}
		reason = append(reason, line)
	}
	return strings.Join(reason, " ")
}
