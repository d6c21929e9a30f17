package container

import (
	"sync"
	"time"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/oci"
	"github.com/conmonrs/conmonrs/io/pump"
)

// gate stands before the sinks of a stream while the runtime is at work: what it prints is its own message, not the
// container's output. It keeps up to oci.MaxErrorText bytes. If the runtime prints more, it is not clear what that is, the
// stream must not stall, and nothing may be lost: everything goes through.
type gate struct {
	mu    sync.Mutex
	sinks []pump.Sink
	kept  []byte
	open  bool
}

// WriteChunk implements pump.Sink.
func (g *gate) WriteChunk(at time.Time, data, scratch []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.open && len(g.kept)+len(data) <= oci.MaxErrorText {
		g.kept = append(g.kept, data...)
		return nil
	}
	if !g.open {
		g.open = true
		_ = g.writeLocked(at, g.kept, scratch)
	}
	return g.writeLocked(at, data, scratch)
}

// pass lets all that follows through: the runtime has done its work. It returns what has been kept, as text.
func (g *gate) pass() (message string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.open {
		g.open = true
		message = oci.ErrorText(g.kept)
	}
	g.kept = nil
	return message
}

// message returns the beginning of what was printed, as text.
func (g *gate) message() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return oci.ErrorText(g.kept)
}

// writeLocked writes to all sinks; one that fails does not keep the others from it.
func (g *gate) writeLocked(at time.Time, data, scratch []byte) (first error) {
	for _, s := range g.sinks {
		if err := s.WriteChunk(at, data, scratch[:0]); err != nil && first == nil {
			first = err
		}
	}
	return first
}
