package arch

import (
	"strings"
	"testing"
)

// ban forbids imports between packages of the module. Patterns are as in matches.
type ban struct {
	from, to []string
	except   []string // targets that are allowed all the same
	reason   string
}

// Packages that wrap one facility each and know nothing of one another.
var facilities = []string{"systemdunit", "rpc/...", "io/...", "oom", "notify", "journald"}

// bans is the map of the repository, top down.
var bans = []ban{
	{
		from:   facilities,
		to:     []string{"cmd/..."},
		reason: "imports go down: the facilities can be used without the daemon, and do not know it",
	},
	{
		from:   []string{"..."},
		to:     []string{"test/..."},
		reason: "the product does not depend on its tests",
	},
	{
		from:   []string{"rpc/conmon"},
		to:     []string{"..."},
		reason: "the public vocabulary is plain words: whoever imports it gets nothing else",
	},
	{
		from:   []string{wirePkg},
		to:     []string{"..."},
		reason: "generated code stands on the Cap'n Proto library alone",
	},
	{
		from:   []string{"rpc/internal/codec"},
		to:     []string{"..."},
		except: []string{"rpc/conmon", wirePkg},
		reason: "the codec translates between conmon and wire and does nothing else",
	},
	{
		from:   []string{"rpc/internal/fdslot"},
		to:     []string{"..."},
		except: []string{"rpc/conmon", "rpc/internal/unixpath"},
		reason: "both ends of the descriptor socket use it: it has no dependencies",
	},
	{
		from:   []string{"rpc/client"},
		to:     []string{"rpc/server", "rpc/rpctest"},
		reason: "an engine that links the client must not link a server",
	},
	{
		from:   []string{"rpc/server"},
		to:     []string{"rpc/client", "rpc/rpctest"},
		reason: "the daemon links the server and must not link the client",
	},
	{
		from:   []string{"io/stdio"},
		to:     []string{"..."},
		reason: "the lowest of the io packages",
	},
	{
		from:   []string{"io/..."},
		to:     []string{"io/..."},
		except: []string{"io/stdio"},
		reason: "io packages meet through interfaces that the consumer declares, and are put together by cmd/conmonrs",
	},
	{
		from:   []string{"cmd/internal/..."},
		to:     []string{"..."},
		except: []string{"cmd/internal/..."},
		reason: "what the executables share is linked into each of them: it stays small",
	},
	{
		from:   []string{"cmd/conmonrs", "cmd/conmonrs/..."},
		to:     []string{"io/stream", "systemdunit", "cmd/conmonrs-helper/...", "rpc/client", "rpc/rpctest"},
		reason: "network servers, the bus and clients are not resident: they belong into conmonrs-helper",
	},
	{
		from:   []string{"cmd/conmonrs-helper/...", "cmd/conmonrs-pause/..."},
		to:     []string{"cmd/conmonrs/..."},
		reason: "executables share code in cmd/internal only",
	},
	{
		from:   []string{"cmd/conmonrs-helper/..."},
		to:     []string{"..."},
		except: []string{"cmd/conmonrs-helper/...", "cmd/internal/...", "systemdunit", "io/stream", "rpc/client", "rpc/conmon"},
		reason: "the helper wraps the facilities that are too heavy for the daemon, and nothing that the daemon does itself",
	},
	{
		from:   []string{"cmd/conmonrs-pause/..."},
		to:     []string{"..."},
		except: []string{"cmd/internal/podns", "cmd/internal/pages"},
		reason: "one pause per pod is resident: it has little more than the standard library and x/sys",
	},
	{
		from:   []string{"cmd/conmonrs/internal/container"},
		to:     []string{"cmd/conmonrs/internal/pod", "cmd/conmonrs/internal/daemon"},
		reason: "pod -> container -> the leaves, never back",
	},
}

// Leaves of the daemon: everything under cmd/conmonrs/internal but pod and container.
const leafReason = "what is under cmd/conmonrs/internal but pod and container stands below these two and beside each other"

var leafExceptions = map[string][]string{
	"cmd/conmonrs/internal/daemon":    {"cmd/conmonrs/internal/config", "cmd/conmonrs/internal/reaper"},
	"cmd/conmonrs/internal/oci":       {"cmd/conmonrs/internal/reaper", "cmd/conmonrs/internal/waiter"},
	"cmd/conmonrs/internal/helper":    {"cmd/conmonrs/internal/reaper", "cmd/conmonrs/internal/waiter"},
	"cmd/conmonrs/internal/logging":   {"cmd/conmonrs/internal/config"},
	"cmd/conmonrs/internal/reaper":    {"cmd/conmonrs/internal/waiter"},
	"cmd/conmonrs/internal/namespace": {"cmd/conmonrs/internal/reaper"},
}

func TestImportDirection(t *testing.T) {
	for _, p := range ours(t, false) {
		from := p.rel()
		for _, path := range p.Imports {
			to, ok := strings.CutPrefix(path, module+"/")
			if !ok {
				continue
			}
			for _, b := range bans {
				if inBan(b, from, to) {
					t.Errorf("%s imports %s: %s", from, to, b.reason)
				}
			}
			if isLeaf(from) && matches(to, "cmd/conmonrs/internal/...") && !matches(to, leafExceptions[from]...) && !matches(to, from+"/...") {
				t.Errorf("%s imports %s: %s", from, to, leafReason)
			}
			if family(from) != family(to) && matches(from, facilities...) && matches(to, facilities...) && to != "rpc/conmon" {
				t.Errorf("%s imports %s: facilities never import each other, only cmd/conmonrs puts them together (rpc/conmon is the exception)", from, to)
			}
		}
	}
}

func isLeaf(rel string) bool {
	return matches(rel, "cmd/conmonrs/internal/...") &&
		!matches(rel, "cmd/conmonrs/internal/pod/...", "cmd/conmonrs/internal/container/...")
}

func family(rel string) string {
	root, _, _ := strings.Cut(rel, "/")
	return root
}

func inBan(b ban, from, to string) bool {
	return matchesAll(from, b.from) && matchesAll(to, b.to) && !matches(to, b.except...)
}

// matchesAll is matches, with "..." for every package.
func matchesAll(rel string, patterns []string) bool {
	for _, p := range patterns {
		if p == "..." || matches(rel, p) {
			return true
		}
	}
	return false
}

// thirdParty says which packages may import a module from outside directly.
var thirdParty = []struct {
	prefix string
	from   []string
	reason string
}{
	{"capnproto.org/go/capnp", []string{"rpc/..."}, "only rpc speaks Cap'n Proto, and rpc/conmon does not"},
	{"golang.org/x/sys", []string{
		"io/...", "oom", "notify", "journald", "systemdunit", "rpc/internal/fdslot", "rpc/internal/unixpath", "cmd/internal/...",
		"cmd/conmonrs/internal/daemon", "cmd/conmonrs/internal/reaper", "cmd/conmonrs/internal/waiter",
		"cmd/conmonrs/internal/oci", "cmd/conmonrs/internal/helper", "cmd/conmonrs/internal/exitfile",
		"cmd/conmonrs/internal/output", "cmd/conmonrs/internal/proctree", "cmd/conmonrs/internal/namespace",
		"cmd/conmonrs-pause", "cmd/conmonrs-helper/internal/...",
	}, "system calls are wrapped once, in the leaf that owns the facility, the reaper or the daemon package"},
	{"github.com/godbus/dbus", []string{"systemdunit"}, "the bus is systemdunit's, and never linked into the daemon"},
	{"github.com/coreos/go-systemd", []string{"systemdunit"}, "go-systemd is systemdunit's, and never linked into the daemon"},
	{"github.com/gorilla/websocket", []string{"io/stream"}, "websocket sessions are io/stream's, and never linked into the daemon"},
	{"github.com/moby/spdystream", []string{"io/stream"}, "port forwarding is io/stream's, and never linked into the daemon"},
}

func TestThirdPartyImports(t *testing.T) {
	for _, p := range ours(t, false) {
		for _, path := range p.Imports {
			if strings.HasPrefix(path, module+"/") || !strings.Contains(strings.SplitN(path, "/", 2)[0], ".") {
				continue
			}
			known := false
			for _, rule := range thirdParty {
				if !strings.HasPrefix(path, rule.prefix) {
					continue
				}
				known = true
				if !matches(p.rel(), rule.from...) || matches(p.rel(), "rpc/conmon") {
					t.Errorf("%s imports %s: %s", p.rel(), path, rule.reason)
				}
			}
			if !known {
				t.Errorf("%s imports %s, which no rule of this test names: a new dependency needs a sentence of need in the commit and a line here", p.rel(), path)
			}
		}
	}
}

// The client is linked into engines: nothing comes with it but the standard library,
// Cap'n Proto and what that needs.
func TestClientDependencies(t *testing.T) {
	for _, root := range []string{"rpc/client", "rpc/conmon"} {
		if !exists(t, root) {
			continue
		}
		pkgs, err := goList("-deps", "./"+root)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pkgs {
			switch {
			case p.Standard, matches(p.rel(), "rpc/conmon", "rpc/client", "rpc/internal/..."):
			case p.Module != nil && (strings.HasPrefix(p.Module.Path, "capnproto.org/go/capnp/") ||
				p.Module.Path == "github.com/colega/zeropool" || p.Module.Path == "golang.org/x/sync" ||
				p.Module.Path == "golang.org/x/sys"):
			default:
				t.Errorf("%s depends on %s: an engine that links the client gets the standard library and go-capnp only", root, p.ImportPath)
			}
		}
	}
}

func exists(t *testing.T, rel string) bool {
	t.Helper()
	for _, p := range ours(t, true) {
		if p.rel() == rel {
			return true
		}
	}
	return false
}
