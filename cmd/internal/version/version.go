// Package version says what build this is, in the two forms that engines read.
//
// The field names of the JSON form are a contract with existing clients and speak
// of another tool chain; this package fills them with the Go equivalents.
package version

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// Version is strict semantic versioning without a leading v, because clients
// refuse everything else, and at least 1.0.1, because engines compare.
const Version = "1.1.0"

// The linker sets these in release builds:
//
//	-X github.com/conmonrs/conmonrs/cmd/internal/version.tag=v1.1.0
//
// They are never assigned to in code. Left empty, the version control stamp that
// the go command puts into binaries takes their place.
var (
	tag       string // git describe --tags --always --dirty
	commit    string // full commit id
	buildDate string // UTC, YYYY-MM-DD HH:MM:SS or RFC 3339
)

// unknown stands for what cannot be learnt: clients require non-empty values.
const unknown = "unknown"

// Info describes a build. Only Tag, and Modules unless asked for, may be empty.
type Info struct {
	Full       bool   // Modules was asked for
	Version    string // semantic version without a leading v
	Tag        string // as git describes the commit
	Commit     string // full commit id
	BuildDate  string // UTC, YYYY-MM-DD HH:MM:SS
	Target     string // target triple, such as x86_64-unknown-linux-gnu
	Compiler   string // version of the Go tool chain
	ModuleTool string // version of the tool that resolved the modules
	Modules    string // one module a line with its version, the main module first
}

// Get collects the Info of the running binary, with the list of modules if full
// is set. It parses the build information of the binary each time, which leaves
// some kilobytes of garbage: call it once and keep the result.
func Get(full bool) Info {
	build, _ := debug.ReadBuildInfo()
	return collect(stamp{tag, commit, buildDate}, build, full)
}

// stamp is what the linker was told.
type stamp struct{ tag, commit, date string }

func collect(s stamp, build *debug.BuildInfo, full bool) Info {
	if build == nil {
		build = &debug.BuildInfo{}
	}
	vcs := stampOf(build)
	info := Info{
		Full:       full,
		Version:    Version,
		Tag:        first(s.tag, vcs.tag),
		Commit:     first(s.commit, vcs.commit, unknown),
		BuildDate:  first(calendar(s.date), calendar(vcs.date), unknown),
		Target:     target(runtime.GOARCH),
		Compiler:   first(runtime.Version(), unknown) + " " + runtime.GOOS + "/" + runtime.GOARCH,
		ModuleTool: "go mod " + first(build.GoVersion, runtime.Version(), unknown),
	}
	if full {
		info.Modules = modules(build)
	}
	return info
}

// stampOf reads the version control stamp. It has no tag, so the short commit id
// is used, as git describe does in a repository without tags.
func stampOf(build *debug.BuildInfo) stamp {
	var s stamp
	dirty := ""
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			s.commit = setting.Value
		case "vcs.time":
			s.date = setting.Value
		case "vcs.modified":
			if setting.Value == "true" {
				dirty = "-dirty"
			}
		}
	}
	if len(s.commit) >= 7 {
		s.tag = s.commit[:7] + dirty
	}
	return s
}

// calendar turns an RFC 3339 time in UTC into "YYYY-MM-DD HH:MM:SS".
func calendar(date string) string {
	day, clock, ok := strings.Cut(date, "T")
	if !ok {
		return date
	}
	return day + " " + strings.TrimSuffix(clock, "Z")
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

func target(arch string) string {
	switch arch {
	case "amd64":
		return "x86_64-unknown-linux-gnu"
	case "386":
		return "i686-unknown-linux-gnu"
	case "arm64":
		return "aarch64-unknown-linux-gnu"
	case "arm":
		return "armv7-unknown-linux-gnueabihf"
	case "ppc64le":
		return "powerpc64le-unknown-linux-gnu"
	case "riscv64":
		return "riscv64gc-unknown-linux-gnu"
	}
	return arch + "-unknown-linux-gnu" // such as s390x
}

func modules(build *debug.BuildInfo) string {
	if build.Main.Path == "" {
		return unknown
	}
	var b strings.Builder
	b.WriteString(build.Main.Path + " " + first(build.Main.Version, unknown))
	for _, m := range build.Deps {
		b.WriteString("\n" + m.Path + " " + m.Version)
		if m.Replace != nil {
			b.WriteString(" => " + m.Replace.Path + " " + m.Replace.Version)
		}
	}
	return b.String()
}
