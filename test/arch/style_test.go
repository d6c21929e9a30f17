package arch

import (
	"bytes"
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var generatedLine = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

func TestGeneratedCodeStaysInWire(t *testing.T) {
	for _, p := range ours(t, true) {
		for _, src := range parse(t, p) {
			generated := generatedLine.Match(src.text)
			if generated && p.rel() != wirePkg {
				t.Errorf("%s is generated: only %s holds generated code", src.path, wirePkg)
			}
			if !generated && p.rel() == wirePkg && path.Base(src.path) != "doc.go" {
				t.Errorf("%s is written by hand: %s holds generated code and a doc.go only", src.path, wirePkg)
			}
		}
	}
}

func TestPackageNames(t *testing.T) {
	empty := []string{"util", "utils", "common", "helpers", "misc", "base", "shared", "types", "io"}
	for _, p := range ours(t, true) {
		if slices.Contains(empty, p.Name) {
			t.Errorf("%s is named %s: a package is one noun that says what it wraps", p.rel(), p.Name)
		}
	}
}

func TestPackageDocs(t *testing.T) {
	for _, p := range ours(t, true) {
		if p.rel() == wirePkg {
			continue
		}
		var with []string
		for _, src := range parse(t, p) {
			if src.file.Doc != nil {
				with = append(with, src.path)
			}
		}
		switch {
		case len(with) == 0:
			t.Errorf("%s has no package comment", p.rel())
		case len(with) > 1:
			t.Errorf("%s has %d package comments, which go doc joins in file order: %s", p.rel(), len(with), strings.Join(with, ", "))
		}
	}
}

// longReason is how code says why it is longer than the limits.
var longReason = regexp.MustCompile(`//arch:long \S`)

func TestLength(t *testing.T) {
	const maxFile, maxFunc = 500, 60
	for _, p := range ours(t, false) {
		if p.rel() == wirePkg {
			continue
		}
		for _, src := range parse(t, p) {
			// A directive before the package clause is for the file, one in a function's comment for that.
			head := src.text[:src.fset.Position(src.file.Name.End()).Offset]
			if n := bytes.Count(src.text, []byte("\n")); n > maxFile && !longReason.Match(head) {
				t.Errorf("%s has %d lines: split it, or put //arch:long REASON before its package clause", src.path, n)
			}
			for _, decl := range src.file.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				if !ok || fn.Body == nil {
					continue
				}
				first, last := src.fset.Position(fn.Pos()).Line, src.fset.Position(fn.End()).Line
				if n := last - first + 1; n > maxFunc && !hasLongReason(fn.Doc) {
					t.Errorf("%s:%d: %s has %d lines: split it, or put //arch:long REASON into its comment", src.path, first, fn.Name.Name, n)
				}
			}
		}
	}
}

func hasLongReason(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return longReason.MatchString(c.Text) })
}

// The linker sets the variables of this package.
var stateAllowed = []string{"cmd/internal/version", wirePkg}

func TestNoInitFunctions(t *testing.T) {
	for _, p := range ours(t, false) {
		if matches(p.rel(), stateAllowed...) {
			continue
		}
		for _, src := range parse(t, p) {
			for _, decl := range src.file.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
					t.Errorf("%s:%d: init function: nothing starts by being linked", src.path, src.fset.Position(fn.Pos()).Line)
				}
			}
		}
	}
}

// TestNoPackageState finds variables of packages that change: those without a value, those
// whose type exists to change, and those that the package assigns to or takes the address of.
// Sentinel errors and tables that are only read pass.
func TestNoPackageState(t *testing.T) {
	for _, p := range ours(t, false) {
		if matches(p.rel(), stateAllowed...) {
			continue
		}
		files := parse(t, p)
		pkg, info := check(t, files)
		if pkg == nil {
			continue
		}
		report := func(src source, pos token.Pos, name, why string) {
			t.Errorf("%s:%d: package variable %s %s: state belongs to a value that someone owns", src.path, src.fset.Position(pos).Line, name, why)
		}
		for _, src := range files {
			for _, decl := range src.file.Decls {
				if gen, ok := decl.(*ast.GenDecl); ok && gen.Tok == token.VAR {
					checkVarDecl(src, gen, info, report)
				}
			}
			ast.Inspect(src.file, func(n ast.Node) bool {
				for _, target := range assigned(n) {
					id := rootIdent(target)
					if id == nil {
						continue
					}
					if v, ok := info.Uses[id].(*types.Var); ok && v.Parent() == pkg.Scope() {
						report(src, id.Pos(), id.Name, "is changed")
					}
				}
				return true
			})
		}
	}
}

func checkVarDecl(src source, gen *ast.GenDecl, info *types.Info, report func(source, token.Pos, string, string)) {
	for _, spec := range gen.Specs {
		vs, ok := spec.(*ast.ValueSpec)
		if !ok {
			continue
		}
		for _, id := range vs.Names {
			if id.Name == "_" {
				continue
			}
			if len(vs.Values) == 0 {
				report(src, id.Pos(), id.Name, "has no value")
				continue
			}
			if why := changing(info.Defs[id].Type()); why != "" {
				report(src, id.Pos(), id.Name, why)
			}
		}
	}
}

// changing says why a type only makes sense for state.
func changing(typ types.Type) string {
	if _, ok := typ.Underlying().(*types.Chan); ok {
		return "is a channel"
	}
	if ptr, ok := typ.(*types.Pointer); ok {
		typ = ptr.Elem()
	}
	if named, ok := typ.(*types.Named); ok && named.Obj().Pkg() != nil {
		if from := named.Obj().Pkg().Path(); from == "sync" || from == "sync/atomic" {
			return "is a " + from + "." + named.Obj().Name()
		}
	}
	return ""
}

// assigned returns the expressions that a node changes or lets others change.
func assigned(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			return n.Lhs
		}
	case *ast.IncDecStmt:
		return []ast.Expr{n.X}
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			return []ast.Expr{n.X}
		}
	case *ast.CallExpr:
		if fn, ok := n.Fun.(*ast.Ident); ok && (fn.Name == "delete" || fn.Name == "clear") {
			return n.Args[:1]
		}
	}
	return nil
}

// rootIdent is the variable in v, v.f, v[i] or (v).
func rootIdent(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}
