package client_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/server"
)

// The test binary is also the monitor that the tests start: with fakeEnv set it behaves like the foreground
// process, which starts itself once more as the daemon. The value says what goes wrong.
const (
	fakeEnv   = "TEST_FAKE_MONITOR"
	daemonEnv = "TEST_FAKE_DAEMON"
)

func TestMain(m *testing.M) {
	mode, fake := os.LookupEnv(fakeEnv)
	switch {
	case !fake:
		os.Exit(m.Run())
	case os.Getenv(daemonEnv) != "":
		os.Exit(fakeDaemon(mode))
	default:
		os.Exit(fakeForeground(mode))
	}
}

func runtimeDir() string {
	for i, a := range os.Args {
		if a == "--runtime-dir" {
			return os.Args[i+1]
		}
	}
	return ""
}

func fakeForeground(mode string) int {
	dir := runtimeDir()
	if err := os.WriteFile(filepath.Join(dir, "args"), []byte(strings.Join(os.Args[1:], " ")), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if mode == "fail" {
		fmt.Fprintln(os.Stderr, "runtime does not exist")
		return 1
	}
	if mode == "hang" {
		select {}
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), daemonEnv+"=1")
	cmd.Stderr = os.Stderr // held open, as a careless daemon would
	ready, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if _, err := ready.Read(make([]byte, 1)); err != nil && mode != "die" {
		fmt.Fprintln(os.Stderr, "daemon did not start")
		return 1
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	switch mode {
	case "newline":
		pid += "\n"
	case "other":
		pid = strconv.Itoa(os.Getppid())
	}
	if err := os.WriteFile(filepath.Join(dir, "pidfile"), []byte(pid), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func fakeDaemon(mode string) int {
	stop := make(chan os.Signal, 1)
	if mode != "deaf" {
		signal.Notify(stop, syscall.SIGINT)
	} else {
		signal.Ignore(syscall.SIGINT)
	}
	if mode == "die" {
		return 3
	}
	// The path may be too long for an address, a relative name is not.
	if err := os.Chdir(runtimeDir()); err != nil {
		return 1
	}
	_ = os.Remove("conmon.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "conmon.sock", Net: "unix"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s := server.New(server.Options{Service: fakeService{}})
	go func() { _ = s.Serve(context.Background(), netListener{l}) }()
	fmt.Print("x")
	select {
	case <-stop:
	case <-time.After(time.Minute): // not to survive a test that failed
	}
	_ = s.Close()
	return 0
}

// fakeService answers version only.
type fakeService struct{ server.Service }

func (fakeService) Version(context.Context, *conmon.VersionRequest) (*conmon.VersionResponse, error) {
	return &conmon.VersionResponse{ProcessID: uint32(os.Getpid()), Version: "1.0.1"}, nil
}

// netListener adapts a net.Listener.
type netListener struct{ *net.UnixListener }

func (l netListener) Accept() (io.ReadWriteCloser, error) { return l.AcceptUnix() }

// checkLeaks compares goroutines and descriptors before the test with those after all its cleanups.
func checkLeaks(t *testing.T) {
	t.Helper()
	goroutines, fds := runtime.NumGoroutine(), countFDs(t)
	t.Cleanup(func() {
		eventually(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= goroutines }, func() string {
			buf := make([]byte, 1<<20)
			return string(buf[:runtime.Stack(buf, true)])
		})
		eventually(t, "descriptors to be closed", func() bool { return countFDs(t) <= fds }, func() string { return "" })
	})
}

func countFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		// The runtime's poller comes into being with the first descriptor that needs it.
		if link, _ := os.Readlink("/proc/self/fd/" + e.Name()); link != "anon_inode:[eventpoll]" && link != "anon_inode:[eventfd]" {
			n++
		}
	}
	return n
}

func eventually(t *testing.T, what string, cond func() bool, detail func() string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Errorf("timed out waiting for %s\n%s", what, detail())
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
