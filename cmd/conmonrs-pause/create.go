package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/cmd/internal/podns"
)

// The modes of what is created. The bound files show those of the namespaces, which are 0444 too.
const (
	dirMode     = 0o755
	bindMode    = 0o444
	pidFileMode = 0o644
)

// undo is what has been done so far, to be undone in reverse.
type undo []func()

func (u undo) run() {
	for i := len(u) - 1; i >= 0; i-- {
		u[i]()
	}
}

// create makes the namespaces and their files, all or nothing.
func create(req *podns.Request) error {
	maps, err := check(req)
	if err != nil {
		return err
	}
	unix.Umask(0o022)
	var done undo
	if err := build(req, maps, &done); err != nil {
		done.run()
		return err
	}
	return nil
}

// build does it in this order: the namespaces, their bindings, the pid file, and last the word to the holder that it is
// to stay. Should this process be killed, the holder goes too.
func build(req *podns.Request, maps mappings, done *undo) error {
	h, err := startHolder(req, maps)
	if err != nil {
		return err
	}
	*done = append(*done, h.end)
	for _, k := range podns.Kinds() {
		source := "/proc/self/ns/" + string(k)
		if req.Has(k) {
			source = "/proc/" + strconv.Itoa(h.pid) + "/ns/" + string(k)
		}
		if err := bind(source, req.Path(k), done); err != nil {
			return err
		}
	}
	if !req.Has(podns.PID) {
		h.end()
		return nil
	}
	h.protect()
	if err := writePIDFile(req, h.pid, done); err != nil {
		return err
	}
	return h.release()
}

func check(req *podns.Request) (mappings, error) {
	switch {
	case req.PodID == "":
		return mappings{}, errors.New("no pod ID provided")
	case !isName(req.PodID):
		return mappings{}, fmt.Errorf("pod ID %q is no name for a file", req.PodID)
	case !filepath.IsAbs(req.Base):
		return mappings{}, fmt.Errorf("base path %q is not absolute", req.Base)
	}
	m, err := parseMappings(req)
	if err != nil {
		return mappings{}, err
	}
	for _, k := range podns.Kinds() {
		if podns.IsBound(req.Path(k)) {
			return mappings{}, fmt.Errorf("%s namespace of pod %q exists already: %q", k, req.PodID, req.Path(k))
		}
	}
	return m, nil
}

// isName refuses what would lead out of the directories. The monitor is stricter.
func isName(id string) bool {
	return id != "." && id != ".." && !strings.ContainsAny(id, "/\x00\n")
}

// bind has a namespace stay at a path of its own, without a process.
func bind(source, path string, done *undo) error {
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return fmt.Errorf("create directory of namespaces: %w", err)
	}
	if err := makeTarget(path); err != nil {
		return err
	}
	*done = append(*done, func() { _ = podns.Unbind(path) })
	if err := unix.Mount(source, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind namespace %q to %q: %w", source, path, explain(err))
	}
	return nil
}

// makeTarget makes the file to bind to. An empty one that is there already is what a reboot leaves.
func makeTarget(path string) error {
	const flags = unix.O_RDONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open(path, flags, bindMode)
	if err == nil {
		return unix.Close(fd)
	}
	if errors.Is(err, unix.EEXIST) {
		if info, statErr := os.Lstat(path); statErr == nil && info.Mode().IsRegular() && info.Size() == 0 {
			return nil
		}
	}
	return fmt.Errorf("create namespace file %q: %w", path, err)
}

// writePIDFile replaces what a reboot may have left.
func writePIDFile(req *podns.Request, pid int, done *undo) error {
	path := req.PIDFile()
	err := os.MkdirAll(req.StateDir(), dirMode)
	if err == nil {
		_ = os.Remove(path)
		*done = append(*done, func() { _ = os.Remove(path) })
		err = writeNew(path, strconv.Itoa(pid))
	}
	if err != nil {
		return fmt.Errorf("write pid file: %w", err)
	}
	return nil
}

func writeNew(path, content string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, pidFileMode)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}

// explain says what the usual errors of clone(2) and mount(2) mean here.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (CAP_SYS_ADMIN is needed, and where there are mappings the right to map these ids)", err)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w (a limit in /proc/sys/user is reached)", err)
	}
	return err
}
