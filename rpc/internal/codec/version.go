package codec

import (
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/internal/wire"
)

// EncodeVersionRequest fills w from r.
func EncodeVersionRequest(w wire.Conmon_VersionRequest, r *conmon.VersionRequest) error {
	var e encoder
	w.SetVerbose(r.Verbose)
	e.metadata(w.NewMetadata, r.Metadata)
	return e.err
}

// DecodeVersionRequest reads w.
func DecodeVersionRequest(w wire.Conmon_VersionRequest) (*conmon.VersionRequest, error) {
	var d decoder
	r := &conmon.VersionRequest{
		Verbose:  w.Verbose(),
		Metadata: d.metadata(w.Metadata),
	}
	return r, d.err
}

// EncodeVersionResponse fills w from r.
func EncodeVersionResponse(w wire.Conmon_VersionResponse, r *conmon.VersionResponse) error {
	var e encoder
	w.SetProcessId(r.ProcessID)
	e.text(w.SetVersion, r.Version)
	e.text(w.SetTag, r.Tag)
	e.text(w.SetCommit, r.Commit)
	e.text(w.SetBuildDate, r.BuildDate)
	e.text(w.SetTarget, r.Target)
	e.text(w.SetRustVersion, r.RustVersion)
	e.text(w.SetCargoVersion, r.CargoVersion)
	e.text(w.SetCargoTree, r.CargoTree)
	return e.err
}

// DecodeVersionResponse reads w.
func DecodeVersionResponse(w wire.Conmon_VersionResponse) (*conmon.VersionResponse, error) {
	var d decoder
	r := &conmon.VersionResponse{
		ProcessID:    w.ProcessId(),
		Version:      d.rawText("version", w.Version),
		Tag:          d.rawText("tag", w.Tag),
		Commit:       d.rawText("commit", w.Commit),
		BuildDate:    d.rawText("buildDate", w.BuildDate),
		Target:       d.rawText("target", w.Target),
		RustVersion:  d.rawText("rustVersion", w.RustVersion),
		CargoVersion: d.rawText("cargoVersion", w.CargoVersion),
		CargoTree:    d.rawText("cargoTree", w.CargoTree),
	}
	return r, d.err
}
