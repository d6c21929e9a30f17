// Command conmonrs-pause creates the namespaces of a pod and binds them to files, where they live without a process.
// Only a pid namespace needs one: its init, which is this executable once more, holding still.
//
// It is no command for people: conmonrs pause runs it, and so does the monitor.
package main

import (
	"errors"
	"os"
	"strings"

	"github.com/conmonrs/conmonrs/cmd/internal/podns"
)

func main() {
	verb := ""
	if len(os.Args) > 1 {
		verb = os.Args[1]
	}
	switch {
	case verb == podns.Hold && len(os.Args) == 3:
		hold()
	case verb == podns.Pin:
		complain("", run(os.Args[2:]))
	case verb == podns.Pause:
		complain("Error: create server: run pause: ", run(os.Args[2:]))
	default:
		complain("", errors.New("run by conmonrs; it is no command for people"))
	}
}

func run(args []string) error {
	req, err := podns.Parse(args)
	if err != nil {
		return err
	}
	return create(req)
}

func complain(prefix string, err error) {
	if err == nil {
		return
	}
	message := strings.ReplaceAll(err.Error(), "\n", "; ")
	_, _ = os.Stderr.WriteString(prefix + message + "\n")
	os.Exit(1)
}
