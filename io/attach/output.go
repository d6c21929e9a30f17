package attach

import (
	"time"
)

// First bytes of the packets to a client.
const (
	packetDone   = 0
	packetStdout = 2
	packetStderr = 3
)

const maxPayload = 8191 // of a packet, without its first byte

// Output is the sink for one stream of the container.
type Output struct {
	h    *Hub
	kind byte
}

// Stdout returns the sink for standard output, and for all output of a
// terminal.
func (h *Hub) Stdout() *Output { return &Output{h: h, kind: packetStdout} }

// Stderr returns the sink for standard error.
func (h *Hub) Stderr() *Output { return &Output{h: h, kind: packetStderr} }

// WriteChunk sends data to all clients. It never fails, and does not wait for
// clients beyond what the package comment says about slow ones. It does not
// allocate unless it must queue.
func (o *Output) WriteChunk(_ time.Time, data, scratch []byte) error {
	if o.h.Clients() == 0 || len(data) == 0 {
		return nil
	}
	o.h.awaitReaders()
	o.h.send(split(o.kind, data, scratch[:0]))
	return nil
}

// split puts the packets for data one behind the other. All but the last
// have the full length.
func split(kind byte, data, buf []byte) []byte {
	for len(data) > 0 {
		n := min(len(data), maxPayload)
		buf = append(buf, kind)
		buf = append(buf, data[:n]...)
		data = data[n:]
	}
	return buf
}

// awaitReaders gives clients that lag behind some time, within their patience.
func (h *Hub) awaitReaders() {
	for {
		pause := false
		h.mu.Lock()
		for _, c := range h.clients {
			pause = c.wantsPause() || pause
		}
		h.mu.Unlock()
		if !pause {
			return
		}
		time.Sleep(pauseFor)
	}
}

// send gives the packets to each client.
func (h *Hub) send(packets []byte) {
	dropped := 0
	h.mu.Lock()
	for i := 0; i < len(h.clients); {
		c := h.clients[i]
		switch c.send(packets) {
		case served:
			i++
		case slow:
			dropped++
			h.dropLocked(c) // moves the next one to i
		case gone:
			h.dropLocked(c)
		}
	}
	h.mu.Unlock()
	if dropped > 0 {
		h.log.Warn("disconnect attach clients", "reason", errSlow, "clients", dropped)
	}
}
