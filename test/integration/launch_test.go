package integration

import (
	"encoding/json"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// launchVariable makes this test binary execute the monitor in its own place, under the conditions in it.
const launchVariable = "CONMONRS_TEST_LAUNCH"

// conditions are what a monitor may find when it is started. The zero value leaves all as it is.
type conditions struct {
	Ignore, Block []int     // signals
	NoFile        [2]uint64 // soft and hard limit
	Core          uint64    // soft limit
	Umask         string    // octal
	OOMScore      string    // adjustment
	Copies        []int     // descriptors that become copies of descriptor 1
}

func (c conditions) env() []string {
	b, err := json.Marshal(c)
	if err != nil || string(b) == emptyConditions() {
		return nil
	}
	return []string{launchVariable + "=" + string(b)}
}

func emptyConditions() string {
	b, _ := json.Marshal(conditions{})
	return string(b)
}

// launch puts the conditions in force and executes CONMONRS_BINARY.
func launch(text string) error {
	var c conditions
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	runtime.LockOSThread() // the signal mask is that of the thread
	for _, sig := range c.Ignore {
		ignore(sig)
	}
	if len(c.Block) > 0 {
		var set unix.Sigset_t
		for _, sig := range c.Block {
			set.Val[(sig-1)/64] |= 1 << ((sig - 1) % 64)
		}
		if err := unix.PthreadSigmask(unix.SIG_SETMASK, &set, nil); err != nil {
			return err
		}
	}
	if c.Umask != "" {
		mask, err := strconv.ParseUint(c.Umask, 8, 32)
		if err != nil {
			return err
		}
		unix.Umask(int(mask))
	}
	for _, fd := range c.Copies {
		if err := unix.Dup3(1, fd, 0); err != nil {
			return err
		}
	}
	if err := c.apply(); err != nil {
		return err
	}
	os.Unsetenv(launchVariable)
	binary := os.Getenv("CONMONRS_BINARY")
	return syscall.Exec(binary, append([]string{binary}, os.Args[1:]...), os.Environ())
}

// ignore also ignores the signals that C libraries reserve, as posix_spawn(3) of glibc does and os/signal does not.
func ignore(sig int) {
	if sig < 32 || sig > 34 {
		signal.Ignore(syscall.Signal(sig))
		return
	}
	action := [64]byte{1} // SIG_IGN in the first, little-endian, word
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}

// apply sets the score and the limits.
func (c conditions) apply() error {
	if c.OOMScore != "" {
		if err := os.WriteFile("/proc/self/oom_score_adj", []byte(c.OOMScore), 0); err != nil {
			return err
		}
	}
	if c.Core > 0 {
		if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{Cur: c.Core, Max: c.Core}); err != nil {
			return err
		}
	}
	if c.NoFile[0] == 0 {
		return nil
	}
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: c.NoFile[0], Max: c.NoFile[1]})
}
