package server

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"capnproto.org/go/capnp/v3"
	"capnproto.org/go/capnp/v3/rpc/transport"
	rpccp "capnproto.org/go/capnp/v3/std/capnp/rpc"
)

const (
	// writeChunk is what a client has to take within the server's patience.
	writeChunk = 256 << 10
	// joinBelow is the size up to which a message is sent by one write instead of one per segment.
	joinBelow = 4 << 10
)

// link is the transport of one connection: framing, limits and accounting around a byte stream. It follows
// the rules of [transport.Transport]; one goroutine of go-capnp receives and another sends.
type link struct {
	rwc    io.ReadWriteCloser
	conn   *conn
	filter filter
	enc    *capnp.Encoder
	unsent atomic.Int64 // messages made for a reply that has not been written yet
	once   sync.Once
	err    error
}

func newLink(rwc io.ReadWriteCloser, c *conn) *link {
	l := &link{rwc: rwc, conn: c}
	l.enc = capnp.NewEncoder(patientWriter{rwc, c.server.patience})
	return l
}

// RecvMessage implements [transport.Transport].
func (l *link) RecvMessage() (transport.IncomingMessage, error) {
	for {
		m, err := readMessage(l.rwc)
		if err != nil {
			return nil, err
		}
		root, err := rpccp.ReadRootMessage(m)
		if err != nil {
			return nil, err
		}
		pass, err := l.filter.check(root)
		if err != nil {
			return nil, err
		}
		if pass {
			return &incoming{message: root}, nil
		}
	}
}

// NewMessage implements [transport.Transport].
func (l *link) NewMessage() (transport.OutgoingMessage, error) {
	_, seg := capnp.NewMultiSegmentMessage(nil)
	root, err := rpccp.NewRootMessage(seg)
	if err != nil {
		return nil, err
	}
	l.unsent.Add(1)
	return &outgoing{link: l, message: root}, nil
}

// Close implements [transport.Transport]. Only the first call closes.
func (l *link) Close() error {
	l.once.Do(func() {
		l.err = l.rwc.Close()
		l.conn.transportClosed()
	})
	return l.err
}

// incoming is a received message. go-capnp may release it from several goroutines.
type incoming struct {
	message rpccp.Message
	once    sync.Once
}

func (i *incoming) Message() rpccp.Message { return i.message }

func (i *incoming) Release() {
	i.once.Do(func() { i.message.Message().Release() })
}

// outgoing is a message to be sent at most once.
type outgoing struct {
	link     *link
	message  rpccp.Message
	sent     atomic.Bool
	released atomic.Bool
}

func (o *outgoing) Message() rpccp.Message { return o.message }

// Send writes the message.
func (o *outgoing) Send() error {
	if o.released.Load() {
		panic("server: message sent after release")
	}
	defer o.settle()
	m := o.message.Message()
	size, err := m.TotalSize()
	if err != nil {
		return err
	}
	if size > joinBelow || m.NumSegments() == 0 {
		return o.link.enc.Encode(m)
	}
	b, err := m.Marshal()
	if err != nil {
		return err
	}
	_, err = patientWriter{o.link.rwc, o.link.conn.server.patience}.Write(b)
	return err
}

// settle notes that the message is no longer waiting to be sent.
func (o *outgoing) settle() {
	if o.sent.CompareAndSwap(false, true) {
		if o.link.unsent.Add(-1) == 0 {
			o.link.conn.server.wake()
		}
	}
}

// Release gives the memory of the message back.
func (o *outgoing) Release() {
	if !o.released.CompareAndSwap(false, true) {
		return
	}
	o.settle()
	m := o.message.Message()
	m.Release()
	o.link.conn.released(m)
}

// patientWriter gives a client a limited time for each piece, if the stream knows deadlines. A client that
// stops reading would otherwise hold the replies queued behind the write for ever.
type patientWriter struct {
	w       io.Writer
	timeout time.Duration
}

func (p patientWriter) Write(b []byte) (int, error) {
	d, ok := p.w.(interface{ SetWriteDeadline(time.Time) error })
	if !ok || d.SetWriteDeadline(time.Now().Add(p.timeout)) != nil {
		return p.w.Write(b)
	}
	// A timer left behind would wake an idle daemon.
	defer func() { _ = d.SetWriteDeadline(time.Time{}) }()
	done := 0
	for done < len(b) {
		n, err := p.w.Write(b[done:min(len(b), done+writeChunk)])
		done += n
		if err != nil {
			return done, err
		}
		if done < len(b) {
			_ = d.SetWriteDeadline(time.Now().Add(p.timeout))
		}
	}
	return done, nil
}
