package codec

import (
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/internal/wire"
)

// EncodeAttachRequest fills w from r.
func EncodeAttachRequest(w wire.Conmon_AttachRequest, r *conmon.AttachRequest) error {
	var e encoder
	e.text(w.SetId, r.ID)
	e.text(w.SetSocketPath, r.SocketPath)
	e.text(w.SetExecSessionId, r.ExecSessionID)
	w.SetStopAfterStdinEof(r.StopAfterStdinEOF)
	e.metadata(w.NewMetadata, r.Metadata)
	return e.err
}

// DecodeAttachRequest reads w.
func DecodeAttachRequest(w wire.Conmon_AttachRequest) (*conmon.AttachRequest, error) {
	var d decoder
	r := &conmon.AttachRequest{
		ID:                d.text("id", w.Id),
		SocketPath:        d.text("socketPath", w.SocketPath),
		ExecSessionID:     d.text("execSessionId", w.ExecSessionId),
		StopAfterStdinEOF: w.StopAfterStdinEof(),
		Metadata:          d.metadata(w.Metadata),
	}
	return r, d.err
}

// EncodeReopenLogRequest fills w from r.
func EncodeReopenLogRequest(w wire.Conmon_ReopenLogRequest, r *conmon.ReopenLogRequest) error {
	var e encoder
	e.text(w.SetId, r.ID)
	e.metadata(w.NewMetadata, r.Metadata)
	return e.err
}

// DecodeReopenLogRequest reads w.
func DecodeReopenLogRequest(w wire.Conmon_ReopenLogRequest) (*conmon.ReopenLogRequest, error) {
	var d decoder
	r := &conmon.ReopenLogRequest{
		ID:       d.text("id", w.Id),
		Metadata: d.metadata(w.Metadata),
	}
	return r, d.err
}

// EncodeSetWindowSizeRequest fills w from r.
func EncodeSetWindowSizeRequest(w wire.Conmon_SetWindowSizeRequest, r *conmon.SetWindowSizeRequest) error {
	var e encoder
	e.text(w.SetId, r.ID)
	w.SetWidth(r.Width)
	w.SetHeight(r.Height)
	e.metadata(w.NewMetadata, r.Metadata)
	return e.err
}

// DecodeSetWindowSizeRequest reads w.
func DecodeSetWindowSizeRequest(w wire.Conmon_SetWindowSizeRequest) (*conmon.SetWindowSizeRequest, error) {
	var d decoder
	r := &conmon.SetWindowSizeRequest{
		ID:         d.text("id", w.Id),
		WindowSize: conmon.WindowSize{Width: w.Width(), Height: w.Height()},
		Metadata:   d.metadata(w.Metadata),
	}
	return r, d.err
}
