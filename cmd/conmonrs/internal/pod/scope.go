package pod

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/container"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/helper"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/oci"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// enterScope sees to it that the monitor is in its scope before a runtime is run: with the systemd manager, or if the
// scope is wanted in any case.
func (p *Pod) enterScope(req *conmon.CreateContainerRequest) error {
	if req.CgroupManager != conmon.CgroupManagerSystemd && p.scope.Mode() != helper.Always {
		return nil
	}
	if p.scope.Wanted() {
		p.learn(req.BundlePath)
	}
	ctx, cancel := context.WithTimeout(p.work, p.host.RuntimeTimeout)
	defer cancel()
	return p.scope.Ensure(ctx, p.place())
}

// EnterScope is called before the monitor serves, if it is to be in a scope in any case and knows the slice.
func (p *Pod) EnterScope(ctx context.Context) error { return p.scope.Ensure(ctx, p.place()) }

// learn reads what the engine says about the pod in the configuration of a container. The first that says anything
// counts.
func (p *Pod) learn(bundle string) {
	var info oci.Pod
	_ = oci.WithConfig(bundle, func(config []byte) { info = oci.PodOf(config) }) // the runtime will say what is wrong with it
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.info == (oci.Pod{}) {
		p.info = info
	}
}

func (p *Pod) place() helper.Place {
	p.mu.Lock()
	defer p.mu.Unlock()
	return helper.Place{PodID: p.idLocked(), CgroupsPath: p.info.CgroupsPath, Description: p.descriptionLocked()}
}

// idLocked returns the pod's id, or, if the engine has told none, one made from the runtime directory: each monitor has
// its own, and the next one in the same directory the same.
func (p *Pod) idLocked() string {
	if p.info.ID != "" {
		return p.info.ID
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, p.host.RuntimeDir)
	return fmt.Sprintf("%016x", h.Sum64())
}

func (p *Pod) descriptionLocked() string {
	return helper.Description(p.info.Namespace, p.info.Name, p.idLocked(), len(p.containers))
}

// describe tells systemd how many containers there are. It does not block.
func (p *Pod) describe() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.scope.Unit() != "" {
		p.scope.Describe(p.descriptionLocked())
	}
}

// Name returns what the engine has told of the pod's name.
func (p *Pod) Name() container.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return container.Pod{Namespace: p.info.Namespace, Name: p.info.Name}
}
