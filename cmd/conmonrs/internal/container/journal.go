package container

import (
	"strconv"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/proctree"
	"github.com/conmonrs/conmonrs/journald"
)

// attribute has the journal's entries to come belong to the container's own unit: journalctl -u and systemctl status of
// that show them. journald takes the unit of a process that it is told of from /proc (OBJECT_PID=, from root only), but it
// reads that late, when a container that has crashed may be gone: so the unit is told as well.
func (l *logs) attribute(pid int, pod Pod) error {
	if len(l.journals) == 0 {
		return nil
	}
	fields := []journald.Field{{Name: "OBJECT_PID", Value: strconv.AppendInt(nil, int64(pid), 10)}}
	for _, f := range []struct{ name, value string }{
		{"OBJECT_SYSTEMD_UNIT", proctree.UnitOf(pid)},
		{"CONTAINER_POD_NAMESPACE", pod.Namespace},
		{"CONTAINER_POD_NAME", pod.Name},
	} {
		if f.value != "" {
			fields = append(fields, journald.Field{Name: f.name, Value: []byte(f.value)})
		}
	}
	l.object = fields
	return l.setExtra(fields)
}

// forgetProcess is called when the process has ended: its pid may become a stranger's. What it left may go on to print.
func (l *logs) forgetProcess() {
	if len(l.object) > 0 {
		_ = l.setExtra(l.object[1:]) // the names have been valid before
	}
}

func (l *logs) setExtra(fields []journald.Field) error {
	for _, sink := range l.journals {
		if err := sink.SetExtra(fields); err != nil {
			return err
		}
	}
	return nil
}
