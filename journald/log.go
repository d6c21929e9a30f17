package journald

import (
	"sync"
	"sync/atomic"
)

// Log sends the entries of a program's own log. It never waits and never fails: while journald is unreachable or its
// queue is full, entries are dropped and counted. It is safe for concurrent use.
type Log struct {
	dropped atomic.Uint64

	mu sync.Mutex // held during a send, which does not wait
	tx *sender
}

// NewLog returns a Log that sends through conn, which stays the caller's.
func NewLog(conn *Conn) *Log { return &Log{tx: conn.newSender()} }

// Send sends an entry of encoded fields, see AppendField. Time and source are left to journald. The entry stays the
// caller's.
func (l *Log) Send(entry []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tx.send(entry, 0) != nil {
		l.dropped.Add(1)
	}
}

// Dropped returns the number of entries that could not be sent.
func (l *Log) Dropped() uint64 { return l.dropped.Load() }
