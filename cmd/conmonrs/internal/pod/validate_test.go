package pod

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/conmonrs/conmonrs/rpc/conmon"
)

func TestCheckID(t *testing.T) {
	for _, good := range []string{"a", "0", "abc-DEF_1.2+3", strings.Repeat("f", 64), strings.Repeat("x", maxID)} {
		if err := checkID(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", ".", "..", "../x", "a/b", "a\x00b", "a\nb", "-rf", "--root=/", ".hidden", "ä", "a b", strings.Repeat("x", maxID+1),
	} {
		var invalid *conmon.InvalidError
		if err := checkID(bad); !errors.As(err, &invalid) || invalid.Field != "id" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestValidateCreateNamesTheField(t *testing.T) {
	bundle := t.TempDir()
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := func() *conmon.CreateContainerRequest {
		return &conmon.CreateContainerRequest{ID: "a", BundlePath: bundle, ExitPaths: []string{"/x"}}
	}
	if err := validateCreate(good()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		field  string
		change func(*conmon.CreateContainerRequest)
	}{
		{"id", func(r *conmon.CreateContainerRequest) { r.ID = "" }},
		{"bundlePath", func(r *conmon.CreateContainerRequest) { r.BundlePath = "" }},
		{"bundlePath", func(r *conmon.CreateContainerRequest) { r.BundlePath = "relative" }},
		{"bundlePath", func(r *conmon.CreateContainerRequest) { r.BundlePath = "/nonexistent" }},
		{"bundlePath", func(r *conmon.CreateContainerRequest) { r.BundlePath = "/etc/passwd" }},
		{"bundlePath", func(r *conmon.CreateContainerRequest) { r.BundlePath = "/" }}, // no config.json
		{"exitPaths[1]", func(r *conmon.CreateContainerRequest) { r.ExitPaths = []string{"/x", "y"} }},
		{"oomExitPaths[0]", func(r *conmon.CreateContainerRequest) { r.OOMExitPaths = []string{""} }},
		{"logDrivers[0].path", func(r *conmon.CreateContainerRequest) { r.LogDrivers = []conmon.LogDriver{{Path: "log"}} }},
		{"envVars[0]", func(r *conmon.CreateContainerRequest) { r.Env = []conmon.EnvVar{{Key: "A=B"}} }},
		{"additionalFds", func(r *conmon.CreateContainerRequest) { r.CommandArgs = []string{"--preserve-fds=1"} }},
		{"envVars[0]", func(r *conmon.CreateContainerRequest) { r.Env = []conmon.EnvVar{{Key: "A", Value: "\x00"}} }},
	} {
		r := good()
		c.change(r)
		var invalid *conmon.InvalidError
		if err := validateCreate(r); !errors.As(err, &invalid) || invalid.Field != c.field {
			t.Errorf("%s: %v", c.field, err)
		}
	}
}

func TestValidateExec(t *testing.T) {
	for field, r := range map[string]conmon.ExecSyncRequest{
		"id":         {Command: []string{"true"}},
		"command":    {ID: "a"},
		"command[1]": {ID: "a", Command: []string{"x", "a\x00"}},
		"envVars[0]": {ID: "a", Command: []string{"x"}, Env: []conmon.EnvVar{{}}},
	} {
		var invalid *conmon.InvalidError
		if err := validateExec(&r); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func FuzzCheckID(f *testing.F) {
	f.Add("../etc")
	f.Fuzz(func(t *testing.T, id string) {
		if checkID(id) == nil && (strings.ContainsAny(id, "/\x00\n ") || strings.HasPrefix(id, "-") || id == ".." || id == "") {
			t.Errorf("accepted %q", id)
		}
	})
}
