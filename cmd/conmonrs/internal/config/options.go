package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// kind says what an option takes.
type kind uint8

const (
	flag     kind = iota // nothing
	single               // one value, given once
	optional             // at most one value, given once
	list                 // one value each time
	ignored              // one value, any number of times, without effect
)

// option is one row of a command's table.
type option struct {
	long     string
	short    byte   // 0: none
	alias    string // a second long name; empty: none
	env      string // environment variable; empty: none
	kind     kind
	meta     string   // name of the value in texts
	values   []string // the only values allowed; nil: any
	bare     string   // value of an optional one without a value
	fallback string   // default, for the help text only
	empty    bool     // an empty value is allowed
	hidden   bool     // not in the help text
	help     string
	// set stores a value that passed the checks above; its error completes
	// "invalid value ...: ". Flags get "true" or "false".
	set func(c *Config, value string) error
}

// command is a table of options and what follows them.
type command struct {
	name        string // as in usage lines
	usage       string // the rest of the usage line
	about       string
	options     []option
	subcommands bool // a word that is no option selects a subcommand
}

var (
	verbosities = []string{"default", "full"}
	booleans    = []string{"true", "false"}
	levels      = []string{"trace", "debug", "info", "warn", "error", "off"}
	drivers     = []string{"none", "stdout", "systemd"}
	scopes      = []string{"auto", "always", "never"}
)

// mainCommand returns the table of the top-level command. Version state is kept
// in v until all options are read, since the text form wins over JSON.
func mainCommand(v *versionRequest) *command {
	return &command{
		name: "conmonrs", usage: "[OPTIONS] [COMMAND]", about: "A container monitor for a pod",
		subcommands: true,
		options: []option{
			{long: "version", short: 'v', env: "CONMON_VERSION", kind: optional, meta: "VERSION", values: verbosities, bare: "default",
				help: "Print version information and exit",
				set:  func(_ *Config, s string) error { v.text = s; return nil }},
			{long: "version-json", short: 'j', alias: "vj", env: "CONMON_VERSION_JSON", kind: optional, meta: "VERSION_JSON", values: verbosities, bare: "default",
				help: "Print version information as JSON and exit",
				set:  func(_ *Config, s string) error { v.json = s; return nil }},
			{long: "log-level", short: 'l', env: "CONMON_LOG_LEVEL", kind: single, meta: "LEVEL", values: levels, fallback: "info",
				help: "Level of the monitor's own log",
				set:  func(c *Config, s string) error { c.LogLevel = LogLevel(s); return nil }},
			{long: "log-driver", short: 'd', env: "CONMON_LOG_DRIVER", kind: single, meta: "DRIVER", values: drivers, fallback: "systemd",
				help: "Destination of the monitor's own log",
				set:  func(c *Config, s string) error { c.LogDriver = LogDriver(s); return nil }},
			{long: "runtime", short: 'r', env: "CONMON_RUNTIME", kind: single, meta: "RUNTIME",
				help: "Path of the OCI runtime binary, mandatory",
				set:  func(c *Config, s string) error { c.Runtime = s; return nil }},
			{long: "runtime-dir", env: "CONMON_RUNTIME_DIR", kind: single, meta: "RUNTIME_DIR",
				help: "Directory for sockets and pid files, mandatory",
				set:  func(c *Config, s string) error { c.RuntimeDir = s; return nil }},
			{long: "runtime-root", env: "CONMON_RUNTIME_ROOT", kind: single, meta: "RUNTIME_ROOT",
				help: "State directory of the OCI runtime, passed to it as --root",
				set:  func(c *Config, s string) error { c.RuntimeRoot = s; return nil }},
			{long: "skip-fork", env: "CONMON_SKIP_FORK", kind: flag,
				help: "Stay in the foreground",
				set:  func(c *Config, s string) error { c.SkipFork = s == "true"; return nil }},
			{long: "enable-tracing", short: 'e', env: "CONMON_ENABLE_TRACING", kind: flag,
				help: "Accepted for compatibility, this build does not trace",
				set:  func(c *Config, s string) error { c.EnableTracing = s == "true"; return nil }},
			{long: "tracing-endpoint", short: 't', env: "CONMON_TRACING_ENDPOINT", kind: single, meta: "TRACING_ENDPOINT", fallback: defaultTracingEndpoint, empty: true,
				help: "Accepted for compatibility, this build does not trace",
				set:  func(c *Config, s string) error { c.TracingEndpoint = s; return nil }},
			{long: "stop-timeout", env: "CONMON_STOP_TIMEOUT", kind: single, meta: "SECONDS", fallback: "10",
				help: "Time that containers get after their stop signal when the monitor is stopped by SIGTERM",
				set:  func(c *Config, s string) (err error) { c.StopTimeout, err = seconds(s, 0); return err }},
			{long: "runtime-timeout", env: "CONMON_RUNTIME_TIMEOUT", kind: single, meta: "SECONDS", fallback: "120",
				help: "Limit of one run of the OCI runtime",
				set:  func(c *Config, s string) (err error) { c.RuntimeTimeout, err = seconds(s, 1); return err }},
			{long: "container-timeout", env: "CONMON_CONTAINER_TIMEOUT", kind: single, meta: "SECONDS", fallback: "0",
				help: "Kill each container that long after its create; 0 for never",
				set:  func(c *Config, s string) (err error) { c.ContainerTimeout, err = seconds(s, 0); return err }},
			{long: "exec-output-budget", env: "CONMON_EXEC_OUTPUT_BUDGET", kind: single, meta: "BYTES", fallback: "67108864",
				help: "Output of exec calls that may be held at one time, for the whole pod",
				set:  func(c *Config, s string) (err error) { c.ExecOutputBudget, err = budget(s); return err }},
			{long: "scope", env: "CONMON_SCOPE", kind: single, meta: "WHEN", values: scopes, fallback: "auto",
				help: "Register the monitor with systemd as a scope in the pod's slice; 'always' makes a failure fatal",
				set:  func(c *Config, s string) error { c.Scope = Scope(s); return nil }},
			{long: "slice", env: "CONMON_SLICE", kind: single, meta: "SLICE",
				help: "Slice of the scope, instead of that of the first container",
				set:  func(c *Config, s string) error { c.Slice = s; return checkSlice(s) }},
			{long: "cgroup-manager", short: 'c', kind: ignored, meta: "CGROUP_MANAGER", hidden: true, empty: true},
		},
	}
}

// versionRequest holds the values of the two version options, empty if not given.
type versionRequest struct{ text, json string }

func pauseCommand() *command {
	return &command{
		name: "conmonrs pause", usage: "[OPTIONS] --pod-id <POD_ID>", about: "Hold the namespaces of a pod",
		options: []option{
			{long: "base-path", short: 'p', env: "CONMON_PAUSE_BASE_PATH", kind: single, meta: "BASE_PATH", fallback: defaultPauseBasePath,
				help: "Directory below which the namespaces are bound",
				set:  func(c *Config, s string) error { c.Pause.BasePath = s; return nil }},
			{long: "pod-id", env: "CONMON_PAUSE_POD_ID", kind: single, meta: "POD_ID",
				help: "Name of the bound files, mandatory",
				set:  func(c *Config, s string) error { c.Pause.PodID = s; return nil }},
			namespaceFlag("ipc", func(p *PauseOptions) *bool { return &p.IPC }),
			namespaceFlag("pid", func(p *PauseOptions) *bool { return &p.PID }),
			namespaceFlag("net", func(p *PauseOptions) *bool { return &p.Net }),
			namespaceFlag("user", func(p *PauseOptions) *bool { return &p.User }),
			namespaceFlag("uts", func(p *PauseOptions) *bool { return &p.UTS }),
			{long: "uid-mappings", short: 'u', kind: list, meta: "UID_MAPPINGS",
				help: "User mapping 'CONTAINER_ID HOST_ID SIZE', repeatable, mandatory with --user",
				set:  func(c *Config, s string) error { c.Pause.UIDMappings = append(c.Pause.UIDMappings, s); return nil }},
			{long: "gid-mappings", short: 'g', kind: list, meta: "GID_MAPPINGS",
				help: "Group mapping 'CONTAINER_ID HOST_ID SIZE', repeatable, mandatory with --user",
				set:  func(c *Config, s string) error { c.Pause.GIDMappings = append(c.Pause.GIDMappings, s); return nil }},
		},
	}
}

func namespaceFlag(name string, field func(*PauseOptions) *bool) option {
	return option{long: name, kind: flag, help: "Unshare the " + name + " namespace",
		set: func(c *Config, s string) error { *field(&c.Pause) = s == "true"; return nil }}
}

// maxSeconds keeps durations far from overflow: a year.
const maxSeconds = 366 * 24 * 3600

func seconds(s string, least int64) (time.Duration, error) {
	n, err := number(s, least, maxSeconds)
	return time.Duration(n) * time.Second, err
}

// checkSlice takes what systemd takes as the name of a slice; see systemd.slice(5) and systemd.unit(5).
func checkSlice(name string) error {
	const maxName = 255
	prefix, ok := strings.CutSuffix(name, ".slice")
	const valid = `abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_.\`
	bad := func(r rune) bool { return !strings.ContainsRune(valid, r) }
	dashes := prefix != "-" && (strings.HasPrefix(prefix, "-") || strings.HasSuffix(prefix, "-") || strings.Contains(prefix, "--"))
	if !ok || prefix == "" || len(name) > maxName || strings.ContainsFunc(prefix, bad) || dashes {
		return errors.New("not the name of a slice")
	}
	return nil
}

// minBudget is one read of one stream; maxBudget keeps sums far from overflow.
const (
	minBudget = 64 << 10
	maxBudget = 1 << 40
)

func budget(s string) (int64, error) { return number(s, minBudget, maxBudget) }

func number(s string, least, most int64) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || s[0] == '+' || n < least || n > most {
		return 0, fmt.Errorf("not a whole number from %d to %d", least, most)
	}
	return n, nil
}
