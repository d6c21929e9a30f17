// Package config turns the command line and the environment into one immutable
// Config, and checks it.
//
// The command line is a contract with engines: they pass these options, read the
// exit status, and match one of the error texts. The parser is written by hand
// around a table, because flag packages differ in the details that matter here
// (optional values, options given once, texts) and cost resident memory.
//
// It knows nothing of sockets, locks or the start of the daemon.
package config

import "time"

// Command is what the process was asked to do.
type Command uint8

// The commands.
const (
	Run         Command = iota // be the monitor
	Pause                      // hold namespaces, see PauseOptions
	Help                       // print Config.HelpText to standard output
	Version                    // print the version as text
	VersionJSON                // print the version as one line of JSON
)

// LogLevel is the least severe level that the monitor logs about itself.
type LogLevel string

// The levels, most verbose first. LevelOff silences everything.
const (
	LevelTrace LogLevel = "trace"
	LevelDebug LogLevel = "debug"
	LevelInfo  LogLevel = "info"
	LevelWarn  LogLevel = "warn"
	LevelError LogLevel = "error"
	LevelOff   LogLevel = "off"
)

// LogDriver is where the monitor's own log goes.
type LogDriver string

// The log drivers.
const (
	DriverNone    LogDriver = "none"
	DriverStdout  LogDriver = "stdout"
	DriverSystemd LogDriver = "systemd" // the journal
)

// Scope is when the monitor registers itself with systemd.
type Scope string

// When to register.
const (
	ScopeAuto   Scope = "auto"   // where it makes sense; a failure is logged
	ScopeAlways Scope = "always" // a failure is one of the start, or of the first create
	ScopeNever  Scope = "never"
)

// Config is the result of Parse. Nothing changes it afterwards, so it can be
// read from any goroutine.
type Config struct {
	Command  Command
	HelpText string // for Help: complete text with a final newline
	// VersionFull asks Version and VersionJSON for the list of modules as well.
	VersionFull bool

	LogLevel  LogLevel
	LogDriver LogDriver

	Runtime     string // OCI runtime binary; a blank if not given
	RuntimeDir  string // directory for sockets and pid files; a blank if not given
	RuntimeRoot string // handed to the runtime as --root=; empty if not given

	SkipFork        bool   // stay in the foreground
	EnableTracing   bool   // accepted, not used by this build
	TracingEndpoint string // accepted, not used by this build

	Scope Scope
	Slice string // of the scope; empty if not given

	StopTimeout    time.Duration // from the stop signal to SIGKILL, at the graceful stop
	RuntimeTimeout time.Duration // limit of one run of the OCI runtime
	// ContainerTimeout is the time from a container's create to its SIGKILL; 0: unlimited.
	ContainerTimeout time.Duration
	// ExecOutputBudget is the number of bytes of exec output that all exec
	// calls of the pod together may hold.
	ExecOutputBudget int64

	Pause PauseOptions
}

// PauseOptions are the options of the pause subcommand.
type PauseOptions struct {
	BasePath string // below it the namespaces are bound, /var/run by default
	PodID    string // never empty

	IPC, PID, Net, User, UTS bool // namespaces to unshare

	// UIDMappings and GIDMappings are lines "CONTAINER_ID HOST_ID SIZE" in
	// the order given; neither is empty when User is set.
	UIDMappings, GIDMappings []string
}

// blank is the default of the mandatory paths: an empty value is refused where it
// is given, so "not given" needs a value of its own, which validation trims.
const blank = " "

const (
	defaultStopTimeout      = 10 * time.Second
	defaultRuntimeTimeout   = 120 * time.Second
	defaultExecOutputBudget = 64 << 20
	defaultTracingEndpoint  = "http://127.0.0.1:4317"
	defaultPauseBasePath    = "/var/run"
)

func newConfig() *Config {
	return &Config{
		LogLevel:         LevelInfo,
		LogDriver:        DriverSystemd,
		Runtime:          blank,
		RuntimeDir:       blank,
		TracingEndpoint:  defaultTracingEndpoint,
		Scope:            ScopeAuto,
		StopTimeout:      defaultStopTimeout,
		RuntimeTimeout:   defaultRuntimeTimeout,
		ExecOutputBudget: defaultExecOutputBudget,
		Pause:            PauseOptions{BasePath: defaultPauseBasePath},
	}
}
