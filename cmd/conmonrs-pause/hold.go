package main

import (
	"errors"
	"math"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/cmd/internal/pages"
	"github.com/conmonrs/conmonrs/cmd/internal/podns"
)

// hold is the life of the process in the namespaces; standard input is the socket to the one that has started it. It ends
// with that one, unless it is told to stay. Then it stays until it is killed, as the init of the pod's pid namespace,
// whose death is that of all processes there.
func hold() {
	// 1. No signal ends it: systemd sends SIGTERM, or another that an engine has chosen, to all processes of a scope that
	// is stopped, and containers may take their time after that. With SIGCHLD ignored the kernel reaps all children,
	// orphans of the pod included, waitpid(2): there is nothing to be woken for.
	signal.Ignore()
	// 2. It is executed as /proc/self/exe. The name is that of the first thread, whichever this is.
	if err := setName(podns.Name); err != nil {
		leave("set own name: " + err.Error())
	}
	// 3. What the starter has inherited without knowing is not for the pod.
	if err := closeInherited(); err != nil {
		leave("close inherited descriptors: " + err.Error())
	}
	// 4. Other members of the pid namespace may not look into this process, whose descriptors and root directory they
	// would find in /proc/1; and what they would find there is empty.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		leave("become undumpable: " + err.Error())
	}
	own := pages.Own()
	if os.Getpid() == 1 {
		if err := leaveHost(); err != nil {
			leave("leave the host's directories: " + err.Error())
		}
	}
	_, _ = unix.Write(0, []byte{ready})
	var b [1]byte
	if n, err := read(0, b[:]); n != 1 || err != nil {
		os.Exit(0)
	}
	for fd := range 3 {
		_ = unix.Close(fd)
	}
	own.Drop()
	for {
		_ = unix.Pause()
	}
}

// leave says why to the starter and ends.
func leave(why string) {
	_, _ = unix.Write(0, []byte(why))
	os.Exit(1)
}

// setName has no use for the poller of package os, which would stay.
func setName(name string) error {
	fd, err := unix.Open("/proc/self/comm", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(name))
	return errors.Join(err, unix.Close(fd))
}

// closeInherited closes all descriptors but the standard ones. The Go runtime has none so far.
func closeInherited() error {
	err := unix.CloseRange(3, math.MaxInt32, 0)
	if !errors.Is(err, unix.ENOSYS) {
		return err
	}
	for fd := 3; fd < 1<<16; fd++ { // before Linux 5.9
		_ = unix.Close(fd)
	}
	return nil
}

// leaveHost has the process, which has a mount namespace of its own, stand in an empty directory that nothing else is
// mounted beside. See pivot_root(2), notes.
func leaveHost() error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY
	for _, step := range []func() error{
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount("none", "/proc", "tmpfs", flags, "mode=0555,size=4k") },
		func() error { return unix.Chdir("/proc") },
		func() error {
			err := unix.PivotRoot(".", ".")
			if errors.Is(err, unix.EINVAL) { // the root is that of an initramfs, which cannot be left
				return errors.Join(unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."))
			}
			if err != nil {
				return err
			}
			return unix.Unmount(".", unix.MNT_DETACH)
		},
		func() error { return unix.Chdir("/") },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
