package container

import (
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Real-time signals as the C libraries number them; signal(7).
const (
	sigRTMin = 34
	sigRTMax = 64
)

// parseSignal reads a signal as image builders write it: a number, a name with or without SIG, or RTMIN and RTMAX with
// a distance.
func parseSignal(text string) (syscall.Signal, bool) {
	if n, err := strconv.Atoi(text); err == nil {
		return syscall.Signal(n), n > 0 && n <= sigRTMax
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	if rest, ok := strings.CutPrefix(name, "RTMIN"); ok {
		return realTime(sigRTMin, rest)
	}
	if rest, ok := strings.CutPrefix(name, "RTMAX"); ok {
		return realTime(sigRTMax, rest)
	}
	i := slices.Index(strings.Fields(signalNames), name)
	return syscall.Signal(i + 1), i >= 0
}

// signalNames are the names of the signals 1 to 31 as most architectures number them; signal(7).
const signalNames = "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT " +
	"CHLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"

func realTime(base int, distance string) (syscall.Signal, bool) {
	n := 0
	if distance != "" {
		var err error
		if n, err = strconv.Atoi(distance); err != nil {
			return 0, false
		}
	}
	sig := base + n
	return syscall.Signal(sig), sig >= sigRTMin && sig <= sigRTMax
}
