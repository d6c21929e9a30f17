// Package podns is what conmonrs and conmonrs-pause agree on about the namespaces of a pod, namespaces(7): the files
// that they are bound to, and the command line that asks for them. It creates none.
package podns

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Kind is a kind of namespace, by the name of its file below /proc/PID/ns.
type Kind string

// The kinds that a pod can have of its own.
const (
	IPC  Kind = "ipc"
	PID  Kind = "pid"
	Net  Kind = "net"
	User Kind = "user"
	UTS  Kind = "uts"
)

// Kinds returns all kinds in the order of answers.
func Kinds() []Kind { return []Kind{IPC, PID, Net, User, UTS} }

// Name is the executable, as a file and as a process.
const Name = "conmonrs-pause"

// DefaultBase is the base path of who gives none.
const DefaultBase = "/var/run"

// Request asks for the namespaces of a pod.
type Request struct {
	// Base is the absolute path below which the namespaces are bound.
	Base string
	// PodID names the files.
	PodID string
	// Unshare lists the kinds that the pod does not share with the host. Order and duplicates mean nothing.
	Unshare []Kind
	// UIDMappings and GIDMappings have the form "CONTAINER_ID HOST_ID SIZE" and are for a user namespace.
	UIDMappings, GIDMappings []string
}

// Has tells whether the pod gets a namespace of its own of that kind.
func (r *Request) Has(k Kind) bool {
	for _, have := range r.Unshare {
		if have == k {
			return true
		}
	}
	return false
}

// Path is the file that a namespace of the pod is bound to.
func (r *Request) Path(k Kind) string { return filepath.Join(r.Base, string(k)+"ns", r.PodID) }

// StateDir is the directory of the pid file.
func (r *Request) StateDir() string { return filepath.Join(r.Base, "conmonrs") }

// PIDFile holds the pid of the process that holds the pod's pid namespace, without a newline. It exists as long as the
// process is to live.
func (r *Request) PIDFile() string { return filepath.Join(r.StateDir(), r.PodID+".pid") }

// The first argument of conmonrs-pause. Hold is its own, for the process that stays. Errors of Pause have the words before them that people know from conmonrs pause.
const (
	Pin   = "pin"
	Pause = "pause"
	Hold  = "hold"
)

// HolderArgs is the command line of the process that holds the pid namespace of a pod, as /proc/PID/cmdline shows it.
func HolderArgs(podID string) string { return Name + "\x00" + Hold + "\x00" + podID + "\x00" }

const (
	baseOption = "--base-path="
	podOption  = "--pod-id="
	uidOption  = "--uid-mappings="
	gidOption  = "--gid-mappings="
)

// Args returns the arguments of conmonrs-pause behind the first.
func (r *Request) Args() []string {
	args := []string{baseOption + r.Base, podOption + r.PodID}
	for _, k := range Kinds() {
		if r.Has(k) {
			args = append(args, "--"+string(k))
		}
	}
	for _, m := range r.UIDMappings {
		args = append(args, uidOption+m)
	}
	for _, m := range r.GIDMappings {
		args = append(args, gidOption+m)
	}
	return args
}

// Parse is the reverse of Args. It is no parser for people: conmonrs has that.
func Parse(args []string) (*Request, error) {
	r := &Request{}
	for _, arg := range args {
		name, value, hasValue := strings.Cut(arg, "=")
		switch {
		case hasValue && name+"=" == baseOption:
			r.Base = value
		case hasValue && name+"=" == podOption:
			r.PodID = value
		case hasValue && name+"=" == uidOption:
			r.UIDMappings = append(r.UIDMappings, value)
		case hasValue && name+"=" == gidOption:
			r.GIDMappings = append(r.GIDMappings, value)
		default:
			k, err := parseKind(arg)
			if err != nil {
				return nil, err
			}
			r.Unshare = append(r.Unshare, k)
		}
	}
	return r, nil
}

func parseKind(arg string) (Kind, error) {
	for _, k := range Kinds() {
		if arg == "--"+string(k) {
			return k, nil
		}
	}
	return "", fmt.Errorf("unexpected argument %q", arg)
}

// Remove unbinds the pod's namespaces and deletes their files and the pid file. What is not there is fine. The
// directories stay: other pods use them. A namespace that somebody still uses lives on without a name.
func (r *Request) Remove() error {
	var errs []error
	for _, k := range Kinds() {
		errs = append(errs, Unbind(r.Path(k)))
	}
	if err := unix.Unlink(r.PIDFile()); err != nil && !absent(err) {
		errs = append(errs, fmt.Errorf("remove pid file %q: %w", r.PIDFile(), err))
	}
	return errors.Join(errs...)
}

// maxStacked bounds how many mounts on one file are looked for.
const maxStacked = 16

// Unbind undoes the binding of a namespace to a file, and deletes the file if it is one that was made for that.
func Unbind(path string) error {
	for range maxStacked {
		// Lazily: somebody may have the file open. Not through a symbolic link.
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			break // EINVAL: nothing, or nothing more, is mounted there; else the file cannot be deleted
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); absent(err) {
		return nil
	} else if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > 0) {
		return nil // somebody else's: nothing could be bound to it
	}
	if err := unix.Unlink(path); err != nil {
		return fmt.Errorf("remove namespace file %q: %w", path, err)
	}
	return nil
}

func absent(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }

// IsBound tells whether a namespace is bound to the file. Nothing there is false.
func IsBound(path string) bool {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && st.Type == unix.NSFS_MAGIC
	}
}
