package systemdunit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// signalBuffer is how many signals are kept for who waits for one.
const signalBuffer = 64

// endpoint is a socket behind which a service manager is: its own, or that of a bus.
type endpoint struct {
	path string // one that begins with @ is in the abstract namespace
	bus  bool
	user bool // a user's manager
	uid  int  // who we are to the other side
}

// session is a connection to a service manager. It is closed by Close, at the end of its context, and by the other
// side.
//
// The connection of package dbus of go-systemd is not used: it consists of two, does not tell who waits for a job that
// it has been lost, and leaves a goroutine behind if that happens at its start.
type session struct {
	conn *dbus.Conn
	user bool
	// signals is closed with the connection. What nobody reads does not block it.
	signals chan *dbus.Signal
}

// Close gives up the connection.
func (s *session) Close() { s.conn.Close() }

// unreachableError means that no service manager could be connected to.
type unreachableError struct {
	errs []error
	user bool // only a user's was looked for
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("connect to systemd: %v", errors.Join(e.errs...))
}

func (e *unreachableError) Unwrap() []error { return e.errs }

// connect tries the endpoints in turn. The error is an *unreachableError.
func (m *Manager) connect(ctx context.Context) (*session, error) {
	failed := &unreachableError{user: true}
	for _, e := range m.endpoints() {
		failed.user = failed.user && e.user
		s, err := e.connect(ctx)
		if err == nil {
			return s, nil
		}
		failed.errs = append(failed.errs, err)
		if ctx.Err() != nil {
			failed.errs = append(failed.errs, context.Cause(ctx))
			break
		}
	}
	if len(failed.errs) == 0 {
		failed.errs = append(failed.errs, errors.New("XDG_RUNTIME_DIR is not set"))
	}
	return nil, failed
}

const (
	// systemSocket needs no bus, is not subject to the limits of one, and works while it restarts. It is root's alone.
	systemSocket = "/run/systemd/private"
	systemBus    = "/run/dbus/system_bus_socket"
)

func (m *Manager) endpoints() []endpoint {
	if len(m.sockets) > 0 {
		return m.sockets
	}
	euid := os.Geteuid()
	var list []endpoint
	if m.instance == SystemInstance || m.instance == DefaultInstance && euid == 0 {
		list = append(list, endpoint{path: systemSocket, uid: euid},
			endpoint{path: busPath(m.getenv("DBUS_SYSTEM_BUS_ADDRESS"), systemBus), bus: true, uid: euid})
	}
	uid := outerUID(euid)
	if m.instance == UserInstance || m.instance == DefaultInstance && (euid != 0 || uid != 0) {
		list = append(list, m.userEndpoints(uid)...)
	}
	return list
}

func (m *Manager) userEndpoints(uid int) (list []endpoint) {
	var bus string
	if dir := m.getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		list = append(list, endpoint{path: filepath.Join(dir, "systemd/private"), user: true, uid: uid})
		bus = filepath.Join(dir, "bus")
	}
	if bus = busPath(m.getenv("DBUS_SESSION_BUS_ADDRESS"), bus); bus != "" {
		list = append(list, endpoint{path: bus, bus: true, user: true, uid: uid})
	}
	return list
}

// busPath returns the socket of the first unix(7) address of a bus address, else what it is without one.
func busPath(address, without string) string {
	for one := range strings.SplitSeq(address, ";") {
		words, ok := strings.CutPrefix(one, "unix:")
		for word := range strings.SplitSeq(words, ",") {
			key, value, _ := strings.Cut(word, "=")
			value, err := dbus.UnescapeBusAddressValue(value)
			switch {
			case !ok || err != nil || value == "":
			case key == "path":
				return value
			case key == "abstract":
				return "@" + value
			}
		}
	}
	return without
}

// outerUID returns what user id uid of this user namespace is outside of it, user_namespaces(7).
func outerUID(uid int) int {
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return uid
	}
	for line := range bytes.Lines(b) {
		var inside, outside, count int
		if n, _ := fmt.Sscan(string(line), &inside, &outside, &count); n == 3 && inside <= uid && uid-inside < count {
			return outside + uid - inside
		}
	}
	return uid
}

func (e endpoint) connect(ctx context.Context) (*session, error) {
	conn, err := e.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.path, err)
	}
	s := &session{conn: conn, user: e.user, signals: make(chan *dbus.Signal, signalBuffer)}
	conn.Signal(s.signals)
	if err := s.begin(ctx, e); err != nil {
		conn.Close()
		return nil, fmt.Errorf("%s: %w", e.path, err)
	}
	return s, nil
}

func (e endpoint) dial(ctx context.Context) (*dbus.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", e.path)
	if err != nil {
		return nil, err
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, errors.New("internal error: not a unix socket")
	}
	if err := samePidNamespace(u); err != nil {
		u.Close()
		return nil, err
	}
	// Not dbus.NewConn, whose reader panics when the connection ends in the middle of a message.
	c, err := dbus.DialUnix(u, dbus.WithContext(ctx))
	if err != nil {
		u.Close()
		return nil, err
	}
	return c, nil
}

// begin authenticates. A bus also wants to be greeted, and to be told which signals to pass on; a manager sends all.
func (s *session) begin(ctx context.Context, e endpoint) error {
	if err := s.conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(e.uid))}); err != nil {
		return err
	}
	if !e.bus {
		return s.wake(ctx)
	}
	if err := s.conn.Hello(); err != nil {
		return err
	}
	return s.conn.AddMatchSignal(dbus.WithMatchInterface(managerInterface), dbus.WithMatchMember(jobRemoved))
}

const (
	firstPing = time.Millisecond / 2
	maxPing   = 100 * time.Millisecond
)

// wake sends pings until one is answered. A service manager (seen with 252; compare issue 17425 of systemd) that reads
// the end of the authentication and a message at once does not look at the message before something else arrives, and
// the answer would not come.
func (s *session) wake(ctx context.Context) error {
	answers := make(chan *dbus.Call, int(callLimit/maxPing)+16) // one that is full would panic
	manager := s.conn.Object(managerName, managerPath)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := firstPing; ; pause = min(2*pause, maxPing) {
		manager.GoWithContext(ctx, "org.freedesktop.DBus.Peer.Ping", 0, answers)
		timer.Reset(pause)
		select {
		case call := <-answers:
			return call.Err
		case <-timer.C:
		}
	}
}

// samePidNamespace guards against the socket of another machine's manager, such as the host's seen in a container: our
// pids would be those of strangers there. The kernel shows a peer of an outer namespace as process 0.
func samePidNamespace(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if peerErr == nil && peer.Pid == 0 {
		peerErr = errors.New("service manager is in another pid namespace")
	}
	return peerErr
}

// transient tells whether the next attempt may succeed where this one did not.
func transient(err error) bool {
	if errors.As(err, new(again)) {
		return true
	}
	const prefix = "org.freedesktop.DBus.Error."
	if isError(err, prefix+"LimitsExceeded", prefix+"NoReply", prefix+"Disconnected", prefix+"ServiceUnknown",
		prefix+"NameHasNoOwner", prefix+"Timeout") {
		return true
	}
	var e dbus.Error
	if errors.As(err, &e) && strings.HasPrefix(e.Name, prefix+"Spawn.") {
		return true // the bus looked for a manager that is about to be back
	}
	var unreachable *unreachableError
	if errors.As(err, &unreachable) && unreachable.user && errors.Is(err, unix.ENOENT) {
		return false // most users have no manager of their own
	}
	for _, target := range []error{
		io.EOF, io.ErrUnexpectedEOF, dbus.ErrClosed, net.ErrClosed, unix.ECONNRESET, unix.EPIPE, unix.ECONNREFUSED,
		unix.ENOENT, unix.EAGAIN,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// isError tells whether err is one of the D-Bus errors, by their names.
func isError(err error, names ...string) bool {
	var e dbus.Error
	if !errors.As(err, &e) {
		return false
	}
	return slices.Contains(names, e.Name)
}
