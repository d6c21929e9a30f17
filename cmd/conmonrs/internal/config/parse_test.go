package config

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// change returns the default Config with one change.
func change(f func(*Config)) *Config {
	c := newConfig()
	f(c)
	return c
}

func TestParse(t *testing.T) {
	ns := func(f func(*PauseOptions)) *Config {
		return change(func(c *Config) { c.Command, c.Pause.PodID = Pause, "p"; f(&c.Pause) })
	}
	tests := []struct {
		name string
		args string // blank-separated
		env  []string
		want *Config
	}{
		{name: "nothing", want: newConfig()},
		{name: "as the client starts it", args: "--runtime /r --runtime-dir /d --runtime-root /rr --log-level debug --log-driver stdout --enable-tracing --tracing-endpoint http://h:1",
			want: change(func(c *Config) {
				c.Runtime, c.RuntimeDir, c.RuntimeRoot = "/r", "/d", "/rr"
				c.LogLevel, c.LogDriver = LevelDebug, DriverStdout
				c.EnableTracing, c.TracingEndpoint = true, "http://h:1"
			})},
		{name: "long with equals sign", args: "--runtime=/r", want: change(func(c *Config) { c.Runtime = "/r" })},
		{name: "long with two equals signs", args: "--runtime=/r=x", want: change(func(c *Config) { c.Runtime = "/r=x" })},
		{name: "short and word", args: "-r /r", want: change(func(c *Config) { c.Runtime = "/r" })},
		{name: "short attached", args: "-r/r", want: change(func(c *Config) { c.Runtime = "/r" })},
		{name: "short with equals sign", args: "-r=/r", want: change(func(c *Config) { c.Runtime = "/r" })},
		{name: "short flag and option together", args: "-er /r", want: change(func(c *Config) { c.EnableTracing, c.Runtime = true, "/r" })},
		{name: "value that looks like an option, attached", args: "--runtime=--x", want: change(func(c *Config) { c.Runtime = "--x" })},
		{name: "value of one dash", args: "--runtime -", want: change(func(c *Config) { c.Runtime = "-" })},
		{name: "value that is a subcommand's name", args: "--runtime pause", want: change(func(c *Config) { c.Runtime = "pause" })},
		{name: "all other options", args: "-l trace -d none -t u --skip-fork --stop-timeout 0 --runtime-timeout=3 --container-timeout=4 --exec-output-budget 65536",
			want: change(func(c *Config) {
				c.LogLevel, c.LogDriver, c.TracingEndpoint, c.SkipFork = LevelTrace, DriverNone, "u", true
				c.StopTimeout, c.RuntimeTimeout, c.ContainerTimeout, c.ExecOutputBudget = 0, 3*time.Second, 4*time.Second, 65536
			})},
		{name: "scope", args: "--scope=never --slice kubepods-pod1.slice",
			want: change(func(c *Config) { c.Scope, c.Slice = ScopeNever, "kubepods-pod1.slice" })},
		{name: "root slice", args: "--slice=-.slice", want: change(func(c *Config) { c.Slice = "-.slice" })},
		{name: "empty endpoint", args: "--tracing-endpoint=", want: change(func(c *Config) { c.TracingEndpoint = "" })},
		{name: "legacy cgroup manager", args: "--cgroup-manager systemd -c cgroupfs -c=x -cy --cgroup-manager=", want: newConfig()},
		{name: "end of options", args: "--skip-fork --", want: change(func(c *Config) { c.SkipFork = true })},

		{name: "version", args: "--version", want: change(func(c *Config) { c.Command = Version })},
		{name: "version short", args: "-v", want: change(func(c *Config) { c.Command = Version })},
		{name: "version default", args: "--version default", want: change(func(c *Config) { c.Command = Version })},
		{name: "version full", args: "--version=full", want: change(func(c *Config) { c.Command, c.VersionFull = Version, true })},
		{name: "version full, word", args: "-v full", want: change(func(c *Config) { c.Command, c.VersionFull = Version, true })},
		{name: "version full, attached", args: "-vfull", want: change(func(c *Config) { c.Command, c.VersionFull = Version, true })},
		{name: "version before an option", args: "--version --skip-fork", want: change(func(c *Config) { c.Command, c.SkipFork = Version, true })},
		{name: "json", args: "--version-json", want: change(func(c *Config) { c.Command = VersionJSON })},
		{name: "json alias", args: "--vj", want: change(func(c *Config) { c.Command = VersionJSON })},
		{name: "json alias full", args: "--vj=full", want: change(func(c *Config) { c.Command, c.VersionFull = VersionJSON, true })},
		{name: "json short full", args: "-j=full", want: change(func(c *Config) { c.Command, c.VersionFull = VersionJSON, true })},
		{name: "text wins over json", args: "--version-json=full --version", want: change(func(c *Config) { c.Command = Version })},
		{name: "version wins over pause", args: "--version=full pause --pod-id p",
			want: change(func(c *Config) { c.Command, c.VersionFull, c.Pause.PodID = Version, true, "p" })},
		{name: "version from the environment", env: []string{"CONMON_VERSION=full"}, want: change(func(c *Config) { c.Command, c.VersionFull = Version, true })},
		{name: "json from the environment", env: []string{"CONMON_VERSION_JSON=default"}, want: change(func(c *Config) { c.Command = VersionJSON })},

		{name: "environment", env: []string{
			"CONMON_LOG_LEVEL=error", "CONMON_LOG_DRIVER=none", "CONMON_RUNTIME=/r", "CONMON_RUNTIME_DIR=/d",
			"CONMON_RUNTIME_ROOT=/rr", "CONMON_SKIP_FORK=true", "CONMON_ENABLE_TRACING=true", "CONMON_TRACING_ENDPOINT=u",
			"CONMON_STOP_TIMEOUT=1", "CONMON_RUNTIME_TIMEOUT=2", "CONMON_EXEC_OUTPUT_BUDGET=1000000", "OTHER=1", "noequals",
		}, want: change(func(c *Config) {
			c.LogLevel, c.LogDriver, c.Runtime, c.RuntimeDir, c.RuntimeRoot = LevelError, DriverNone, "/r", "/d", "/rr"
			c.SkipFork, c.EnableTracing, c.TracingEndpoint = true, true, "u"
			c.StopTimeout, c.RuntimeTimeout, c.ExecOutputBudget = time.Second, 2*time.Second, 1000000
		})},
		{name: "flag variable false", env: []string{"CONMON_SKIP_FORK=false"}, want: newConfig()},
		{name: "command line wins", args: "--log-level warn", env: []string{"CONMON_LOG_LEVEL=trace"}, want: change(func(c *Config) { c.LogLevel = LevelWarn })},
		{name: "command line hides a bad variable", args: "--log-level off", env: []string{"CONMON_LOG_LEVEL=x"}, want: change(func(c *Config) { c.LogLevel = LevelOff })},
		{name: "first variable counts", env: []string{"CONMON_RUNTIME=/a", "CONMON_RUNTIME=/b"}, want: change(func(c *Config) { c.Runtime = "/a" })},
		{name: "variable of the legacy option", env: []string{"CONMON_CGROUP_MANAGER=x"}, want: newConfig()},

		{name: "pause", args: "pause --pod-id p", want: ns(func(*PauseOptions) {})},
		{name: "pause after options", args: "-l info pause --pod-id=p --base-path /b --ipc --pid --net --uts",
			want: ns(func(p *PauseOptions) { p.BasePath, p.IPC, p.PID, p.Net, p.UTS = "/b", true, true, true, true })},
		{name: "pause with user namespace", args: "pause -p/b --pod-id p --user -u 0 -g=1 --uid-mappings 2 --gid-mappings=3",
			want: ns(func(p *PauseOptions) {
				p.BasePath, p.User = "/b", true
				p.UIDMappings, p.GIDMappings = []string{"0", "2"}, []string{"1", "3"}
			})},
		{name: "pause from the environment", args: "pause", env: []string{"CONMON_PAUSE_POD_ID=p", "CONMON_PAUSE_BASE_PATH=/b"},
			want: ns(func(p *PauseOptions) { p.BasePath = "/b" })},
		{name: "mappings without user", args: "pause --pod-id p -u 1", want: ns(func(p *PauseOptions) { p.UIDMappings = []string{"1"} })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(strings.Fields(tt.args), tt.env)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("difference (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMappingsKeepBlanks(t *testing.T) {
	c, err := Parse([]string{"pause", "--pod-id=p", "--user", "--uid-mappings=0 1000 1", "--gid-mappings", "0 1000 1"}, nil)
	if err != nil || c.Pause.UIDMappings[0] != "0 1000 1" || c.Pause.GIDMappings[0] != "0 1000 1" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestUsageErrors(t *testing.T) {
	const (
		levelValues = "\n  [possible values: trace, debug, info, warn, error, off]"
		verbValues  = "\n  [possible values: default, full]"
		boolValues  = "\n  [possible values: true, false]"
		seconds0    = "not a whole number from 0 to 31622400"
	)
	tests := []struct {
		name string
		args []string
		env  []string
		want string // up to the blank line
	}{
		{"unknown option", []string{"--xyz"}, nil, "error: unexpected argument '--xyz' found"},
		{"unknown option with value", []string{"--xyz=1"}, nil, "error: unexpected argument '--xyz' found"},
		{"unknown option beside version", []string{"--version-json", "--xyz"}, nil, "error: unexpected argument '--xyz' found"},
		{"no -V", []string{"-V"}, nil, "error: unexpected argument '-V' found"},
		{"unknown short in a group", []string{"-ex"}, nil, "error: unexpected argument '-x' found"},
		{"short that is no ASCII", []string{"-éa"}, nil, "error: unexpected argument '-é' found"},
		{"no abbreviations", []string{"--runtime-d=/x"}, nil, "error: unexpected argument '--runtime-d' found"},
		{"name missing", []string{"--=x"}, nil, "error: unexpected argument '--' found"},
		{"unknown word", []string{"xyz"}, nil, "error: unrecognized subcommand 'xyz'"},
		{"empty word", []string{""}, nil, "error: unrecognized subcommand ''"},
		{"word after the end of options", []string{"--", "pause"}, nil, "error: unexpected argument 'pause' found"},
		{"enumeration", []string{"--log-level", "xyz"}, nil, "error: invalid value 'xyz' for '--log-level <LEVEL>'" + levelValues},
		{"enumeration is case sensitive", []string{"--log-level=INFO"}, nil, "error: invalid value 'INFO' for '--log-level <LEVEL>'" + levelValues},
		{"enumeration, driver", []string{"-dx"}, nil, "error: invalid value 'x' for '--log-driver <DRIVER>'\n  [possible values: none, stdout, systemd]"},
		{"enumeration, variable", nil, []string{"CONMON_LOG_LEVEL=xyz"}, "error: invalid value 'xyz' for '--log-level <LEVEL>'" + levelValues},
		{"not UTF-8", []string{"--log-level=\xff"}, nil, "error: invalid value '\uFFFD' for '--log-level <LEVEL>'" + levelValues},
		{"version takes the subcommand", []string{"--version", "pause"}, nil, "error: invalid value 'pause' for '--version [<VERSION>]'" + verbValues},
		{"alias shows the name", []string{"--vj", "x"}, nil, "error: invalid value 'x' for '--version-json [<VERSION_JSON>]'" + verbValues},
		{"repeated", []string{"--runtime", "/a", "--runtime=/b"}, nil, "error: the argument '--runtime <RUNTIME>' cannot be used multiple times"},
		{"repeated, short", []string{"-r/a", "-r/b"}, nil, "error: the argument '--runtime <RUNTIME>' cannot be used multiple times"},
		{"repeated flag", []string{"--skip-fork", "--skip-fork"}, nil, "error: the argument '--skip-fork' cannot be used multiple times"},
		{"repeated flag in a group", []string{"-ee"}, nil, "error: the argument '--enable-tracing' cannot be used multiple times"},
		{"repeated by alias", []string{"--vj", "--version-json"}, nil, "error: the argument '--version-json [<VERSION_JSON>]' cannot be used multiple times"},
		{"missing value", []string{"--runtime"}, nil, "error: a value is required for '--runtime <RUNTIME>' but none was supplied"},
		{"missing value before an option", []string{"--runtime", "--skip-fork"}, nil, "error: a value is required for '--runtime <RUNTIME>' but none was supplied"},
		{"missing value before the end", []string{"--runtime", "--"}, nil, "error: a value is required for '--runtime <RUNTIME>' but none was supplied"},
		{"missing value, short", []string{"-r"}, nil, "error: a value is required for '--runtime <RUNTIME>' but none was supplied"},
		{"missing value, enumeration", []string{"-l"}, nil, "error: a value is required for '--log-level <LEVEL>' but none was supplied" + levelValues},
		{"missing value, legacy", []string{"-c"}, nil, "error: a value is required for '--cgroup-manager <CGROUP_MANAGER>' but none was supplied"},
		{"empty value", []string{"--runtime="}, nil, "error: a value is required for '--runtime <RUNTIME>' but none was supplied"},
		{"empty value, short", []string{"-r="}, nil, "error: a value is required for '--runtime <RUNTIME>' but none was supplied"},
		{"empty value, word", []string{"--runtime-dir", ""}, nil, "error: a value is required for '--runtime-dir <RUNTIME_DIR>' but none was supplied"},
		{"empty value, variable", nil, []string{"CONMON_RUNTIME_ROOT="}, "error: a value is required for '--runtime-root <RUNTIME_ROOT>' but none was supplied"},
		{"empty version", []string{"--version="}, nil, "error: a value is required for '--version [<VERSION>]' but none was supplied" + verbValues},
		{"flag variable 1", nil, []string{"CONMON_SKIP_FORK=1"}, "error: invalid value '1' for '--skip-fork'" + boolValues},
		{"flag variable yes", nil, []string{"CONMON_ENABLE_TRACING=yes"}, "error: invalid value 'yes' for '--enable-tracing'" + boolValues},
		{"flag variable TRUE", nil, []string{"CONMON_SKIP_FORK=TRUE"}, "error: invalid value 'TRUE' for '--skip-fork'" + boolValues},
		{"flag variable empty", nil, []string{"CONMON_SKIP_FORK="}, "error: a value is required for '--skip-fork' but none was supplied" + boolValues},
		{"flag with value", []string{"--skip-fork=true"}, nil, "error: unexpected value 'true' for '--skip-fork' found; no more were expected"},
		{"number", []string{"--stop-timeout", "ten"}, nil, "error: invalid value 'ten' for '--stop-timeout <SECONDS>': " + seconds0},
		{"number with sign", []string{"--stop-timeout=+1"}, nil, "error: invalid value '+1' for '--stop-timeout <SECONDS>': " + seconds0},
		{"number negative", []string{"--stop-timeout=-1"}, nil, "error: invalid value '-1' for '--stop-timeout <SECONDS>': " + seconds0},
		{"number too large", []string{"--stop-timeout=99999999999999999999"}, nil, "error: invalid value '99999999999999999999' for '--stop-timeout <SECONDS>': " + seconds0},
		{"number zero", []string{"--runtime-timeout=0"}, nil, "error: invalid value '0' for '--runtime-timeout <SECONDS>': not a whole number from 1 to 31622400"},
		{"scope", []string{"--scope=maybe"}, nil, "error: invalid value 'maybe' for '--scope <WHEN>'\n  [possible values: auto, always, never]"},
		{"slice that is none", []string{"--slice=a.scope"}, nil, "error: invalid value 'a.scope' for '--slice <SLICE>': not the name of a slice"},
		{"slice with a path", nil, []string{"CONMON_SLICE=a/b.slice"}, "error: invalid value 'a/b.slice' for '--slice <SLICE>': not the name of a slice"},
		{"slice with an empty part", []string{"--slice=a--b.slice"}, nil, "error: invalid value 'a--b.slice' for '--slice <SLICE>': not the name of a slice"},
		{"budget too small", nil, []string{"CONMON_EXEC_OUTPUT_BUDGET=1"}, "error: invalid value '1' for '--exec-output-budget <BYTES>': not a whole number from 65536 to 1099511627776"},
		{"pod id missing", []string{"pause"}, nil, "error: the following required arguments were not provided:\n  --pod-id <POD_ID>"},
		{"pod id missing beside version", []string{"--version=full", "pause"}, nil, "error: the following required arguments were not provided:\n  --pod-id <POD_ID>"},
		{"pod id empty", []string{"pause", "--pod-id="}, nil, "error: a value is required for '--pod-id <POD_ID>' but none was supplied"},
		{"mappings missing", []string{"pause", "--user"}, nil,
			"error: the following required arguments were not provided:\n  --pod-id <POD_ID>\n  --uid-mappings <UID_MAPPINGS>\n  --gid-mappings <GID_MAPPINGS>"},
		{"top-level option after pause", []string{"pause", "--pod-id=p", "--runtime=/r"}, nil, "error: unexpected argument '--runtime' found"},
		{"word after pause", []string{"pause", "--pod-id", "p", "x"}, nil, "error: unexpected argument 'x' found"},
		{"pause option before pause", []string{"--pod-id=p", "pause"}, nil, "error: unexpected argument '--pod-id' found"},
		{"bad variable beside pause", []string{"pause", "--pod-id=p"}, []string{"CONMON_LOG_LEVEL=x"}, "error: invalid value 'x' for '--log-level <LEVEL>'" + levelValues},
		{"help for an unknown command", []string{"help", "xyz"}, nil, "error: unrecognized subcommand 'xyz'"},
		{"error before help", []string{"--xyz", "--help"}, nil, "error: unexpected argument '--xyz' found"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse(tt.args, tt.env)
			var usage *UsageError
			if !errors.As(err, &usage) || c != nil {
				t.Fatalf("got %+v, %v", c, err)
			}
			text, rest, _ := strings.Cut(usage.Text, "\n\n")
			if text != tt.want {
				t.Errorf("text\n%s\nwant\n%s", text, tt.want)
			}
			command := "Usage: conmonrs [OPTIONS] [COMMAND]"
			if strings.Contains(strings.Join(tt.args, " "), "pause --pod-id") || strings.Contains(tt.want, "<POD_ID>") {
				command = "Usage: conmonrs pause [OPTIONS] --pod-id <POD_ID>"
			}
			if tt.name == "bad variable beside pause" {
				command = "Usage: conmonrs [OPTIONS] [COMMAND]"
			}
			if want := command + "\n\nFor more information, try '--help'.\n"; rest != want {
				t.Errorf("rest\n%s\nwant\n%s", rest, want)
			}
			if line, _, _ := strings.Cut(tt.want, "\n"); err.Error() != line {
				t.Errorf("Error() %q", err)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	top := []string{"--help", "-h", "-eh", "help", "help help", "--skip-fork --help --xyz", "-l info -h"}
	pause := []string{"pause --help", "pause -h", "help pause", "pause --ipc -h x"}
	for i, line := range append(top, pause...) {
		c, err := Parse(strings.Fields(line), []string{"CONMON_LOG_LEVEL=bad"})
		if err != nil || c.Command != Help {
			t.Errorf("%s: %+v, %v", line, c, err)
			continue
		}
		wanted := []string{"--log-level <LEVEL>", "CONMON_STOP_TIMEOUT", "--exec-output-budget <BYTES>", "[alias: --vj]", "  pause  "}
		if i >= len(top) {
			wanted = []string{"--pod-id <POD_ID>", "CONMON_PAUSE_POD_ID", "[default: /var/run]", "-u, --uid-mappings <UID_MAPPINGS>"}
		}
		for _, want := range wanted {
			if !strings.Contains(c.HelpText, want) {
				t.Errorf("%s: no %q in\n%s", line, want, c.HelpText)
			}
		}
		if strings.Contains(c.HelpText, "cgroup-manager") || !strings.HasSuffix(c.HelpText, projectURL+"\n") {
			t.Errorf("%s:\n%s", line, c.HelpText)
		}
	}
}

// No two options of a command share a name, and the tables are complete.
func TestTables(t *testing.T) {
	for _, cmd := range []*command{mainCommand(&versionRequest{}), pauseCommand()} {
		seen := map[string]bool{"help": true, "h": true, "": true}
		for _, o := range cmd.options {
			for _, name := range []string{o.long, o.alias, strings.Trim(string(rune(o.short)), "\x00"), o.env} {
				if name != "" && seen[name] {
					t.Errorf("%s: %q twice", cmd.name, name)
				}
				seen[name] = true
			}
			if (o.kind != flag) != (o.meta != "") || (o.set == nil) != (o.kind == ignored) || (o.kind == optional) != (o.bare != "") {
				t.Errorf("%s: row %q is incomplete", cmd.name, o.long)
			}
		}
	}
}

// The arguments that engines pass stay short, since journald stores them with
// every entry: with paths of usual length they are under 300 bytes.
func TestArgumentsAreShort(t *testing.T) {
	line := "/usr/libexec/crio/conmonrs --runtime /usr/libexec/crio/crun --runtime-dir /run/containers/storage/overlay-containers/" +
		strings.Repeat("a", 64) + "/userdata --runtime-root /run/crun --log-level info --log-driver systemd"
	if len(line) >= 300 {
		t.Errorf("%d bytes", len(line))
	}
	if _, err := Parse(strings.Fields(line)[1:], os.Environ()); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range [][2]string{
		{"--runtime /r --runtime-dir=/d -l info", ""}, {"-vfull pause", "CONMON_VERSION=full"}, {"pause --user -u 0 -g", "CONMON_PAUSE_POD_ID=x"},
		{"-ej=full", "CONMON_SKIP_FORK=1"}, {"help pause", ""}, {"-- x", ""}, {"-\xff", "="}, {"--stop-timeout +1", "CONMON_EXEC_OUTPUT_BUDGET=1e9"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, args, environ string) {
		c, err := Parse(strings.Split(args, " "), strings.Split(environ, " "))
		if err != nil {
			var usage *UsageError
			if !errors.As(err, &usage) || !strings.HasPrefix(usage.Text, "error: ") ||
				!strings.Contains(usage.Text, "\n\nUsage: conmonrs ") || !strings.HasSuffix(usage.Text, "try '--help'.\n") {
				t.Errorf("error %#v", err)
			}
			return
		}
		switch {
		case c.Command == Help && c.HelpText == "",
			c.Runtime == "" || c.RuntimeDir == "",
			c.StopTimeout < 0 || c.RuntimeTimeout <= 0 || c.ExecOutputBudget < minBudget,
			c.Command == Pause && c.Pause.PodID == "",
			c.Command == Pause && c.Pause.User && (c.Pause.UIDMappings == nil || c.Pause.GIDMappings == nil):
			t.Errorf("inconsistent: %+v", c)
		}
	})
}
