// Package arch holds the rules of this repository that a compiler does not check: who may
// import whom, what may be linked into the daemon, and a few of the style guide. Every ban
// carries its reason. It has test files only.
package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	module  = "github.com/conmonrs/conmonrs"
	wirePkg = "rpc/internal/wire"
	daemon  = "cmd/conmonrs"
)

// listed is what "go list -json" says of a package.
type listed struct {
	ImportPath, Dir, Name, Export      string
	Standard                           bool
	Module                             *struct{ Path string }
	GoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports []string
	Error                              *struct{ Err string }
}

// rel is the package's path in the module, or "" when it belongs to another.
func (p *listed) rel() string {
	if rel, ok := strings.CutPrefix(p.ImportPath, module+"/"); ok {
		return rel
	}
	return ""
}

// load lists all packages of the module and what they depend on, compiled, once for all
// tests. The settings are those of a release build.
var load = sync.OnceValues(func() ([]*listed, error) {
	return goList("-e", "-export", "-deps", "./...")
})

func goList(args ...string) ([]*listed, error) {
	const fields = "-json=ImportPath,Dir,Name,Export,Standard,Module,GoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports,Error"
	cmd := exec.Command("go", append([]string{"list", fields}, args...)...)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=-mod=readonly -trimpath")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, &stderr)
	}
	var pkgs []*listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(listed)
		if err := dec.Decode(p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, fmt.Errorf("decode go list: %w", err)
		}
		pkgs = append(pkgs, p)
	}
}

// ours returns the module's packages that are for the product, or all of them. One that
// does not build is left to TestEverythingBuilds.
func ours(t *testing.T, withTests bool) []*listed {
	t.Helper()
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	var pkgs []*listed
	for _, p := range all {
		rel := p.rel()
		if rel == "" || len(p.GoFiles) == 0 || (!withTests && strings.HasPrefix(rel, "test/")) {
			continue
		}
		if p.Error != nil {
			continue
		}
		pkgs = append(pkgs, p)
	}
	return pkgs
}

func TestEverythingBuilds(t *testing.T) {
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.rel() != "" && p.Error != nil {
			t.Errorf("%s does not build, and the other tests do not look at it: %s", p.rel(), p.Error.Err)
		}
	}
}

// source is one parsed file.
type source struct {
	pkg  *listed
	path string // relative to the repository
	fset *token.FileSet
	file *ast.File
	text []byte
}

func parse(t *testing.T, p *listed) []source {
	t.Helper()
	fset := token.NewFileSet()
	var files []source
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, source{p, p.rel() + "/" + name, fset, file, text})
	}
	return files
}

// check type-checks a package against the compiled form of its dependencies.
func check(t *testing.T, files []source) (*types.Package, *types.Info) {
	t.Helper()
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	fset := files[0].fset
	lookup := func(path string) (io.ReadCloser, error) {
		i := slices.IndexFunc(all, func(p *listed) bool {
			return p.ImportPath == path || p.ImportPath == "vendor/"+path
		})
		if i < 0 || all[i].Export == "" {
			return nil, fmt.Errorf("no compiled form of %s", path)
		}
		return os.Open(all[i].Export)
	}
	var syntax []*ast.File
	for _, f := range files {
		syntax = append(syntax, f.file)
	}
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", lookup)}
	pkg, err := config.Check(files[0].pkg.ImportPath, fset, syntax, info)
	if err != nil {
		t.Errorf("%s: %v", files[0].pkg.rel(), err)
		return nil, nil
	}
	return pkg, info
}

// matches reports whether rel is one of the patterns: a path, or a path and "/..." for
// all below it and itself.
func matches(rel string, patterns ...string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		root, below := strings.CutSuffix(pattern, "/...")
		return rel == root || below && strings.HasPrefix(rel, root+"/")
	})
}

func TestMatches(t *testing.T) {
	for _, test := range []struct {
		rel, pattern string
		want         bool
	}{
		{"io/pump", "io/...", true}, {"io", "io/...", true}, {"iox", "io/...", false},
		{"oom", "oom", true}, {"oom/x", "oom", false},
	} {
		if got := matches(test.rel, test.pattern); got != test.want {
			t.Errorf("matches(%q, %q) = %v", test.rel, test.pattern, got)
		}
	}
}
