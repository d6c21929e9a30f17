package container

import (
	"errors"
	"os"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/proctree"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/reaper"
	"github.com/conmonrs/conmonrs/oom"
)

// watchOOM begins to watch the container for OOM kills. It is called before the user's program runs. Without a watch,
// which is nil where nobody counts, the container is not marked at its end.
func (c *Container) watchOOM(pid int) (*oom.Container, error) {
	dir, unified := proctree.MemoryOf(pid, c.req.ID)
	if dir == "" {
		return nil, nil
	}
	w, err := c.host.OOM.Add(oom.Group{Dir: dir, Unified: unified}, pid, func(k oom.Kill) {
		c.log.Warn("process killed by the OOM killer, container goes on", c.killArgs(k)...)
	})
	if errors.Is(err, oom.ErrNoController) || errors.Is(err, os.ErrNotExist) {
		return nil, nil // the process may have gone
	}
	return w, err
}

// markOOM writes the marks of a container that the OOM killer ended. What it logs may take some time to find out.
func (c *Container) markOOM(status reaper.Status) {
	verdict := c.oom.Exited(status.Code, status.Signal)
	if !verdict.Killed {
		return
	}
	c.host.Exits.Mark(c.log, c.req.OOMExitPaths)
	go func() {
		verdict.Explain()
		c.log.Warn("container killed by the OOM killer", c.killArgs(verdict.Kill)...)
	}()
}

func (c *Container) killArgs(k oom.Kill) []any {
	args := []any{"kills", k.Count}
	if pod := c.host.Pod(); pod.Name != "" {
		args = append(args, "pod", pod.Namespace+"/"+pod.Name)
	}
	if k.Limit != oom.LimitUnknown {
		args = append(args, "limit", string(k.Limit))
	}
	if k.VictimPID != 0 {
		args = append(args, "victim", k.Victim, "victim_pid", k.VictimPID)
	}
	return args
}
