package codec

import (
	"bytes"
	"fmt"
	"math"
	"time"

	"capnproto.org/go/capnp/v3"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/internal/wire"
)

// EncodeExecSyncRequest fills w from r.
func EncodeExecSyncRequest(w wire.Conmon_ExecSyncContainerRequest, r *conmon.ExecSyncRequest) error {
	var e encoder
	e.text(w.SetId, r.ID)
	w.SetTimeoutSec(encodeSeconds(r.Timeout))
	e.texts(w.NewCommand, r.Command)
	w.SetTerminal(r.Terminal)
	e.metadata(w.NewMetadata, r.Metadata)
	e.env(w.NewEnvVars, r.Env)
	w.SetCgroupManager(wire.Conmon_CgroupManager(r.CgroupManager))
	return e.err
}

// DecodeExecSyncRequest reads w.
func DecodeExecSyncRequest(w wire.Conmon_ExecSyncContainerRequest) (*conmon.ExecSyncRequest, error) {
	var d decoder
	r := &conmon.ExecSyncRequest{
		ID:            d.text("id", w.Id),
		Timeout:       decodeSeconds(w.TimeoutSec()),
		Command:       d.texts("command", w.Command),
		Terminal:      w.Terminal(),
		Metadata:      d.metadata(w.Metadata),
		Env:           d.env("envVars", w.EnvVars),
		CgroupManager: enum[conmon.CgroupManager](&d, "cgroupManager", w.CgroupManager(), knownCgroupManagers),
	}
	return r, d.err
}

// encodeSeconds rounds up, because a deadline must not turn into none and must not be early.
func encodeSeconds(d time.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	return uint64((d-1)/time.Second) + 1
}

// decodeSeconds clamps: some 292 years are as good as for ever.
func decodeSeconds(s uint64) time.Duration {
	if s > math.MaxInt64/uint64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(s) * time.Second
}

// ExecOutput is a collected stream. See server.Output.
type ExecOutput interface {
	Len() int
	CopyTo(dst []byte) int
}

// EncodeExecSyncResponse fills w. Each stream is copied once, straight into the message: an append-and-copy
// detour of up to 16 MiB per stream would stay in the daemon's memory figures for good. A nil stream is
// empty.
func EncodeExecSyncResponse(w wire.Conmon_ExecSyncContainerResponse, exitCode int32, timedOut bool, stdout, stderr ExecOutput) error {
	w.SetExitCode(exitCode)
	w.SetTimedOut(timedOut)
	if err := encodeOutput(capnp.Struct(w), stdoutPointer, stdout); err != nil {
		return err
	}
	return encodeOutput(capnp.Struct(w), stderrPointer, stderr)
}

// Pointer slots of the two streams. The generated setters take a slice that already holds everything.
const (
	stdoutPointer = 0
	stderrPointer = 1
)

func encodeOutput(w capnp.Struct, slot uint16, out ExecOutput) error {
	if out == nil || out.Len() == 0 {
		return nil
	}
	if out.Len() > conmon.MaxExecOutput {
		return fmt.Errorf("internal error: output of %d bytes", out.Len())
	}
	data, err := capnp.NewUInt8List(w.Segment(), int32(out.Len()))
	if err != nil {
		return err
	}
	out.CopyTo(data.ToPtr().Data())
	return w.SetPtr(slot, data.ToPtr())
}

// DecodeExecSyncResponse reads w. The streams are copied, so that the message can be released.
func DecodeExecSyncResponse(w wire.Conmon_ExecSyncContainerResponse) (*conmon.ExecSyncResponse, error) {
	stdout, err := w.Stdout()
	if err != nil {
		return nil, &conmon.InvalidError{Field: "stdout", Reason: "cannot be read: " + err.Error()}
	}
	stderr, err := w.Stderr()
	if err != nil {
		return nil, &conmon.InvalidError{Field: "stderr", Reason: "cannot be read: " + err.Error()}
	}
	return &conmon.ExecSyncResponse{
		ExitCode: w.ExitCode(),
		TimedOut: w.TimedOut(),
		Stdout:   bytes.Clone(stdout),
		Stderr:   bytes.Clone(stderr),
	}, nil
}
