package daemon

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/journald"
)

// faults are the ways in which a monitor can die of a fault. Signals sent from outside end like those that the fault of
// a thread raises, by the same code of the Go runtime.
var faults = map[string]struct {
	happen func()
	text   string // in the traceback
}{
	"panic":     {func() { panic("the fault") }, "panic: the fault"},
	"goroutine": {func() { go func() { panic("the fault") }() }, "panic: the fault"},
	"nil":       {func() { var in *Inherited; in.Foreground = true }, "nil pointer dereference"},
	"fatal":     {func() { new(sync.Mutex).Unlock() }, "fatal error: sync: unlock of unlocked mutex"},
	"SIGSEGV":   {func() { _ = syscall.Kill(os.Getpid(), syscall.SIGSEGV) }, "SIGSEGV: segmentation violation"},
	"SIGABRT":   {func() { _ = syscall.Kill(os.Getpid(), syscall.SIGABRT) }, "SIGABRT: abort"},
	"SIGQUIT":   {func() { _ = syscall.Kill(os.Getpid(), syscall.SIGQUIT) }, "SIGQUIT: quit"},
}

// crash is the test binary in the place of a monitor that has a fault; see TestMain.
func crash(in *Inherited, fault string) {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) // no files called core in the source tree
	if err := Detach(os.Getenv("TEST_KEEP_STDERR") != ""); err != nil {
		in.Fail(err)
	}
	_, err := ReportCrashes(os.Getenv("TEST_JOURNAL"))
	if (err != nil) != (os.Getenv("TEST_JOURNAL") == "") {
		panic(err)
	}
	if _, ok := os.LookupEnv("GOTRACEBACK"); ok {
		panic("children would inherit GOTRACEBACK")
	}
	faults[fault].happen()
	time.Sleep(time.Minute)
	os.Exit(0)
}

// runCrash has a stand-in die and returns how, and what it printed to standard error.
func runCrash(t *testing.T, fault string, env ...string) (state *os.ProcessState, stderr string) {
	t.Helper()
	lock, err := Lock(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	child := exec.Command("/proc/self/exe")
	child.Env = append(append(environ("foreground"), "TEST_FAULT="+fault), env...)
	child.ExtraFiles = []*os.File{lock}
	var text bytes.Buffer
	child.Stderr = &text
	_ = child.Run()
	return child.ProcessState, text.String()
}

func checkCrash(t *testing.T, fault, text string, state *os.ProcessState) {
	t.Helper()
	if ws := state.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGABRT {
		t.Errorf("ended with %#x, want death by SIGABRT", ws)
	}
	for _, want := range []string{faults[fault].text, "goroutine ", ".go:"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the traceback:\n%.2000s", want, text)
		}
	}
}

// R148: the journal gets the traceback although standard error is /dev/null.
func TestCrashInBackground(t *testing.T) {
	for fault := range faults {
		t.Run(fault, func(t *testing.T) {
			path, received := fakeJournal(t)
			state, stderr := runCrash(t, fault, "TEST_JOURNAL="+path)
			text := <-received
			checkCrash(t, fault, text, state)
			if header := "conmonrs\n\n2\n0\n0\n0\n0\n"; !strings.HasPrefix(text, header) {
				t.Errorf("header is %.60q", text)
			}
			if stderr != "" {
				t.Errorf("standard error got %q", stderr)
			}
		})
	}
}

// A standard error that somebody may read gets it as well.
func TestCrashInForeground(t *testing.T) {
	path, received := fakeJournal(t)
	state, stderr := runCrash(t, "panic", "TEST_JOURNAL="+path, "TEST_KEEP_STDERR=1")
	checkCrash(t, "panic", stderr, state)
	checkCrash(t, "panic", <-received, state)
}

func TestCrashWithoutJournal(t *testing.T) {
	for fault := range faults {
		state, stderr := runCrash(t, fault, "TEST_KEEP_STDERR=1")
		checkCrash(t, fault, stderr, state)
	}
}

// A real panic, with the real journald and systemd-coredump. (Package integration has the real monitor.)
func TestVMPanic(t *testing.T) {
	if os.Getenv("CONMONRS_TEST_ENV") != "vm" {
		if os.Getenv("CONMONRS_REQUIRE_ALL") == "1" {
			t.Fatal("needs the virtual machine (make integration-vm)")
		}
		t.Skip("needs the virtual machine (make integration-vm)")
	}
	state, _ := runCrash(t, "panic", "TEST_JOURNAL="+journald.DefaultStdout)
	pid := strconv.Itoa(state.Pid())
	text := waitFor(t, "main.main()", "journalctl", "--no-pager", "-o", "cat", "-t", "conmonrs", "_PID="+pid)
	checkCrash(t, "panic", text, state)
	dump := waitFor(t, "Storage:", "coredumpctl", "--no-pager", "info", pid)
	for _, want := range []string{" (conmonrs)\n", "Signal: 6 (ABRT)", "(present)\n"} {
		if !strings.Contains(dump, want) {
			t.Errorf("no %q in what coredumpctl says:\n%s", want, dump)
		}
	}
}

// waitFor runs a command until want is in what it prints.
func waitFor(t *testing.T, want string, command ...string) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		if strings.Contains(string(out), want) {
			return string(out)
		}
		if time.Now().After(end) {
			t.Fatalf("no %q from %q: %v: %.3000s", want, command, err, out)
		}
	}
}

// fakeJournal takes one connection and gives all that comes on it.
func fakeJournal(t *testing.T) (path string, received chan string) {
	t.Helper()
	l := listenJournal(t, filepath.Join(t.TempDir(), "stdout"))
	received = make(chan string, 1)
	go func() {
		defer close(received)
		if c, err := l.AcceptUnix(); err == nil {
			defer c.Close()
			b, _ := io.ReadAll(c)
			received <- string(b)
		}
	}()
	return l.Addr().String(), received
}

func listenJournal(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	_ = l.SetDeadline(time.Now().Add(30 * time.Second))
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// The connection is renewed when journald has gone, and not as long as it is there, although journald never writes and
// has closed that direction.
func TestCrashOutputCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stdout")
	l := listenJournal(t, path)
	before := countDescriptors(t)
	c := &CrashOutput{path: path}
	if err := c.Renew(""); err != nil {
		t.Fatal(err)
	}
	first := acceptJournal(t, l)
	if open := countDescriptors(t); open != before+3 { // the test's own end is one
		t.Errorf("%d descriptors, before %d", open, before)
	}
	if err := c.Renew("my.scope"); err != nil {
		t.Fatal(err)
	}
	second := acceptJournal(t, l)
	if b, err := io.ReadAll(first); err != nil || string(b) != "conmonrs\n\n2\n0\n0\n0\n0\n" {
		t.Errorf("the first connection had %q, %v", b, err)
	}
	first.Close()
	l.Close()
	c.Check()
	second.Close()
	c.Check() // nobody listens
	l = listenJournal(t, path)
	c.Check()
	c.Check()
	third := acceptJournal(t, l)
	if err := debug.SetCrashOutput(nil, debug.CrashOptions{}); err != nil {
		t.Error(err)
	}
	c.stream.Close()
	if b, err := io.ReadAll(third); err != nil || string(b) != "conmonrs\nmy.scope\n2\n0\n0\n0\n0\n" {
		t.Errorf("the third connection had %q, %v", b, err)
	}
	third.Close()
	_ = l.SetDeadline(time.Now())
	if extra, err := l.AcceptUnix(); err == nil {
		extra.Close()
		t.Error("connected once more than needed")
	}
	if after := countDescriptors(t); after != before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

func acceptJournal(t *testing.T, l *net.UnixListener) *net.UnixConn {
	t.Helper()
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.CloseWrite()
	return c
}

func countDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
