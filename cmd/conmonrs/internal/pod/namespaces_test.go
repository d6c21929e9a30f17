package pod

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/conmonrs/conmonrs/cmd/internal/podns"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

type fakeSpaces struct {
	got *podns.Request
	err error
}

func (f *fakeSpaces) Create(_ context.Context, req *podns.Request) error {
	f.got = req
	return f.err
}

func (f *fakeSpaces) Holder() int { return 0 }

func TestCreateNamespaces(t *testing.T) {
	f := &fakeSpaces{}
	p := New(nil, nil, f, func() {})
	r, err := p.CreateNamespaces(t.Context(), &conmon.CreateNamespacesRequest{
		PodID: "p.1", Namespaces: []conmon.Namespace{conmon.NamespaceUser, conmon.NamespaceIPC},
		UIDMappings: []string{"0 1 2"}, GIDMappings: []string{"0 3 4"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "--base-path=/var/run --pod-id=p.1 --ipc --user --uid-mappings=0 1 2 --gid-mappings=0 3 4"
	if got := strings.Join(f.got.Args(), " "); got != want {
		t.Errorf("asked for %q", got)
	}
	var paths []string
	for _, n := range r.Namespaces {
		paths = append(paths, n.Type.String()+"="+n.Path)
	}
	const answer = "ipc=/var/run/ipcns/p.1 pid=/var/run/pidns/p.1 net=/var/run/netns/p.1 user=/var/run/userns/p.1 uts=/var/run/utsns/p.1"
	if got := strings.Join(paths, " "); got != answer {
		t.Errorf("answered %q", got)
	}
	f.err = errors.New("no luck")
	if _, err := p.CreateNamespaces(t.Context(), &conmon.CreateNamespacesRequest{PodID: "p"}); !errors.Is(err, f.err) {
		t.Errorf("%v", err)
	}
	p.close()
	if _, err := p.CreateNamespaces(t.Context(), &conmon.CreateNamespacesRequest{PodID: "p"}); !errors.Is(err, conmon.ErrShuttingDown) {
		t.Errorf("%v", err)
	}
}

// R155 for pod ids.
func TestBadNamespaceRequests(t *testing.T) {
	user := []conmon.Namespace{conmon.NamespaceUser}
	one := []string{"0 0 1"}
	for _, test := range []struct {
		name string
		req  conmon.CreateNamespacesRequest
		want string
	}{
		{"no pod id", conmon.CreateNamespacesRequest{}, "no pod ID provided"},
		{"dots", conmon.CreateNamespacesRequest{PodID: ".."}, "podId"},
		{"slash", conmon.CreateNamespacesRequest{PodID: "a/b"}, "podId"},
		{"dash", conmon.CreateNamespacesRequest{PodID: "-a"}, "podId"},
		{"NUL", conmon.CreateNamespacesRequest{PodID: "a\x00"}, "podId"},
		{"relative base path", conmon.CreateNamespacesRequest{PodID: "p", BasePath: "run"}, "basePath"},
		{"unknown namespace", conmon.CreateNamespacesRequest{PodID: "p", Namespaces: []conmon.Namespace{7}}, "unknown namespace 7"},
		{"no uids", conmon.CreateNamespacesRequest{PodID: "p", Namespaces: user, GIDMappings: one}, "user ID mappings are empty"},
		{"no gids", conmon.CreateNamespacesRequest{PodID: "p", Namespaces: user, UIDMappings: one}, "group ID mappings are empty"},
		{
			"NUL in a mapping", conmon.CreateNamespacesRequest{PodID: "p", Namespaces: user, UIDMappings: one, GIDMappings: []string{"0 0\x00 1"}},
			"gidMappings[0]",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fakeSpaces{}
			_, err := New(nil, nil, f, func() {}).CreateNamespaces(t.Context(), &test.req)
			if err == nil || !strings.Contains(err.Error(), test.want) || f.got != nil {
				t.Errorf("%v, asked for %+v", err, f.got)
			}
		})
	}
}
