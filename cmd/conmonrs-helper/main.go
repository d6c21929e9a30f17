// Command conmonrs-helper does for a monitor what is rare, and too heavy to be resident in every pod. The monitor runs
// it, it does one thing, and exits. It is no command for people, and its words may change with any version: a monitor
// runs the helper that it was installed with.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/conmonrs/conmonrs/cmd/internal/version"
	"github.com/conmonrs/conmonrs/systemdunit"
)

// The exit statuses. The reason of any but the first is on standard error.
const (
	statusDone = iota
	statusFailed
	statusUsage
	statusNoSystemd
)

const usage = `Usage: conmonrs-helper VERB [OPTION...]

  scope register   see to it that a process is in a scope of its own
      --pid N               the process
      --pod ID              the scope becomes conmonrs-ID.scope
      --slice NAME          where it goes; or
      --cgroups-path PATH   the slice of slice:prefix:name
      --description TEXT
      --mode auto|always    auto (default): adopt a scope that was made for the process
      --after UNIT          stopped after the scope; default: the service that the process is in
      --stop-timeout TIME   how long the process may take to end
      prints unit=NAME action=registered|adopted, described=no if the description could not be set, and
      dropped=NAME,... for properties that this systemd does not know
  scope describe   change the description of a unit
      --unit NAME --description TEXT
      prints unit=NAME
  scope stopping   tell whether a unit is being stopped
      --unit NAME
      prints stopping=yes|no
  version          print the version

Common options: --manager auto|system|user (auto), --timeout TIME (10s)

Exit status: 0 done, 1 failed, 2 wrong usage, 3 no systemd here
`

func main() {
	prepare()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// prepare makes the process known by its name (it is executed as /proc/self/fd/3, which is then no longer needed), and
// spares it the garbage collection that it does not live long enough for. The stop of the monitor's unit, about which it
// may have been started to ask, does not end it: its time-out does, or the monitor.
func prepare() {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	debug.SetGCPercent(-1)
	const executable, oPath = 3, 0x200000 // O_PATH of open(2)
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, executable, syscall.F_GETFL, 0)
	if errno == 0 && flags&oPath != 0 {
		_ = syscall.Close(executable)
		_ = os.WriteFile("/proc/self/comm", []byte("conmonrs-helper"), 0)
	}
}

// usageError is a mistake of the caller.
type usageError struct{ error }

func run(args []string, stdout, stderr io.Writer) int {
	err := obey(args, stdout)
	if err == nil {
		return statusDone
	}
	fmt.Fprintln(stderr, err)
	var field *systemdunit.FieldError
	switch {
	case errors.As(err, new(usageError)), errors.As(err, &field):
		return statusUsage
	case errors.Is(err, systemdunit.ErrNoSystemd):
		return statusNoSystemd
	}
	return statusFailed
}

func obey(args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return usageError{errors.New("no verb; see conmonrs-helper help")}
	}
	switch args[0] {
	case "scope":
		return scope(args[1:], stdout)
	case "version", "--version":
		fmt.Fprint(stdout, version.Get(false).Text())
	case "help", "--help", "-h":
		fmt.Fprint(stdout, usage)
	default:
		return usageError{fmt.Errorf("unknown verb %q", args[0])}
	}
	return nil
}
