package main

import (
	"os"
	"strconv"
	"time"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/logging"
	"github.com/conmonrs/conmonrs/notify"
)

// serviceManager is the manager that has started the monitor as the main process of a service and waits for its state;
// see sd_notify(3). A nil one is not told anything.
type serviceManager struct {
	socket string
	log    *logging.Logger
	// watchdog fires when the manager has to be told that the monitor is alive; nil: it does not want to know.
	watchdog <-chan time.Time
}

// findManager returns nil unless the monitor is the service. In the background it never is, and in the foreground the
// environment may be that of an engine which is a service itself: a READY=1 from here would be taken for the engine's.
func findManager(foreground bool, log *logging.Logger) *serviceManager {
	socket, self := os.Getenv("NOTIFY_SOCKET"), strconv.Itoa(os.Getpid())
	// Set by systemd since version 248, see systemd.exec(5): the pid of what it has executed itself.
	if pid := os.Getenv("SYSTEMD_EXEC_PID"); !foreground || socket == "" || pid != "" && pid != self {
		return nil
	}
	m := &serviceManager{socket: socket, log: log}
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if pid := os.Getenv("WATCHDOG_PID"); err == nil && usec > 1 && (pid == "" || pid == self) {
		// Half the time, as sd_watchdog_enabled(3) recommends. More than a year is a mistake in any case.
		m.watchdog = time.Tick(time.Duration(min(usec, int64(365*24*time.Hour/time.Microsecond))) * time.Microsecond / 2)
	}
	return m
}

// tell reports a state. That it cannot be reported keeps the monitor from nothing.
func (m *serviceManager) tell(state string) {
	if m == nil {
		return
	}
	if err := notify.Notify(m.socket, state); err != nil {
		m.log.Warn("state not reported", "state", state, "error", err)
	}
}

// asks returns the watchdog's channel, or nil.
func (m *serviceManager) asks() <-chan time.Time {
	if m == nil {
		return nil
	}
	return m.watchdog
}
