package pod

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// checkPreserved refuses a request that tells the runtime of more descriptors than are passed: it would take some of its
// own for them, and leave them to the container.
func checkPreserved(req *conmon.CreateContainerRequest) error {
	told := preserved(req.CommandArgs)
	for _, v := range req.Env {
		if v.Key == "LISTEN_FDS" { // both runtimes add it, see sd_listen_fds(3)
			told += count(v.Value)
		}
	}
	if n := uint64(len(req.AdditionalFDs)); told > n {
		return &conmon.InvalidError{
			Field: "additionalFds", Reason: fmt.Sprintf("has %d descriptors, the runtime is told of %d", n, told),
		}
	}
	return nil
}

// preserved returns the value of the runtime's option --preserve-fds, of which the last counts.
func preserved(args []string) (n uint64) {
	for i, arg := range args {
		name, value, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if name != "preserve-fds" || !strings.HasPrefix(arg, "-") {
			continue
		}
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		n = count(value)
	}
	return n
}

// count returns 0 for what is not a number: the runtime says so itself.
func count(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return n
}
