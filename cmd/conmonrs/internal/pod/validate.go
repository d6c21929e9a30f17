package pod

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/oci"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// maxID bounds the length of a container id: names of scopes and files are made from it.
const maxID = 200

// checkID refuses what could be taken for an option or a path by the runtime.
func checkID(id string) error { return checkName("id", id) }

func checkName(field, id string) error {
	invalid := func(reason string) error { return &conmon.InvalidError{Field: field, Reason: reason} }
	if id == "" {
		return invalid("is empty")
	}
	if len(id) > maxID {
		return invalid(fmt.Sprintf("is longer than %d bytes", maxID))
	}
	if !isAlphanumeric(id[0]) {
		return invalid("does not begin with a letter or digit")
	}
	for i := range len(id) {
		if c := id[i]; !isAlphanumeric(c) && !strings.ContainsRune("_+-.", rune(c)) {
			return invalid("contains characters other than letters, digits and _+-.")
		}
	}
	return nil
}

func isAlphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// checkPath refuses paths whose meaning depends on the monitor's working directory.
func checkPath(field, path string) error {
	switch {
	case path == "":
		return &conmon.InvalidError{Field: field, Reason: "is empty"}
	case !filepath.IsAbs(path):
		return &conmon.InvalidError{Field: field, Reason: fmt.Sprintf("%q is not an absolute path", path)}
	case strings.ContainsRune(path, 0):
		return &conmon.InvalidError{Field: field, Reason: "contains a NUL byte"}
	}
	return nil
}

func checkPaths(field string, paths []string) error {
	for i, path := range paths {
		if err := checkPath(fmt.Sprintf("%s[%d]", field, i), path); err != nil {
			return err
		}
	}
	return nil
}

func checkEnv(env []conmon.EnvVar) error {
	for i, v := range env {
		if v.Key == "" || strings.ContainsAny(v.Key, "=\x00") || strings.ContainsRune(v.Value, 0) {
			return &conmon.InvalidError{
				Field: fmt.Sprintf("envVars[%d]", i), Reason: "is not a name and a value without NUL bytes",
			}
		}
	}
	return nil
}

func validateCreate(req *conmon.CreateContainerRequest) error {
	for _, check := range []func() error{
		func() error { return checkID(req.ID) },
		func() error { return checkBundle(req.BundlePath) },
		func() error { return checkPaths("exitPaths", req.ExitPaths) },
		func() error { return checkPaths("oomExitPaths", req.OOMExitPaths) },
		func() error { return checkLogs(req.LogDrivers) },
		func() error { return checkEnv(req.Env) },
		func() error { return checkPreserved(req) },
		func() error { return checkNotify(req) },
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func checkBundle(path string) error {
	const field = "bundlePath"
	if err := checkPath(field, path); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		return &conmon.InvalidError{Field: field, Reason: fmt.Sprintf("%q is not a directory", path)}
	}
	if err == nil {
		var f *os.File
		if f, err = oci.OpenConfig(path); err == nil {
			f.Close()
		}
	}
	if err != nil {
		return &conmon.InvalidError{Field: field, Reason: err.Error()}
	}
	return nil
}

func checkLogs(drivers []conmon.LogDriver) error {
	for i, d := range drivers {
		if d.Type == conmon.LogDriverJournald {
			continue // has no path
		}
		if err := checkPath(fmt.Sprintf("logDrivers[%d].path", i), d.Path); err != nil {
			return err
		}
	}
	return nil
}

func validateExec(req *conmon.ExecSyncRequest) error {
	if err := checkID(req.ID); err != nil {
		return err
	}
	if len(req.Command) == 0 {
		return &conmon.InvalidError{Field: "command", Reason: "is empty"}
	}
	for i, word := range req.Command {
		if strings.ContainsRune(word, 0) {
			return &conmon.InvalidError{Field: fmt.Sprintf("command[%d]", i), Reason: "contains a NUL byte"}
		}
	}
	return checkEnv(req.Env)
}
