package journald

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	defaultMaxLine  = 48 << 10
	minMaxLine      = 64
	defaultFullWait = 10 * time.Second

	// A restart of journald's socket leaves a gap of this order.
	gapWait  = time.Second
	gapRetry = 20 * time.Millisecond
)

// SinkOptions describe the log of one container. Empty values make no fields.
type SinkOptions struct {
	ContainerID  string // CONTAINER_ID_FULL; 12 characters of it are CONTAINER_ID and SYSLOG_IDENTIFIER
	Name         string // CONTAINER_NAME
	PodName      string // CONTAINER_POD_NAME
	PodNamespace string // CONTAINER_POD_NAMESPACE
	Extra        []Field

	// MaxLine is the number of bytes of a line that one entry holds; a longer
	// line is split. 0: 48 KiB; at least 64.
	MaxLine int
	// FullWait is how long an entry waits while journald's queue does not
	// move, before it counts as lost. 0: 10 s.
	FullWait time.Duration
	// Logger hears of losses: once when they begin, once when they have
	// ended. nil: nobody does.
	Logger Logger
}

// Logger takes a message and keys, each followed by its value, as *slog.Logger does.
type Logger interface {
	Warn(message string, args ...any)
	Error(message string, args ...any)
}

type noLogger struct{}

func (noLogger) Warn(string, ...any)  {}
func (noLogger) Error(string, ...any) {}

// Sink writes the output of one container, one entry a line. It runs no goroutine
// and holds no buffer, except the beginning of a line that is not complete.
//
// An entry waits while journald's queue is full, so that a slow journal slows the
// container. If journald does not take it for FullWait, or is not reachable for a
// second, entries are lost: each is tried once, without waiting, and counted,
// until one gets through. The container is never stopped for good.
type Sink struct {
	conn     *Conn
	o        SinkOptions
	prefixes atomic.Pointer[[2][]byte] // encoded constant fields of each stream

	failing atomic.Bool
	mu      sync.Mutex // guards what follows and the changes of failing
	total   Loss
	period  Loss  // since failing was set
	trouble error // that set failing
}

// Loss counts what could not be written.
type Loss struct {
	Entries uint64
	Bytes   uint64 // of messages
}

// NewSink returns a Sink that sends through conn, which stays the caller's. Give
// each container its own Conn: then a container that floods the journal fills the
// buffer of its own socket only. A bad name in Extra is an error.
func NewSink(conn *Conn, o SinkOptions) (*Sink, error) {
	if o.ContainerID == "" {
		return nil, errors.New("journal sink: container id is empty")
	}
	if o.MaxLine == 0 {
		o.MaxLine = defaultMaxLine
	}
	o.MaxLine = max(o.MaxLine, minMaxLine)
	if o.FullWait <= 0 {
		o.FullWait = defaultFullWait
	}
	if o.Logger == nil {
		o.Logger = noLogger{}
	}
	s := &Sink{conn: conn, o: o}
	if err := s.SetExtra(o.Extra); err != nil {
		return nil, err
	}
	return s, nil
}

// SetExtra replaces the extra fields of the entries to come. It serves what is
// learnt after the start, such as OBJECT_PID, and may be called at any time. With
// an invalid name nothing changes. The values are copied.
func (s *Sink) SetExtra(extra []Field) error {
	for i := range extra {
		if !ValidName(extra[i].Name) {
			return fmt.Errorf("journal sink of container %q: invalid field name %q", s.o.ContainerID, extra[i].Name)
		}
	}
	s.prefixes.Store(&[2][]byte{
		stdout: s.prefix("stdout", '6', extra), // LOG_INFO of syslog(3)
		stderr: s.prefix("stderr", '3', extra), // LOG_ERR
	})
	return nil
}

// Indexes of the streams.
const (
	stdout = iota
	stderr
)

func (s *Sink) prefix(stream string, priority byte, extra []Field) []byte {
	short := ShortID(s.o.ContainerID)
	b := append([]byte("PRIORITY="), priority, '\n')
	for _, f := range [...]struct{ name, value string }{
		{"SYSLOG_IDENTIFIER", short},
		{"CONTAINER_ID", short},
		{"CONTAINER_ID_FULL", s.o.ContainerID},
		{"CONTAINER_NAME", s.o.Name},
		{"CONTAINER_POD_NAME", s.o.PodName},
		{"CONTAINER_POD_NAMESPACE", s.o.PodNamespace},
		{"CONTAINER_STREAM", stream},
	} {
		if f.value != "" {
			b = AppendField(b, f.name, f.value)
		}
	}
	for i := range extra {
		b = AppendField(b, extra[i].Name, extra[i].Value)
	}
	return b
}

// Stream returns the writer for a stream: "stderr", or any other name for
// standard output. Each stream has one writer, which is not for concurrent use;
// the streams of a Sink are independent of each other.
func (s *Sink) Stream(name string) *Stream {
	st := &Stream{sink: s, tx: s.conn.newSender(), index: stdout, name: "stdout"}
	if name == "stderr" {
		st.index, st.name = stderr, "stderr"
	}
	return st
}

// Lost returns what has been lost so far.
func (s *Sink) Lost() Loss {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// deliver sends an entry with a message of n bytes as the rules of Sink say.
func (s *Sink) deliver(tx *sender, entry []byte, n int) error {
	if s.failing.Load() {
		err := tx.send(entry, 0)
		if err != nil {
			return s.lost(err, n)
		}
		s.recovered()
		return nil
	}
	err := tx.send(entry, s.o.FullWait)
	if unreachable(err) {
		err = s.bridge(tx, entry)
	}
	if err != nil {
		return s.lost(err, n)
	}
	return nil
}

// bridge tries to get over a restart of journald's socket. That the path is
// there again is not announced.
func (s *Sink) bridge(tx *sender, entry []byte) (err error) {
	for end := time.Now().Add(gapWait); time.Now().Before(end); {
		time.Sleep(gapRetry)
		if err = tx.send(entry, s.o.FullWait); !unreachable(err) || s.failing.Load() {
			break
		}
	}
	return err
}

// lost counts an entry. Losses of one period have one error, that of the first.
func (s *Sink) lost(err error, n int) error {
	s.mu.Lock()
	begins := !s.failing.Load()
	if begins {
		s.failing.Store(true)
		s.period = Loss{}
		if err == unix.EAGAIN {
			err = fmt.Errorf("queue is full: %w", err)
		}
		s.trouble = fmt.Errorf("write to journal for container %q: %w", s.o.ContainerID, err)
	}
	for _, l := range [...]*Loss{&s.total, &s.period} {
		l.Entries++
		l.Bytes += uint64(n)
	}
	trouble := s.trouble
	s.mu.Unlock()
	if begins && !errors.Is(err, os.ErrClosed) {
		s.o.Logger.Error("write to journal, output is lost until it works again", "container", s.o.ContainerID, "error", err)
	}
	return trouble
}

func (s *Sink) recovered() {
	s.mu.Lock()
	ends, period := s.failing.Load(), s.period
	s.failing.Store(false)
	s.mu.Unlock()
	if ends {
		s.o.Logger.Warn("journal lost output", "container", s.o.ContainerID, "entries", period.Entries, "bytes", period.Bytes)
	}
}
