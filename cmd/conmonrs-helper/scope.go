package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/conmonrs/conmonrs/systemdunit"
)

// scopeOptions are those of all scope verbs.
type scopeOptions struct {
	flags                    *flag.FlagSet
	timeout                  time.Duration
	manager, mode, pod       string
	slice, cgroupsPath       string
	unit, description, after string
	pid                      int
	stopTimeout              time.Duration
}

// scopeVerb is what one verb takes and does.
type scopeVerb struct {
	options  func(*scopeOptions)
	required []string
	run      func(context.Context, *systemdunit.Manager, *scopeOptions) (string, error)
}

func scopeVerbs() map[string]scopeVerb {
	return map[string]scopeVerb{
		"register": {registerOptions, []string{"pid", "pod"}, register},
		"describe": {unitOptions, []string{"unit", "description"}, describe},
		"stopping": {unitOptions, []string{"unit"}, stopping},
	}
}

func registerOptions(o *scopeOptions) {
	o.flags.IntVar(&o.pid, "pid", 0, "")
	o.flags.StringVar(&o.pod, "pod", "", "")
	o.flags.StringVar(&o.slice, "slice", "", "")
	o.flags.StringVar(&o.cgroupsPath, "cgroups-path", "", "")
	o.flags.StringVar(&o.description, "description", "", "")
	o.flags.StringVar(&o.mode, "mode", "auto", "")
	o.flags.StringVar(&o.after, "after", "", "")
	o.flags.DurationVar(&o.stopTimeout, "stop-timeout", 0, "")
}

func unitOptions(o *scopeOptions) {
	o.flags.StringVar(&o.unit, "unit", "", "")
	o.flags.StringVar(&o.description, "description", "", "")
}

func scope(args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return usageError{errors.New("scope: no verb")}
	}
	verb, ok := scopeVerbs()[args[0]]
	if !ok {
		return usageError{fmt.Errorf("scope: unknown verb %q", args[0])}
	}
	o := &scopeOptions{flags: flag.NewFlagSet("scope "+args[0], flag.ContinueOnError)}
	o.flags.SetOutput(io.Discard)
	o.flags.StringVar(&o.manager, "manager", "auto", "")
	o.flags.DurationVar(&o.timeout, "timeout", 10*time.Second, "")
	verb.options(o)
	if err := o.parse(args[1:], verb.required); err != nil {
		return usageError{fmt.Errorf("scope %s: %w", args[0], err)}
	}
	instance, err := instanceOf(o.manager)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	result, err := verb.run(ctx, systemdunit.New(instance), o)
	if err == nil {
		_, err = fmt.Fprintln(stdout, result)
	}
	return err
}

func (o *scopeOptions) parse(args, required []string) error {
	if err := o.flags.Parse(args); err != nil {
		return err
	}
	if o.flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", o.flags.Arg(0))
	}
	given := make(map[string]bool)
	o.flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for _, name := range required {
		if !given[name] {
			return fmt.Errorf("--%s is missing", name)
		}
	}
	return nil
}

func instanceOf(name string) (systemdunit.Instance, error) {
	switch name {
	case "auto":
		return systemdunit.DefaultInstance, nil
	case "system":
		return systemdunit.SystemInstance, nil
	case "user":
		return systemdunit.UserInstance, nil
	}
	return 0, usageError{fmt.Errorf("--manager %q is none of auto, system, user", name)}
}

func register(ctx context.Context, m *systemdunit.Manager, o *scopeOptions) (string, error) {
	unit, err := systemdunit.ScopeName(o.pod)
	if err != nil {
		return "", err
	}
	r := systemdunit.Request{
		Unit: unit, PID: o.pid, Slice: o.slice, Description: o.description, StopTimeout: o.stopTimeout,
	}
	if o.slice == "" {
		if r.Slice, err = systemdunit.SliceOf(o.cgroupsPath); err != nil {
			return "", err
		}
	}
	if o.after != "" {
		r.After = []string{o.after}
	}
	switch o.mode {
	case "auto":
	case "always":
		r.Mode = systemdunit.Always
	default:
		return "", usageError{fmt.Errorf("--mode %q is neither auto nor always", o.mode)}
	}
	result, err := m.Register(ctx, r)
	if err != nil {
		return "", err
	}
	words := fmt.Sprintf("unit=%s action=%s", result.Unit, result.Action)
	if !result.Described {
		words += " described=no"
	}
	if len(result.Dropped) > 0 {
		words += " dropped=" + strings.Join(result.Dropped, ",")
	}
	return words, nil
}

func describe(ctx context.Context, m *systemdunit.Manager, o *scopeOptions) (string, error) {
	return "unit=" + o.unit, m.Describe(ctx, o.unit, o.description)
}

func stopping(ctx context.Context, m *systemdunit.Manager, o *scopeOptions) (string, error) {
	yes, err := m.Stopping(ctx, o.unit)
	if yes {
		return "stopping=yes", err
	}
	return "stopping=no", err
}
