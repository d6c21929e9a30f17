package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	passing = `{"Action":"start","Package":"p/a"}
{"Action":"run","Package":"p/a","Test":"TestOne"}
{"Action":"pass","Package":"p/a","Test":"TestOne","Elapsed":0.1}
{"Action":"run","Package":"p/a","Test":"TestTable"}
{"Action":"run","Package":"p/a","Test":"TestTable/x"}
{"Action":"run","Package":"p/a","Test":"TestTable/y"}
{"Action":"pass","Package":"p/a","Test":"TestTable/x"}
{"Action":"pass","Package":"p/a","Test":"TestTable/y"}
{"Action":"pass","Package":"p/a","Test":"TestTable"}
{"Action":"pass","Package":"p/a","Elapsed":0.5}
`
	skipping = `{"Action":"run","Package":"p/a","Test":"TestRoot"}
{"Action":"output","Package":"p/a","Test":"TestRoot","Output":"=== RUN   TestRoot\n"}
{"Action":"output","Package":"p/a","Test":"TestRoot","Output":"    x_test.go:12: needs root\n"}
{"Action":"skip","Package":"p/a","Test":"TestRoot"}
{"Action":"pass","Package":"p/a","Elapsed":0.5}
`
	failing = `{"Action":"run","Package":"p/b","Test":"TestTable"}
{"Action":"run","Package":"p/b","Test":"TestTable/x"}
{"Action":"output","Package":"p/b","Test":"TestTable/x","Output":"the cause\n"}
{"Action":"fail","Package":"p/b","Test":"TestTable/x"}
{"Action":"fail","Package":"p/b","Test":"TestTable"}
{"Action":"fail","Package":"p/b","Elapsed":0.5}
`
	slashed = `{"Action":"run","Package":"p/f","Test":"TestX"}
{"Action":"run","Package":"p/f","Test":"TestX/runc/cgroupfs"}
{"Action":"fail","Package":"p/f","Test":"TestX/runc/cgroupfs"}
{"Action":"fail","Package":"p/f","Test":"TestX"}
{"Action":"fail","Package":"p/f","Elapsed":0.5}
`
	crashing = `{"Action":"run","Package":"p/c","Test":"TestCrash"}
{"Action":"output","Package":"p/c","Test":"TestCrash","Output":"panic: oh\n"}
{"Action":"fail","Package":"p/c","Elapsed":0.5}
`
	uncompilable = `{"ImportPath":"p/d","Action":"build-output","Output":"d.go:1: syntax error\n"}
{"ImportPath":"p/d","Action":"build-fail"}
{"Action":"start","Package":"p/d"}
{"Action":"fail","Package":"p/d","Elapsed":0,"FailedBuild":"p/d"}
`
	killed = `{"Action":"run","Package":"p/e","Test":"TestLong"}
`
)

func TestRun(t *testing.T) {
	tests := []struct {
		name, in, ci string
		status       int
		want         []string
		without      string
	}{
		{"pass", passing, "", 0, []string{"ok   p/a", "tests: 3 passed, 0 failed, 0 skipped\n"}, "SKIPPED"},
		{"skip", skipping, "", 0, []string{"1 SKIPPED", "p/a TestRoot: needs root", "tests: 0 passed, 0 failed, 1 skipped\n"}, "CI=true"},
		{"skip in CI", skipping, "true", 1, []string{"! p/a TestRoot: needs root", "CI=true: 1 of them"}, ""},
		{"fail", failing, "", 1, []string{"the cause", "FAIL p/b", "tests: 0 passed, 1 failed, 0 skipped\n"}, ""},
		{"slash in a name", slashed, "", 1, []string{"tests: 0 passed, 1 failed, 0 skipped\n"}, ""},
		{"crash", crashing, "", 1, []string{"panic: oh", "tests: 0 passed, 1 failed, 0 skipped\n"}, ""},
		{"build", uncompilable, "", 1, []string{"d.go:1: syntax error", "tests: 0 passed, 1 failed, 0 skipped\n"}, ""},
		{"killed", killed, "", 1, []string{"tests: 0 passed, 1 failed, 0 skipped\n"}, ""},
		{"other text", "hello\n" + passing, "", 0, []string{"hello\n"}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("CI", test.ci)
			var out, errs bytes.Buffer
			status := run(nil, strings.NewReader(test.in), &out, &errs)
			if status != test.status || errs.Len() > 0 {
				t.Errorf("status %d, want %d; stderr %q", status, test.status, &errs)
			}
			for _, want := range test.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in\n%s", want, &out)
				}
			}
			if test.without != "" && strings.Contains(out.String(), test.without) {
				t.Errorf("%q in\n%s", test.without, &out)
			}
		})
	}
}

func TestTotal(t *testing.T) {
	t.Setenv("CI", "true")
	dir := t.TempDir()
	allow := filepath.Join(dir, "skips.txt")
	if err := os.WriteFile(allow, []byte("# comment\nTestRo* has a reason\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for name, in := range map[string]string{"one": passing, "two": skipping} {
		if status := run([]string{"-dir", dir, "-name", name, "-allow-skips", allow}, strings.NewReader(in), &out, &out); status != 0 {
			t.Errorf("%s: status %d\n%s", name, status, &out)
		}
	}
	if status := run([]string{"-dir", dir, "-total", "test", "-allow-skips", allow}, nil, &out, &out); status != 0 {
		t.Errorf("total: status %d", status)
	}
	run([]string{"-dir", dir, "-name", "lint", "-failed"}, nil, &out, &out)
	if status := run([]string{"-dir", dir, "-total", "test", "-allow-skips", allow}, nil, &out, &out); status != 1 {
		t.Errorf("total with a failed step: status %d", status)
	}
	if want := "FAILED (1):\n  lint\ntest: 3 passed, 1 failed, 1 skipped\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("output does not end with %q:\n%s", want, &out)
	}
}

func TestAllowedSkipsNeedReason(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skips.txt")
	if err := os.WriteFile(file, []byte("TestX\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readAllowedSkips(file); err == nil {
		t.Error("a skip without a reason was accepted")
	}
}

func TestMatchesAny(t *testing.T) {
	for test, want := range map[string]bool{"TestRoot": true, "TestRoot/a": true, "TestRoot/a/b": true, "TestOther/TestRoot": false, "Test": false, "": false} {
		if got := matchesAny([]string{"TestRo*"}, test); got != want {
			t.Errorf("%q: %v", test, got)
		}
	}
}
