package systemdunit

import (
	"context"
	"errors"
	"slices"
	"strings"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

const (
	managerName      = "org.freedesktop.systemd1"
	managerPath      = "/org/freedesktop/systemd1"
	managerInterface = "org.freedesktop.systemd1.Manager"
	unitInterface    = "org.freedesktop.systemd1.Unit"
	scopeInterface   = "org.freedesktop.systemd1.Scope"
	sliceInterface   = "org.freedesktop.systemd1.Slice"

	noSuchUnit   = "org.freedesktop.systemd1.NoSuchUnit"
	noUnitForPID = "org.freedesktop.systemd1.NoUnitForPID"
	unitExists   = "org.freedesktop.systemd1.UnitExists"

	jobRemoved = "JobRemoved"
)

// call calls a method of the manager.
func (s *session) call(ctx context.Context, method string, args ...any) *dbus.Call {
	return s.conn.Object(managerName, managerPath).CallWithContext(ctx, managerInterface+"."+method, 0, args...)
}

// property returns a property of type string.
func (s *session) property(ctx context.Context, path dbus.ObjectPath, iface, name string) (string, error) {
	var v dbus.Variant
	call := s.conn.Object(managerName, path).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, iface, name)
	if err := call.Store(&v); err != nil {
		return "", err
	}
	text, ok := v.Value().(string)
	if !ok {
		return "", errors.New("property " + name + " is of another type")
	}
	return text, nil
}

// unitPath returns the object of a unit.
func unitPath(unit string) dbus.ObjectPath {
	return dbus.ObjectPath(managerPath + "/unit/" + sd.PathBusEscape(unit))
}

// unitOf returns the unit that a process is in, empty if this manager knows none.
func (s *session) unitOf(ctx context.Context, pid int) (string, error) {
	var path dbus.ObjectPath
	err := s.call(ctx, "GetUnitByPID", uint32(pid)).Store(&path)
	if isError(err, noUnitForPID) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return s.property(ctx, path, unitInterface, "Id")
}

// processes returns the processes of a unit.
func (s *session) processes(ctx context.Context, unit string) ([]int, error) {
	var list []struct {
		Group   string
		PID     uint32
		Command string
	}
	if err := s.call(ctx, "GetUnitProcesses", unit).Store(&list); err != nil {
		return nil, err
	}
	var pids []int
	for _, p := range list {
		pids = append(pids, int(p.PID))
	}
	return pids, nil
}

// job is one of those that ListJobs lists.
type job struct {
	ID           uint32
	Unit         string
	Type, State  string
	Path, Object dbus.ObjectPath
}

// stopping looks at the unit, which is a scope or a slice, at the machine, and at the jobs that wait for the unit or a slice around it.
func (s *session) stopping(ctx context.Context, unit string) (bool, error) {
	state, err := s.property(ctx, unitPath(unit), unitInterface, "ActiveState")
	if err != nil || state == "deactivating" {
		return err == nil, err
	}
	system, err := s.property(ctx, managerPath, managerInterface, "SystemState")
	if err != nil || system == "stopping" {
		return err == nil, err
	}
	iface := scopeInterface
	if strings.HasSuffix(unit, sliceSuffix) {
		iface = sliceInterface
	}
	slice, err := s.property(ctx, unitPath(unit), iface, "Slice")
	if err != nil {
		return false, err
	}
	units := append(around(slice), unit)
	var jobs []job
	if err := s.call(ctx, "ListJobs").Store(&jobs); err != nil {
		return false, err
	}
	return slices.ContainsFunc(jobs, func(j job) bool {
		return (j.Type == "stop" || strings.HasPrefix(j.Type, "restart")) && slices.Contains(units, j.Unit)
	}), nil
}
