package wire_test

// The tables below are the contract with every client that exists. They are literals
// on purpose: nothing in them is computed from the schema. A difference is a mistake in the schema and never a
// reason to change a line here; fields that are appended get new lines.

const (
	fileID      = 0xffaaf7385bc4adad
	interfaceID = 0xb737e899dd6633f1
)

// methodTable lists the methods in order of their ordinals. Parameters and results are implicit structs with
// one pointer: request and response.
var methodTable = []struct {
	name, request, response string
	paramsID, resultsID     uint64
}{
	{"version", "VersionRequest", "VersionResponse", 0xcc2f70676afee4e7, 0xe313695ea9477b30},
	{"createContainer", "CreateContainerRequest", "CreateContainerResponse", 0xf44732c48f949ab8, 0xceba3c1a97be15f8},
	{"execSyncContainer", "ExecSyncContainerRequest", "ExecSyncContainerResponse", 0x83479da67279e173, 0xf8e86a5c0baa01bc},
	{"attachContainer", "AttachRequest", "AttachResponse", 0xaa2f3c8ad1c3af24, 0xc5e65eec3dcf5b10},
	{"reopenLogContainer", "ReopenLogRequest", "ReopenLogResponse", 0xe5ea916eb0c31336, 0xa0ef8355b64ee985},
	{"setWindowSizeContainer", "SetWindowSizeRequest", "SetWindowSizeResponse", 0xc76ccd4502bb61e7, 0xe00e522611477055},
	{"createNamespaces", "CreateNamespacesRequest", "CreateNamespacesResponse", 0x8b4c03a0662a38dc, 0x8aef91973dc8a4f5},
	{"startFdSocket", "StartFdSocketRequest", "StartFdSocketResponse", 0xce733f0914c80b6b, 0xf4e3e92ae0815f15},
	{"serveExecContainer", "ServeExecContainerRequest", "ServeExecContainerResponse", 0x90a3950a51412b8b, 0xdebaeed2a782ac80},
	{"serveAttachContainer", "ServeAttachContainerRequest", "ServeAttachContainerResponse", 0xa3cb406c522dcab1, 0xedd2e5b018f17bbb},
	{"servePortForwardContainer", "ServePortForwardContainerRequest", "ServePortForwardContainerResponse", 0x9d82529754851252, 0xae5e0ae5001ebdfe},
}

// structTable lists the structs with the sizes of their data and pointer sections. The thirteenth pointer of
// CreateContainerRequest is sdnotifySocket.
var structTable = []struct {
	name      string
	id        uint64
	dataBytes int
	pointers  int
}{
	{"VersionRequest", 0xad2a33d6b9304413, 8, 1},
	{"VersionResponse", 0xf34be5cbac1feed1, 8, 8},
	{"CreateContainerRequest", 0xba77e3fa3aa9b6ca, 8, 13},
	{"LogDriver", 0xae78ee8eb6b3a134, 16, 1},
	{"CreateContainerResponse", 0xde3a625e70772b9a, 8, 0},
	{"ExecSyncContainerRequest", 0xf41122f890a371a6, 16, 4},
	{"ExecSyncContainerResponse", 0xd9d61d1d803c85fc, 8, 2},
	{"AttachRequest", 0xdf703ca0befc3afc, 8, 4},
	{"AttachResponse", 0xace5517aafc86077, 0, 0},
	{"ReopenLogRequest", 0xd0476e0f34d1411a, 0, 2},
	{"ReopenLogResponse", 0xa20f49456be85b99, 0, 0},
	{"SetWindowSizeRequest", 0xb5418b8ea8ead17b, 8, 2},
	{"SetWindowSizeResponse", 0xf9b3cd8033aba1f8, 0, 0},
	{"CreateNamespacesRequest", 0x8b5b1693940f607e, 0, 6},
	{"CreateNamespacesResponse", 0x9887a60f577a1ecb, 0, 1},
	{"NamespaceResponse", 0xa93853d6a4e3fa16, 8, 1},
	{"StartFdSocketRequest", 0xba53ab87a688ec29, 0, 1},
	{"StartFdSocketResponse", 0xb62f418e0ae4e003, 0, 1},
	{"TextTextMapEntry", 0xfabbfdde6d4ad392, 0, 2},
	{"ServeExecContainerRequest", 0xd01c697281e61c21, 8, 3},
	{"ServeExecContainerResponse", 0xa9e93cf268b17735, 0, 1},
	{"ServeAttachContainerRequest", 0xca8c8e0d7826ae86, 8, 2},
	{"ServeAttachContainerResponse", 0x94a72d9a2ccb9a30, 0, 1},
	{"ServePortForwardContainerRequest", 0xc865d8a1122038c5, 0, 2},
	{"ServePortForwardContainerResponse", 0xf7507d1843e734e4, 0, 1},
}

// fieldTable lists every field: its struct, name, ordinal, type, and its place as bits [from, to) of the data
// section or as a pointer. A map is a list of TextTextMapEntry.
var fieldTable = []struct {
	structName, name string
	ordinal          int
	typ, slot        string
}{
	{"VersionRequest", "verbose", 0, "Bool", "b[0,1)"},
	{"VersionRequest", "metadataOld", 1, "Void", "none"},
	{"VersionRequest", "metadata", 2, "List(TextTextMapEntry)", "p[0]"},
	{"VersionResponse", "processId", 0, "UInt32", "b[0,32)"},
	{"VersionResponse", "version", 1, "Text", "p[0]"},
	{"VersionResponse", "tag", 2, "Text", "p[1]"},
	{"VersionResponse", "commit", 3, "Text", "p[2]"},
	{"VersionResponse", "buildDate", 4, "Text", "p[3]"},
	{"VersionResponse", "target", 5, "Text", "p[4]"},
	{"VersionResponse", "rustVersion", 6, "Text", "p[5]"},
	{"VersionResponse", "cargoVersion", 7, "Text", "p[6]"},
	{"VersionResponse", "cargoTree", 8, "Text", "p[7]"},
	{"VersionResponse", "metadata", 9, "Void", "none"},
	{"CreateContainerRequest", "id", 0, "Text", "p[0]"},
	{"CreateContainerRequest", "bundlePath", 1, "Text", "p[1]"},
	{"CreateContainerRequest", "terminal", 2, "Bool", "b[0,1)"},
	{"CreateContainerRequest", "stdin", 3, "Bool", "b[1,2)"},
	{"CreateContainerRequest", "exitPaths", 4, "List(Text)", "p[2]"},
	{"CreateContainerRequest", "oomExitPaths", 5, "List(Text)", "p[3]"},
	{"CreateContainerRequest", "logDrivers", 6, "List(LogDriver)", "p[4]"},
	{"CreateContainerRequest", "cleanupCmd", 7, "List(Text)", "p[5]"},
	{"CreateContainerRequest", "globalArgs", 8, "List(Text)", "p[6]"},
	{"CreateContainerRequest", "commandArgs", 9, "List(Text)", "p[7]"},
	{"CreateContainerRequest", "metadataOld", 10, "Void", "none"},
	{"CreateContainerRequest", "metadata", 11, "List(TextTextMapEntry)", "p[8]"},
	{"CreateContainerRequest", "envVars", 12, "List(TextTextMapEntry)", "p[9]"},
	{"CreateContainerRequest", "cgroupManager", 13, "CgroupManager", "b[16,32)"},
	{"CreateContainerRequest", "additionalFds", 14, "List(UInt64)", "p[10]"},
	{"CreateContainerRequest", "leakFds", 15, "List(UInt64)", "p[11]"},
	{"CreateContainerRequest", "sdnotifySocket", 16, "Text", "p[12]"},
	{"LogDriver", "type", 0, "LogDriver.Type", "b[0,16)"},
	{"LogDriver", "path", 1, "Text", "p[0]"},
	{"LogDriver", "maxSize", 2, "UInt64", "b[64,128)"},
	{"CreateContainerResponse", "containerPid", 0, "UInt32", "b[0,32)"},
	{"ExecSyncContainerRequest", "id", 0, "Text", "p[0]"},
	{"ExecSyncContainerRequest", "timeoutSec", 1, "UInt64", "b[0,64)"},
	{"ExecSyncContainerRequest", "command", 2, "List(Text)", "p[1]"},
	{"ExecSyncContainerRequest", "terminal", 3, "Bool", "b[64,65)"},
	{"ExecSyncContainerRequest", "metadataOld", 4, "Void", "none"},
	{"ExecSyncContainerRequest", "metadata", 5, "List(TextTextMapEntry)", "p[2]"},
	{"ExecSyncContainerRequest", "envVars", 6, "List(TextTextMapEntry)", "p[3]"},
	{"ExecSyncContainerRequest", "cgroupManager", 7, "CgroupManager", "b[80,96)"},
	{"ExecSyncContainerResponse", "exitCode", 0, "Int32", "b[0,32)"},
	{"ExecSyncContainerResponse", "stdout", 1, "Data", "p[0]"},
	{"ExecSyncContainerResponse", "stderr", 2, "Data", "p[1]"},
	{"ExecSyncContainerResponse", "timedOut", 3, "Bool", "b[32,33)"},
	{"AttachRequest", "id", 0, "Text", "p[0]"},
	{"AttachRequest", "socketPath", 1, "Text", "p[1]"},
	{"AttachRequest", "execSessionId", 2, "Text", "p[2]"},
	{"AttachRequest", "stopAfterStdinEof", 3, "Bool", "b[0,1)"},
	{"AttachRequest", "metadataOld", 4, "Void", "none"},
	{"AttachRequest", "metadata", 5, "List(TextTextMapEntry)", "p[3]"},
	{"ReopenLogRequest", "id", 0, "Text", "p[0]"},
	{"ReopenLogRequest", "metadataOld", 1, "Void", "none"},
	{"ReopenLogRequest", "metadata", 2, "List(TextTextMapEntry)", "p[1]"},
	{"SetWindowSizeRequest", "id", 0, "Text", "p[0]"},
	{"SetWindowSizeRequest", "width", 1, "UInt16", "b[0,16)"},
	{"SetWindowSizeRequest", "height", 2, "UInt16", "b[16,32)"},
	{"SetWindowSizeRequest", "metadataOld", 3, "Void", "none"},
	{"SetWindowSizeRequest", "metadata", 4, "List(TextTextMapEntry)", "p[1]"},
	{"CreateNamespacesRequest", "metadataOld", 0, "Void", "none"},
	{"CreateNamespacesRequest", "namespaces", 1, "List(Namespace)", "p[0]"},
	{"CreateNamespacesRequest", "uidMappings", 2, "List(Text)", "p[1]"},
	{"CreateNamespacesRequest", "gidMappings", 3, "List(Text)", "p[2]"},
	{"CreateNamespacesRequest", "basePath", 4, "Text", "p[3]"},
	{"CreateNamespacesRequest", "podId", 5, "Text", "p[4]"},
	{"CreateNamespacesRequest", "metadata", 6, "List(TextTextMapEntry)", "p[5]"},
	{"CreateNamespacesResponse", "namespaces", 0, "List(NamespaceResponse)", "p[0]"},
	{"NamespaceResponse", "type", 0, "Namespace", "b[0,16)"},
	{"NamespaceResponse", "path", 1, "Text", "p[0]"},
	{"StartFdSocketRequest", "metadata", 0, "List(TextTextMapEntry)", "p[0]"},
	{"StartFdSocketResponse", "path", 0, "Text", "p[0]"},
	{"TextTextMapEntry", "key", 0, "Text", "p[0]"},
	{"TextTextMapEntry", "value", 1, "Text", "p[1]"},
	{"ServeExecContainerRequest", "metadata", 0, "List(TextTextMapEntry)", "p[0]"},
	{"ServeExecContainerRequest", "id", 1, "Text", "p[1]"},
	{"ServeExecContainerRequest", "command", 2, "List(Text)", "p[2]"},
	{"ServeExecContainerRequest", "tty", 3, "Bool", "b[0,1)"},
	{"ServeExecContainerRequest", "stdin", 4, "Bool", "b[1,2)"},
	{"ServeExecContainerRequest", "stdout", 5, "Bool", "b[2,3)"},
	{"ServeExecContainerRequest", "stderr", 6, "Bool", "b[3,4)"},
	{"ServeExecContainerRequest", "cgroupManager", 7, "CgroupManager", "b[16,32)"},
	{"ServeExecContainerResponse", "url", 0, "Text", "p[0]"},
	{"ServeAttachContainerRequest", "metadata", 0, "List(TextTextMapEntry)", "p[0]"},
	{"ServeAttachContainerRequest", "id", 1, "Text", "p[1]"},
	{"ServeAttachContainerRequest", "stdin", 2, "Bool", "b[0,1)"},
	{"ServeAttachContainerRequest", "stdout", 3, "Bool", "b[1,2)"},
	{"ServeAttachContainerRequest", "stderr", 4, "Bool", "b[2,3)"},
	{"ServeAttachContainerResponse", "url", 0, "Text", "p[0]"},
	{"ServePortForwardContainerRequest", "metadata", 0, "List(TextTextMapEntry)", "p[0]"},
	{"ServePortForwardContainerRequest", "netNsPath", 1, "Text", "p[1]"},
	{"ServePortForwardContainerResponse", "url", 0, "Text", "p[0]"},
}

// enumTable lists the enumerations.
var enumTable = []struct {
	name   string
	id     uint64
	values []string // index is the ordinal
}{
	{"LogDriver.Type", 0xf026e3d750335bc1, []string{"containerRuntimeInterface", "json", "journald"}},
	{"CgroupManager", 0xaa4bbac12765a78a, []string{"systemd", "cgroupfs"}},
	{"Namespace", 0xd61491b560a8f3a3, []string{"ipc", "net", "pid", "user", "uts"}},
}
