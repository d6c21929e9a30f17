# The interface between an engine and the monitor of a pod.
#
# What must never change: the file id, the name of the interface, the order of the methods, and the
# ordinal and type of every field. All other ids are derived from these; rpc/internal/wire has a test
# that compares each id, ordinal and slot with a literal table. New fields are appended.
@0xffaaf7385bc4adad;

using Go = import "/go.capnp";
$Go.package("wire");
$Go.import("github.com/conmonrs/conmonrs/rpc/internal/wire");

interface Conmon {
  # Retired fields: "metadataOld", and "metadata" of VersionResponse, carried data before 1.0. They keep
  # their ordinals and take no space. Never give these ordinals another type.

  using Metadata = TextTextMap;
  # Trace propagation only; absent unless tracing is on.

  using TextTextMap = List(TextTextMapEntry);

  struct TextTextMapEntry {
    key @0 :Text;
    value @1 :Text;
  }

  enum CgroupManager {
    systemd @0;
    cgroupfs @1;
  }

  # version

  struct VersionRequest {
    verbose @0 :Bool;
    metadataOld @1 :Void;
    metadata @2 :Metadata;
  }

  struct VersionResponse {
    processId @0 :UInt32;
    version @1 :Text;
    tag @2 :Text;
    commit @3 :Text;
    buildDate @4 :Text;
    target @5 :Text;
    rustVersion @6 :Text;
    cargoVersion @7 :Text;
    cargoTree @8 :Text;
    metadata @9 :Void;
  }

  version @0 (request :VersionRequest) -> (response :VersionResponse);

  # createContainer

  struct CreateContainerRequest {
    id @0 :Text;
    bundlePath @1 :Text;
    terminal @2 :Bool;
    stdin @3 :Bool;
    exitPaths @4 :List(Text);
    oomExitPaths @5 :List(Text);
    logDrivers @6 :List(LogDriver);
    cleanupCmd @7 :List(Text);
    globalArgs @8 :List(Text);
    commandArgs @9 :List(Text);
    metadataOld @10 :Void;
    metadata @11 :Metadata;
    envVars @12 :TextTextMap;
    cgroupManager @13 :CgroupManager;
    additionalFds @14 :List(UInt64);
    leakFds @15 :List(UInt64);
    sdnotifySocket @16 :Text;
  }

  struct LogDriver {
    enum Type {
      containerRuntimeInterface @0;
      json @1;
      journald @2;
    }

    type @0 :Type;
    path @1 :Text;
    maxSize @2 :UInt64;
  }

  struct CreateContainerResponse {
    containerPid @0 :UInt32;
  }

  createContainer @1 (request :CreateContainerRequest) -> (response :CreateContainerResponse);

  # execSyncContainer

  struct ExecSyncContainerRequest {
    id @0 :Text;
    timeoutSec @1 :UInt64;
    command @2 :List(Text);
    terminal @3 :Bool;
    metadataOld @4 :Void;
    metadata @5 :Metadata;
    envVars @6 :TextTextMap;
    cgroupManager @7 :CgroupManager;
  }

  struct ExecSyncContainerResponse {
    exitCode @0 :Int32;
    stdout @1 :Data;
    stderr @2 :Data;
    timedOut @3 :Bool;
  }

  execSyncContainer @2 (request :ExecSyncContainerRequest) -> (response :ExecSyncContainerResponse);

  # attachContainer

  struct AttachRequest {
    id @0 :Text;
    socketPath @1 :Text;
    execSessionId @2 :Text;
    stopAfterStdinEof @3 :Bool;
    metadataOld @4 :Void;
    metadata @5 :Metadata;
  }

  struct AttachResponse {}

  attachContainer @3 (request :AttachRequest) -> (response :AttachResponse);

  # reopenLogContainer

  struct ReopenLogRequest {
    id @0 :Text;
    metadataOld @1 :Void;
    metadata @2 :Metadata;
  }

  struct ReopenLogResponse {}

  reopenLogContainer @4 (request :ReopenLogRequest) -> (response :ReopenLogResponse);

  # setWindowSizeContainer

  struct SetWindowSizeRequest {
    id @0 :Text;
    width @1 :UInt16;
    height @2 :UInt16;
    metadataOld @3 :Void;
    metadata @4 :Metadata;
  }

  struct SetWindowSizeResponse {}

  setWindowSizeContainer @5 (request :SetWindowSizeRequest) -> (response :SetWindowSizeResponse);

  # createNamespaces

  enum Namespace {
    ipc @0;
    net @1;
    pid @2;
    user @3;
    uts @4;
  }

  struct CreateNamespacesRequest {
    metadataOld @0 :Void;
    namespaces @1 :List(Namespace);
    uidMappings @2 :List(Text);
    gidMappings @3 :List(Text);
    basePath @4 :Text;
    podId @5 :Text;
    metadata @6 :Metadata;
  }

  struct CreateNamespacesResponse {
    namespaces @0 :List(NamespaceResponse);
  }

  struct NamespaceResponse {
    type @0 :Namespace;
    path @1 :Text;
  }

  createNamespaces @6 (request :CreateNamespacesRequest) -> (response :CreateNamespacesResponse);

  # startFdSocket

  struct StartFdSocketRequest {
    metadata @0 :Metadata;
  }

  struct StartFdSocketResponse {
    path @0 :Text;
  }

  startFdSocket @7 (request :StartFdSocketRequest) -> (response :StartFdSocketResponse);

  # serveExecContainer

  struct ServeExecContainerRequest {
    metadata @0 :Metadata;
    id @1 :Text;
    command @2 :List(Text);
    tty @3 :Bool;
    stdin @4 :Bool;
    stdout @5 :Bool;
    stderr @6 :Bool;
    cgroupManager @7 :CgroupManager;
  }

  struct ServeExecContainerResponse {
    url @0 :Text;
  }

  serveExecContainer @8 (request :ServeExecContainerRequest) -> (response :ServeExecContainerResponse);

  # serveAttachContainer

  struct ServeAttachContainerRequest {
    metadata @0 :Metadata;
    id @1 :Text;
    stdin @2 :Bool;
    stdout @3 :Bool;
    stderr @4 :Bool;
  }

  struct ServeAttachContainerResponse {
    url @0 :Text;
  }

  serveAttachContainer @9 (request :ServeAttachContainerRequest) -> (response :ServeAttachContainerResponse);

  # servePortForwardContainer

  struct ServePortForwardContainerRequest {
    metadata @0 :Metadata;
    netNsPath @1 :Text;
  }

  struct ServePortForwardContainerResponse {
    url @0 :Text;
  }

  servePortForwardContainer @10 (request :ServePortForwardContainerRequest) -> (response :ServePortForwardContainerResponse);
}
