package main

import (
	"os"
	"strconv"
	"testing"
	"time"
)

func TestFindManager(t *testing.T) {
	self := strconv.Itoa(os.Getpid())
	for name, c := range map[string]struct {
		foreground              bool
		socket, execPID         string
		watchdogUsec, watchdog  string
		wantManager, wantTicker bool
	}{
		"service":                 {true, "/n", self, "", "", true, false},
		"service, older systemd":  {true, "/n", "", "", "", true, false},
		"background":              {false, "/n", "", "", "", false, false},
		"nobody waits":            {true, "", self, "", "", false, false},
		"child of a service":      {true, "/n", "1", "2000000", "1", false, false},
		"watchdog":                {true, "/n", self, "2000000", self, true, true},
		"watchdog for anyone":     {true, "/n", self, "2000000", "", true, true},
		"watchdog of another":     {true, "/n", self, "2000000", "1", true, false},
		"watchdog without time":   {true, "/n", self, "0", self, true, false},
		"watchdog with bad value": {true, "/n", self, "-1", self, true, false},
		"watchdog with huge time": {true, "/n", self, "9223372036854775807", self, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NOTIFY_SOCKET", c.socket)
			t.Setenv("SYSTEMD_EXEC_PID", c.execPID)
			t.Setenv("WATCHDOG_USEC", c.watchdogUsec)
			t.Setenv("WATCHDOG_PID", c.watchdog)
			m := findManager(c.foreground, nil)
			if (m != nil) != c.wantManager || (m.asks() != nil) != c.wantTicker {
				t.Errorf("manager %v, ticker %t", m, m.asks() != nil)
			}
		})
	}
}

// A manager that is not there, or is called by a bad name, is no reason to fail.
func TestTellNobody(t *testing.T) {
	var nobody *serviceManager
	nobody.tell("READY=1")
	start := time.Now()
	for _, socket := range []string{"/no/such/socket", "relative", "@no such socket"} {
		(&serviceManager{socket: socket, log: nil}).tell("READY=1")
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
}
