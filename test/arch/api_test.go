package arch

import (
	"go/types"
	"testing"
)

// The generated types change with the schema compiler; what engines compile against does
// not. So none of them may be reached from an exported name.
func TestNoGeneratedTypesInAPI(t *testing.T) {
	for _, p := range ours(t, false) {
		if !matches(p.rel(), "rpc/client", "rpc/conmon", "rpc/server", "rpc/rpctest") {
			continue
		}
		pkg, _ := check(t, parse(t, p))
		if pkg == nil {
			continue
		}
		w := walker{seen: map[types.Type]bool{}, home: pkg}
		for _, name := range pkg.Scope().Names() {
			obj := pkg.Scope().Lookup(name)
			if !obj.Exported() {
				continue
			}
			if found := w.find(obj.Type()); found != nil {
				t.Errorf("%s.%s: its exported signature reaches the generated type %s", p.rel(), name, found)
			}
		}
	}
}

// walker looks for generated types in what a user of a type can see of it.
type walker struct {
	seen map[types.Type]bool
	home *types.Package
}

func (w *walker) find(typ types.Type) types.Type {
	if typ == nil || w.seen[typ] {
		return nil
	}
	w.seen[typ] = true
	switch typ := typ.(type) {
	case *types.Alias:
		return w.find(types.Unalias(typ))
	case *types.Named:
		return w.findNamed(typ)
	case *types.Pointer:
		return w.find(typ.Elem())
	case *types.Slice:
		return w.find(typ.Elem())
	case *types.Array:
		return w.find(typ.Elem())
	case *types.Chan:
		return w.find(typ.Elem())
	case *types.Map:
		return w.first(typ.Key(), typ.Elem())
	case *types.Signature:
		return w.first(typ.Params(), typ.Results())
	case *types.Tuple:
		for v := range typ.Variables() {
			if found := w.find(v.Type()); found != nil {
				return found
			}
		}
	case *types.Struct:
		for f := range typ.Fields() {
			if !f.Exported() {
				continue
			}
			if found := w.find(f.Type()); found != nil {
				return found
			}
		}
	case *types.Interface:
		for m := range typ.Methods() {
			if found := w.find(m.Type()); found != nil {
				return found
			}
		}
	}
	return nil
}

func (w *walker) first(list ...types.Type) types.Type {
	for _, typ := range list {
		if found := w.find(typ); found != nil {
			return found
		}
	}
	return nil
}

func (w *walker) findNamed(typ *types.Named) types.Type {
	pkg := typ.Obj().Pkg()
	if pkg == nil {
		return nil // error and the like
	}
	if pkg.Path() == module+"/"+wirePkg {
		return typ
	}
	for arg := range typ.TypeArgs().Types() {
		if found := w.find(arg); found != nil {
			return found
		}
	}
	if pkg.Path() != w.home.Path() {
		return nil // its own package's business
	}
	for m := range typ.Methods() {
		if !m.Exported() {
			continue
		}
		if found := w.find(m.Type()); found != nil {
			return found
		}
	}
	return w.find(typ.Underlying())
}
