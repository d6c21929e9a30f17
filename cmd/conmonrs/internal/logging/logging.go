// Package logging makes the logger of the monitor itself, for the driver and the
// level that the command line asks for.
//
// It does not touch the logs of containers. log/slog is not used: it links encoding/json and a logger of its own, which
// costs 0.2 MiB of each pod, and looks up the caller for each record. The methods of Logger are named like those of
// *slog.Logger, so what takes one of them takes the other.
package logging

import (
	"fmt"
	"io"
	"os"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/config"
	"github.com/conmonrs/conmonrs/journald"
)

// Options describe a logger.
type Options struct {
	Driver config.LogDriver
	Level  config.LogLevel

	Stdout  io.Writer // for the driver stdout; nil: os.Stdout
	Journal string    // socket for the driver systemd; empty: the usual one
}

// New returns the logger and a function that gives up what it holds. Its first
// record says which driver and level are used. The logger is nil, which is a valid
// one, for the driver none and for the level off. A journal that is not there is not
// an error: records are dropped until it is.
func New(o Options) (log *Logger, closeLog func() error, err error) {
	if o.Level == config.LevelOff {
		o.Driver = config.DriverNone
	}
	closeLog = func() error { return nil }
	switch o.Driver {
	case config.DriverStdout:
		if o.Stdout == nil {
			o.Stdout = os.Stdout
		}
		log = newLogger(&text{w: o.Stdout}, levelOf(o.Level))
	case config.DriverSystemd:
		if o.Journal == "" {
			o.Journal = journald.DefaultSocket
		}
		conn, err := journald.Dial(o.Journal)
		if err != nil {
			return nil, nil, fmt.Errorf("open log: %w", err)
		}
		closeLog = conn.Close
		log = newLogger(journal{journald.NewLog(conn)}, levelOf(o.Level))
	}
	log.Info("logging", "driver", string(o.Driver), "level", string(o.Level))
	return log, closeLog, nil
}

// levelOf translates a level. There is nothing to say that is less severe than Debug.
func levelOf(level config.LogLevel) Level {
	switch level {
	case config.LevelTrace, config.LevelDebug:
		return Debug
	case config.LevelWarn:
		return Warn
	case config.LevelError:
		return Error
	}
	return Info
}
