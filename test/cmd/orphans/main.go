// Orphans leaves processes behind: it starts -n children, each of which starts a
// grandchild and ends at once, so that the grandchildren belong to whatever adopts them.
// They end after -after with status 0. Orphans itself waits for its children, prints the
// grandchildren's pids (as its own pid namespace counts), one a line, and ends with -exit.
//
// With -setsid grandchildren lead sessions of their own; with -hold they keep the
// standard streams open; otherwise they have /dev/null.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// roleVariable tells a child and a grandchild what they are; its value of a grandchild
// is the time to live.
const roleVariable = "CONMONRS_ORPHANS_ROLE"

func main() {
	switch role := os.Getenv(roleVariable); role {
	case "":
	case "child":
		os.Exit(beChild())
	default:
		lifetime, err := time.ParseDuration(role)
		if err != nil {
			os.Exit(2)
		}
		time.Sleep(lifetime)
		return
	}
	os.Exit(run())
}

func run() int {
	count := flag.Int("n", 1, "`NUMBER` of grandchildren")
	after := flag.Duration("after", time.Second, "`TIME` after which they end")
	status := flag.Int("exit", 0, "`STATUS` to end with")
	setsid := flag.Bool("setsid", false, "give each a session of its own")
	hold := flag.Bool("hold", false, "let them keep the standard streams open")
	flag.Parse()
	for range *count {
		if err := startChild(*after, *setsid, *hold); err != nil {
			fmt.Fprintln(os.Stderr, "orphans:", err)
			return 1
		}
	}
	return *status
}

// startChild starts one child, which prints the pid of its own, and waits for it.
func startChild(after time.Duration, setsid, hold bool) error {
	args := []string{"orphans", after.String(), strconv.FormatBool(setsid), strconv.FormatBool(hold)}
	pid, err := start(args, "child", []uintptr{0, 1, 2}, false)
	if err != nil {
		return fmt.Errorf("start child: %w", err)
	}
	var status syscall.WaitStatus
	for {
		_, err = syscall.Wait4(pid, &status, 0, nil)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("wait for child: %w", err)
	}
	if status.ExitStatus() != 0 {
		return fmt.Errorf("child ended with status %#x", int(status))
	}
	return nil
}

func beChild() int {
	after, setsid, hold := os.Args[1], os.Args[2] == "true", os.Args[3] == "true"
	files := []uintptr{0, 1, 2}
	if !hold {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return 1
		}
		defer null.Close()
		files = []uintptr{null.Fd(), null.Fd(), null.Fd()}
	}
	pid, err := start([]string{"orphan"}, after, files, setsid)
	if err != nil {
		return 1
	}
	fmt.Println(pid)
	return 0
}

// start runs this program again in another role. It does not wait for it.
func start(args []string, role string, files []uintptr, setsid bool) (int, error) {
	env := []string{roleVariable + "=" + role}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, roleVariable+"=") {
			env = append(env, v)
		}
	}
	return syscall.ForkExec("/proc/self/exe", args, &syscall.ProcAttr{
		Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: setsid},
	})
}
