package server

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// DefaultMaxCalls is how many calls of one connection run at once unless [Options] says otherwise.
const DefaultMaxCalls = 1024

// patience is how long a client may take to read a piece of a reply, and a reply may wait for the client to
// take earlier ones.
const patience = 30 * time.Second

// Listener hands out connections. Accept blocks, returns os.ErrClosed or net.ErrClosed after Close, and is
// called by one goroutine. Connections may be read and written at the same time, and closing one interrupts
// both. One that has SetWriteDeadline, as os.File has, is guarded against a client that does not read.
type Listener interface {
	Accept() (io.ReadWriteCloser, error)
	Close() error
}

// Logger takes a message and keys, each followed by its value, as *slog.Logger does.
type Logger interface {
	Debug(message string, args ...any)
	Info(message string, args ...any)
	Warn(message string, args ...any)
	Error(message string, args ...any)
}

type noLogger struct{}

func (noLogger) Debug(string, ...any) {}
func (noLogger) Info(string, ...any)  {}
func (noLogger) Warn(string, ...any)  {}
func (noLogger) Error(string, ...any) {}

// Options configure a [Server].
type Options struct {
	// Service does the work. It is required.
	Service Service
	// Logger receives what nobody is told otherwise: panics, trouble with accepting, and, at debug level,
	// why a connection ended. Nil discards it.
	Logger Logger
	// Activity is called when a connection has begun or ended, and when a call has ended. It must not block. Nil: nobody
	// wants to know.
	Activity func()
	// MaxCalls limits the calls of one connection that run at once; 0 means DefaultMaxCalls.
	MaxCalls int
}

// A Server serves any number of listeners. It is made by [New] and ended by [Server.Shutdown] or
// [Server.Close].
type Server struct {
	service  Service
	log      Logger
	activity func()
	maxCalls int
	patience time.Duration // for clients that do not take what is sent to them; changed by tests only
	done     chan struct{} // closed when the server takes no new work

	mu        sync.Mutex // never held while calling out
	closing   bool
	listeners map[Listener]struct{}
	conns     map[*conn]struct{} // connections whose descriptor is open
	running   int                // calls, also those whose connection has gone
	changed   chan struct{}      // closed at the next change that Shutdown waits for; nil if nobody waits
}

// New returns a server. It panics if there is no service.
func New(o Options) *Server {
	if o.Service == nil {
		panic("server: no service")
	}
	if o.Logger == nil {
		o.Logger = noLogger{}
	}
	if o.Activity == nil {
		o.Activity = func() {}
	}
	if o.MaxCalls <= 0 {
		o.MaxCalls = DefaultMaxCalls
	}
	return &Server{
		service:   o.Service,
		log:       o.Logger,
		activity:  o.Activity,
		maxCalls:  o.MaxCalls,
		patience:  patience,
		done:      make(chan struct{}),
		listeners: make(map[Listener]struct{}),
		conns:     make(map[*conn]struct{}),
	}
}

// Serve accepts connections until the context is cancelled, the server is shut down or the listener is
// closed, and then returns nil. It takes ownership of the listener. Connections outlive it; they end by
// themselves or by [Server.Shutdown].
//
// An error of Accept never ends it, because the reason (too many open files, no memory) is often gone a moment
// later and the containers of the pod need their monitor: it pauses, up to a second, and tries again.
func (s *Server) Serve(ctx context.Context, l Listener) error {
	if !s.addListener(l) {
		return l.Close()
	}
	defer s.removeListener(l)
	stop := context.AfterFunc(ctx, func() { s.removeListener(l) })
	defer stop()

	var trouble acceptTrouble
	for {
		rwc, err := l.Accept()
		switch {
		case err == nil:
			trouble.over(s.log)
			s.start(rwc)
		case ctx.Err() != nil, s.isClosing(), isClosed(err):
			return nil
		default:
			trouble.pause(s.log, err, ctx.Done(), s.done)
		}
	}
}

// Shutdown refuses new connections and calls, waits until the calls that are running have been answered or
// the context ends, then closes all connections. Calls that are still running then go on; Shutdown does not
// wait for them and says so in its error. It is safe to call more than once.
func (s *Server) Shutdown(ctx context.Context) error {
	s.refuse()
	err := s.wait(ctx, s.quietLocked)

	// The goroutines of a connection end once it is closed, except that those whose call is still running
	// wait for it: hence the second limit.
	var wg sync.WaitGroup
	for _, c := range s.snapshot() {
		wg.Go(func() { _ = c.rpc.Close() })
	}
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	select {
	case <-ended:
	case <-bound.Done():
	}
	if n := s.runningCalls(); n > 0 {
		return fmt.Errorf("shut down server: %d calls still running: %w", n, context.Cause(ctx))
	}
	return err
}

// closeTimeout bounds how long connections may take to end after they have been closed.
const closeTimeout = time.Second

// Close is Shutdown without waiting for running calls.
func (s *Server) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); s.runningCalls() > 0 {
		return err
	}
	return nil
}

// refuse stops the intake. The listeners are closed without the lock held.
func (s *Server) refuse() {
	s.mu.Lock()
	if !s.closing {
		s.closing = true
		close(s.done)
	}
	listeners := make([]Listener, 0, len(s.listeners))
	for l := range s.listeners {
		listeners = append(listeners, l)
	}
	s.mu.Unlock()
	for _, l := range listeners {
		s.removeListener(l)
	}
}

// wait returns when cond, called with the lock held, is true or the context ends.
func (s *Server) wait(ctx context.Context, cond func() bool) error {
	for {
		s.mu.Lock()
		if cond() {
			s.mu.Unlock()
			return nil
		}
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// quietLocked reports that all calls have been answered and the replies written.
func (s *Server) quietLocked() bool {
	if s.running > 0 {
		return false
	}
	for c := range s.conns {
		if c.link.unsent.Load() > 0 {
			return false
		}
	}
	return true
}

// wake makes waiters look again.
func (s *Server) wake() {
	s.mu.Lock()
	s.wakeLocked()
	s.mu.Unlock()
}

func (s *Server) wakeLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

func (s *Server) runningCalls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

func (s *Server) snapshot() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	return conns
}

func (s *Server) addListener(l Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.listeners[l] = struct{}{}
	return true
}

// removeListener closes the listener unless that has been done.
func (s *Server) removeListener(l Listener) {
	s.mu.Lock()
	_, open := s.listeners[l]
	delete(s.listeners, l)
	s.mu.Unlock()
	if open {
		_ = l.Close()
	}
}
