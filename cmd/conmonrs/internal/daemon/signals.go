package daemon

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxStatus is more than proc_pid_status(5) has had so far, about 1.5 KiB.
const maxStatus = 4 << 10

// unblocked marks a process that has cleared its signal mask.
const unblocked = "_CONMONRS_UNBLOCKED"

// Unblock gives this process an empty signal mask, by running it again in place if the starter left signals blocked:
// the Go runtime hands the mask it was born with to all children, and containers would inherit it.
func Unblock(args []string) error {
	if _, ok := os.LookupEnv(unblocked); ok {
		os.Unsetenv(unblocked)
		return nil
	}
	mask, err := statusMask("SigBlk:")
	if err != nil || mask == 0 {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil); err != nil {
		return fmt.Errorf("unblock signals: %w", err)
	}
	env := append(os.Environ(), unblocked+"=1")
	return fmt.Errorf("unblock signals: %w", syscall.Exec(executable(), args, env))
}

// Ignored returns the signals that the starter left ignored, as nohup does. Whoever catches them keeps children from
// inheriting that.
func Ignored() (signals []os.Signal) {
	mask, err := statusMask("SigIgn:")
	if err != nil {
		return nil
	}
	for n := range 64 {
		if mask>>n&1 != 0 {
			signals = append(signals, syscall.Signal(n+1))
		}
	}
	return signals
}

// Signals that C libraries use for themselves. os/signal does not catch them.
const (
	firstReserved = 32
	lastReserved  = 34
)

// restoreReserved gives these signals their default action where the starter left them ignored, as glibc's posix_spawn(3)
// does with its children. What is ignored stays so in containers.
func restoreReserved() {
	for _, sig := range Ignored() {
		if n, ok := sig.(syscall.Signal); ok && n >= firstReserved && n <= lastReserved {
			// All zero is SIG_DFL without flags, whatever the layout of the architecture.
			var action [64]byte
			_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&action)), 0, sigsetSize, 0, 0)
		}
	}
}

// sigsetSize is the size of the kernel's sigset_t.
const sigsetSize = 8

// statusMask returns a signal mask from proc_pid_status(5).
func statusMask(field string) (uint64, error) {
	f, err := os.Open("/proc/thread-self/status")
	if err != nil {
		return 0, fmt.Errorf("read signal mask: %w", err)
	}
	defer f.Close()
	// One read returns it all. os.ReadFile would begin small and grow: pages of the heap for each size.
	b := make([]byte, maxStatus)
	n, err := f.Read(b)
	if err != nil {
		return 0, fmt.Errorf("read signal mask: %w", err)
	}
	return parseMask(b[:n], field)
}

func parseMask(status []byte, field string) (uint64, error) {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte(field)); ok {
			mask, err := strconv.ParseUint(string(bytes.TrimSpace(rest)), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("read signal mask: %w", err)
			}
			return mask, nil
		}
	}
	return 0, fmt.Errorf("read signal mask: no line %s", field)
}
