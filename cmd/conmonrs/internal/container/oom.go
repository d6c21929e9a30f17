package container

import (
	"errors"
	"os"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/proctree"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/reaper"
	"github.com/conmonrs/conmonrs/oom"
)

// watchOOM begins to watch the container for OOM kills. It is called before the user's program runs. Without a watch the
// container is not marked at its end.
func (c *Container) watchOOM(pid int) *oom.Container {
	for _, path := range c.req.OOMExitPaths {
		// The mark of an earlier container of this id is not this one's.
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			err = os.Remove(path)
			c.log.Debug("old OOM mark removed", "path", path, "error", err)
		}
	}
	dir, unified := proctree.MemoryOf(pid, c.req.ID)
	if dir == "" {
		c.log.Debug("no memory control group to watch")
		return nil
	}
	w, err := c.host.OOM.Add(oom.Group{Dir: dir, Unified: unified}, pid, func(k oom.Kill) {
		c.log.Warn("process killed by the OOM killer, container goes on", c.killArgs(k)...)
	})
	switch {
	case err == nil:
		return w
	case errors.Is(err, oom.ErrNoController) || errors.Is(err, os.ErrNotExist):
		c.log.Debug("no OOM kills will be seen", "error", err)
	default:
		c.log.Warn("no OOM kills will be seen", "error", err)
	}
	return nil
}

// markOOM writes the marks of a container that the OOM killer ended. What it logs may take some time to find out.
func (c *Container) markOOM(status reaper.Status) {
	verdict := c.oom.Exited(status.Code, status.Signal)
	if !verdict.Killed {
		c.host.Exits.Forget(c.req.OOMExitPaths)
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
