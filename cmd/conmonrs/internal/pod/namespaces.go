package pod

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/proctree"
	"github.com/conmonrs/conmonrs/cmd/internal/podns"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// Namespaces are those of the pod, see package namespace.
type Namespaces interface {
	// Create makes them, once.
	Create(ctx context.Context, req *podns.Request) error
	// Holder is the process that holds the pid namespace, 0 if there is none.
	Holder() int
}

// followScope takes the process that holds the pid namespace along into the scope. Engines ask for namespaces before there
// is a container, and so before the monitor has been moved: the process would stay in the engine's own unit, and
// end with that.
func (p *Pod) followScope() {
	pid := p.spaces.Holder()
	if pid == 0 {
		return
	}
	if err := proctree.Follow(pid); err != nil {
		p.host.Log.Warn("process of the pid namespace not moved", "pid", pid, "error", err)
	}
}

// Clients and their tests know these words.
var (
	errNoPodID = errors.New("no pod ID provided")
	errNoUIDs  = errors.New("user ID mappings are empty")
	errNoGIDs  = errors.New("group ID mappings are empty")
)

// kindOf returns false for what the schema does not know.
func kindOf(n conmon.Namespace) (k podns.Kind, known bool) {
	switch n {
	case conmon.NamespaceIPC:
		return podns.IPC, true
	case conmon.NamespacePID:
		return podns.PID, true
	case conmon.NamespaceNet:
		return podns.Net, true
	case conmon.NamespaceUser:
		return podns.User, true
	case conmon.NamespaceUTS:
		return podns.UTS, true
	}
	return "", false
}

// CreateNamespaces makes namespaces for the pod. The answer has all kinds: those that were not asked for are the host's.
func (p *Pod) CreateNamespaces(
	_ context.Context, req *conmon.CreateNamespacesRequest,
) (*conmon.CreateNamespacesResponse, error) {
	r, err := namespaceRequest(req)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	closing := p.closing
	p.mu.Unlock()
	if closing {
		return nil, conmon.ErrShuttingDown
	}
	if err := p.spaces.Create(p.work, r); err != nil {
		return nil, fmt.Errorf("create namespaces: %w", err)
	}
	resp := &conmon.CreateNamespacesResponse{}
	for _, n := range []conmon.Namespace{
		conmon.NamespaceIPC, conmon.NamespacePID, conmon.NamespaceNet, conmon.NamespaceUser, conmon.NamespaceUTS,
	} {
		k, _ := kindOf(n)
		resp.Namespaces = append(resp.Namespaces, conmon.NamespacePath{Type: n, Path: r.Path(k)})
	}
	return resp, nil
}

func namespaceRequest(req *conmon.CreateNamespacesRequest) (*podns.Request, error) {
	if req.PodID == "" {
		return nil, errNoPodID
	}
	if err := checkName("podId", req.PodID); err != nil {
		return nil, err
	}
	r := &podns.Request{Base: req.BasePath, PodID: req.PodID}
	if r.Base == "" {
		r.Base = podns.DefaultBase
	}
	if err := checkPath("basePath", r.Base); err != nil {
		return nil, err
	}
	for i, n := range req.Namespaces {
		k, ok := kindOf(n)
		if !ok {
			return nil, &conmon.InvalidError{Field: fmt.Sprintf("namespaces[%d]", i), Reason: n.String()}
		}
		r.Unshare = append(r.Unshare, k)
	}
	if !r.Has(podns.User) {
		return r, nil
	}
	if len(req.UIDMappings) == 0 {
		return nil, errNoUIDs
	}
	if len(req.GIDMappings) == 0 {
		return nil, errNoGIDs
	}
	r.UIDMappings, r.GIDMappings = req.UIDMappings, req.GIDMappings
	return r, errors.Join(checkText("uidMappings", r.UIDMappings), checkText("gidMappings", r.GIDMappings))
}

// checkText refuses what cannot be an argument. What the mappings mean is conmonrs-pause's.
func checkText(field string, words []string) error {
	for i, word := range words {
		if strings.ContainsRune(word, 0) {
			return &conmon.InvalidError{Field: fmt.Sprintf("%s[%d]", field, i), Reason: "contains a NUL byte"}
		}
	}
	return nil
}
