package version

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

// parsed has the fields that engines read.
type parsed struct {
	Verbose      *bool   `json:"verbose"`
	Version      *string `json:"version"`
	Tag          *string `json:"tag"`
	Commit       *string `json:"commit"`
	BuildDate    *string `json:"build_date"`
	Target       *string `json:"target"`
	RustVersion  *string `json:"rust_version"`
	CargoVersion *string `json:"cargo_version"`
	CargoTree    *string `json:"cargo_tree"`
}

// parse reads the JSON form as a client does, and more strictly: every key must
// be there, and no other.
func parse(t testing.TB, text string) parsed {
	t.Helper()
	if strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "}\n") {
		t.Fatalf("not one line: %q", text)
	}
	var p parsed
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	v := reflect.ValueOf(p)
	for i := range v.NumField() {
		if v.Field(i).IsNil() {
			t.Fatalf("no %s in %s", v.Type().Field(i).Name, text)
		}
	}
	return p
}

var strictSemver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

func builds() map[string]struct {
	stamp stamp
	build *debug.BuildInfo
	want  Info
} {
	revision := strings.Repeat("0123456789", 4)
	vcs := func(modified string) *debug.BuildInfo {
		return &debug.BuildInfo{GoVersion: "go1.99", Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: revision}, {Key: "vcs.time", Value: "2026-08-18T11:30:00Z"}, {Key: "vcs.modified", Value: modified},
		}}
	}
	return map[string]struct {
		stamp stamp
		build *debug.BuildInfo
		want  Info
	}{
		"release": {stamp{"v1.1.0", "c0ffee", "2026-01-02T03:04:05Z"}, vcs("true"), Info{Tag: "v1.1.0", Commit: "c0ffee", BuildDate: "2026-01-02 03:04:05"}},
		"clean":   {stamp{}, vcs("false"), Info{Tag: "0123456", Commit: revision, BuildDate: "2026-08-18 11:30:00"}},
		"dirty":   {stamp{}, vcs("true"), Info{Tag: "0123456-dirty", Commit: revision, BuildDate: "2026-08-18 11:30:00"}},
		"no git":  {stamp{}, &debug.BuildInfo{}, Info{Commit: "unknown", BuildDate: "unknown"}},
		"no info": {stamp{}, nil, Info{Commit: "unknown", BuildDate: "unknown"}},
	}
}

func TestBuilds(t *testing.T) {
	for name, tt := range builds() {
		for _, full := range []bool{false, true} {
			got := collect(tt.stamp, tt.build, full)
			if got.Tag != tt.want.Tag || got.Commit != tt.want.Commit || got.BuildDate != tt.want.BuildDate {
				t.Errorf("%s: %+v", name, got)
			}
			p := parse(t, got.JSON())
			if !strictSemver.MatchString(*p.Version) || *p.Version < "1.0.1" {
				t.Errorf("%s: version %q", name, *p.Version)
			}
			for _, value := range []string{*p.Commit, *p.BuildDate, *p.Target, *p.RustVersion, *p.CargoVersion} {
				if value == "" {
					t.Errorf("%s: empty value in %s", name, got.JSON())
				}
			}
			if *p.Verbose != full || (*p.CargoTree != "") != full {
				t.Errorf("%s: tree of %v: %q", name, full, *p.CargoTree)
			}
		}
	}
}

func TestForms(t *testing.T) {
	info := Info{Version: "1.1.0", Commit: "c", BuildDate: "d", Target: "t", Compiler: "go", ModuleTool: "mod"}
	if got, want := info.Text(), "version: 1.1.0\ntag: none\ncommit: c\nbuild: d\ntarget: t\ngo\nmod\n"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	if got, want := info.JSON(), `{"verbose":false,"version":"1.1.0","tag":"","commit":"c","build_date":"d","target":"t",`+
		`"rust_version":"go","cargo_version":"mod","cargo_tree":""}`+"\n"; got != want {
		t.Errorf("JSON %s, want %s", got, want)
	}
	info.Full, info.Tag, info.Modules = true, "v1", "a v1\nb v2"
	if got, want := info.Text(), "version: 1.1.0\ntag: v1\ncommit: c\nbuild: d\ntarget: t\ngo\nmod\n\ncargo tree: a v1\nb v2\n"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	if p := parse(t, info.JSON()); *p.CargoTree != info.Modules {
		t.Errorf("tree %q", *p.CargoTree)
	}
}

func TestModules(t *testing.T) {
	build := &debug.BuildInfo{
		Main: debug.Module{Path: "m"},
		Deps: []*debug.Module{{Path: "a", Version: "v1"}, {Path: "b", Version: "v2", Replace: &debug.Module{Path: "c", Version: "v3"}}},
	}
	if got, want := modules(build), "m unknown\na v1\nb v2 => c v3"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestTarget(t *testing.T) {
	for arch, want := range map[string]string{
		"amd64": "x86_64-unknown-linux-gnu", "arm64": "aarch64-unknown-linux-gnu", "386": "i686-unknown-linux-gnu",
		"arm": "armv7-unknown-linux-gnueabihf", "ppc64le": "powerpc64le-unknown-linux-gnu",
		"riscv64": "riscv64gc-unknown-linux-gnu", "s390x": "s390x-unknown-linux-gnu",
	} {
		if got := target(arch); got != want {
			t.Errorf("%s: %s", arch, got)
		}
	}
}

// The linker's settings reach the output: a renamed variable would silently
// leave release builds without a tag.
func TestLinkerSettings(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "main.go")
	source := "package main\n\nimport \"github.com/conmonrs/conmonrs/cmd/internal/version\"\n\nfunc main() { print(version.Get(false).JSON()) }\n"
	if err := os.WriteFile(program, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	const path = "github.com/conmonrs/conmonrs/cmd/internal/version."
	// An overlay puts the program below cmd, from where the package may be imported.
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	replace, _ := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, "printversion", "main.go"): program}})
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "run", "-buildvcs=false", "-overlay="+overlay,
		"-ldflags=-X "+path+"tag=v9 -X "+path+"commit=abc -X '"+path+"buildDate=2026-01-02 03:04:05'", path[:len(path)-1]+"/printversion").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if p := parse(t, string(out)); *p.Tag != "v9" || *p.Commit != "abc" || *p.BuildDate != "2026-01-02 03:04:05" {
		t.Errorf("%s", out)
	}
}

func FuzzString(f *testing.F) {
	for _, seed := range []string{"", "a\"b\\c", "\x00\n\t\x1f\x7f", "é\u2028", "\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var back string
		if err := json.Unmarshal(appendString(nil, s), &back); err != nil {
			t.Fatal(err)
		}
		if want := strings.ToValidUTF8(s, "\uFFFD"); len([]rune(s)) == len([]rune(want)) && back != want {
			t.Errorf("%q became %q", s, back)
		}
	})
}
