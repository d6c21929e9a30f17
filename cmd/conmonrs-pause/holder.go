package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/cmd/internal/podns"
)

// holderEnv makes the holder small: one processor, no garbage collection of what is allocated once, no huge pages, and no
// room for the stacks of profiles.
var holderEnv = []string{"GOMAXPROCS=1", "GOGC=off", "GODEBUG=disablethp=1,profstackdepth=0"}

// ready is what the holder sends once it is set up, and gets when it is to stay.
const ready = 1

// holder is the process that is born in the new namespaces. The zero value is that of a pod that has none of its own.
type holder struct {
	pid  int
	sock int // -1 when it has been told, or has been ended
}

// startHolder creates the namespaces, all in one clone(2): then the user namespace comes first and owns the others. It
// returns when the process has set itself up.
func startHolder(req *podns.Request, maps mappings) (*holder, error) {
	if len(req.Unshare) == 0 {
		return &holder{sock: -1}, nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("create socket pair: %w", err)
	}
	defer func() { _ = unix.Close(pair[1]) }()
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		defer func() { _ = unix.Close(null) }()
		var pid int
		pid, err = syscall.ForkExec("/proc/self/exe", []string{podns.Name, podns.Hold, req.PodID}, &syscall.ProcAttr{
			Env: holderEnv, Files: []uintptr{uintptr(pair[1]), uintptr(null), uintptr(null)}, Sys: attributes(req, maps),
		})
		if err == nil {
			h := &holder{pid: pid, sock: pair[0]}
			_ = unix.Close(pair[1]) // so that its death is an end of file
			pair[1] = -1
			return h, h.await()
		}
	}
	_ = unix.Close(pair[0])
	return nil, fmt.Errorf("create namespaces: %w", explain(err))
}

// attributes: whoever holds a pid namespace gets a mount namespace too, where it has nothing of the host's.
func attributes(req *podns.Request, maps mappings) *syscall.SysProcAttr {
	sys := &syscall.SysProcAttr{Setsid: true}
	for _, k := range req.Unshare {
		sys.Cloneflags |= cloneFlag(k)
	}
	if req.Has(podns.PID) {
		sys.Cloneflags |= unix.CLONE_NEWNS
	}
	if !req.Has(podns.User) {
		return sys
	}
	// Each map is written with one write: the kernel takes no second.
	allowed := setgroupsAllowed()
	sys.UidMappings, sys.GidMappings, sys.GidMappingsEnableSetgroups = maps.uids, maps.gids, allowed
	if mapped(maps) {
		sys.Credential = &syscall.Credential{NoSetGroups: !allowed}
	} else {
		sys.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN} // what another user than root loses when it executes
	}
	return sys
}

func cloneFlag(k podns.Kind) uintptr {
	switch k {
	case podns.IPC:
		return unix.CLONE_NEWIPC
	case podns.PID:
		return unix.CLONE_NEWPID
	case podns.Net:
		return unix.CLONE_NEWNET
	case podns.User:
		return unix.CLONE_NEWUSER
	default:
		return unix.CLONE_NEWUTS
	}
}

// mapped tells whether there is a root in the user namespace.
func mapped(m mappings) bool { return contains(m.uids, 0) && contains(m.gids, 0) }

// await waits until the holder has set itself up. On error it has been ended.
func (h *holder) await() error {
	var b [128]byte
	n, err := read(h.sock, b[:])
	if err == nil && n == 1 && b[0] == ready {
		return nil
	}
	h.end()
	why := "it died"
	if n > 0 {
		why = string(b[:n])
	}
	return errors.New("set up process in namespaces: " + why)
}

// protect has the OOM killer take nearly everything else first: with the process all of the pod would go. What it was
// born with may be more than the privilege allows to change, and does as well.
func (h *holder) protect() {
	path := "/proc/" + strconv.Itoa(h.pid) + "/oom_score_adj"
	_ = os.WriteFile(path, []byte("-998"), 0)
}

// release tells the holder to stay.
func (h *holder) release() error {
	_, err := unix.Write(h.sock, []byte{ready})
	_ = unix.Close(h.sock)
	h.sock = -1
	if err != nil {
		return fmt.Errorf("release process in namespaces: %w", err)
	}
	return nil
}

// end ends and reaps the process. It can be called twice.
func (h *holder) end() {
	if h.sock >= 0 {
		_ = unix.Close(h.sock)
		h.sock = -1
	}
	if h.pid == 0 {
		return
	}
	_ = syscall.Kill(h.pid, syscall.SIGKILL)
	for {
		_, err := syscall.Wait4(h.pid, nil, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	h.pid = 0
}

func read(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
