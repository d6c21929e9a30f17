package codec

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"capnproto.org/go/capnp/v3"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/internal/wire"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// pair is one message type: how to make an empty one, and both directions.
type pair[W ~capnp.StructKind, T any] struct {
	size   capnp.ObjectSize
	encode func(W, *T) error
	decode func(W) (*T, error)
}

// trip encodes and decodes through bytes.
func (p pair[W, T]) trip(v *T) (*T, error) {
	msg, seg := capnp.NewSingleSegmentMessage(nil)
	s, err := capnp.NewRootStruct(seg, p.size)
	if err != nil {
		return nil, err
	}
	if err := p.encode(W(s), v); err != nil {
		return nil, err
	}
	b, err := msg.Marshal()
	if err != nil {
		return nil, err
	}
	root, err := rootOf(b)
	if err != nil {
		return nil, err
	}
	return p.decode(W(root))
}

// check does a round trip.
func (p pair[W, T]) check(t *testing.T, v *T) {
	t.Helper()
	got, err := p.trip(v)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("round trip of %T (-want +got):\n%s", v, diff)
	}
}

// tryBytes decodes what somebody sent, and if that works, does a round trip.
func (p pair[W, T]) tryBytes(t *testing.T, b []byte) {
	t.Helper()
	root, err := rootOf(b)
	if err != nil {
		return
	}
	v, err := p.decode(W(root))
	if err != nil {
		if invalid := (*conmon.InvalidError)(nil); !errors.As(err, &invalid) || invalid.Field == "" {
			t.Errorf("error without a field: %v", err)
		}
		return
	}
	p.check(t, v)
}

// bytesTrier is a pair whatever its types.
type bytesTrier interface{ tryBytes(*testing.T, []byte) }

func rootOf(b []byte) (capnp.Struct, error) {
	msg, err := capnp.Unmarshal(b)
	if err != nil {
		return capnp.Struct{}, err
	}
	root, err := msg.Root()
	return root.Struct(), err
}

func size(data, pointers uint16) capnp.ObjectSize {
	return capnp.ObjectSize{DataSize: capnp.Size(data), PointerCount: pointers}
}

var (
	versionRequest    = pair[wire.Conmon_VersionRequest, conmon.VersionRequest]{size(8, 1), EncodeVersionRequest, DecodeVersionRequest}
	versionResponse   = pair[wire.Conmon_VersionResponse, conmon.VersionResponse]{size(8, 8), EncodeVersionResponse, DecodeVersionResponse}
	createRequest     = pair[wire.Conmon_CreateContainerRequest, conmon.CreateContainerRequest]{size(8, 13), EncodeCreateContainerRequest, DecodeCreateContainerRequest}
	createResponse    = pair[wire.Conmon_CreateContainerResponse, conmon.CreateContainerResponse]{size(8, 0), EncodeCreateContainerResponse, DecodeCreateContainerResponse}
	execRequest       = pair[wire.Conmon_ExecSyncContainerRequest, conmon.ExecSyncRequest]{size(16, 4), EncodeExecSyncRequest, DecodeExecSyncRequest}
	execResponse      = pair[wire.Conmon_ExecSyncContainerResponse, conmon.ExecSyncResponse]{size(8, 2), encodeExecBytes, DecodeExecSyncResponse}
	attachRequest     = pair[wire.Conmon_AttachRequest, conmon.AttachRequest]{size(8, 4), EncodeAttachRequest, DecodeAttachRequest}
	reopenRequest     = pair[wire.Conmon_ReopenLogRequest, conmon.ReopenLogRequest]{size(0, 2), EncodeReopenLogRequest, DecodeReopenLogRequest}
	resizeRequest     = pair[wire.Conmon_SetWindowSizeRequest, conmon.SetWindowSizeRequest]{size(8, 2), EncodeSetWindowSizeRequest, DecodeSetWindowSizeRequest}
	namespaceRequest  = pair[wire.Conmon_CreateNamespacesRequest, conmon.CreateNamespacesRequest]{size(0, 6), EncodeCreateNamespacesRequest, DecodeCreateNamespacesRequest}
	namespaceResponse = pair[wire.Conmon_CreateNamespacesResponse, conmon.CreateNamespacesResponse]{size(0, 1), EncodeCreateNamespacesResponse, DecodeCreateNamespacesResponse}
	fdRequest         = pair[wire.Conmon_StartFdSocketRequest, conmon.StartFDSocketRequest]{size(0, 1), EncodeStartFDSocketRequest, DecodeStartFDSocketRequest}
	fdResponse        = pair[wire.Conmon_StartFdSocketResponse, conmon.StartFDSocketResponse]{size(0, 1), EncodeStartFDSocketResponse, DecodeStartFDSocketResponse}
	serveExecRequest  = pair[wire.Conmon_ServeExecContainerRequest, conmon.ServeExecRequest]{size(8, 3), EncodeServeExecRequest, DecodeServeExecRequest}
	serveAttach       = pair[wire.Conmon_ServeAttachContainerRequest, conmon.ServeAttachRequest]{size(8, 2), EncodeServeAttachRequest, DecodeServeAttachRequest}
	serveForward      = pair[wire.Conmon_ServePortForwardContainerRequest, conmon.ServePortForwardRequest]{size(0, 2), EncodeServePortForwardRequest, DecodeServePortForwardRequest}
	serveResponses    = pair[wire.Conmon_ServeExecContainerResponse, conmon.ServeResponse]{size(0, 1), EncodeServeResponse[wire.Conmon_ServeExecContainerResponse], DecodeServeResponse[wire.Conmon_ServeExecContainerResponse]}
)

type testOutput []byte

func (o testOutput) Len() int              { return len(o) }
func (o testOutput) CopyTo(dst []byte) int { return copy(dst, o) }

func encodeExecBytes(w wire.Conmon_ExecSyncContainerResponse, r *conmon.ExecSyncResponse) error {
	return EncodeExecSyncResponse(w, r.ExitCode, r.TimedOut, testOutput(r.Stdout), testOutput(r.Stderr))
}

func TestRoundTrip(t *testing.T) {
	meta := map[string]string{"traceparent": "00-1-2-03", "": "empty key", "NUL": "a\x00b"}
	env := []conmon.EnvVar{{Key: "B", Value: "2"}, {Key: "A", Value: ""}, {Key: "B", Value: "again=3"}}
	versionRequest.check(t, &conmon.VersionRequest{Verbose: true, Metadata: meta})
	versionResponse.check(t, &conmon.VersionResponse{
		ProcessID: math.MaxUint32, Version: "1", Tag: "2", Commit: "3", BuildDate: "4", Target: "5",
		RustVersion: "6", CargoVersion: "7", CargoTree: "8",
	})
	createRequest.check(t, &conmon.CreateContainerRequest{
		ID: "id", BundlePath: "/b", Terminal: true, Stdin: true, ExitPaths: []string{"/e1", "/e2"}, OOMExitPaths: []string{"/o"},
		LogDrivers: []conmon.LogDriver{
			{Type: conmon.LogDriverJSON, Path: "/l", MaxSize: math.MaxUint64}, {Type: conmon.LogDriverJournald}, {Path: "/c"},
		},
		CleanupCommand: []string{"c", ""}, GlobalArgs: []string{"g"}, CommandArgs: []string{"a", "b", "\xff\xfe"}, Env: env,
		CgroupManager: conmon.CgroupManagerCgroupfs, AdditionalFDs: []uint64{1, math.MaxUint64}, LeakFDs: []uint64{7},
		SdNotifySocket: "/run/n", Metadata: meta,
	})
	createRequest.check(t, &conmon.CreateContainerRequest{SdNotifySocket: "\x00abstract"})
	createResponse.check(t, &conmon.CreateContainerResponse{ContainerPID: 42})
	execRequest.check(t, &conmon.ExecSyncRequest{
		ID: "id", Timeout: 3 * time.Second, Command: []string{"sh", "-c", ""}, Terminal: true, Env: env,
		CgroupManager: conmon.CgroupManagerCgroupfs, Metadata: meta,
	})
	execResponse.check(t, &conmon.ExecSyncResponse{ExitCode: -3, TimedOut: true, Stdout: []byte("a\x00b"), Stderr: []byte{0xff}})
	attachRequest.check(t, &conmon.AttachRequest{ID: "i", SocketPath: "/s", ExecSessionID: "e", StopAfterStdinEOF: true, Metadata: meta})
	reopenRequest.check(t, &conmon.ReopenLogRequest{ID: "i", Metadata: meta})
	resizeRequest.check(t, &conmon.SetWindowSizeRequest{ID: "i", WindowSize: conmon.WindowSize{Width: 65535, Height: 24}, Metadata: meta})
	namespaceRequest.check(t, &conmon.CreateNamespacesRequest{
		Namespaces:  []conmon.Namespace{conmon.NamespaceUTS, conmon.NamespaceIPC, conmon.NamespacePID, conmon.NamespaceNet, conmon.NamespaceUser},
		UIDMappings: []string{"0 0 1"}, GIDMappings: []string{"0 1 2", "3 4 5"}, BasePath: "/p", PodID: "pod", Metadata: meta,
	})
	namespaceResponse.check(t, &conmon.CreateNamespacesResponse{Namespaces: []conmon.NamespacePath{{Type: conmon.NamespaceUser, Path: "/u"}, {}}})
	fdRequest.check(t, &conmon.StartFDSocketRequest{Metadata: meta})
	fdResponse.check(t, &conmon.StartFDSocketResponse{Path: "/f"})
	serveExecRequest.check(t, &conmon.ServeExecRequest{
		ID: "i", Command: []string{"x"}, TTY: true, Stdin: true, Stdout: true, Stderr: true,
		CgroupManager: conmon.CgroupManagerCgroupfs, Metadata: meta,
	})
	serveAttach.check(t, &conmon.ServeAttachRequest{ID: "i", Stdin: true, Stdout: true, Stderr: true, Metadata: meta})
	serveForward.check(t, &conmon.ServePortForwardRequest{NetNSPath: "/n", Metadata: meta})
	serveResponses.check(t, &conmon.ServeResponse{URL: "http://127.0.0.1:1/exec/x"})
}

// Booleans next to each other are easily mixed up, so each is set alone.
func TestRoundTripEachFlag(t *testing.T) {
	serveExecRequest.check(t, &conmon.ServeExecRequest{TTY: true})
	serveExecRequest.check(t, &conmon.ServeExecRequest{Stdin: true})
	serveExecRequest.check(t, &conmon.ServeExecRequest{Stdout: true})
	serveExecRequest.check(t, &conmon.ServeExecRequest{Stderr: true})
	serveAttach.check(t, &conmon.ServeAttachRequest{Stdin: true})
	serveAttach.check(t, &conmon.ServeAttachRequest{Stdout: true})
	serveAttach.check(t, &conmon.ServeAttachRequest{Stderr: true})
	createRequest.check(t, &conmon.CreateContainerRequest{Terminal: true})
	createRequest.check(t, &conmon.CreateContainerRequest{Stdin: true})
}

// A message of an old client is shorter, and an empty one has nothing at all.
func TestAbsentReadsAsEmpty(t *testing.T) {
	_, seg := capnp.NewSingleSegmentMessage(nil)
	s, err := capnp.NewRootStruct(seg, capnp.ObjectSize{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeCreateContainerRequest(wire.Conmon_CreateContainerRequest(s))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&conmon.CreateContainerRequest{}, got); diff != "" {
		t.Error(diff)
	}
	got, err = DecodeCreateContainerRequest(wire.Conmon_CreateContainerRequest{})
	if err != nil || got.ID != "" {
		t.Errorf("null struct: %v, %v", got, err)
	}
}

func TestInvalid(t *testing.T) {
	create := func(r conmon.CreateContainerRequest) func() error {
		return func() error { _, err := createRequest.trip(&r); return err }
	}
	exec := func(r conmon.ExecSyncRequest) func() error {
		return func() error { _, err := execRequest.trip(&r); return err }
	}
	for _, tc := range []struct {
		field string
		trip  func() error
	}{
		{"id", create(conmon.CreateContainerRequest{ID: "a\x00"})},
		{"bundlePath", create(conmon.CreateContainerRequest{BundlePath: "/a\x00b"})},
		{"exitPaths[1]", create(conmon.CreateContainerRequest{ExitPaths: []string{"", "\x00"}})},
		{"oomExitPaths[0]", create(conmon.CreateContainerRequest{OOMExitPaths: []string{"x\x00y"}})},
		{"logDrivers[1].path", create(conmon.CreateContainerRequest{LogDrivers: []conmon.LogDriver{{}, {Path: "\x00"}}})},
		{"logDrivers[0].type", create(conmon.CreateContainerRequest{LogDrivers: []conmon.LogDriver{{Type: 3}}})},
		{"cleanupCmd[0]", create(conmon.CreateContainerRequest{CleanupCommand: []string{"\x00"}})},
		{"globalArgs[0]", create(conmon.CreateContainerRequest{GlobalArgs: []string{"\x00"}})},
		{"commandArgs[0]", create(conmon.CreateContainerRequest{CommandArgs: []string{"\x00"}})},
		{"envVars[0].key", create(conmon.CreateContainerRequest{Env: []conmon.EnvVar{{Key: "A\x00"}}})},
		{"envVars[0].key", create(conmon.CreateContainerRequest{Env: []conmon.EnvVar{{Key: "A=B"}}})},
		{"envVars[0].key", create(conmon.CreateContainerRequest{Env: []conmon.EnvVar{{Value: "x"}}})},
		{"envVars[1].value", create(conmon.CreateContainerRequest{Env: []conmon.EnvVar{{Key: "A"}, {Key: "B", Value: "\x00"}}})},
		{"cgroupManager", create(conmon.CreateContainerRequest{CgroupManager: 2})},
		{"cgroupManager", exec(conmon.ExecSyncRequest{CgroupManager: 65535})},
		{"command[0]", exec(conmon.ExecSyncRequest{Command: []string{"\x00"}})},
		{"socketPath", func() error { _, err := attachRequest.trip(&conmon.AttachRequest{SocketPath: "\x00"}); return err }},
		{"id", func() error { _, err := reopenRequest.trip(&conmon.ReopenLogRequest{ID: "\x00"}); return err }},
		{"id", func() error { _, err := resizeRequest.trip(&conmon.SetWindowSizeRequest{ID: "\x00"}); return err }},
		{"namespaces[0]", func() error {
			_, err := namespaceRequest.trip(&conmon.CreateNamespacesRequest{Namespaces: []conmon.Namespace{5}})
			return err
		}},
		{"podId", func() error {
			_, err := namespaceRequest.trip(&conmon.CreateNamespacesRequest{PodID: "\x00"})
			return err
		}},
		{"command[1]", func() error {
			_, err := serveExecRequest.trip(&conmon.ServeExecRequest{Command: []string{"", "\x00"}})
			return err
		}},
		{"netNsPath", func() error {
			_, err := serveForward.trip(&conmon.ServePortForwardRequest{NetNSPath: "\x00"})
			return err
		}},
	} {
		t.Run(tc.field, func(t *testing.T) {
			err := tc.trip()
			var invalid *conmon.InvalidError
			if !errors.As(err, &invalid) || invalid.Field != tc.field {
				t.Fatalf("got %v, want a complaint about %s", err, tc.field)
			}
			if !strings.Contains(err.Error(), tc.field) {
				t.Errorf("text %q does not name %s", err, tc.field)
			}
		})
	}
}

// A list of empty elements costs nothing on the wire, whatever its length.
func TestListBomb(t *testing.T) {
	_, seg := capnp.NewSingleSegmentMessage(nil)
	s, err := capnp.NewRootStruct(seg, size(16, 4))
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]int32{"too many": MaxListLen + 1, "half a billion": 1<<29 - 1} {
		if err := s.SetPtr(1, capnp.NewVoidList(seg, n).ToPtr()); err != nil {
			t.Fatal(err)
		}
		_, err := DecodeExecSyncRequest(wire.Conmon_ExecSyncContainerRequest(s))
		var invalid *conmon.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "command" {
			t.Errorf("%s: got %v, want a complaint about command", name, err)
		}
	}
}

func TestSeconds(t *testing.T) {
	for _, tc := range []struct {
		d    time.Duration
		want uint64
	}{
		{-time.Second, 0}, {0, 0}, {1, 1}, {time.Second, 1}, {time.Second + 1, 2}, {1500 * time.Millisecond, 2}, {math.MaxInt64, 9223372037},
	} {
		if got := encodeSeconds(tc.d); got != tc.want {
			t.Errorf("%v is %d s, want %d", tc.d, got, tc.want)
		}
	}
	for _, tc := range []struct {
		s    uint64
		want time.Duration
	}{
		{0, 0}, {1, time.Second}, {9223372036, 9223372036 * time.Second}, {9223372037, math.MaxInt64}, {math.MaxUint64, math.MaxInt64},
	} {
		if got := decodeSeconds(tc.s); got != tc.want {
			t.Errorf("%d s is %v, want %v", tc.s, got, tc.want)
		}
	}
}

func TestOutputTooLarge(t *testing.T) {
	_, err := execResponse.trip(&conmon.ExecSyncResponse{Stdout: make([]byte, conmon.MaxExecOutput+1)})
	if err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("got %v", err)
	}
}

// FuzzDecode decodes arbitrary bytes as every message. Nothing may panic, errors name a field, and what was
// understood survives a round trip.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	pairs := []bytesTrier{
		versionRequest, versionResponse, createRequest, createResponse, execRequest, execResponse, attachRequest, reopenRequest,
		resizeRequest, namespaceRequest, namespaceResponse, fdRequest, fdResponse, serveExecRequest, serveAttach, serveForward, serveResponses,
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, p := range pairs {
			p.tryBytes(t, b)
		}
	})
}

// seeds are real messages with everything in them.
func seeds(f *testing.F) [][]byte {
	var out [][]byte
	add := func(size capnp.ObjectSize, encode func(capnp.Struct) error) {
		msg, seg := capnp.NewMultiSegmentMessage(nil)
		s, err := capnp.NewRootStruct(seg, size)
		if err == nil {
			err = encode(s)
		}
		if err != nil {
			f.Fatal(err)
		}
		b, err := msg.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		out = append(out, b)
	}
	add(createRequest.size, func(s capnp.Struct) error {
		return EncodeCreateContainerRequest(wire.Conmon_CreateContainerRequest(s), &conmon.CreateContainerRequest{
			ID: "id", BundlePath: "/b", Terminal: true, ExitPaths: []string{"/e"}, OOMExitPaths: []string{"/o"},
			LogDrivers: []conmon.LogDriver{{Type: conmon.LogDriverJSON, Path: "/l", MaxSize: 5}}, CleanupCommand: []string{"c"},
			GlobalArgs: []string{"g"}, CommandArgs: []string{"a"}, Env: []conmon.EnvVar{{Key: "K", Value: "V"}},
			AdditionalFDs: []uint64{1}, LeakFDs: []uint64{2}, SdNotifySocket: "/n", Metadata: map[string]string{"m": "n"},
		})
	})
	add(execRequest.size, func(s capnp.Struct) error {
		return EncodeExecSyncRequest(wire.Conmon_ExecSyncContainerRequest(s), &conmon.ExecSyncRequest{
			ID: "id", Timeout: time.Second, Command: []string{"x", "y"}, Metadata: map[string]string{"m": "n"},
		})
	})
	add(namespaceRequest.size, func(s capnp.Struct) error {
		return EncodeCreateNamespacesRequest(wire.Conmon_CreateNamespacesRequest(s), &conmon.CreateNamespacesRequest{
			Namespaces: []conmon.Namespace{1, 2}, UIDMappings: []string{"0 0 1"}, BasePath: "/p", PodID: "p",
		})
	})
	return out
}
