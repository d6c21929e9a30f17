package codec

import (
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/internal/wire"
)

// EncodeStartFDSocketRequest fills w from r.
func EncodeStartFDSocketRequest(w wire.Conmon_StartFdSocketRequest, r *conmon.StartFDSocketRequest) error {
	var e encoder
	e.metadata(w.NewMetadata, r.Metadata)
	return e.err
}

// DecodeStartFDSocketRequest reads w.
func DecodeStartFDSocketRequest(w wire.Conmon_StartFdSocketRequest) (*conmon.StartFDSocketRequest, error) {
	var d decoder
	r := &conmon.StartFDSocketRequest{Metadata: d.metadata(w.Metadata)}
	return r, d.err
}

// EncodeStartFDSocketResponse fills w from r.
func EncodeStartFDSocketResponse(w wire.Conmon_StartFdSocketResponse, r *conmon.StartFDSocketResponse) error {
	return w.SetPath(r.Path)
}

// DecodeStartFDSocketResponse reads w.
func DecodeStartFDSocketResponse(w wire.Conmon_StartFdSocketResponse) (*conmon.StartFDSocketResponse, error) {
	var d decoder
	r := &conmon.StartFDSocketResponse{Path: d.text("path", w.Path)}
	return r, d.err
}

// EncodeServeExecRequest fills w from r.
func EncodeServeExecRequest(w wire.Conmon_ServeExecContainerRequest, r *conmon.ServeExecRequest) error {
	var e encoder
	e.metadata(w.NewMetadata, r.Metadata)
	e.text(w.SetId, r.ID)
	e.texts(w.NewCommand, r.Command)
	w.SetTty(r.TTY)
	w.SetStdin(r.Stdin)
	w.SetStdout(r.Stdout)
	w.SetStderr(r.Stderr)
	w.SetCgroupManager(wire.Conmon_CgroupManager(r.CgroupManager))
	return e.err
}

// DecodeServeExecRequest reads w.
func DecodeServeExecRequest(w wire.Conmon_ServeExecContainerRequest) (*conmon.ServeExecRequest, error) {
	var d decoder
	r := &conmon.ServeExecRequest{
		Metadata:      d.metadata(w.Metadata),
		ID:            d.text("id", w.Id),
		Command:       d.texts("command", w.Command),
		TTY:           w.Tty(),
		Stdin:         w.Stdin(),
		Stdout:        w.Stdout(),
		Stderr:        w.Stderr(),
		CgroupManager: enum[conmon.CgroupManager](&d, "cgroupManager", w.CgroupManager(), knownCgroupManagers),
	}
	return r, d.err
}

// EncodeServeAttachRequest fills w from r.
func EncodeServeAttachRequest(w wire.Conmon_ServeAttachContainerRequest, r *conmon.ServeAttachRequest) error {
	var e encoder
	e.metadata(w.NewMetadata, r.Metadata)
	e.text(w.SetId, r.ID)
	w.SetStdin(r.Stdin)
	w.SetStdout(r.Stdout)
	w.SetStderr(r.Stderr)
	return e.err
}

// DecodeServeAttachRequest reads w.
func DecodeServeAttachRequest(w wire.Conmon_ServeAttachContainerRequest) (*conmon.ServeAttachRequest, error) {
	var d decoder
	r := &conmon.ServeAttachRequest{
		Metadata: d.metadata(w.Metadata),
		ID:       d.text("id", w.Id),
		Stdin:    w.Stdin(),
		Stdout:   w.Stdout(),
		Stderr:   w.Stderr(),
	}
	return r, d.err
}

// EncodeServePortForwardRequest fills w from r.
func EncodeServePortForwardRequest(w wire.Conmon_ServePortForwardContainerRequest, r *conmon.ServePortForwardRequest) error {
	var e encoder
	e.metadata(w.NewMetadata, r.Metadata)
	e.text(w.SetNetNsPath, r.NetNSPath)
	return e.err
}

// DecodeServePortForwardRequest reads w.
func DecodeServePortForwardRequest(w wire.Conmon_ServePortForwardContainerRequest) (*conmon.ServePortForwardRequest, error) {
	var d decoder
	r := &conmon.ServePortForwardRequest{
		Metadata:  d.metadata(w.Metadata),
		NetNSPath: d.text("netNsPath", w.NetNsPath),
	}
	return r, d.err
}

// serveResponse is what the three response types with a URL have in common.
type serveResponse interface {
	Url() (string, error)
	SetUrl(string) error
}

// EncodeServeResponse fills w, one of the three responses with a URL, from r.
func EncodeServeResponse[W serveResponse](w W, r *conmon.ServeResponse) error {
	return w.SetUrl(r.URL)
}

// DecodeServeResponse reads w, one of the three responses with a URL.
func DecodeServeResponse[W serveResponse](w W) (*conmon.ServeResponse, error) {
	var d decoder
	r := &conmon.ServeResponse{URL: d.rawText("url", w.Url)}
	return r, d.err
}
