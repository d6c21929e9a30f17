package notify

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxMessage is what is read of a datagram.
	maxMessage = 32 << 10
	// maxFDs is how many descriptors a datagram can have (SCM_MAX_FD). A barrier has one. The others are received as
	// well: those for which there is no room are closed by the kernel, within the call that receives, which may block.
	maxFDs = 253
	// batch is how many datagrams one call of Ready handles: others wait for the same goroutine.
	batch = 16
	// A message that cannot be sent is tried again after retryPause, until it is retryLimit old. That is shorter than the
	// time that systemd-notify waits for its barrier.
	retryPause = 20 * time.Millisecond
	retryLimit = time.Second
	// While descriptors are being closed for longer than usual, that is looked at after these times.
	minClosePause = time.Millisecond
	maxClosePause = time.Second
)

// Logger takes a message and keys, each followed by its value, as *slog.Logger does.
type Logger interface {
	Info(message string, args ...any)
	Warn(message string, args ...any)
}

type noLogger struct{}

func (noLogger) Info(string, ...any) {}
func (noLogger) Warn(string, ...any) {}

// Options describe a relay.
type Options struct {
	// Socket is where messages go, see [CheckSocket]. It need not exist yet.
	Socket string
	// Logger hears when messages are lost, and when the next one gets through; nil: nobody does.
	Logger Logger
}

// Relay passes on what one container says to its notification socket. It has one descriptor, and no goroutine, timer or
// buffer while nothing happens; its owner calls [Relay.Ready]. All methods may be called from several goroutines.
//
// What is sent goes out in the order in which it came, one datagram for one, and the receiver sees this process as the
// sender. While a message waits for its receiver, no further one is read: senders notice a receiver that is slow as they
// would without the relay. When it has waited for a second it is dropped, and so is, at once, each of those that follow
// until one gets through.
//
// Descriptors that come with a message are closed when it, and so everything before it, has been passed on or dropped;
// that answers the barrier of sd_notify_barrier(3). It happens on a goroutine, one for each relay at most, for which no
// method waits: what a stranger has sent may block when it is closed, a socket with SO_LINGER for instance. Until they
// are closed no further message is read, so that they do not pile up.
type Relay struct {
	host string
	log  Logger

	mu     sync.Mutex // guards what follows
	socket *boundSocket
	closed bool
	held   *held // waits for the receiver; nil while nothing does
	lost   int   // messages dropped since the last one that got through

	closing      atomic.Bool // descriptors are being closed
	closingSince time.Time
}

// held is a message that waits.
type held struct {
	text  []byte
	fds   []int // owned
	since time.Time
}

// Listen binds the socket of the container whose bundle is at the path bundle: <bundle>/notify/notify.sock, for senders
// of any user, whatever the umask and the length of the path. A missing directory is made, an old socket replaced. Errors
// are those of the system calls. That nobody listens at o.Socket is not an error.
func Listen(bundle string, o Options) (*Relay, error) {
	if err := CheckSocket(o.Socket); err != nil {
		return nil, fmt.Errorf("relay notifications: socket %w", err)
	}
	socket, err := bindSocket(bundle)
	if err != nil {
		return nil, fmt.Errorf("relay notifications: %w", err)
	}
	r := &Relay{host: o.Socket, log: o.Logger, socket: socket}
	if r.log == nil {
		r.log = noLogger{}
	}
	return r, nil
}

// FD returns the descriptor that becomes readable when Ready is to be called. It stays the relay's; -1 after Close.
func (r *Relay) FD() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.socket.fd
}

// Ready passes on what has come, up to a limited number of messages, and never blocks. It returns when it has to be
// called next: after a time, whether or not the descriptor is readable, or, if that is 0, when it is readable.
func (r *Relay) Ready() (after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range batch {
		next, after := r.stepLocked()
		if !next {
			return after
		}
	}
	return 0
}

// Drain passes on what has been sent until now, as far as that is possible before ctx ends. It is for the end of the
// container, and like Ready otherwise.
func (r *Relay) Drain(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		r.mu.Lock()
		next, after := r.stepLocked()
		r.mu.Unlock()
		if !next && after == 0 {
			return
		}
		timer.Reset(after)
	}
}

// Close ends the relay and removes the socket, as far as it still is the one that Listen made. What has not been passed on
// is dropped. It does not wait for descriptors to be closed. Closing twice is harmless.
func (r *Relay) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	if r.held != nil {
		r.dropLocked(r.held.fds, errors.New("relay closed"))
	}
	if err := r.socket.close(); err != nil {
		return fmt.Errorf("close socket for notifications in %q: %w", r.socket.bundle, err)
	}
	return nil
}

// stepLocked handles one message, if there is one. next says that there may be another; after is as in Ready.
func (r *Relay) stepLocked() (next bool, after time.Duration) {
	if r.closed {
		return false, 0
	}
	if r.closing.Load() {
		return false, min(max(time.Since(r.closingSince), minClosePause), maxClosePause)
	}
	if r.held != nil {
		return r.sendLocked(*r.held)
	}
	text, fds, err := receive(r.socket.fd)
	switch err {
	case nil:
	case unix.EAGAIN:
		return false, 0
	default: // the system is short of something
		r.log.Warn("notification not received", "error", err)
		return false, retryLimit
	}
	if len(text) == 0 {
		r.discardLocked(fds)
		return true, 0
	}
	return r.sendLocked(held{text: text, fds: fds, since: time.Now()})
}

func (r *Relay) sendLocked(m held) (next bool, after time.Duration) {
	r.held = nil
	switch err := send(r.host, m.text, 0); {
	case err == nil:
		r.discardLocked(m.fds)
		if r.lost > 0 {
			r.log.Info("notifications relayed again", "lost", r.lost)
			r.lost = 0
		}
	case r.lost == 0 && mayPass(err) && time.Since(m.since) < retryLimit:
		r.held = &m
		return false, retryPause
	default:
		r.dropLocked(m.fds, err)
	}
	return true, 0
}

func (r *Relay) dropLocked(fds []int, err error) {
	r.discardLocked(fds)
	r.held = nil
	if r.lost++; r.lost == 1 {
		r.log.Warn("notification not relayed", "socket", r.host, "error", err)
	}
}

// mayPass says that the next attempt can succeed: the receiver's queue is full, the receiver is being replaced, or the
// system is short of something.
func mayPass(err error) bool {
	switch err {
	case unix.EAGAIN, unix.ENOENT, unix.ECONNREFUSED, unix.ECONNRESET, unix.ENOBUFS, unix.ENOMEM, unix.EMFILE, unix.ENFILE:
		return true
	}
	return false
}

// receive takes one datagram and returns what of it is passed on, and the descriptors that came with it, which the caller
// closes. The buffer is as large as the datagram: most have less than 100 bytes.
func receive(fd int) (text []byte, fds []int, err error) {
	size, err := nextSize(fd)
	if err != nil {
		return nil, nil, err
	}
	message, control := make([]byte, min(size, maxMessage)), make([]byte, unix.CmsgSpace(maxFDs*4))
	var n, controls, flags int
	err = retryEINTR(func() error {
		n, controls, flags, _, err = unix.Recvmsg(fd, message, control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return filter(message[:n], flags&unix.MSG_TRUNC != 0), descriptors(control[:controls]), nil
}

// nextSize returns the size of the next datagram, which stays in the queue.
func nextSize(fd int) (size int, err error) {
	err = retryEINTR(func() error {
		size, _, err = unix.Recvfrom(fd, nil, unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		return err
	})
	return size, err
}

// descriptors returns those in a control message, which have been opened in this process.
func descriptors(control []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

// discardLocked closes descriptors that came with a message. None are being closed at the moment.
func (r *Relay) discardLocked(fds []int) {
	if len(fds) == 0 {
		return
	}
	r.closingSince = time.Now()
	r.closing.Store(true)
	go func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		r.closing.Store(false)
	}()
	runtime.Gosched() // most often they are closed now, and the next message need not wait for a timer
}
