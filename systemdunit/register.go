package systemdunit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// Mode says what to do with a process that is in a scope already.
type Mode int

// With Auto a scope that was made for the process is adopted; with Always the process gets a new one all the same.
const (
	Auto Mode = iota
	Always
)

// Request describes a scope to register.
type Request struct {
	// Unit is the name, see ScopeName.
	Unit string
	// PID is the process that moves into the scope, with all its threads; children that it has stay where they are.
	PID int
	// Slice is where the scope goes; empty for the default of runtimes: system.slice, or user.slice with a user's
	// manager.
	Slice string
	// Description is what systemctl shows; see Manager.Describe.
	Description string
	// After names units that are stopped after this one. If there are none, it is the service that PID is in so far:
	// the engine that has started it.
	After []string
	// StopTimeout is how long the process may take to end when it is asked to. systemd waits StopMargin longer. 0 means
	// systemd's default.
	StopTimeout time.Duration
	Mode        Mode
}

// StopMargin is the time between the process's own limit and systemd's, which ends in SIGKILL.
const StopMargin = 20 * time.Second

// Action is what Register has done.
type Action string

// The process is in a new scope, or in one that was there.
const (
	Registered Action = "registered"
	Adopted    Action = "adopted"
)

// Result says where a process is.
type Result struct {
	Unit   string
	Action Action
	// Described is false if systemd refuses to change the description of the adopted unit at run time.
	Described bool
	// Dropped names properties that this systemd does not know, and that the scope therefore has not.
	Dropped []string
}

// Register sees to it that a process is in a scope of its own, and waits until it is so. If connections are lost or the
// manager executes itself anew, it tries again until ctx ends, at most for 30 seconds. It may be called for a process
// that is registered already.
//
// Errors are ErrNoSystemd, ErrUnitTaken, a *FieldError, a *JobError, the context's, or what systemd or the socket said.
func (m *Manager) Register(ctx context.Context, r Request) (Result, error) {
	if err := r.check(); err != nil {
		return Result{}, err
	}
	r.Description = description(r.Description)
	var result Result
	err := m.do(ctx, func(ctx context.Context, s *session) (err error) {
		result, err = s.register(ctx, r)
		return err
	})
	if abandoned := (*abandonedError)(nil); errors.As(err, &abandoned) {
		m.cancel(ctx, abandoned.job)
	}
	if err != nil {
		return Result{}, fmt.Errorf("register unit %q: %w", r.Unit, err)
	}
	return result, nil
}

// cancelLimit bounds the attempt to take back a job that is not waited for any longer.
const cancelLimit = time.Second

// cancel takes a job back: the process would be moved some time after its owner was told that it was not. The
// connections have been closed with their context.
func (m *Manager) cancel(ctx context.Context, job dbus.ObjectPath) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelLimit)
	defer stop()
	_ = m.attempt(ctx, func(ctx context.Context, s *session) error {
		return s.conn.Object(managerName, job).CallWithContext(ctx, managerName+".Job.Cancel", 0).Err
	})
}

func (r *Request) check() error {
	if !strings.HasSuffix(r.Unit, scopeSuffix) || r.Unit == scopeSuffix {
		return &FieldError{"unit", r.Unit, "is not the name of a scope"}
	}
	if reason := badUnit(r.Unit); reason != "" {
		return &FieldError{"unit", r.Unit, reason}
	}
	if r.PID <= 1 {
		return &FieldError{"pid", strconv.Itoa(r.PID), "is no process to register"}
	}
	if r.Slice != "" {
		return CheckSlice("slice", r.Slice)
	}
	return nil
}

func (s *session) register(ctx context.Context, r Request) (Result, error) {
	unit, err := s.unitOf(ctx, r.PID)
	if err != nil {
		return Result{}, err
	}
	adopt := unit == r.Unit
	if !adopt && r.Mode == Auto {
		if adopt, err = s.madeFor(ctx, unit, r.PID); err != nil {
			return Result{}, err
		}
	}
	if adopt {
		return s.adopt(ctx, unit, r.Description)
	}
	if len(r.After) == 0 && strings.HasSuffix(unit, ".service") {
		r.After = []string{unit}
	}
	return s.start(ctx, r)
}

// properties returns those that a scope must have, and those that it is better with, the newest last.
func (s *session) properties(r Request) (must, may []sd.Property) {
	slice := r.Slice
	switch {
	case slice == "" && s.user:
		slice = "user.slice"
	case slice == "":
		slice = "system.slice"
	}
	must = []sd.Property{
		sd.PropSlice(slice), sd.PropPids(uint32(r.PID)),
		property("Delegate", true), property("DefaultDependencies", false),
	}
	may = []sd.Property{sd.PropDescription(r.Description)}
	if len(r.After) > 0 {
		may = append(may, sd.PropAfter(r.After...))
	}
	if r.StopTimeout > 0 {
		may = append(may, property("TimeoutStopUSec", uint64((r.StopTimeout+StopMargin).Microseconds())))
	}
	return must, append(may,
		property("CollectMode", "inactive-or-failed"),
		property("ManagedOOMPreference", "avoid"), // of units with control groups since systemd 248
		property("OOMPolicy", "continue"),         // of services since systemd 243, of scopes later
	)
}

func property(name string, value any) sd.Property {
	return sd.Property{Name: name, Value: dbus.MakeVariant(value)}
}

// start starts the scope. What is not essential is left out, one after the other, if this systemd refuses it.
func (s *session) start(ctx context.Context, r Request) (Result, error) {
	must, may := s.properties(r)
	noAuxiliary := []sd.PropertyCollection{}
	result := Result{Unit: r.Unit, Action: Registered, Described: true}
	for {
		var job dbus.ObjectPath
		// Mode "fail": a slice that is being stopped must not be started again for us.
		err := s.call(ctx, "StartTransientUnit", r.Unit, "fail", slices.Concat(must, may), noAuxiliary).Store(&job)
		switch i := refused(err, must, may); {
		case i >= 0:
			result.Dropped = append(result.Dropped, may[i].Name)
			may = slices.Delete(may, i, i+1)
		case isError(err, unitExists):
			return Result{}, s.existing(ctx, r, err)
		case err != nil:
			return Result{}, err
		default:
			return result, s.await(ctx, r.Unit, job)
		}
	}
}

// refused returns which of the properties that may be left out systemd has refused, -1 for none. It names the property
// in its message; where it does not, the newest is the one.
func refused(err error, must, may []sd.Property) int {
	if !isError(err, "org.freedesktop.DBus.Error.PropertyReadOnly", "org.freedesktop.DBus.Error.UnknownProperty",
		"org.freedesktop.DBus.Error.InvalidArgs", "org.freedesktop.DBus.Error.InvalidSignature") {
		return -1
	}
	text := err.Error()
	for _, p := range must {
		if strings.Contains(text, p.Name) {
			return -1
		}
	}
	for i, p := range may {
		if strings.Contains(text, p.Name) {
			return i
		}
	}
	return len(may) - 1
}

// await waits for a job. If the connection is lost meanwhile, the next attempt finds what has become of it.
func (s *session) await(ctx context.Context, unit string, job dbus.ObjectPath) error {
	for {
		select {
		case <-ctx.Done():
			return &abandonedError{job, context.Cause(ctx)}
		case signal, ok := <-s.signals:
			switch {
			case ok && isRemoval(signal, job):
				return s.outcome(ctx, unit, signal)
			case !ok && ctx.Err() != nil:
				return &abandonedError{job, context.Cause(ctx)}
			case !ok:
				return again{errors.New("connection to systemd lost")}
			}
		}
	}
}

// isRemoval tells whether a signal says that a job has ended.
func isRemoval(signal *dbus.Signal, job dbus.ObjectPath) bool {
	return signal.Name == managerInterface+"."+jobRemoved && len(signal.Body) == 4 && signal.Body[1] == job
}

func (s *session) outcome(ctx context.Context, unit string, removal *dbus.Signal) error {
	result, _ := removal.Body[3].(string)
	if result == "done" {
		return nil
	}
	// Where CollectMode is not known, a failed unit would stay.
	_ = s.call(ctx, "ResetFailedUnit", unit).Err
	return &JobError{unit, result}
}

// abandonedError means that a job was under way when time was over.
type abandonedError struct {
	job   dbus.ObjectPath
	cause error
}

func (e *abandonedError) Error() string {
	return fmt.Sprintf("wait for %s: %v", e.job, e.cause)
}

func (e *abandonedError) Unwrap() error { return e.cause }

// existing says what to do about a unit that has our name. It returns an error in any case, which is transient if the
// next attempt may find it otherwise.
func (s *session) existing(ctx context.Context, r Request, err error) error {
	state, stateErr := s.property(ctx, unitPath(r.Unit), unitInterface, "ActiveState")
	if stateErr != nil {
		return stateErr
	}
	switch state {
	case "failed": // a leftover
		if err := s.call(ctx, "ResetFailedUnit", r.Unit).Err; err != nil && !isError(err, noSuchUnit) {
			return err
		}
		return again{err}
	case "active":
		pids, err := s.processes(ctx, r.Unit)
		if err != nil && !isError(err, noSuchUnit) {
			return err
		}
		for _, pid := range pids {
			if pid == r.PID || pid == os.Getpid() {
				return again{fmt.Errorf("unit holds process %d already", pid)}
			}
		}
		if len(pids) > 0 {
			return fmt.Errorf("%w (process %d)", ErrUnitTaken, pids[0])
		}
	}
	// It is starting, stopping, or empty and about to be forgotten.
	return again{fmt.Errorf("unit of that name is %s: %w", state, err)}
}
