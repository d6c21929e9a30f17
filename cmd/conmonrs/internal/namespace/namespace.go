// Package namespace has the namespaces of the pod made and unmade, namespaces(7). The work is done by conmonrs-pause,
// which leaves one process behind: the init of the pod's pid namespace, where there is one.
//
// What there is to unmake is written into the monitor's directory before it is made. So a monitor that is killed leaves
// everything as it is, containers included, and the next one in that directory cleans up.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/reaper"
	"github.com/conmonrs/conmonrs/cmd/internal/podns"
)

const (
	// recordName is the file in the monitor's directory. It has the arguments of conmonrs-pause, with a NUL byte behind
	// each.
	recordName = "namespaces"
	recordMode = 0o600
	// createLimit bounds one run of conmonrs-pause, which takes milliseconds.
	createLimit = 30 * time.Second
	// killLimit is how long the end of a pid namespace is waited for: all its processes have to be gone.
	killLimit = 2 * time.Second
)

var errClosed = errors.New("the monitor is leaving")

// ErrExists means that the pod has namespaces already, and others than those that are asked for.
var ErrExists = errors.New("namespaces exist already")

// Runner runs conmonrs-pause, see package helper.
type Runner interface {
	Run(ctx context.Context, args ...string) (map[string]string, error)
}

// Logger is what is used of a *slog.Logger.
type Logger interface {
	Info(msg string, args ...any)
	Warn(msg string, args ...any)
}

// Options are fixed for the life of a monitor.
type Options struct {
	Reaper *reaper.Reaper
	// Runner is nil where there is no conmonrs-pause; then Missing says so.
	Runner  Runner
	Missing error
	Log     Logger
	// Dir is the monitor's directory. This monitor is the only one that is alive in it.
	Dir string
}

// Set is the namespaces of the pod.
type Set struct {
	o Options

	mu     sync.Mutex
	have   *podns.Request  // nil as long as there are none
	holder *reaper.Process // nil if no process is needed
	closed bool
}

// New returns a set of no namespaces.
func New(o Options) *Set { return &Set{o: o} }

// Create makes the namespaces and binds them to files. Asked for the same once more, it does nothing. If ctx ends first,
// or anything goes wrong, nothing is left of it. Errors: ErrExists, or the words of conmonrs-pause.
func (s *Set) Create(ctx context.Context, req *podns.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errClosed
	case s.have != nil && record(s.have) == record(req):
		return nil
	case s.have != nil && s.have.PodID != req.PodID:
		return fmt.Errorf("pod %q: %w for pod %q", req.PodID, ErrExists, s.have.PodID)
	case s.have != nil:
		return fmt.Errorf("pod %q: %w, of other kinds, mappings or base path", req.PodID, ErrExists)
	case s.o.Runner == nil:
		return s.o.Missing
	}
	for _, k := range podns.Kinds() {
		if podns.IsBound(req.Path(k)) { // somebody else's: not to be undone
			return fmt.Errorf("pod %q: %w: %q", req.PodID, ErrExists, req.Path(k))
		}
	}
	if err := s.write(req); err != nil {
		return err
	}
	if err := s.make(ctx, req); err != nil {
		s.unmake(req)
		return err
	}
	s.have = req
	return nil
}

// make runs conmonrs-pause and takes charge of the process that it leaves to the monitor.
func (s *Set) make(ctx context.Context, req *podns.Request) error {
	ctx, cancel := context.WithTimeout(ctx, createLimit)
	defer cancel()
	release := s.o.Reaper.Hold()
	defer release()
	if _, err := s.o.Runner.Run(ctx, append([]string{podns.Pin}, req.Args()...)...); err != nil {
		return err
	}
	if !req.Has(podns.PID) {
		return nil
	}
	pid, err := readPID(req)
	if err != nil {
		return err
	}
	p, err := s.o.Reaper.Adopt(pid)
	if err != nil {
		return err
	}
	s.holder = p
	p.OnExit(func() { s.died(p) })
	return nil
}

// died tells if the process that holds the pid namespace was killed by somebody else. Nothing can be done about it: with
// it have gone all processes of the namespace, and no other can be started in it.
func (s *Set) died(p *reaper.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder == p {
		s.holder = nil
		s.o.Log.Warn("pid namespace of the pod has ended", "pid", p.Pid, "status", p.Status().Code)
	}
}

// Holder returns the pid of the process that holds the pod's pid namespace; 0 if there is none.
func (s *Set) Holder() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder == nil {
		return 0
	}
	return s.holder.Pid
}

// Close ends all processes in the pod's pid namespace and removes everything that Create has made. The containers should
// have ended before. Nothing can be created any more. Close can be called twice.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.have != nil {
		s.unmake(s.have)
		s.have = nil
	}
}

// CleanUp removes what a monitor that was killed has left in this directory. It is called before anything is created.
func (s *Set) CleanUp() {
	content, err := os.ReadFile(s.path())
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	var req *podns.Request
	if err == nil {
		req, err = podns.Parse(strings.Split(strings.TrimSuffix(string(content), "\x00"), "\x00"))
	}
	if err != nil || req.PodID == "" || !filepath.IsAbs(req.Base) {
		s.o.Log.Warn("namespaces of the last monitor not found", "path", s.path(), "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.o.Log.Info("removing namespaces of the last monitor", "pod", req.PodID, "base", req.Base)
	s.unmake(req)
}

// unmake is make reversed. The record stays for the next monitor if something else does.
func (s *Set) unmake(req *podns.Request) {
	err := s.kill(req)
	err = errors.Join(err, req.Remove())
	if err == nil {
		err = os.Remove(s.path())
	}
	if err != nil {
		s.o.Log.Warn("namespaces of the pod not removed", "pod", req.PodID, "base", req.Base, "error", err)
	}
}

func (s *Set) kill(req *podns.Request) error {
	p := s.holder
	if p == nil {
		return killStranger(req)
	}
	s.holder = nil
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timer := time.NewTimer(killLimit)
	defer timer.Stop()
	select {
	case <-p.Done():
		return nil
	case <-timer.C:
		return fmt.Errorf("process %d does not end", p.Pid)
	}
}

func (s *Set) path() string { return filepath.Join(s.o.Dir, recordName) }

// write replaces the record in one step.
func (s *Set) write(req *podns.Request) error {
	temporary := s.path() + ".new"
	err := os.WriteFile(temporary, []byte(record(req)), recordMode)
	if err == nil {
		err = os.Rename(temporary, s.path())
	}
	if err != nil {
		return fmt.Errorf("write record of namespaces: %w", err)
	}
	return nil
}

func record(req *podns.Request) string { return strings.Join(req.Args(), "\x00") + "\x00" }

// readPID reads the pid file; see conmonrs-pause for when it is written.
func readPID(req *podns.Request) (int, error) {
	content, err := os.ReadFile(req.PIDFile())
	if err != nil {
		return 0, fmt.Errorf("read pid file of namespaces: %w", err)
	}
	pid, err := strconv.Atoi(string(content))
	if err == nil && pid <= 1 {
		err = strconv.ErrRange
	}
	if err != nil {
		return 0, fmt.Errorf("read pid file of namespaces %q: %w", req.PIDFile(), err)
	}
	return pid, nil
}
