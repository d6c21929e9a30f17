package systemdunit

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// fake is a service manager that answers as a test wants.
type fake struct {
	t      *testing.T
	listen net.Listener
	answer func(c *fakeConn, call fakeCall)

	mu    sync.Mutex
	calls []fakeCall
	conns []net.Conn
	wg    sync.WaitGroup
}

type fakeCall struct {
	method string
	serial uint32
	args   []any
	n      int // how many of that method came before
}

type fakeConn struct {
	fake *fake
	net.Conn
}

const fakeJob = dbus.ObjectPath("/org/freedesktop/systemd1/job/7")

// newFake starts a manager whose answers are those of usual, but for the methods that script has.
func newFake(t *testing.T, script map[string]func(*fakeConn, fakeCall)) (*fake, *Manager) {
	t.Helper()
	checkLeaks(t)
	path := filepath.Join(t.TempDir(), "private")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{t: t, listen: l}
	f.answer = func(c *fakeConn, call fakeCall) {
		if do, ok := script[call.method]; ok {
			do(c, call)
		} else {
			usual(c, call)
		}
	}
	f.wg.Go(f.serve)
	t.Cleanup(f.close)
	m := New(DefaultInstance)
	m.booted, m.locks, m.sockets = t.TempDir(), t.TempDir(), []endpoint{{path: path, uid: os.Geteuid()}}
	return f, m
}

func usual(c *fakeConn, call fakeCall) {
	switch call.method {
	case "GetUnitByPID":
		c.fail(call, noUnitForPID, "no unit")
	case "StartTransientUnit":
		c.reply(call, fakeJob)
		c.removed(fakeJob, "done")
	default:
		c.reply(call)
	}
}

func (f *fake) close() {
	f.listen.Close()
	f.mu.Lock()
	for _, c := range f.conns {
		c.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

func (f *fake) serve() {
	for {
		conn, err := f.listen.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		f.conns = append(f.conns, conn)
		f.mu.Unlock()
		f.wg.Go(func() { f.talk(&fakeConn{f, conn}) })
	}
}

func (f *fake) talk(c *fakeConn) {
	defer func() { _ = recover() }() // the decoder's, when a connection ends within a message
	defer c.Close()
	in := bufio.NewReader(c)
	if !c.authenticate(in) {
		return
	}
	for {
		m, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		method, _ := m.Headers[dbus.FieldMember].Value().(string)
		call := fakeCall{method: method, serial: m.Serial(), args: m.Body}
		f.mu.Lock()
		for _, old := range f.calls {
			if old.method == method {
				call.n++
			}
		}
		f.calls = append(f.calls, call)
		f.mu.Unlock()
		f.answer(c, call)
	}
}

func (c *fakeConn) authenticate(in *bufio.Reader) bool {
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return false
		}
		switch line = strings.Trim(line, "\x00\r\n"); {
		case line == "AUTH":
			line = "REJECTED EXTERNAL"
		case strings.HasPrefix(line, "AUTH EXTERNAL"):
			line = "DATA"
		case strings.HasPrefix(line, "DATA"):
			line = "OK 0123456789abcdef0123456789abcdef"
		case line == "BEGIN":
			return true
		default:
			line = "ERROR"
		}
		if _, err := io.WriteString(c, line+"\r\n"); err != nil {
			return false
		}
	}
}

func (c *fakeConn) send(m *dbus.Message) {
	if len(m.Body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(m.Body...))
	}
	_ = m.EncodeTo(c, binary.LittleEndian) // the client may have gone
}

func (c *fakeConn) reply(call fakeCall, body ...any) {
	c.send(&dbus.Message{Type: dbus.TypeMethodReply, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.serial),
	}})
}

func (c *fakeConn) fail(call fakeCall, name, text string) {
	c.send(&dbus.Message{Type: dbus.TypeError, Body: []any{text}, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.serial), dbus.FieldErrorName: dbus.MakeVariant(name),
	}})
}

// refuse says what systemd 252 says of a property that it does not know or cannot change.
func (c *fakeConn) refuse(call fakeCall, property string) {
	const name = "org.freedesktop.DBus.Error.PropertyReadOnly"
	c.fail(call, name, "Cannot set property "+property+", or unknown property.")
}

func (c *fakeConn) removed(job dbus.ObjectPath, result string) {
	c.send(&dbus.Message{Type: dbus.TypeSignal, Body: []any{uint32(7), job, "a.scope", result},
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath(managerPath)),
			dbus.FieldInterface: dbus.MakeVariant(managerInterface), dbus.FieldMember: dbus.MakeVariant(jobRemoved),
		}})
}

// count returns how often a method was called.
func (f *fake) count(method string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.calls {
		if call.method == method {
			n++
		}
	}
	return n
}

// properties returns the names in a call of StartTransientUnit.
func (call fakeCall) properties() (names []string) {
	list, _ := call.args[2].([][]any)
	for _, p := range list {
		names = append(names, fmt.Sprint(p[0]))
	}
	return names
}

type script = map[string]func(*fakeConn, fakeCall)

// on makes a script for StartTransientUnit.
func on(start func(*fakeConn, fakeCall)) script { return script{"StartTransientUnit": start} }

// ends makes a script in which the job ends with a result.
func ends(result string) script {
	return on(func(c *fakeConn, call fakeCall) {
		c.reply(call, fakeJob)
		c.removed(fakeJob, result)
	})
}

// Whatever the manager does, the outcome comes in bounded time and nothing is left (R089).
func TestRegisterJob(t *testing.T) {
	const short = time.Second
	for _, test := range []struct {
		name    string
		script  script
		timeout time.Duration
		failed  string // the job's result
		err     error
	}{
		{"done", ends("done"), 0, "", nil},
		{"late", on(func(c *fakeConn, call fakeCall) {
			c.reply(call, fakeJob)
			time.AfterFunc(50*time.Millisecond, func() { c.removed(fakeJob, "done") })
		}), 0, "", nil},
		{"twice", on(func(c *fakeConn, call fakeCall) {
			c.reply(call, fakeJob)
			c.removed(fakeJob, "done")
			c.removed(fakeJob, "failed")
		}), 0, "", nil},
		{"before the reply", on(func(c *fakeConn, call fakeCall) {
			c.removed(fakeJob, "done")
			c.reply(call, fakeJob)
		}), 0, "", nil},
		{"among many", on(func(c *fakeConn, call fakeCall) {
			for i := range 1000 {
				c.removed(dbus.ObjectPath(fmt.Sprintf("/org/freedesktop/systemd1/job/1%d", i)), "failed")
			}
			c.reply(call, fakeJob)
			c.removed(fakeJob, "done")
		}), 0, "", nil},
		{"never", on(func(c *fakeConn, call fakeCall) { c.reply(call, fakeJob) }), short, "", context.DeadlineExceeded},
		{"no reply", on(func(*fakeConn, fakeCall) {}), short, "", context.DeadlineExceeded},
		{"failed", ends("failed"), 0, "failed", nil},
		{"canceled", ends("canceled"), 0, "canceled", nil},
		{"timeout", ends("timeout"), 0, "timeout", nil},
		{"dependency", ends("dependency"), 0, "dependency", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, m := newFake(t, test.script)
			if test.timeout == 0 {
				test.timeout = 20 * time.Second
			}
			result, err := m.Register(timeout(t, test.timeout), Request{Unit: "a.scope", PID: os.Getpid()})
			var job *JobError
			switch {
			case test.failed != "":
				if !errors.As(err, &job) || job.Result != test.failed || f.count("ResetFailedUnit") != 1 {
					t.Errorf("%v", err)
				}
			case !errors.Is(err, test.err):
				t.Errorf("%v", err)
			case err == nil && (result.Action != Registered || len(result.Dropped) > 0):
				t.Errorf("%+v", result)
			}
			if test.name == "never" && f.count("Cancel") != 1 {
				t.Error("the job was not taken back")
			}
		})
	}
}

func TestRegisterOlderSystemd(t *testing.T) {
	unknown := func(names ...string) func(*fakeConn, fakeCall) {
		return func(c *fakeConn, call fakeCall) {
			for _, p := range call.properties() {
				if slices.Contains(names, p) {
					c.refuse(call, p)
					return
				}
			}
			usual(c, call)
		}
	}
	for _, test := range []struct {
		name    string
		start   func(*fakeConn, fakeCall)
		dropped []string
		fails   bool
	}{
		{"knows all", unknown(), nil, false},
		{"does not know two", unknown("ManagedOOMPreference", "CollectMode"),
			[]string{"CollectMode", "ManagedOOMPreference"}, false},
		{"does not say which", func(c *fakeConn, call fakeCall) {
			if slices.Contains(call.properties(), "ManagedOOMPreference") {
				c.fail(call, "org.freedesktop.DBus.Error.InvalidArgs", "No.")
				return
			}
			usual(c, call)
		}, []string{"OOMPolicy", "ManagedOOMPreference"}, false},
		{"refuses the slice", func(c *fakeConn, call fakeCall) {
			c.fail(call, "org.freedesktop.DBus.Error.InvalidArgs", "Invalid Slice name")
		}, nil, true},
		{"refuses everything", func(c *fakeConn, call fakeCall) {
			c.fail(call, "org.freedesktop.DBus.Error.InvalidArgs", "No.")
		}, nil, true},
		{"refuses us", func(c *fakeConn, call fakeCall) {
			c.fail(call, "org.freedesktop.DBus.Error.AccessDenied", "Permission denied")
		}, nil, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, m := newFake(t, on(test.start))
			result, err := register(t, m, Request{Unit: "a.scope", PID: os.Getpid()})
			if (err != nil) != test.fails || !slices.Equal(result.Dropped, test.dropped) {
				t.Errorf("%+v, %v", result, err)
			}
		})
	}
}

// A connection that is lost, or not to be had for the moment, costs time only (R092).
func TestRegisterTriesAgain(t *testing.T) {
	unitPath := dbus.ObjectPath(managerPath + "/unit/a_2escope")
	id := func(c *fakeConn, call fakeCall) { c.reply(call, dbus.MakeVariant("a.scope")) }
	for _, test := range []struct {
		name   string
		script script
		want   Action
	}{
		{"limits", on(func(c *fakeConn, call fakeCall) {
			if call.n < 3 {
				c.fail(call, "org.freedesktop.DBus.Error.LimitsExceeded", "too many")
				return
			}
			usual(c, call)
		}), Registered},
		{"lost before the reply", on(func(c *fakeConn, call fakeCall) {
			if call.n == 0 {
				c.Close()
				return
			}
			usual(c, call)
		}), Registered},
		{"lost while the job runs, which succeeds", script{
			"StartTransientUnit": func(c *fakeConn, call fakeCall) {
				c.reply(call, fakeJob)
				c.Close()
			},
			"GetUnitByPID": func(c *fakeConn, call fakeCall) {
				if call.n == 0 {
					usual(c, call)
					return
				}
				c.reply(call, unitPath)
			},
			"Get": id,
		}, Adopted},
		{"answers after the second ping", script{"Ping": func(c *fakeConn, call fakeCall) {
			if call.n > 0 {
				usual(c, call)
			}
		}}, Registered},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, m := newFake(t, test.script)
			result, err := register(t, m, Request{Unit: "a.scope", PID: os.Getpid()})
			if err != nil || result.Action != test.want || result.Unit != "a.scope" {
				t.Errorf("%+v, %v", result, err)
			}
		})
	}
}

// Few connections are open at the same time, whoever holds them, and one that is stuck does not hold up the others for
// good.
func TestSlots(t *testing.T) {
	var mu sync.Mutex
	var open, most int
	_, m := newFake(t, script{
		"GetUnitByPID": func(c *fakeConn, call fakeCall) {
			mu.Lock()
			open++
			most = max(most, open)
			mu.Unlock()
			usual(c, call)
		},
		"StartTransientUnit": func(c *fakeConn, call fakeCall) {
			time.AfterFunc(2*time.Millisecond, func() {
				mu.Lock()
				open--
				mu.Unlock()
				usual(c, call)
			})
		},
	})
	m.slotWait = time.Minute
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			if _, err := register(t, m, Request{Unit: "a.scope", PID: os.Getpid()}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	mu.Lock()
	if most > slots {
		t.Errorf("%d at the same time", most)
	}
	mu.Unlock()

	m.slotWait = 50 * time.Millisecond
	for range slots {
		defer m.takeSlot(t.Context())()
	}
	if _, err := register(t, m, Request{Unit: "a.scope", PID: os.Getpid()}); err != nil {
		t.Errorf("with all slots taken: %v", err)
	}
	m.locks = filepath.Join(m.locks, "none")
	if _, err := register(t, m, Request{Unit: "a.scope", PID: os.Getpid()}); err != nil {
		t.Errorf("without lock file: %v", err)
	}
}

func TestAdoptWithoutDescription(t *testing.T) {
	const theirs = "crio-conmon-1.scope"
	refuse := func(c *fakeConn, call fakeCall) {
		c.refuse(call, "Description")
	}
	_, m := newFake(t, script{
		"GetUnitByPID":      func(c *fakeConn, call fakeCall) { c.reply(call, dbus.ObjectPath("/unit")) },
		"Get":               func(c *fakeConn, call fakeCall) { c.reply(call, dbus.MakeVariant(theirs)) },
		"SetUnitProperties": refuse,
	})
	result, err := register(t, m, Request{Unit: "a.scope", PID: os.Getpid()})
	if err != nil || result.Action != Adopted || result.Described || result.Unit != theirs {
		t.Errorf("%+v, %v", result, err)
	}
	if err := m.Describe(timeout(t, 20*time.Second), theirs, "x"); err == nil {
		t.Error("described")
	}
}

func TestUnreachable(t *testing.T) {
	checkLeaks(t)
	request := Request{Unit: "a.scope", PID: os.Getpid()}
	m := New(DefaultInstance)
	m.booted = filepath.Join(t.TempDir(), "none")
	if _, err := m.Register(t.Context(), request); !errors.Is(err, ErrNoSystemd) {
		t.Errorf("%v", err)
	}
	if _, err := m.Stopping(t.Context(), "a.scope"); !errors.Is(err, ErrNoSystemd) {
		t.Errorf("%v", err)
	}
	m.booted, m.locks = t.TempDir(), t.TempDir()

	t.Run("no socket", func(t *testing.T) {
		m.sockets = []endpoint{{path: filepath.Join(m.booted, "private")}}
		if _, err := m.Register(timeout(t, 200*time.Millisecond), request); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v", err)
		}
	})
	t.Run("no manager of the user", func(t *testing.T) {
		m.sockets = []endpoint{{path: filepath.Join(m.booted, "private"), user: true}}
		_, err := m.Register(timeout(t, time.Minute), request)
		if !errors.Is(err, os.ErrNotExist) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
	t.Run("socket that says nothing", func(t *testing.T) {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "private"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		m.sockets = []endpoint{{path: l.Addr().String()}}
		if _, err := m.Register(timeout(t, 200*time.Millisecond), request); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
	t.Run("second endpoint", func(t *testing.T) {
		_, m := newFake(t, nil)
		m.sockets = append([]endpoint{{path: filepath.Join(t.TempDir(), "none")}}, m.sockets...)
		if _, err := register(t, m, request); err != nil {
			t.Error(err)
		}
	})
}

func TestRequestChecked(t *testing.T) {
	m := New(DefaultInstance)
	for _, test := range []struct {
		field string
		r     Request
	}{
		{"unit", Request{Unit: "a.service", PID: 2}},
		{"unit", Request{Unit: "a b.scope", PID: 2}},
		{"unit", Request{Unit: ".scope", PID: 2}},
		{"pid", Request{Unit: "a.scope"}},
		{"pid", Request{Unit: "a.scope", PID: 1}},
		{"slice", Request{Unit: "a.scope", PID: 2, Slice: "a"}},
	} {
		_, err := m.Register(t.Context(), test.r)
		var field *FieldError
		if !errors.As(err, &field) || field.Field != test.field {
			t.Errorf("%+v: %v", test.r, err)
		}
	}
}

func TestEndpoints(t *testing.T) {
	const system, session, dir = "DBUS_SYSTEM_BUS_ADDRESS", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR"
	for _, test := range []struct {
		instance Instance
		env      map[string]string
		want     string
	}{
		{SystemInstance, nil, "/run/systemd/private /run/dbus/system_bus_socket"},
		{SystemInstance, map[string]string{system: "tcp:host=h;unix:path=/a%20b,guid=1"}, "/run/systemd/private /a b"},
		{UserInstance, map[string]string{dir: "/run/user/5"}, "/run/user/5/systemd/private /run/user/5/bus"},
		{UserInstance, map[string]string{dir: "/r", session: "unix:abstract=x"}, "/r/systemd/private @x"},
		{UserInstance, map[string]string{session: "unix:path=/x"}, "/x"},
		{UserInstance, map[string]string{dir: "relative"}, ""},
	} {
		m := New(test.instance)
		m.getenv = func(name string) string { return test.env[name] }
		var paths []string
		for _, e := range m.endpoints() {
			paths = append(paths, e.path)
			if e.user != (test.instance == UserInstance) {
				t.Errorf("%+v", e)
			}
		}
		if got := strings.Join(paths, " "); got != test.want {
			t.Errorf("%v %v: %s", test.instance, test.env, got)
		}
	}
}

func TestDescends(t *testing.T) {
	child := sleeper(t)
	if !descends(child, os.Getpid()) || !descends(child, child) || descends(os.Getpid(), child) || descends(1, child) {
		t.Error("wrong family")
	}
}
