package fdslot

import (
	"context"
	"fmt"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a connection to a server, as *net.UnixConn and *os.File are.
type Conn interface {
	syscall.Conn
	SetDeadline(time.Time) error
	Close() error
}

// Sender is the client's end of one connection. It has no goroutine. All methods may be called from several goroutines.
type Sender struct {
	conn Conn
	raw  syscall.RawConn
	// slot holds a token while somebody waits for a reply. It is a channel because waiting for it ends with a context.
	slot chan struct{}
	last uint32 // number of the last request; whoever has the slot
}

// NewSender takes ownership of a connection, also on error.
func NewSender(conn Conn) (*Sender, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &Sender{conn: conn, raw: raw, slot: make(chan struct{}, 1)}, nil
}

// Send sends copies of 1 to [MaxFDs] descriptors, which stay the caller's, and returns their slots in the same order.
// Errors: *[RefusedError]; io.EOF if the server has closed the connection; the cause of ctx, with which descriptors may
// have been sent that have slots until [Sender.Release] or Close.
func (s *Sender) Send(ctx context.Context, fds []int) (slots []uint64, err error) {
	err = s.do(ctx, func() error {
		s.last = max(s.last+1, 1) // 0 would be a release
		want := request{id: s.last, count: uint32(len(fds))}
		if err := s.write(want.append(nil), unix.UnixRights(fds...)); err != nil {
			return fmt.Errorf("send descriptors: %w", err)
		}
		slots, err = s.receive(want)
		return err
	})
	return slots, err
}

// Release gives up all descriptors that were sent and not taken. Errors are as with [Sender.Send].
func (s *Sender) Release(ctx context.Context) error {
	return s.do(ctx, func() error {
		if err := s.write(request{}.append(nil), nil); err != nil {
			return fmt.Errorf("release descriptors: %w", err)
		}
		return nil
	})
}

// Close ends the connection: the server closes what was sent and not taken.
func (s *Sender) Close() error { return s.conn.Close() }

// do runs an exchange, alone, until ctx ends.
func (s *Sender) do(ctx context.Context, exchange func() error) error {
	select {
	case s.slot <- struct{}{}:
		defer func() { <-s.slot }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = s.conn.SetDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	err := exchange()
	if !stop() {
		<-interrupted
		_ = s.conn.SetDeadline(time.Time{})
		if err != nil {
			err = context.Cause(ctx)
		}
	}
	return err
}

// receive waits for the reply to want. Those to requests that were given up are skipped.
func (s *Sender) receive(want request) ([]uint64, error) {
	packet := make([]byte, maxReply)
	for {
		size, err := s.read(packet)
		switch {
		case err != nil:
			return nil, fmt.Errorf("receive slots: %w", err)
		case size == 0:
			return nil, io.EOF
		case size > len(packet):
			return nil, fmt.Errorf("%w: it has %d bytes", errReply, size)
		}
		slots, other, err := parseReply(packet[:size], want)
		if !other {
			return slots, err
		}
	}
}

func (s *Sender) write(packet, control []byte) error {
	var failure error
	err := s.raw.Write(func(fd uintptr) bool {
		failure = send(int(fd), packet, control)
		return failure != unix.EAGAIN
	})
	if err != nil {
		return err
	}
	return failure
}

// read returns the size of a packet, of which the beginning is in the buffer.
func (s *Sender) read(packet []byte) (size int, err error) {
	var failure error
	err = s.raw.Read(func(fd uintptr) bool {
		var fds []int
		size, fds, _, failure = receive(int(fd), packet)
		for _, fd := range fds { // none of a server that keeps to the protocol
			_ = unix.Close(fd)
		}
		return failure != unix.EAGAIN
	})
	if err != nil {
		return 0, err
	}
	return size, failure
}
