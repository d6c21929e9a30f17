// Package logging makes the logger of the monitor itself, for the driver and the
// level that the command line asks for.
//
// It does not touch the logs of containers. The handlers of log/slog are not used:
// they cost resident memory, and engines know another line format.
package logging

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/config"
	"github.com/conmonrs/conmonrs/journald"
)

// LevelTrace is below slog.LevelDebug. What only helps to find a fault in the
// monitor goes there, arguments of commands included.
const LevelTrace = slog.LevelDebug - 4

// identifier is what people give to journalctl -t.
const identifier = "conmonrs"

// Options describe a logger.
type Options struct {
	Driver config.LogDriver
	Level  config.LogLevel

	Stdout  io.Writer // for the driver stdout; nil: os.Stdout
	Journal string    // socket for the driver systemd; empty: the usual one
}

// New returns the logger and a function that gives up what it holds. Its first
// record says which driver and level are used. A journal that is not there is not
// an error: records are dropped until it is.
func New(o Options) (log *slog.Logger, closeLog func() error, err error) {
	level, on := levelOf(o.Level)
	if !on {
		o.Driver = config.DriverNone
	}
	closeLog = func() error { return nil }
	switch o.Driver {
	case config.DriverStdout:
		if o.Stdout == nil {
			o.Stdout = os.Stdout
		}
		log = slog.New(NewTextHandler(o.Stdout, level))
	case config.DriverSystemd:
		if o.Journal == "" {
			o.Journal = journald.DefaultSocket
		}
		conn, err := journald.Dial(o.Journal)
		if err != nil {
			return nil, nil, fmt.Errorf("open log: %w", err)
		}
		closeLog = conn.Close
		log = slog.New(journald.NewHandler(conn, journald.HandlerOptions{Level: level, Identifier: identifier}))
	default:
		log = slog.New(slog.DiscardHandler)
	}
	log.Info("logging", "driver", string(o.Driver), "level", string(o.Level))
	return log, closeLog, nil
}

// levelOf translates a level; false means that nothing is logged.
func levelOf(level config.LogLevel) (slog.Level, bool) {
	switch level {
	case config.LevelTrace:
		return LevelTrace, true
	case config.LevelDebug:
		return slog.LevelDebug, true
	case config.LevelWarn:
		return slog.LevelWarn, true
	case config.LevelError:
		return slog.LevelError, true
	case config.LevelOff:
		return 0, false
	}
	return slog.LevelInfo, true
}
