package wire_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"capnproto.org/go/capnp/v3"
	"capnproto.org/go/capnp/v3/std/capnp/schema"
	"github.com/conmonrs/conmonrs/rpc/internal/wire"
	"github.com/google/go-cmp/cmp"
)

// compiled is the schema as the compiler understands it.
type compiled struct {
	nodes map[uint64]schema.Node
	names map[uint64]string // without the names of file and interface
}

// TestSchema compares the schema with the tables: every id, ordinal, type, slot and size.
func TestSchema(t *testing.T) {
	c := compile(t)
	if wire.Conmon_TypeID != interfaceID {
		t.Errorf("generated interface id %#x, want %#x", uint64(wire.Conmon_TypeID), uint64(interfaceID))
	}
	if _, ok := c.nodes[fileID]; !ok {
		t.Errorf("no file with id %#x", uint64(fileID))
	}
	t.Run("methods", func(t *testing.T) { checkMethods(t, c) })
	t.Run("structs", func(t *testing.T) { checkStructs(t, c) })
	t.Run("fields", func(t *testing.T) { checkFields(t, c) })
	t.Run("enums", func(t *testing.T) { checkEnums(t, c) })
}

func checkMethods(t *testing.T, c *compiled) {
	iface, ok := c.nodes[interfaceID]
	if !ok || iface.Which() != schema.Node_Which_interface {
		t.Fatalf("no interface with id %#x", uint64(interfaceID))
	}
	methods := must(iface.Interface().Methods())
	if methods.Len() != len(methodTable) {
		t.Errorf("%d methods, want %d", methods.Len(), len(methodTable))
	}
	for i := range min(methods.Len(), len(methodTable)) {
		m, want := methods.At(i), methodTable[i]
		if got := must(m.Name()); got != want.name {
			t.Errorf("method %d is %s, want %s", i, got, want.name)
		}
		c.checkImplicit(t, want.name+" params", m.ParamStructType(), want.paramsID, "request", want.request)
		c.checkImplicit(t, want.name+" results", m.ResultStructType(), want.resultsID, "response", want.response)
	}
}

// checkImplicit checks a struct made by the compiler for the parameters or results of a method.
func (c *compiled) checkImplicit(t *testing.T, what string, id, wantID uint64, field, typ string) {
	t.Helper()
	if id != wantID {
		t.Errorf("%s have id %#x, want %#x", what, id, wantID)
	}
	n, ok := c.nodes[id]
	if !ok {
		t.Errorf("%s are not in the schema", what)
		return
	}
	got := append([]string{fmt.Sprint(n.StructNode().DataWordCount(), n.StructNode().PointerCount())}, c.fields(n)...)
	want := []string{"0 1", fmt.Sprintf("%s @0 %s p[0]", field, typ)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func checkStructs(t *testing.T, c *compiled) {
	known := map[uint64]bool{}
	for _, m := range methodTable {
		known[m.paramsID], known[m.resultsID] = true, true
	}
	for _, want := range structTable {
		known[want.id] = true
		n, ok := c.nodes[want.id]
		if !ok || n.Which() != schema.Node_Which_structNode {
			t.Errorf("no struct %s with id %#x", want.name, want.id)
			continue
		}
		if c.names[want.id] != want.name {
			t.Errorf("struct %#x is %s, want %s", want.id, c.names[want.id], want.name)
		}
		data, pointers := 8*int(n.StructNode().DataWordCount()), int(n.StructNode().PointerCount())
		if data != want.dataBytes || pointers != want.pointers {
			t.Errorf("%s has %d bytes and %d pointers, want %d and %d", want.name, data, pointers, want.dataBytes, want.pointers)
		}
	}
	for id, n := range c.nodes {
		if n.Which() == schema.Node_Which_structNode && !known[id] {
			t.Errorf("struct %s with id %#x is not in the table", c.names[id], id)
		}
	}
}

func checkFields(t *testing.T, c *compiled) {
	want := map[string][]string{}
	for _, f := range fieldTable {
		want[f.structName] = append(want[f.structName], fmt.Sprintf("%s @%d %s %s", f.name, f.ordinal, f.typ, f.slot))
	}
	for _, s := range structTable {
		if diff := cmp.Diff(want[s.name], c.fields(c.nodes[s.id])); diff != "" {
			t.Errorf("fields of %s (-want +got):\n%s", s.name, diff)
		}
	}
}

func checkEnums(t *testing.T, c *compiled) {
	known := map[uint64]bool{}
	for _, want := range enumTable {
		known[want.id] = true
		n, ok := c.nodes[want.id]
		if !ok || n.Which() != schema.Node_Which_enum || c.names[want.id] != want.name {
			t.Errorf("no enum %s with id %#x", want.name, want.id)
			continue
		}
		var got []string
		values := must(n.Enum().Enumerants())
		for i := range values.Len() {
			got = append(got, must(values.At(i).Name()))
		}
		if diff := cmp.Diff(want.values, got); diff != "" {
			t.Errorf("values of %s (-want +got):\n%s", want.name, diff)
		}
	}
	for id, n := range c.nodes {
		if n.Which() == schema.Node_Which_enum && !known[id] {
			t.Errorf("enum %s with id %#x is not in the table", c.names[id], id)
		}
	}
}

// fields describes the fields of a struct in order of their ordinals, as the table does.
func (c *compiled) fields(n schema.Node) []string {
	var out []string
	fields := must(n.StructNode().Fields())
	for i := range fields.Len() {
		f := fields.At(i)
		typ := must(f.Slot().Type())
		out = append(out, fmt.Sprintf("%s @%d %s %s", must(f.Name()), f.Ordinal().Explicit(), c.typeName(typ), slot(typ, f.Slot().Offset())))
	}
	return out
}

// width is the size of a type in bits; 0 means a pointer, and -1 nothing.
func width(t schema.Type) int {
	switch t.Which() {
	case schema.Type_Which_void:
		return -1
	case schema.Type_Which_bool:
		return 1
	case schema.Type_Which_uint16, schema.Type_Which_enum:
		return 16
	case schema.Type_Which_uint32, schema.Type_Which_int32:
		return 32
	case schema.Type_Which_uint64:
		return 64
	}
	return 0
}

func slot(t schema.Type, offset uint32) string {
	switch w := width(t); w {
	case -1:
		return "none"
	case 0:
		return fmt.Sprintf("p[%d]", offset)
	default:
		return fmt.Sprintf("b[%d,%d)", int(offset)*w, (int(offset)+1)*w)
	}
}

func (c *compiled) typeName(t schema.Type) string {
	switch t.Which() {
	case schema.Type_Which_void:
		return "Void"
	case schema.Type_Which_bool:
		return "Bool"
	case schema.Type_Which_uint16:
		return "UInt16"
	case schema.Type_Which_uint32:
		return "UInt32"
	case schema.Type_Which_uint64:
		return "UInt64"
	case schema.Type_Which_int32:
		return "Int32"
	case schema.Type_Which_text:
		return "Text"
	case schema.Type_Which_data:
		return "Data"
	case schema.Type_Which_list:
		return "List(" + c.typeName(must(t.List().ElementType())) + ")"
	case schema.Type_Which_enum:
		return c.names[t.Enum().TypeId()]
	case schema.Type_Which_structType:
		return c.names[t.StructType().TypeId()]
	}
	return t.Which().String()
}

// compile runs the compiler and decodes what it would hand to a code generator.
func compile(t *testing.T) *compiled {
	t.Helper()
	if _, err := exec.LookPath("capnp"); err != nil {
		if os.Getenv("CI") == "true" || os.Getenv("CONMONRS_REQUIRE_ALL") == "1" {
			t.Fatal("capnp is not installed")
		}
		t.Skip("capnp is not installed")
	}
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "capnproto.org/go/capnp/v3").Output()
	if err != nil {
		t.Fatalf("find go-capnp: %v", err)
	}
	cmd := exec.Command("capnp", "compile", "-I"+strings.TrimSpace(string(dir))+"/std", "-o-", "conmon.capnp")
	cmd.Dir = "../.."
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("compile schema: %v: %s", err, stderr.String())
	}
	msg, err := capnp.Unmarshal(out)
	if err != nil {
		t.Fatal(err)
	}
	msg.TraverseLimit = 1 << 40 // reading it many times is not an attack
	req := must(schema.ReadRootCodeGeneratorRequest(msg))
	c := &compiled{nodes: map[uint64]schema.Node{}, names: map[uint64]string{}}
	nodes := must(req.Nodes())
	for i := range nodes.Len() {
		n := nodes.At(i)
		name := must(n.DisplayName())
		if !strings.HasPrefix(name, "conmon.capnp") {
			continue
		}
		_, name, _ = strings.Cut(name, ":Conmon")
		c.nodes[n.Id()] = n
		c.names[n.Id()] = strings.TrimPrefix(name, ".")
	}
	return c
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
