// Package bundle makes OCI bundles with a static busybox as their only program, for tests, the demo and the bench.
package bundle

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Options describe a container. The zero value runs nothing useful: set Args.
type Options struct {
	Args     []string
	Terminal bool
	Env      []string // added to PATH
	// CgroupsPath is the OCI cgroupsPath; empty leaves the choice to the runtime.
	CgroupsPath string
	// SharePID leaves out the pid namespace; PIDNamespace joins the one at this path.
	SharePID     bool
	PIDNamespace string
	// Namespaces are joined at these paths, by type as in config.json, instead of new ones. A user namespace's mappings
	// are IDs, for users and groups.
	Namespaces map[string]string
	IDs        []IDMapping
	// Sysfs mounts one at /sys.
	Sysfs bool
	// Memory limits the memory in bytes; 0: unlimited.
	Memory int64
	// OOMScoreAdj is written to the configuration unless nil.
	OOMScoreAdj *int
	Annotations map[string]string
	Mounts      []Mount
	UID         int
}

// IDMapping is a range of ids of a user namespace.
type IDMapping struct {
	ContainerID uint32 `json:"containerID"`
	HostID      uint32 `json:"hostID"`
	Size        uint32 `json:"size"`
}

// Mount is a bind mount.
type Mount struct {
	Source, Destination string
}

// Busybox returns the path of a static busybox.
func Busybox() (string, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return "", fmt.Errorf("find busybox (package busybox-static): %w", err)
	}
	return path, nil
}

// Make writes a bundle to dir, which is created.
func Make(dir string, o Options) error {
	root := filepath.Join(dir, "rootfs")
	for _, d := range []string{"bin", "proc", "dev", "tmp", "sys", "mnt"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	busybox, err := Busybox()
	if err != nil {
		return err
	}
	if err := place(busybox, filepath.Join(root, "bin", "busybox")); err != nil {
		return err
	}
	for _, applet := range applets {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", applet)); err != nil && !os.IsExist(err) {
			return err
		}
	}
	for _, m := range o.Mounts {
		if err := mountPoint(root, m); err != nil {
			return err
		}
	}
	b, err := json.MarshalIndent(config(o), "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644)
}

// applets are the programs that containers find in their PATH.
var applets = []string{
	"sh", "cat", "echo", "sleep", "true", "false", "printf", "yes", "head", "tail", "seq", "sha256sum", "stty", "kill",
	"env", "id", "ls", "ps", "dd", "wc", "setsid", "touch", "date", "usleep", "test", "mkfifo", "nice", "nohup", "tr",
	"sort", "find", "readlink", "hostname", "stat", "timeout", "awk", "grep", "sed", "watch", "trap", "tty", "rm", "od",
}

// place links the file, or copies it across file systems.
func place(from, to string) error {
	if err := os.Link(from, to); err == nil || os.IsExist(err) {
		return nil
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

func mountPoint(root string, m Mount) error {
	to := filepath.Join(root, m.Destination)
	info, err := os.Stat(m.Source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.MkdirAll(to, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

type object = map[string]any

func config(o Options) object {
	process := object{
		"terminal": o.Terminal, "cwd": "/", "args": o.Args, "user": object{"uid": o.UID, "gid": o.UID},
		"env": append([]string{"PATH=/bin", "TERM=xterm"}, o.Env...),
		"capabilities": object{
			"bounding": capabilities, "effective": capabilities, "permitted": capabilities,
		},
	}
	if o.OOMScoreAdj != nil {
		process["oomScoreAdj"] = *o.OOMScoreAdj
	}
	linux := object{"namespaces": namespaces(o), "resources": object{}}
	if o.Memory > 0 {
		linux["resources"] = object{"memory": object{"limit": o.Memory, "swap": o.Memory}}
	}
	if o.CgroupsPath != "" {
		linux["cgroupsPath"] = o.CgroupsPath
	}
	if o.IDs != nil {
		linux["uidMappings"], linux["gidMappings"] = o.IDs, o.IDs
	}
	return object{
		"ociVersion": "1.0.2", "process": process, "root": object{"path": "rootfs"}, "hostname": "demo",
		"mounts": mounts(o), "linux": linux, "annotations": o.Annotations,
	}
}

var capabilities = []string{"CAP_KILL", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_SETUID", "CAP_SETGID"}

func namespaces(o Options) []object {
	all := []object{{"type": "mount"}}
	for _, kind := range []string{"ipc", "uts", "network", "pid", "user"} {
		path := o.Namespaces[kind]
		if kind == "pid" && o.PIDNamespace != "" {
			path = o.PIDNamespace
		}
		switch {
		case path != "":
			all = append(all, object{"type": kind, "path": path})
		case kind == "user" || kind == "pid" && o.SharePID:
		default:
			all = append(all, object{"type": kind})
		}
	}
	return all
}

func mounts(o Options) []object {
	all := []object{
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755"}},
		{
			"destination": "/dev/pts", "type": "devpts", "source": "devpts",
			"options": []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"},
		},
	}
	if o.Sysfs {
		all = append(all, object{
			"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": []string{"nosuid", "noexec", "nodev", "ro"},
		})
	}
	for _, m := range o.Mounts {
		all = append(all, object{
			"destination": m.Destination, "type": "bind", "source": m.Source, "options": []string{"rbind", "rw"},
		})
	}
	return all
}
