// Package reaper is the only code of the monitor that starts and waits for children.
//
// The monitor is a child subreaper (prctl(2)): besides the runtimes it starts, it becomes the parent of the containers
// and execs those leave behind, and of any orphan below them. A known process is waited for by its own pid as soon as
// its pidfd(2) is readable (before Linux 5.3, which has none, as soon as it is the one that SIGCHLD is about), so no wait
// can take the status of another. Unknown children are looked at without being
// waited for (WNOWAIT) and taken one by one, and not while a start is under way whose process they may turn out to be.
package reaper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/cmd/conmonrs/internal/waiter"
)

// Status is how a process ended.
type Status struct {
	// Code is the exit status, 128 + the signal's number for a process that was killed, -1 when it is not known.
	Code int
	// Signal is the signal that killed the process, else 0.
	Signal syscall.Signal
	// Core tells whether a core was dumped.
	Core bool
	// Known is false for a process that turned out not to be a child of the monitor.
	Known bool
}

// Reaper owns the children of this process. There is one.
type Reaper struct {
	set    *waiter.Set
	score  *OOMScore
	probes probes

	// mu makes start and register one step: a child that ends at once is known before anybody can look for it.
	mu    sync.Mutex
	known map[int]*Process
	// starts are the starts under way, by number; a zombie is nobody's once all starts that were under way when it
	// was first seen are over.
	starts    map[uint64]struct{}
	nextStart uint64
	strays    map[int]uint64 // unknown zombies: the newest start when first seen
	noPidfd   bool           // set by tests: as if the kernel had none
}

// Process is a child that is waited for.
type Process struct {
	// Pid is the process id. The number is not reused before Done.
	Pid int

	reaper *Reaper
	watch  *waiter.Watch // nil without a pidfd
	pidfd  int           // guarded by reaper.mu; -1 once reaped, and where there are none
	reaped bool          // guarded by reaper.mu
	pause  time.Duration // guarded by reaper.mu; until the next look at a process that cannot be reaped yet
	status Status
	done   chan struct{}
	onExit func()
}

// Pauses between looks at a process that has ended for its pidfd and not yet for its parent.
const (
	firstLook = time.Millisecond
	lastLook  = time.Second
)

// Command describes a process to start.
type Command struct {
	// Path is the executable; Args includes argv[0].
	Path string
	Args []string
	// File is where the executable can be opened before the start, if Path means something in the child only.
	File string
	Env  []string
	// Files become the descriptors 0, 1, 2 and so on. They stay the caller's.
	Files []*os.File
	// Extra are descriptors that follow those of Files. They stay the caller's too.
	Extra []int
	// OwnGroup puts the process at the head of a process group of its own.
	OwnGroup bool
}

func (c *Command) file() string {
	if c.File != "" {
		return c.File
	}
	return c.Path
}

// New returns a reaper whose processes are watched by set. score may be nil.
func New(set *waiter.Set, score *OOMScore) *Reaper {
	return &Reaper{
		set: set, score: score,
		known: make(map[int]*Process), starts: make(map[uint64]struct{}), strays: make(map[int]uint64),
	}
}

// Start starts a process. It waits, until ctx ends, for an executable that cannot be opened at once. Errors carry the
// errno of clone(2) or execve(2).
func (r *Reaper) Start(ctx context.Context, c Command) (*Process, error) {
	if err := r.probes.wait(ctx, c.file()); err != nil {
		return nil, fmt.Errorf("run %q: %w", c.Path, err)
	}
	fds := make([]uintptr, 0, len(c.Files)+len(c.Extra))
	for _, f := range c.Files {
		fds = append(fds, f.Fd())
	}
	for _, fd := range c.Extra {
		fds = append(fds, uintptr(fd))
	}
	pidfd := -1
	r.mu.Lock()
	defer r.mu.Unlock()
	restore := r.score.lend()
	pid, err := syscall.ForkExec(c.Path, c.Args, &syscall.ProcAttr{
		Env: c.Env, Files: fds,
		Sys: &syscall.SysProcAttr{PidFD: &pidfd, Setpgid: c.OwnGroup},
	})
	restore()
	if err != nil {
		return nil, fmt.Errorf("run %q: %w", c.Path, err)
	}
	return r.registerLocked(pid, pidfd)
}

// ErrNotChild means that a process has another parent than the monitor: nobody could learn how it ends, and it may be a
// stranger.
var ErrNotChild = errors.New("is not a child of the monitor")

// Adopt takes charge of a process that another child has left to the monitor, while a Hold is held. On error the process
// has been killed, unless it is no child (ErrNotChild) or known already: it would run unwatched.
func (r *Reaper) Adopt(pid int) (*Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.known[pid]; ok {
		return nil, fmt.Errorf("adopt process %d: it is known already", pid)
	}
	// Needs no descriptor, and is true for a zombie too.
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil); err != nil {
		return nil, fmt.Errorf("adopt process %d: %w", pid, ErrNotChild)
	}
	return r.registerLocked(pid, -1)
}

// open returns a pidfd, -1 if the kernel has none.
func (r *Reaper) open(pid int) (int, error) {
	if r.noPidfd {
		return -1, nil
	}
	fd, err := unix.PidfdOpen(pid, unix.O_NONBLOCK) // PIDFD_NONBLOCK; close-on-exec by definition
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.PidfdOpen(pid, 0) // before Linux 5.10
	}
	switch {
	case errors.Is(err, unix.ENOSYS):
		return -1, nil
	case err != nil:
		return -1, fmt.Errorf("open pidfd of %d: %w", pid, err)
	}
	return fd, nil
}

// registerLocked takes ownership of pidfd. A child that cannot be watched is killed, and reaped as a stray.
func (r *Reaper) registerLocked(pid, pidfd int) (p *Process, err error) {
	defer func() {
		if err != nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}()
	if pidfd < 0 { // before Linux 5.2 clone gives none
		if pidfd, err = r.open(pid); err != nil {
			return nil, err
		}
	}
	p = &Process{Pid: pid, reaper: r, pidfd: pidfd, done: make(chan struct{})}
	if pidfd >= 0 {
		p.watch = r.set.Watch(pidfd, p.exited)
		if err := p.watch.Arm(); err != nil {
			p.watch.Close()
			unix.Close(pidfd)
			return nil, fmt.Errorf("watch process %d: %w", pid, err)
		}
	}
	r.known[pid] = p
	delete(r.strays, pid)
	return p, nil
}

// exited runs when the pidfd is readable: the process has ended.
func (p *Process) exited() {
	r := p.reaper
	r.mu.Lock()
	ended := r.reapLocked(p)
	if !ended {
		// A process that another one traces is waited for by its tracer first, see ptrace(2). Its pidfd stays readable.
		p.pause = min(max(2*p.pause, firstLook), lastLook)
		time.AfterFunc(p.pause, func() { _ = p.watch.Arm() })
	}
	r.mu.Unlock()
	if ended {
		r.Sweep() // this one may have stood before an unknown one
	}
}

// reapLocked takes the status of a known process, and tells whoever waits for its end. It returns false if the process
// has not ended for its parent.
func (r *Reaper) reapLocked(p *Process) bool {
	status, ended := wait(p.Pid)
	if !ended {
		return false
	}
	p.status, p.reaped = status, true
	delete(r.known, p.Pid)
	if p.watch != nil {
		p.watch.Close()
		unix.Close(p.pidfd)
		p.pidfd = -1
	}
	close(p.done)
	if p.onExit != nil {
		go p.onExit()
	}
	return true
}

// wait reaps a child that has ended. ended is false if it has not.
func wait(pid int) (status Status, ended bool) {
	var ws syscall.WaitStatus
	got, err := syscall.Wait4(pid, &ws, syscall.WNOHANG|unix.WALL, nil)
	for errors.Is(err, syscall.EINTR) {
		got, err = syscall.Wait4(pid, &ws, syscall.WNOHANG|unix.WALL, nil)
	}
	switch {
	case err != nil: // ECHILD: its parent is somebody else
		return Status{Code: -1}, true
	case got == 0:
		return Status{}, false
	case ws.Signaled():
		return Status{Code: 128 + int(ws.Signal()), Signal: ws.Signal(), Core: ws.CoreDump(), Known: true}, true
	default:
		return Status{Code: ws.ExitStatus(), Known: true}, true
	}
}

// Done is closed when the process has been reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended tells whether the process has ended, whether or not it has been reaped. Others can see that before it is.
func (p *Process) Ended() bool {
	p.reaper.mu.Lock()
	defer p.reaper.mu.Unlock()
	return p.reaped || peekAt(unix.P_PID, p.Pid) == p.Pid
}

// Status is valid after Done.
func (p *Process) Status() Status { return p.status }

// OnExit has f called on a goroutine of its own once the process has been reaped, also if that is so already. It
// replaces a goroutine parked on Done, and may be called once.
func (p *Process) OnExit(f func()) {
	p.reaper.mu.Lock()
	ended := p.reaped
	if !ended {
		p.onExit = f
	}
	p.reaper.mu.Unlock()
	if ended {
		go f()
	}
}

// Signal sends a signal through the pidfd: never to a stranger that got the pid. os.ErrProcessDone tells that the
// process has been reaped.
func (p *Process) Signal(sig syscall.Signal) error {
	p.reaper.mu.Lock()
	defer p.reaper.mu.Unlock()
	var err error
	switch {
	case p.reaped:
		return os.ErrProcessDone
	case p.pidfd >= 0:
		err = unix.PidfdSendSignal(p.pidfd, sig, nil, 0)
	default: // not reaped: the pid is still this one's
		err = syscall.Kill(p.Pid, sig)
	}
	if err != nil {
		return fmt.Errorf("send %v to process %d: %w", sig, p.Pid, err)
	}
	return nil
}

// KillGroup sends SIGKILL to the process group that a process started with OwnGroup leads.
func (p *Process) KillGroup() {
	p.reaper.mu.Lock()
	defer p.reaper.mu.Unlock()
	if !p.reaped && p.Pid > 1 { // not reaped: the group's number is still this one's
		_ = syscall.Kill(-p.Pid, syscall.SIGKILL)
	}
}

// Hold keeps unknown children unreaped until release: a process that is about to be adopted may be among them. It is
// taken before the runtime is started. release is idempotent.
func (r *Reaper) Hold() (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nextStart++
	n := r.nextStart
	r.starts[n] = struct{}{}
	return func() {
		r.mu.Lock()
		delete(r.starts, n)
		r.mu.Unlock()
		r.Sweep()
	}
}

// Sweep reaps the unknown children that have ended. It is called at SIGCHLD, and does not block.
func (r *Reaper) Sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		pid := peek()
		if p := r.known[pid]; p != nil && p.watch != nil {
			_ = p.watch.Arm() // it is reaped by its own watch, which sweeps again; perhaps it is in a pause
			return
		} else if p != nil {
			if !r.reapLocked(p) {
				return
			}
			continue
		}
		if pid <= 0 {
			return
		}
		if r.heldLocked(pid) {
			return
		}
		delete(r.strays, pid)
		if status, ended := wait(pid); !ended || !status.Known {
			return
		}
	}
}

func (r *Reaper) heldLocked(pid int) bool {
	seen, ok := r.strays[pid]
	if !ok {
		seen = r.nextStart
		r.strays[pid] = seen
	}
	for n := range r.starts {
		if n <= seen {
			return true
		}
	}
	return false
}

// Known returns how many processes are being waited for.
func (r *Reaper) Known() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.known)
}

// peek returns the pid of a child that has ended, and leaves it waitable; 0 if there is none.
func peek() int { return peekAt(unix.P_ALL, 0) }

func peekAt(idType, id int) int {
	var info unix.Siginfo
	err := unix.Waitid(idType, id, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
	if err != nil {
		return 0
	}
	// si_pid is the first member of the union behind three ints, which has the alignment of a pointer.
	align := unsafe.Sizeof(uintptr(0))
	offset := (3*unsafe.Sizeof(int32(0)) + align - 1) &^ (align - 1)
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), offset)))
}
