package conmon

import "time"

// MaxExecOutput is the largest number of bytes of one stream that an exec sync returns. What comes after it
// is read and dropped, so that the command does not block.
const MaxExecOutput = 16 << 20

// EnvVar is one variable of an environment. The order of a list of them is kept.
type EnvVar struct {
	Key, Value string
}

// VersionRequest asks a monitor what it is. It doubles as the liveness probe.
type VersionRequest struct {
	// Verbose asks for the list of modules in CargoTree.
	Verbose bool
	// Metadata carries trace context. It may be nil.
	Metadata map[string]string
}

// VersionResponse describes a monitor. The names of three fields are those of the wire format, which is
// older than this implementation.
type VersionResponse struct {
	// ProcessID is the pid of the monitor in its own pid namespace.
	ProcessID uint32
	// Version is a strict semantic version without a leading v.
	Version string
	// Tag describes the source and may be empty.
	Tag string
	// Commit is the full commit id.
	Commit string
	// BuildDate is in UTC, like 2006-01-02 15:04:05.
	BuildDate string
	// Target is the target triple.
	Target string
	// RustVersion is the version of the tool chain that built the monitor.
	RustVersion string
	// CargoVersion is the version of the tool that managed its dependencies.
	CargoVersion string
	// CargoTree lists the dependencies. It is empty unless the request was verbose.
	CargoTree string
}

// LogDriver is one destination of a container's output.
type LogDriver struct {
	Type LogDriverType
	// Path is the log file. It is empty for the journal.
	Path string
	// MaxSize is the largest size of the file in bytes; 0 means no limit.
	MaxSize uint64
}

// CreateContainerRequest asks for a container to be created through the OCI runtime. It is left in the OCI
// state "created"; the engine starts it itself.
type CreateContainerRequest struct {
	// ID is the container id, used verbatim.
	ID string
	// BundlePath is the directory of the OCI bundle.
	BundlePath string
	// Terminal asks for a pseudo terminal instead of pipes.
	Terminal bool
	// Stdin keeps a writable standard input. Without it the container reads end of file.
	Stdin bool
	// ExitPaths are files that receive the exit code, published in reverse order.
	ExitPaths []string
	// OOMExitPaths are files created if the container was killed for lack of memory.
	OOMExitPaths []string
	// LogDrivers may be empty: the container then has no log.
	LogDrivers []LogDriver
	// CleanupCommand is run after the exit; empty means none.
	CleanupCommand []string
	// GlobalArgs are runtime arguments before the word create, CommandArgs those after it.
	GlobalArgs, CommandArgs []string
	// Env is added to the environment of the runtime, not of the container.
	Env []EnvVar
	// CgroupManager is systemd unless set.
	CgroupManager CgroupManager
	// AdditionalFDs are slots of the descriptor socket; slot i becomes descriptor 3+i of the runtime.
	AdditionalFDs []uint64
	// LeakFDs are slots whose descriptors the monitor keeps open until the container exits.
	LeakFDs []uint64
	// SdNotifySocket is the host socket that notifications of the container are relayed to: an absolute path, or the name
	// of an abstract socket, which begins with '@' or a NUL byte. Empty means none.
	SdNotifySocket string
	// Metadata carries trace context. It may be nil.
	Metadata map[string]string
}

// CreateContainerResponse answers a [CreateContainerRequest].
type CreateContainerResponse struct {
	// ContainerPID is the pid of the container's first process as the monitor sees it.
	ContainerPID uint32
}

// ExecSyncRequest asks for a command to be run in a container and its output to be collected. The
// container need not be known to the monitor.
type ExecSyncRequest struct {
	// ID is the container id, used verbatim.
	ID string
	// Timeout counts from the call on; 0 or less means no limit. On the wire it is a whole number of
	// seconds, rounded up.
	Timeout time.Duration
	// Command is the argument vector.
	Command []string
	// Terminal gives the command a pseudo terminal; all output is then in Stdout.
	Terminal bool
	// Env is added to the environment of the runtime, not of the command.
	Env []EnvVar
	// CgroupManager is systemd unless set.
	CgroupManager CgroupManager
	// Metadata carries trace context. It may be nil.
	Metadata map[string]string
}

// ExecSyncResponse is the outcome of an exec sync as a client sees it.
type ExecSyncResponse struct {
	// ExitCode is 0..255 for a command that exited, 128+n for one killed by signal n, and one of the
	// ExitCode constants otherwise.
	ExitCode int32
	// TimedOut says that the deadline passed.
	TimedOut bool
	// Stdout and Stderr hold at most MaxExecOutput bytes each. The caller owns them.
	Stdout, Stderr []byte
}

// Exit codes of an exec sync that are not those of the command.
const (
	// ExitCodeUnknown means that the status could not be learnt.
	ExitCodeUnknown int32 = -1
	// ExitCodeRuntimeFailed means that the runtime could not start the command; its message is in Stderr.
	ExitCodeRuntimeFailed int32 = -2
	// ExitCodeTimedOut means that the command was still running when the deadline passed.
	ExitCodeTimedOut int32 = -3
)

// AttachRequest asks for the attach socket of a container.
type AttachRequest struct {
	// ID is the container id, used verbatim.
	ID string
	// SocketPath is where the socket is, or is to be created. It may be longer than a socket address.
	SocketPath string
	// ExecSessionID is only logged.
	ExecSessionID string
	// StopAfterStdinEOF closes the container's standard input when the client closes its side.
	StopAfterStdinEOF bool
	// Metadata carries trace context. It may be nil.
	Metadata map[string]string
}

// ReopenLogRequest asks for the log files of a container to be opened again, after they have been renamed.
type ReopenLogRequest struct {
	// ID is the container id, used verbatim.
	ID string
	// Metadata carries trace context. It may be nil.
	Metadata map[string]string
}

// WindowSize is the size of a terminal in characters.
type WindowSize struct {
	// Width is the number of columns, Height the number of rows.
	Width, Height uint16
}

// SetWindowSizeRequest asks for the terminal of a container to be resized.
type SetWindowSizeRequest struct {
	// ID is the container id, used verbatim.
	ID string
	WindowSize
	// Metadata carries trace context. It may be nil.
	Metadata map[string]string
}

// CreateNamespacesRequest asks for namespaces to be created and pinned for a pod.
type CreateNamespacesRequest struct {
	Namespaces []Namespace
	// UIDMappings and GIDMappings have the form "CONTAINER_ID HOST_ID SIZE".
	UIDMappings, GIDMappings []string
	// BasePath is the directory under which the namespaces are mounted.
	BasePath string
	// PodID names the mounts.
	PodID string
	// Metadata carries trace context. It may be nil.
	Metadata map[string]string
}

// CreateNamespacesResponse lists five namespaces in the order ipc, pid, net, user, uts, whatever was asked for.
type CreateNamespacesResponse struct {
	Namespaces []NamespacePath
}

// NamespacePath says where a namespace is mounted.
type NamespacePath struct {
	Type Namespace
	Path string
}

// StartFDSocketRequest asks for the descriptor socket.
type StartFDSocketRequest struct {
	// Metadata carries trace context. It may be nil.
	Metadata map[string]string
}

// StartFDSocketResponse answers a [StartFDSocketRequest].
type StartFDSocketResponse struct {
	// Path is the path of the socket, which may be longer than a socket address.
	Path string
}

// ServeExecRequest asks for a URL at which a command can be run interactively.
type ServeExecRequest struct {
	// ID is the container id, used verbatim.
	ID string
	// Command is the argument vector.
	Command []string
	// TTY gives the command a pseudo terminal.
	TTY bool
	// Stdin, Stdout and Stderr say which streams the client will use.
	Stdin, Stdout, Stderr bool
	// CgroupManager is systemd unless set.
	CgroupManager CgroupManager
	// Metadata carries trace context. It may be nil.
	Metadata map[string]string
}

// ServeAttachRequest asks for a URL at which the streams of a container can be reached.
type ServeAttachRequest struct {
	// ID is the container id, used verbatim.
	ID string
	// Stdin, Stdout and Stderr say which streams the client will use.
	Stdin, Stdout, Stderr bool
	// Metadata carries trace context. It may be nil.
	Metadata map[string]string
}

// ServePortForwardRequest asks for a URL at which ports of a pod can be reached.
type ServePortForwardRequest struct {
	// NetNSPath is the network namespace to dial in.
	NetNSPath string
	// Metadata carries trace context. It may be nil.
	Metadata map[string]string
}

// ServeResponse answers the three requests for a URL.
type ServeResponse struct {
	URL string
}
