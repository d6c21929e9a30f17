// Command conmonrs is the monitor of one pod. An engine starts it; it goes into the background, creates the pod's
// containers through an OCI runtime, and watches them until it is told to leave.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/config"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/daemon"
	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/helper"
	"github.com/conmonrs/conmonrs/cmd/internal/podns"
	"github.com/conmonrs/conmonrs/cmd/internal/version"
)

const failure = 1

func main() {
	os.Exit(run(os.Args))
}

func run(args []string) int {
	inherited, err := daemon.Enter()
	if err != nil {
		inherited.Fail(err)
		return failure
	}
	cfg, err := config.Parse(args[1:], os.Environ())
	if usage := (*config.UsageError)(nil); errors.As(err, &usage) {
		fmt.Fprint(os.Stderr, usage.Text)
		return config.UsageExitStatus
	}
	if inherited != nil {
		return serve(cfg, inherited)
	}
	if err := obey(cfg, args); err != nil {
		return complain(err)
	}
	return 0
}

// obey does what is asked of a process that is not the monitor. It is not part of run because what it prints needs
// stack: run is on that of the monitor for all its life.
func obey(cfg *config.Config, args []string) error {
	switch cfg.Command {
	case config.Help:
		fmt.Print(cfg.HelpText)
	case config.Version:
		fmt.Print(version.Get(cfg.VersionFull).Text())
	case config.VersionJSON:
		fmt.Print(version.Get(cfg.VersionFull).JSON())
	case config.Pause:
		return pause(&cfg.Pause)
	default:
		return start(cfg, args)
	}
	return nil
}

// pause becomes conmonrs-pause, which makes the namespaces. It returns only if it cannot.
func pause(o *config.PauseOptions) error {
	base, err := filepath.Abs(o.BasePath)
	if err != nil {
		return fmt.Errorf("run pause: %w", err)
	}
	req := &podns.Request{Base: base, PodID: o.PodID, UIDMappings: o.UIDMappings, GIDMappings: o.GIDMappings}
	for kind, wanted := range map[podns.Kind]bool{
		podns.IPC: o.IPC, podns.PID: o.PID, podns.Net: o.Net, podns.User: o.User, podns.UTS: o.UTS,
	} {
		if wanted {
			req.Unshare = append(req.Unshare, kind)
		}
	}
	f, err := helper.Find(podns.Name)
	if err == nil {
		args := append([]string{podns.Name, podns.Pause}, req.Args()...)
		err = fmt.Errorf("run %q: %w", f.Name(), syscall.Exec(f.Name(), args, os.Environ()))
	}
	return fmt.Errorf("run pause: %w", err)
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, "Error: create server:", err)
	return failure
}

// start is the part of the process that the engine waits for. What can be checked is checked here, where somebody reads
// the error.
func start(cfg *config.Config, args []string) error {
	if err := daemon.Unblock(args); err != nil {
		return err
	}
	daemon.HideInherited()
	daemon.SetUmask()
	if err := cfg.Validate(); err != nil {
		return err
	}
	lock, err := daemon.Lock(cfg.RuntimeDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if cfg.SkipFork {
		return daemon.Foreground(args, lock)
	}
	return daemon.Background(args, lock, filepath.Join(cfg.RuntimeDir, "pidfile"))
}
