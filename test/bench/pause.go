package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// pauseName is the executable beside the monitor's that holds a pid namespace.
const pauseName = "conmonrs-pause"

// measurePause has the process that holds the pod's pid namespace.
func (b *bench) measurePause() error {
	const title = "process of a pid namespace"
	rss := b.add("pause", "VmRSS", title+": VmRSS", "KiB", "/proc/PID/status", nil)
	anon := b.add("pause", "RssAnon", title+": RssAnon", "KiB", "/proc/PID/status", atMost(1024))
	info, err := os.Stat(filepath.Join(b.dir, pauseName))
	if err != nil {
		return err
	}
	b.add("pause", "size", pauseName+": executable", "kB", "file size / 1000", nil).set(ours, float64(info.Size())/1000, 1)
	for _, m := range b.monitors {
		found, err := b.pauseMemory(m)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		rss.set(m.name, found.rss, 1)
		anon.set(m.name, found.anon, 1)
	}
	return nil
}

func (b *bench) pauseMemory(m monitor) (found memory, err error) {
	p, err := b.startPod(m, nil)
	if err != nil {
		return memory{}, err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	base, id := filepath.Join(p.dir, "ns"), filepath.Base(p.dir)
	if _, err := p.client.CreateNamespaces(b.ctx, &conmon.CreateNamespacesRequest{
		Namespaces: []conmon.Namespace{conmon.NamespaceIPC, conmon.NamespaceNet, conmon.NamespacePID, conmon.NamespaceUTS},
		BasePath:   base, PodID: id,
	}); err != nil {
		return memory{}, err
	}
	content, err := os.ReadFile(filepath.Join(base, "conmonrs", id+".pid"))
	if err != nil {
		return memory{}, err
	}
	pid, err := strconv.Atoi(string(content))
	if err != nil {
		return memory{}, err
	}
	if err := b.settle(); err != nil {
		return memory{}, err
	}
	return readMemory(pid)
}
