// Command bench measures what a pod costs: memory of an idle monitor, throughput of logs, and the time that calls take over
// what the OCI runtime takes itself. Peers are measured in the same run on the same machine: the C monitor conmon (one process
// for each container), the bare runtime, cat, and any other monitor with the standard interface.
//
// Nothing here fails because of a slow machine: a figure that misses its target is printed as such. The exit status is 0 when
// everything could be measured.
//
// Environment: CONMONRS_BINARY and CONMONRS_TEST_TOOLS as for the tests, RUNTIME_PATH (default: crun or runc, what works),
// CONMONRS_BENCH_PEER (binary of the other monitor), BENCH_PREVIOUS (an earlier result file to compare with), BENCH_SHORT=1
// (fewer runs, about a minute).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

// section is a part of the run that can be selected.
type section struct {
	name string
	run  func(*bench) error
}

// The order is that of the table. Memory comes first: it is what the others would disturb.
var sections = []section{
	{"binary", (*bench).measureBinary},
	{"memory", (*bench).measureMemory},
	{"pods", (*bench).measurePods},
	{"three", (*bench).measureThree},
	{"idle", (*bench).measureIdle},
	{"pause", (*bench).measurePause},
	{"start", (*bench).measureStart},
	{"create", (*bench).measureCreate},
	{"exec", (*bench).measureExec},
	{"exit", (*bench).measureExit},
	{"log", (*bench).measureLog},
	{"attach", (*bench).measureAttach},
	{"peak", (*bench).measurePeak},
}

type options struct {
	run, output, previous string
	short                 bool
}

func main() {
	var o options
	flag.StringVar(&o.run, "run", "", "measure only the sections that match `REGEXP`")
	flag.StringVar(&o.output, "o", "bin/bench.json", "write the figures to `FILE`")
	flag.StringVar(&o.previous, "previous", os.Getenv("BENCH_PREVIOUS"), "compare with the figures in `FILE`")
	flag.BoolVar(&o.short, "short", os.Getenv("BENCH_SHORT") == "1", "fewer and shorter runs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, stdout, progress io.Writer) (err error) {
	selected, err := regexp.Compile(o.run)
	if err != nil {
		return fmt.Errorf("option -run: %w", err)
	}
	previous, err := readResult(o.previous)
	if err != nil {
		return err
	}
	b, err := newBench(ctx, o.short, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.cleanUp()) }()
	result := &result{Machine: b.describeMachine(), Short: o.short}
	for _, s := range sections {
		if !selected.MatchString(s.name) {
			continue
		}
		b.say("%s", s.name)
		begin := time.Now()
		if sectionErr := s.run(b); sectionErr != nil {
			b.say("%s: %v", s.name, sectionErr)
			err = errors.Join(err, fmt.Errorf("measure %s: %w", s.name, sectionErr))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b.say("%s took %.1f s", s.name, time.Since(begin).Seconds())
	}
	result.Machine.LoadAtEnd = loadAverage()
	result.Rows = b.rows
	result.print(stdout, previous)
	return errors.Join(err, result.write(o.output))
}

// bench is what the sections share.
type bench struct {
	ctx      context.Context
	progress io.Writer
	begin    time.Time
	short    bool
	dir      string // scratch, on disk
	runtime  string // path of the OCI runtime
	tools    string // directory of the programs that run in containers
	conmon   string // path of the C monitor, or empty
	monitors []monitor
	rows     []*row
	serial   int
	undo     []func() error
}

// monitor is a program with the standard interface.
type monitor struct{ name, binary string }

func newBench(ctx context.Context, short bool, progress io.Writer) (*bench, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("containers and other processes' memory need root")
	}
	b := &bench{ctx: ctx, progress: progress, begin: time.Now(), short: short, tools: os.Getenv("CONMONRS_TEST_TOOLS")}
	if _, err := os.Stat(filepath.Join(b.tools, "loggen")); err != nil {
		return nil, fmt.Errorf("CONMONRS_TEST_TOOLS has no loggen (make test-tools): %w", err)
	}
	var err error
	if b.runtime, err = findRuntime(); err != nil {
		return nil, err
	}
	b.conmon, _ = exec.LookPath("conmon")
	if err := becomeSubreaper(); err != nil {
		return nil, err
	}
	if b.dir, err = os.MkdirTemp("", "conmonrs-bench-"); err != nil {
		return nil, err
	}
	b.onCleanUp(func() error { return os.RemoveAll(b.dir) })
	b.onCleanUp(removeGroups)
	if err := b.addMonitors(); err != nil {
		return nil, errors.Join(err, b.cleanUp())
	}
	return b, nil
}

// addMonitors copies the programs, so that nothing else on the machine runs the same file and shares its pages, and has them
// written to disk: pages of a file that is not are counted as private dirty.
func (b *bench) addMonitors() error {
	for _, m := range []monitor{{ours, os.Getenv("CONMONRS_BINARY")}, {peer, os.Getenv("CONMONRS_BENCH_PEER")}} {
		if m.binary == "" && m.name == peer {
			continue
		}
		from := m.binary
		m.binary = filepath.Join(b.dir, m.name)
		if err := copyProgram(from, m.binary); err != nil {
			return fmt.Errorf("copy %s (CONMONRS_BINARY, CONMONRS_BENCH_PEER): %w", m.name, err)
		}
		if m.name == ours {
			if err := copyProgram(filepath.Join(filepath.Dir(from), pauseName), filepath.Join(b.dir, pauseName)); err != nil {
				return err
			}
		}
		b.monitors = append(b.monitors, m)
	}
	syscall.Sync()
	return nil
}

func copyProgram(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.progress, "bench: %5.1f s  %s\n", time.Since(b.begin).Seconds(), fmt.Sprintf(format, args...))
}

// onCleanUp has f called at the end, the latest first.
func (b *bench) onCleanUp(f func() error) { b.undo = append(b.undo, f) }

func (b *bench) cleanUp() error {
	var err error
	for i := len(b.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, b.undo[i]())
	}
	b.undo = nil
	return err
}

// pick returns the long run's number or the short one's.
func (b *bench) pick(long, short int) int {
	if b.short {
		return short
	}
	return long
}

// next returns a name that has not been used.
func (b *bench) next(prefix string) string {
	b.serial++
	return fmt.Sprintf("%s-%d-%d", prefix, os.Getpid(), b.serial)
}

// wait pauses, or returns early with an error when the run is interrupted.
func (b *bench) wait(d time.Duration) error {
	select {
	case <-b.ctx.Done():
		return b.ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// until asks until it is so.
func (b *bench) until(what string, limit time.Duration, holds func() bool) error {
	for deadline := time.Now().Add(limit); !holds(); {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v", what, limit)
		}
		if err := b.wait(time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
