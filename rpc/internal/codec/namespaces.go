package codec

import (
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/internal/wire"
)

// EncodeCreateNamespacesRequest fills w from r.
func EncodeCreateNamespacesRequest(w wire.Conmon_CreateNamespacesRequest, r *conmon.CreateNamespacesRequest) error {
	var e encoder
	if len(r.Namespaces) > 0 {
		l, err := w.NewNamespaces(int32(len(r.Namespaces)))
		if err != nil {
			return err
		}
		for i, n := range r.Namespaces {
			l.Set(i, wire.Conmon_Namespace(n))
		}
	}
	e.texts(w.NewUidMappings, r.UIDMappings)
	e.texts(w.NewGidMappings, r.GIDMappings)
	e.text(w.SetBasePath, r.BasePath)
	e.text(w.SetPodId, r.PodID)
	e.metadata(w.NewMetadata, r.Metadata)
	return e.err
}

// DecodeCreateNamespacesRequest reads w.
func DecodeCreateNamespacesRequest(w wire.Conmon_CreateNamespacesRequest) (*conmon.CreateNamespacesRequest, error) {
	var d decoder
	r := &conmon.CreateNamespacesRequest{
		Namespaces:  d.namespaces("namespaces", w.Namespaces),
		UIDMappings: d.texts("uidMappings", w.UidMappings),
		GIDMappings: d.texts("gidMappings", w.GidMappings),
		BasePath:    d.text("basePath", w.BasePath),
		PodID:       d.text("podId", w.PodId),
		Metadata:    d.metadata(w.Metadata),
	}
	return r, d.err
}

func (d *decoder) namespaces(field string, get func() (wire.Conmon_Namespace_List, error)) []conmon.Namespace {
	l, n := open(d, field, get)
	if n == 0 {
		return nil
	}
	out := make([]conmon.Namespace, n)
	for i := range out {
		out[i] = enum[conmon.Namespace](d, at(field, i), l.At(i), knownNamespaces)
		if d.err != nil {
			return nil
		}
	}
	return out
}

// EncodeCreateNamespacesResponse fills w from r.
func EncodeCreateNamespacesResponse(w wire.Conmon_CreateNamespacesResponse, r *conmon.CreateNamespacesResponse) error {
	var e encoder
	if len(r.Namespaces) == 0 {
		return nil
	}
	l, err := w.NewNamespaces(int32(len(r.Namespaces)))
	if err != nil {
		return err
	}
	for i, n := range r.Namespaces {
		l.At(i).SetType(wire.Conmon_Namespace(n.Type))
		e.text(l.At(i).SetPath, n.Path)
	}
	return e.err
}

// DecodeCreateNamespacesResponse reads w.
func DecodeCreateNamespacesResponse(w wire.Conmon_CreateNamespacesResponse) (*conmon.CreateNamespacesResponse, error) {
	var d decoder
	l, n := open(&d, "namespaces", w.Namespaces)
	r := &conmon.CreateNamespacesResponse{}
	for i := range n {
		r.Namespaces = append(r.Namespaces, conmon.NamespacePath{
			Type: enum[conmon.Namespace](&d, at("namespaces", i)+".type", l.At(i).Type(), knownNamespaces),
			Path: d.rawText(at("namespaces", i)+".path", l.At(i).Path),
		})
		if d.err != nil {
			return nil, d.err
		}
	}
	return r, d.err
}
