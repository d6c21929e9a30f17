package systemdunit

import (
	"fmt"
	"strings"
)

// maxUnitName is the longest name of a unit, in bytes: UNIT_NAME_MAX of systemd without the final NUL.
const maxUnitName = 255

const sliceSuffix, scopeSuffix = ".slice", ".scope"

// SliceOf returns the slice of a cgroups path in the form that runtimes take with the systemd cgroup manager,
// "slice:prefix:name", as it stands in linux.cgroupsPath of the OCI configuration. It is empty if the path is, or names
// none: then runtimes leave the choice to their default. The error is a *FieldError.
func SliceOf(cgroupsPath string) (string, error) {
	const field = "linux.cgroupsPath"
	if cgroupsPath == "" {
		return "", nil
	}
	parts := strings.Split(cgroupsPath, ":")
	if len(parts) != 3 {
		return "", &FieldError{field, cgroupsPath, "is not of the form slice:prefix:name"}
	}
	if parts[0] == "" {
		return "", nil
	}
	if reason := badSlice(parts[0]); reason != "" {
		return "", &FieldError{field, cgroupsPath, "has a slice that " + reason}
	}
	return parts[0], nil
}

// CheckSlice tells whether name can be the name of a slice. The error is a *FieldError for field.
func CheckSlice(field, name string) error {
	if reason := badSlice(name); reason != "" {
		return &FieldError{field, name, reason}
	}
	return nil
}

// badSlice follows systemd.slice(5): dashes separate the levels of the hierarchy, so none may be empty.
func badSlice(name string) string {
	base, ok := strings.CutSuffix(name, sliceSuffix)
	switch {
	case !ok:
		return "does not end in " + sliceSuffix
	case base == "-":
		return ""
	case base == "" || base[0] == '-' || base[len(base)-1] == '-' || strings.Contains(base, "--"):
		return "has an empty level"
	}
	return badUnit(name)
}

func badUnit(name string) string {
	if len(name) > maxUnitName {
		return fmt.Sprintf("has %d bytes, more than %d", len(name), maxUnitName)
	}
	for i := range len(name) {
		if !unitByte(name[i]) && name[i] != '\\' {
			return fmt.Sprintf("contains the byte %q, which must be written as \\x%02x", name[i:i+1], name[i])
		}
	}
	return ""
}

// unitByte tells whether a byte stands for itself in the name of a unit that is no template, systemd.unit(5).
func unitByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte(":_.-", c) >= 0
}

// ScopeName returns the name of the scope of a pod: "conmonrs-<id>.scope", with bytes that unit names cannot have
// escaped. The error is a *FieldError.
func ScopeName(podID string) (string, error) {
	if podID == "" {
		return "", &FieldError{"pod id", podID, "is empty"}
	}
	var b strings.Builder
	b.WriteString("conmonrs-")
	for i := range len(podID) {
		if c := podID[i]; unitByte(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	b.WriteString(scopeSuffix)
	if reason := badUnit(b.String()); reason != "" {
		return "", &FieldError{"pod id", podID, "makes a unit name that " + reason}
	}
	return b.String(), nil
}

// around returns a slice and those around it, the root slice last: for a-b.slice also a.slice and -.slice.
func around(slice string) []string {
	var names []string
	for base, ok := strings.CutSuffix(slice, sliceSuffix); ok && base != "" && base != "-"; {
		names = append(names, base+sliceSuffix)
		base = base[:max(strings.LastIndexByte(base, '-'), 0)]
	}
	return append(names, "-"+sliceSuffix)
}
