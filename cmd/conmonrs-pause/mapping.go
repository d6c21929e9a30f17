package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/conmonrs/conmonrs/cmd/internal/podns"
)

// maxMappings is how many ranges the kernel takes, user_namespaces(7).
const maxMappings = 340

var (
	errNoUIDs = errors.New("user ID mappings are empty")
	errNoGIDs = errors.New("group ID mappings are empty")
)

// mappings are those of a user namespace. The zero value is for a pod without one.
type mappings struct{ uids, gids []syscall.SysProcIDMap }

func parseMappings(req *podns.Request) (m mappings, err error) {
	if !req.Has(podns.User) {
		return mappings{}, nil
	}
	if len(req.UIDMappings) == 0 {
		return mappings{}, errNoUIDs
	}
	if len(req.GIDMappings) == 0 {
		return mappings{}, errNoGIDs
	}
	if m.uids, err = parseRanges(req.UIDMappings); err != nil {
		return mappings{}, fmt.Errorf("user ID mappings: %w", err)
	}
	if m.gids, err = parseRanges(req.GIDMappings); err != nil {
		return mappings{}, fmt.Errorf("group ID mappings: %w", err)
	}
	return m, nil
}

func parseRanges(lines []string) ([]syscall.SysProcIDMap, error) {
	if len(lines) > maxMappings {
		return nil, fmt.Errorf("%d are more than the kernel takes, which is %d", len(lines), maxMappings)
	}
	ranges := make([]syscall.SysProcIDMap, len(lines))
	for i, line := range lines {
		r, err := parseRange(line)
		if err != nil {
			return nil, err
		}
		for j, other := range ranges[:i] {
			if overlap(r.ContainerID, other.ContainerID, r.Size, other.Size) ||
				overlap(r.HostID, other.HostID, r.Size, other.Size) {
				return nil, fmt.Errorf("mapping '%s' overlaps '%s'", line, lines[j])
			}
		}
		ranges[i] = r
	}
	return ranges, nil
}

func overlap(a, b, sizeA, sizeB int) bool { return a < b+sizeB && b < a+sizeA }

func parseRange(line string) (syscall.SysProcIDMap, error) {
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return syscall.SysProcIDMap{}, wrongFormat(line, "'CONTAINER_ID HOST_ID SIZE'")
	}
	var n [3]uint64
	for i, field := range fields {
		var err error
		if n[i], err = strconv.ParseUint(field, 10, 32); err != nil {
			return syscall.SysProcIDMap{}, wrongFormat(line, "all to be u32")
		}
	}
	if size := n[2]; size == 0 || n[0]+size > 1<<32-1 || n[1]+size > 1<<32-1 { // the last id means "none"
		return syscall.SysProcIDMap{}, wrongFormat(line, "a range of ids")
	}
	return syscall.SysProcIDMap{ContainerID: int(n[0]), HostID: int(n[1]), Size: int(n[2])}, nil
}

func wrongFormat(line, expected string) error {
	return fmt.Errorf("mapping '%s' has wrong format, expected %s", line, expected)
}

func contains(ranges []syscall.SysProcIDMap, id int) bool {
	for _, r := range ranges {
		if id >= r.ContainerID && id < r.ContainerID+r.Size {
			return true
		}
	}
	return false
}

// setgroupsAllowed tells whether members of a new user namespace may call setgroups(2) as ours may: the right is
// inherited, and is neither given nor taken here.
func setgroupsAllowed() bool {
	b, err := os.ReadFile("/proc/self/setgroups")
	return err == nil && strings.TrimSpace(string(b)) == "allow"
}
