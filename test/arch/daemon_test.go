package arch

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write daemon-packages.txt anew")

const daemonPackages = "daemon-packages.txt"

// bannedFromDaemon names packages that cost every idle pod memory. The figures are resident
// set sizes measured with a static daemon that serves the whole RPC.
var bannedFromDaemon = []struct{ prefix, reason string }{
	{"net/http", "+2.1 MiB per pod; HTTP is served by conmonrs-helper"},
	{"crypto/tls", "comes with net/http; the daemon has unix sockets only"},
	{"crypto/x509", "comes with net/http; the daemon has unix sockets only"},
	{"os/exec", "parks a thread per running child for good; use the reaper"},
	{"text/template", "keeps every exported method alive at link time"},
	{"html/template", "keeps every exported method alive at link time"},
	{"runtime/pprof", "+0.3 MiB, +1 MiB private after load, and the linker keeps the memory profiler on"},
	{"runtime/trace", "comes with runtime/pprof"},
	{"expvar", "imports net/http"},
	{"testing", "its flags and tables; test helpers belong into _test.go files"},
	{"regexp", "+0.1 MiB; the formats are simple enough to scan"},
	{"log", "+0.2 MiB for log/slog, which imports encoding/json; package logging has the same methods"},
	{"encoding/json", "+0.26 MiB when used; the few fields that are needed are read by hand"},
	{"os/user", "reads the user database; ids are numbers here"},
	{"plugin", "needs a dynamic executable"},
	{"google.golang.org/", "gRPC and protobuf: +8.4 MiB with the OTLP exporter"},
	{"go.opentelemetry.io/", "its global package imports net/http: +1.3 MiB"},
	{"github.com/gorilla/", "imports net/http; sessions are served by conmonrs-helper"},
	{"github.com/godbus/", "+0.87 MiB once used; the bus is called by conmonrs-helper"},
	{"github.com/coreos/go-systemd", "its dbus package imports godbus; native protocols are our own"},
	{"github.com/moby/spdystream", "imports net/http; port forwarding is conmonrs-helper's"},
	{"github.com/spf13/", "+0.2 to +0.6 MiB; options are parsed by hand"},
	{"github.com/alecthomas/kong", "+2.0 MiB; options are parsed by hand"},
	{module + "/io/stream", "imports net/http; conmonrs-helper's"},
	{module + "/systemdunit", "imports godbus; conmonrs-helper's"},
	{module + "/rpc/client", "the daemon is called, it does not call"},
	{module + "/test/", "the product does not depend on its tests"},
}

func bannedReason(path string) string {
	for _, b := range bannedFromDaemon {
		if path == strings.TrimSuffix(b.prefix, "/") || strings.HasPrefix(path, strings.TrimSuffix(b.prefix, "/")+"/") {
			return b.reason
		}
	}
	return ""
}

// TestDaemonPackages compares what is linked into the daemon with the list that was
// agreed to: standard packages one by one, other modules by their path.
func TestDaemonPackages(t *testing.T) {
	linked := linkedIntoDaemon(t)
	var got []string
	for _, p := range linked {
		if reason := bannedReason(p.ImportPath); reason != "" {
			t.Errorf("%s is linked into the daemon: %s\n\tfind out why with: go list -deps -f '{{.ImportPath}}: {{.Imports}}' ./%s | grep %s", p.ImportPath, reason, daemon, p.ImportPath)
		}
		if name := agreedName(p); name != "" {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	got = slices.Compact(got)
	if *update && !t.Failed() {
		writeAgreed(t, got)
	}
	want := readAgreed(t)
	if more := without(got, want); len(more) > 0 {
		t.Errorf("new in the daemon: %s\n\tIf it must be: measure what an idle pod costs with it (make bench), say so in the commit, and run\n\tgo test ./test/arch -run TestDaemonPackages -update", strings.Join(more, ", "))
	}
	if less := without(want, got); len(less) > 0 {
		t.Errorf("in %s but no longer linked: %s\n\tRun: go test ./test/arch -run TestDaemonPackages -update", daemonPackages, strings.Join(less, ", "))
	}
}

// without returns the names of list that are not in other.
func without(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(name string) bool { return slices.Contains(other, name) })
}

func linkedIntoDaemon(t *testing.T) []*listed {
	t.Helper()
	if !exists(t, daemon) {
		t.Logf("no package %s yet", daemon)
		return nil
	}
	pkgs, err := goList("-deps", "./"+daemon)
	if err != nil {
		t.Fatal(err)
	}
	return pkgs
}

// agreedName is the name under which a package stands in the list; "" when it is not
// listed: our own packages, and the inner ones of the standard library, which change with
// every release of Go.
func agreedName(p *listed) string {
	switch {
	case p.Standard:
		if p.ImportPath == "unsafe" || strings.HasPrefix(p.ImportPath, "vendor/") ||
			slices.Contains(strings.Split(p.ImportPath, "/"), "internal") {
			return ""
		}
		return p.ImportPath
	case p.rel() != "":
		return ""
	case p.Module != nil:
		return "module " + p.Module.Path
	}
	return p.ImportPath
}

func readAgreed(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(daemonPackages)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for scan := bufio.NewScanner(bytes.NewReader(text)); scan.Scan(); {
		if line := strings.TrimSpace(scan.Text()); line != "" && line[0] != '#' {
			names = append(names, line)
		}
	}
	return names
}

func writeAgreed(t *testing.T, names []string) {
	t.Helper()
	var out strings.Builder
	fmt.Fprintf(&out, "# What may be linked into cmd/conmonrs: packages of the standard library, and modules.\n"+
		"# Each costs every idle pod. Checked and written by TestDaemonPackages, see daemon_test.go.\n")
	for _, name := range names {
		fmt.Fprintln(&out, name)
	}
	if err := os.WriteFile(daemonPackages, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Calls that pull the resolver and its DNS client into the executable at link time, which
// no list of packages shows: package net comes with Cap'n Proto in any case.
var bannedCalls = map[string]string{
	"Listen": "", "ListenPacket": "", "ListenUnix": "", "ListenTCP": "", "ListenUDP": "", "ListenConfig": "",
	"Dial": "", "DialTimeout": "", "DialUnix": "", "DialTCP": "", "DialUDP": "", "Dialer": "",
	"LookupHost": "", "LookupIP": "", "LookupAddr": "", "ResolveTCPAddr": "", "ResolveUDPAddr": "", "DefaultResolver": "",
}

func TestDaemonHasNoResolver(t *testing.T) {
	for _, p := range linkedIntoDaemon(t) {
		if p.rel() == "" {
			continue
		}
		for _, src := range parse(t, p) {
			name := importName(src.file, "net")
			ast.Inspect(src.file, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok || name == "" {
					return true
				}
				x, ok := sel.X.(*ast.Ident)
				if _, banned := bannedCalls[sel.Sel.Name]; ok && banned && x.Name == name {
					t.Errorf("%s:%d: net.%s links the resolver into the daemon (350 KiB a pod): use cmd/internal/sockpath or x/sys",
						src.path, src.fset.Position(sel.Pos()).Line, sel.Sel.Name)
				}
				return true
			})
		}
	}
}

// importName is the name that a file knows an imported package by, or "".
func importName(file *ast.File, path string) string {
	for _, spec := range file.Imports {
		if got, err := strconv.Unquote(spec.Path.Value); err != nil || got != path {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path[strings.LastIndexByte(path, '/')+1:]
	}
	return ""
}
