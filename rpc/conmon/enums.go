package conmon

import "strconv"

// LogDriverType selects the format of a container log.
type LogDriverType uint16

// The known log drivers. The numbers travel on the wire.
const (
	// LogDriverCRI writes the text format of the container runtime interface.
	LogDriverCRI LogDriverType = 0
	// LogDriverJSON writes one JSON object per line.
	LogDriverJSON LogDriverType = 1
	// LogDriverJournald sends entries to the journal. It has no path.
	LogDriverJournald LogDriverType = 2
)

// String returns the name of the driver as the command line spells it.
func (t LogDriverType) String() string {
	switch t {
	case LogDriverCRI:
		return "cri"
	case LogDriverJSON:
		return "json"
	case LogDriverJournald:
		return "journald"
	}
	return unknown("log driver", uint16(t))
}

// CgroupManager says who creates the cgroup of a container.
type CgroupManager uint16

// The known cgroup managers. The numbers travel on the wire, so an absent value means systemd.
const (
	// CgroupManagerSystemd asks the runtime to let systemd create a scope.
	CgroupManagerSystemd CgroupManager = 0
	// CgroupManagerCgroupfs lets the runtime create the cgroup itself.
	CgroupManagerCgroupfs CgroupManager = 1
)

// String returns the name of the manager as engines spell it.
func (m CgroupManager) String() string {
	switch m {
	case CgroupManagerSystemd:
		return "systemd"
	case CgroupManagerCgroupfs:
		return "cgroupfs"
	}
	return unknown("cgroup manager", uint16(m))
}

// Namespace is a kind of Linux namespace that can be pinned for a pod.
type Namespace uint16

// The namespaces in the order of the schema. Responses list them in another order, see
// [CreateNamespacesResponse].
const (
	NamespaceIPC  Namespace = 0
	NamespaceNet  Namespace = 1
	NamespacePID  Namespace = 2
	NamespaceUser Namespace = 3
	NamespaceUTS  Namespace = 4
)

// String returns the name the kernel uses in /proc/<pid>/ns.
func (n Namespace) String() string {
	switch n {
	case NamespaceIPC:
		return "ipc"
	case NamespaceNet:
		return "net"
	case NamespacePID:
		return "pid"
	case NamespaceUser:
		return "user"
	case NamespaceUTS:
		return "uts"
	}
	return unknown("namespace", uint16(n))
}

func unknown(what string, n uint16) string {
	return "unknown " + what + " " + strconv.Itoa(int(n))
}
