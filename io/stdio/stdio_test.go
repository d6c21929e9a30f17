package stdio

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func flags(t *testing.T, f *os.File) (status, descriptor int) {
	t.Helper()
	raw, err := f.SyscallConn()
	check(t, err)
	check(t, raw.Control(func(fd uintptr) {
		status, _ = unix.FcntlInt(fd, unix.F_GETFL, 0)
		descriptor, _ = unix.FcntlInt(fd, unix.F_GETFD, 0)
	}))
	return status, descriptor
}

func noLeaks(t *testing.T) {
	t.Helper()
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		check(t, err)
		return len(entries)
	}
	// The runtime's poller opens its own descriptors at the first use.
	r, w, err := os.Pipe()
	check(t, err)
	r.Close()
	w.Close()
	before := count()
	t.Cleanup(func() {
		if after := count(); after != before {
			t.Errorf("%d descriptors, %d before", after, before)
		}
	})
}

func TestEndsAndFlags(t *testing.T) {
	noLeaks(t)
	p, err := OpenPipes(Options{Stdin: true})
	check(t, err)
	for i, f := range p.Child() {
		status, fd := flags(t, f)
		if status&unix.O_NONBLOCK != 0 || fd&unix.FD_CLOEXEC == 0 {
			t.Errorf("child's end %d: flags %#x, descriptor flags %#x", i, status, fd)
		}
	}
	in := p.TakeStdin()
	out := os.NewFile(uintptr(p.TakeStdout()), "stdout")
	errs := os.NewFile(uintptr(p.TakeStderr()), "stderr")
	for _, f := range []*os.File{in, out, errs} {
		status, fd := flags(t, f)
		if status&unix.O_NONBLOCK == 0 || fd&unix.FD_CLOEXEC == 0 {
			t.Errorf("our end %s: flags %#x, descriptor flags %#x", f.Name(), status, fd)
		}
	}
	if p.TakeStdin() != nil || p.TakeStdout() != -1 || p.TakeStderr() != -1 {
		t.Error("an end was given away twice")
	}
	check(t, p.CloseChild())
	check(t, p.CloseChild())
	check(t, p.Close()) // taken ends stay open
	for _, f := range []*os.File{in, out, errs} {
		check(t, f.Close())
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	noLeaks(t)
	for _, stdin := range []bool{false, true} {
		p, err := OpenPipes(Options{Stdin: stdin})
		check(t, err)
		check(t, p.Close())
		check(t, p.Close())
	}
}

func TestWithAProcess(t *testing.T) {
	noLeaks(t)
	for _, tc := range []struct {
		name    string
		stdin   bool
		command string
		want    string
	}{
		{"input", true, "cat; echo end", "hello\nend\n"},
		{"no input", false, "cat; echo end", "end\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := OpenPipes(Options{Stdin: tc.stdin})
			check(t, err)
			defer p.Close()
			child := p.Child()
			cmd := exec.Command("/bin/sh", "-c", tc.command)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = child[0], child[1], child[2]
			check(t, cmd.Start())
			check(t, p.CloseChild())
			if in := p.TakeStdin(); in != nil {
				_, err := in.WriteString("hello\n")
				check(t, err)
				check(t, in.Close())
			}
			out := os.NewFile(uintptr(p.TakeStdout()), "stdout")
			defer out.Close()
			got, err := io.ReadAll(out)
			check(t, err)
			if string(got) != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			check(t, cmd.Wait())
		})
	}
}

func TestUndoAtDescriptorLimit(t *testing.T) {
	noLeaks(t)
	var old unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	probe, err := unix.Dup(0)
	check(t, err)
	unix.Close(probe)
	for extra := range 6 { // fails at each step in turn
		limit := old
		limit.Cur = uint64(probe + extra)
		check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		p, err := OpenPipes(Options{Stdin: true})
		check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
		if err == nil {
			p.Close()
			if extra < 5 {
				t.Errorf("worked with %d descriptors", extra)
			}
		} else if !errors.Is(err, unix.EMFILE) {
			t.Errorf("error %v", err)
		}
	}
}
