package container

import (
	"errors"
	"fmt"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/logging"
	"github.com/conmonrs/conmonrs/io/logfile"
	"github.com/conmonrs/conmonrs/io/pump"
	"github.com/conmonrs/conmonrs/journald"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// logs are the destinations of a container's output that must get all of it.
type logs struct {
	files    []*logfile.File
	journals []*journald.Sink
	conns    []*journald.Conn
	object   []journald.Field // OBJECT_PID first; what else says whose the entries are
	// endings write what is kept back when a stream ends, by stream.
	endings map[string][]func() error
	sinks   map[string][]pump.Sink
}

const (
	stdout = "stdout"
	stderr = "stderr"
)

// openLogs opens all drivers, or none.
func (h *Host) openLogs(id string, drivers []conmon.LogDriver, log *logging.Logger) (*logs, error) {
	l := &logs{endings: make(map[string][]func() error), sinks: make(map[string][]pump.Sink)}
	for i, d := range drivers {
		var err error
		switch d.Type {
		case conmon.LogDriverCRI:
			err = l.openFile(d, logfile.CRI, log)
		case conmon.LogDriverJSON:
			err = l.openFile(d, logfile.JSON, log)
		case conmon.LogDriverJournald:
			err = l.openJournal(h.JournalSocket, id, log)
		default:
			err = &conmon.InvalidError{Field: fmt.Sprintf("logDrivers[%d].type", i), Reason: d.Type.String()}
		}
		if err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

func (l *logs) openFile(d conmon.LogDriver, format logfile.Format, log *logging.Logger) error {
	f, err := logfile.Open(d.Path, logfile.Options{Format: format, MaxSize: d.MaxSize, Logger: log})
	if err != nil {
		return err
	}
	l.files = append(l.files, f)
	for _, stream := range []string{stdout, stderr} {
		w := f.Stream(stream)
		l.add(stream, w, w.End)
	}
	return nil
}

func (l *logs) openJournal(socket, id string, log *logging.Logger) error {
	// A connection for each container: the buffer of a socket is what its sender may have queued.
	conn, err := journald.Dial(socket)
	if err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	l.conns = append(l.conns, conn)
	sink, err := journald.NewSink(conn, journald.SinkOptions{ContainerID: id, Logger: log})
	if err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	l.journals = append(l.journals, sink)
	for _, stream := range []string{stdout, stderr} {
		w := sink.Stream(stream)
		l.add(stream, w, w.End)
	}
	return nil
}

func (l *logs) add(stream string, sink pump.Sink, end func() error) {
	l.sinks[stream] = append(l.sinks[stream], sink)
	l.endings[stream] = append(l.endings[stream], end)
}

// end is called when a stream has ended. Errors have been counted and reported by the drivers.
func (l *logs) end(stream string) {
	for _, f := range l.endings[stream] {
		_ = f()
	}
}

func (l *logs) reopen() error {
	var errs []error
	for _, f := range l.files {
		errs = append(errs, f.Reopen())
	}
	return errors.Join(errs...)
}

func (l *logs) close() {
	for _, f := range l.files {
		_ = f.Close()
	}
	for _, c := range l.conns {
		_ = c.Close()
	}
}
