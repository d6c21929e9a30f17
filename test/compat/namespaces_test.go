package compat

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containers/conmon-rs/pkg/client"
	"go.podman.io/storage/pkg/idtools"
)

var namespaceOrder = []client.Namespace{
	client.NamespaceIPC, client.NamespacePID, client.NamespaceNet, client.NamespaceUser, client.NamespaceUTS,
}

var namespaceDirs = []string{"ipcns", "pidns", "netns", "userns", "utsns"}

// namespacePaths checks an answer and returns its paths.
func namespacePaths(t *testing.T, base, pod string, response *client.CreateNamespacesResponse) (paths []string) {
	t.Helper()
	if len(response.Namespaces) != len(namespaceOrder) {
		t.Fatalf("%d namespaces", len(response.Namespaces))
	}
	for i, n := range response.Namespaces {
		if n.Type != namespaceOrder[i] {
			t.Errorf("namespace %d is of type %v", i, n.Type)
		}
		if want := filepath.Join(base, namespaceDirs[i], pod); n.Path != want {
			t.Errorf("path %q, want %q", n.Path, want)
		}
		info, err := os.Lstat(n.Path)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() || info.Size() != 0 || info.Mode() != fs.FileMode(0o444) {
			t.Errorf("%s: %v, %d bytes", n.Path, info.Mode(), info.Size())
		}
		paths = append(paths, n.Path)
	}
	return paths
}

// isHosts tells whether the namespace at path is the one of this process.
func isHosts(t *testing.T, path string, kind int) bool {
	t.Helper()
	own, err := os.Stat("/proc/self/ns/" + strings.TrimSuffix(namespaceDirs[kind], "ns"))
	if err != nil {
		t.Fatal(err)
	}
	its, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return os.SameFile(own, its)
}

func wantGone(t *testing.T, paths []string) {
	t.Helper()
	for _, path := range paths {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// firstSetting is for tests in which the runtime plays no part.
func firstSetting(t *testing.T) setting {
	t.Helper()
	if os.Geteuid() != 0 {
		unavailable(t, "needs root")
	}
	return setting{binary: monitorBinary(t), runtime: runtimes(t)[0], manager: list("CONMONRS_CGROUP_MANAGERS", "cgroupfs")[0]}
}

// The situations of the suite: nothing requested, no user namespace, and all with a base path.
func TestCreateNamespaces(t *testing.T) {
	mappings := idtools.NewIDMappingsFromMaps([]idtools.IDMap{{Size: 1}}, []idtools.IDMap{{Size: 1}})
	ranges := []idtools.IDMap{{ContainerID: 0, HostID: 100000, Size: 10}, {ContainerID: 10, HostID: 200000, Size: 10}}
	for _, test := range []struct {
		name     string
		unshared []client.Namespace
		custom   bool
		mappings *idtools.IDMappings
	}{
		{name: "none"},
		{name: "without user", unshared: []client.Namespace{client.NamespaceIPC, client.NamespaceNet, client.NamespacePID, client.NamespaceUTS}},
		{name: "with user", unshared: namespaceOrder, custom: true, mappings: mappings},
		{name: "several mappings", unshared: namespaceOrder, custom: true, mappings: idtools.NewIDMappingsFromMaps(ranges, ranges)},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPod(t, firstSetting(t), "true")
			base := "/var/run"
			config := &client.CreateNamespacesConfig{Namespaces: test.unshared, IDMappings: test.mappings, PodID: p.id}
			if test.custom {
				base = t.TempDir()
				config.BasePath = base
			}
			response, err := p.client.CreateNamespaces(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			paths := namespacePaths(t, base, p.id, response)
			for i, path := range paths {
				unshared := slices.Contains(test.unshared, namespaceOrder[i])
				if isHosts(t, path, i) == unshared {
					t.Errorf("%s: unshared %v is not what it is", path, unshared)
				}
			}
			p.shutdown()
			wantGone(t, append(paths, filepath.Join(base, "conmonrs", p.id+".pid")))
		})
	}
}

// What the suite expects to fail.
func TestCreateNamespacesFails(t *testing.T) {
	p := newPod(t, firstSetting(t), "true")
	if response, err := p.client.CreateNamespaces(t.Context(), &client.CreateNamespacesConfig{}); err == nil || response != nil {
		t.Errorf("no pod id: %+v, %v", response, err)
	}
	response, err := p.client.CreateNamespaces(t.Context(), &client.CreateNamespacesConfig{
		Namespaces: []client.Namespace{client.NamespaceUser}, PodID: p.id,
	})
	if !errors.Is(err, client.ErrMissingIDMappings) || response != nil {
		t.Errorf("no mappings: %+v, %v", response, err)
	}
}
