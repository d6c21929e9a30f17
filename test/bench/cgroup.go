package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const cgroupRoot = "/sys/fs/cgroup"

// group is a memory cgroup of either version.
type group struct {
	path    string
	unified bool
}

// cgroupLayout says which hierarchy has the memory controller, and what else there is.
func cgroupLayout() string {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return "v2"
	}
	if mounts, _ := os.ReadFile("/proc/mounts"); strings.Contains(string(mounts), " cgroup2 ") {
		return "v1 with v2 beside it"
	}
	return "v1"
}

// newGroup makes a cgroup, which is removed at the end. It returns nil where there is none to be had; the figures that need it
// are missing then.
func (b *bench) newGroup() *group {
	g := &group{unified: cgroupLayout() == "v2"}
	parent := filepath.Join(cgroupRoot, "memory", "conmonrs-bench")
	if g.unified {
		parent = filepath.Join(cgroupRoot, "conmonrs-bench")
	}
	g.path = filepath.Join(parent, b.next("group"))
	if os.MkdirAll(parent, 0o755) != nil {
		return nil
	}
	if g.unified {
		_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0)
	}
	if os.Mkdir(g.path, 0o755) != nil {
		return nil
	}
	b.onCleanUp(g.remove)
	if _, err := g.charge(); err != nil {
		return nil
	}
	return g
}

// charge is what its processes cost: anonymous memory and the kernel's, in KiB. Pages of files are left out: who reads a file
// first pays for it.
type charge struct{ anon, kernel float64 }

func (g *group) charge() (charge, error) {
	stat, err := numbers(filepath.Join(g.path, "memory.stat"))
	if err != nil {
		return charge{}, err
	}
	if g.unified {
		return charge{stat["anon"] / 1024, stat["kernel"] / 1024}, nil
	}
	text, err := os.ReadFile(filepath.Join(g.path, "memory.kmem.usage_in_bytes"))
	if err != nil {
		return charge{}, err
	}
	kernel, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	return charge{stat["rss"] / 1024, kernel / 1024}, err
}

// counter names the files that charge reads.
func (g *group) counter() string {
	if g != nil && g.unified {
		return "memory.stat: anon + kernel"
	}
	return "memory.stat: rss + memory.kmem.usage_in_bytes"
}

// wrapper writes a program that enters the group before it becomes the given one. Without a group it is the program itself.
func (g *group) wrapper(path, program string) (string, error) {
	if g == nil {
		return program, nil
	}
	script := fmt.Sprintf("#!/bin/sh\necho $$ >%s/cgroup.procs\nexec %s \"$@\"\n", g.path, program)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		return "", err
	}
	return path, nil
}

func (g *group) remove() error {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := os.Remove(g.path)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

// removeGroups removes the parents of all groups, the runtime's too, from every hierarchy.
func removeGroups() error {
	for _, pattern := range []string{"conmonrs-bench", "*/conmonrs-bench"} {
		paths, _ := filepath.Glob(filepath.Join(cgroupRoot, pattern))
		for _, path := range paths {
			if err := (&group{path: path}).remove(); err != nil {
				return fmt.Errorf("remove cgroup: %w", err)
			}
		}
	}
	return nil
}

// settleKernel drops directory entries and inodes that nobody uses: the runtimes have filled the group's kernel memory with
// them, and they are no cost of the monitor.
func settleKernel() { _ = os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0) }
