package integration

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// fdSender is a connection to the monitor's descriptor socket.
type fdSender struct {
	*client.FDs
	p *pod
}

func (p *pod) openFDs() *fdSender {
	p.t.Helper()
	f, err := p.client.OpenFDs(p.ctx())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = f.Close() })
	return &fdSender{f, p}
}

func (f *fdSender) send(files ...*os.File) []uint64 {
	f.p.t.Helper()
	slots, err := f.Send(f.p.ctx(), files...)
	if err != nil || len(slots) != len(files) {
		f.p.t.Fatalf("%d slots for %d files, %v", len(slots), len(files), err)
	}
	return slots
}

// sendPipe sends the write end of a pipe, and keeps only the read end.
func (f *fdSender) sendPipe() (slot uint64, r *os.File) {
	f.p.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		f.p.t.Fatal(err)
	}
	f.p.t.Cleanup(func() { r.Close() })
	_ = w.Fd() // blocks, as programs expect
	slot = f.send(w)[0]
	w.Close()
	return slot, r
}

// readAll returns what comes until nobody holds the other end any more.
func (p *pod) readAll(r *os.File) string {
	p.t.Helper()
	if err := r.SetReadDeadline(time.Now().Add(exitLimit)); err != nil {
		p.t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		p.t.Errorf("read what a container wrote: %q, %v", b, err)
	}
	return string(b)
}

// held tells whether somebody holds the other end of a pipe on which nothing comes.
func held(r *os.File) bool {
	if err := r.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return false
	}
	_, err := r.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// withFDs is a request whose container gets descriptors.
func (p *pod) withFDs(id, script string, slots ...uint64) *conmon.CreateContainerRequest {
	p.t.Helper()
	req := p.request(id, bundle.Options{Args: []string{"sh", "-c", script}})
	req.AdditionalFDs = slots
	if len(slots) > 0 {
		req.CommandArgs = []string{"--preserve-fds=" + strconv.Itoa(len(slots))}
	}
	return req
}

// A container sees exactly what it was passed, from descriptor 3 on, in order.
func TestPassedDescriptors(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		f := p.openFDs()
		for _, n := range []int{0, 1, 100, client.MaxFDs} {
			id := fmt.Sprintf("c%d", n)
			files := make([]*os.File, n)
			for i := range files {
				path := p.path(fmt.Sprintf("%s-%d", id, i))
				if err := os.WriteFile(path, []byte(filepath.Base(path)+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				file, err := os.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				files[n-1-i] = file // passed the other way round
			}
			var slots []uint64
			if n > 0 {
				slots = f.send(files...)
			}
			for i := range n / 2 {
				slots[i], slots[n-1-i] = slots[n-1-i], slots[i]
			}
			// The descriptor with which ls reads the directory is gone by then.
			script := "cd /proc/$$/fd; for fd in *; do [ $fd -lt 3 ] || [ ! -e $fd ] || cat /proc/$$/fd/$fd || echo $fd; done"
			script = strings.ReplaceAll(script, "cat /proc/$$/fd/$fd", "{ echo $fd; head -n 1 <&$fd; }")
			p.create(p.withFDs(id, script, slots...))
			p.start(id)
			p.wantExit(id, 0)
			p.checkPassed(id, n)
		}
	})
}

// checkPassed looks at a list of descriptors and what was read from each.
func (p *pod) checkPassed(id string, n int) {
	p.t.Helper()
	lines := strings.Fields(p.output(id))
	got := make(map[string]string)
	for i := 0; i+1 < len(lines); i += 2 {
		got[lines[i]] = lines[i+1]
	}
	if len(lines) != 2*n || len(got) != n {
		p.t.Fatalf("%s has %d descriptors, want %d: %.300q", id, len(got), n, lines)
	}
	for i := range n {
		if want := fmt.Sprintf("%s-%d", id, i); got[strconv.Itoa(3+i)] != want {
			p.t.Fatalf("descriptor %d of %s is %q, want %q", 3+i, id, got[strconv.Itoa(3+i)], want)
		}
	}
}

// R045: the monitor keeps no copy of what the container has, and what it holds for it until the exit ends then. The
// container does not see the latter.
func TestDescriptorsEnd(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.run("first", "true") // what the monitor opens once is open
		p.wantExit("first", 0)
		fds := openCount(p.pid)
		f := p.openFDs()
		slot, passed := f.sendPipe()
		leakSlot, leaked := f.sendPipe()
		script := "echo passed >&3; exec 3>&-; while [ ! -e /go ]; do usleep 10000; done; exit 3"
		req := p.withFDs("c", script, slot)
		req.LeakFDs = []uint64{leakSlot}
		pid := p.create(req)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		p.start("c")
		if text := p.readAll(passed); text != "passed\n" {
			t.Errorf("container wrote %q", text)
		}
		eventually(t, exitLimit, "container has no other descriptor", func() bool { return len(descriptors(pid)) == 3 })
		if !held(leaked) {
			t.Error("not held until the exit")
		}
		if err := os.WriteFile(filepath.Join(req.BundlePath, "rootfs/go"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		p.wantExit("c", 3)
		if text := p.readAll(leaked); text != "" {
			t.Errorf("read %q", text)
		}
		p.settled(fds + 1) // the socket
	})
}

// A slot is good for one create, whatever becomes of it, and as long as its sender is there.
func TestWrongSlots(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		fds := openCount(p.pid) + 2 // socket and connection
		f := p.openFDs()
		refused := func(req *conmon.CreateContainerRequest, field string, slot uint64) {
			t.Helper()
			_, err := p.client.CreateContainer(p.ctx(), req)
			var invalid *conmon.InvalidError
			want := fmt.Sprintf("no file descriptor in slot %d", slot)
			if !errors.As(err, &invalid) || invalid.Field != field || invalid.Reason != want {
				t.Errorf("error %v, want %s of %s", err, want, field)
			}
		}
		ended := func(r *os.File) {
			t.Helper()
			if text := p.readAll(r); text != "" {
				t.Errorf("read %q", text)
			}
		}
		// Asked for slot 5 when one was sent; the one goes with it.
		slot, r := f.sendPipe()
		refused(p.withFDs("c", "true", slot, slot+5), "additionalFds[1]", slot+5)
		ended(r)
		refused(p.withFDs("c", "true", slot), "additionalFds[0]", slot)
		// Twice in one request.
		slot, r = f.sendPipe()
		req := p.withFDs("c", "true", slot)
		req.LeakFDs = []uint64{slot}
		refused(req, "leakFds[0]", slot)
		ended(r)
		// In the wrong list, and 0.
		req = p.withFDs("c", "true")
		req.LeakFDs = []uint64{0}
		refused(req, "leakFds[0]", 0)
		// Its sender has gone between send and create.
		other := p.openFDs()
		slot, r = other.sendPipe()
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		ended(r)
		refused(p.withFDs("c", "true", slot), "additionalFds[0]", slot)
		// More promised than passed: the runtime would hand over its own.
		slot, _ = f.sendPipe()
		req = p.withFDs("c", "true", slot)
		req.CommandArgs = []string{"--preserve-fds", "2"}
		var invalid *conmon.InvalidError
		if _, err := p.client.CreateContainer(p.ctx(), req); !errors.As(err, &invalid) || invalid.Field != "additionalFds" {
			t.Errorf("too many promised: %v", err)
		}
		// That request was refused as such, so the slot is still good.
		p.create(p.withFDs("c", "echo x >&3", slot))
		refused(p.withFDs("d", "true", slot), "additionalFds[0]", slot)
		p.start("c")
		p.wantExit("c", 0)
		p.settled(fds)
	})
}

// A create that fails keeps nothing.
func TestDescriptorsOfFailedCreates(t *testing.T) {
	eachIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		fds := openCount(p.pid) + 2 // socket and connection
		f := p.openFDs()
		for name, spoil := range map[string]func(*conmon.CreateContainerRequest){
			"log":     func(r *conmon.CreateContainerRequest) { r.LogDrivers[0].Path = "/no/such/directory/log" },
			"runtime": func(r *conmon.CreateContainerRequest) { r.CommandArgs = append(r.CommandArgs, "--no-such-option") },
			"program": func(r *conmon.CreateContainerRequest) {
				dir := r.BundlePath
				*r = *p.request("program", bundle.Options{Args: []string{"no-such-program"}})
				r.BundlePath = dir
			},
		} {
			slot, r := f.sendPipe()
			leakSlot, leaked := f.sendPipe()
			req := p.withFDs(name, "true", slot)
			args := req.CommandArgs
			spoil(req)
			if name == "program" {
				req.CommandArgs = args
			}
			req.AdditionalFDs, req.LeakFDs = []uint64{slot}, []uint64{leakSlot}
			p.ids = append(p.ids, name)
			if _, err := p.client.CreateContainer(p.ctx(), req); err == nil {
				t.Errorf("%s: created", name)
			}
			for _, r := range []*os.File{r, leaked} {
				if text := p.readAll(r); text != "" {
					t.Errorf("%s: read %q", name, text)
				}
			}
		}
		p.settled(fds)
	})
}

// The socket is there when it has been asked for, once, for its owner only, and goes with the monitor; one that a monitor
// left which was killed does not matter.
func TestDescriptorSocket(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	path := filepath.Join(p.runDir, "conmon-fd.sock")
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("before: %v", err)
	}
	before := openCount(p.pid)
	for range 3 {
		r, err := p.client.StartFDSocket(p.ctx(), &conmon.StartFDSocketRequest{})
		if err != nil || r.Path != path {
			t.Fatalf("path %v, %v", r, err)
		}
	}
	if n := openCount(p.pid); n != before+1 {
		t.Errorf("%d descriptors, before %d", n, before)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o700 {
		t.Errorf("socket: %v, %v", info, err)
	}
	senders := make([]*fdSender, 20)
	for i := range senders {
		senders[i] = p.openFDs()
		senders[i].sendPipe()
	}
	for _, f := range senders {
		_ = f.Close()
	}
	p.settled(before + 1)

	p.signal(unix.SIGKILL)
	p.waitGone(exitLimit)
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("after SIGKILL: %v", err)
	}
	if err := p.startMonitor(podOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the next start: %v", err)
	}
	f := p.openFDs()
	_, r := f.sendPipe()
	p.shutdown() // close checks what is left
	if text := p.readAll(r); text != "" {
		t.Errorf("read %q", text)
	}
	if _, err := f.Send(p.ctx(), r); !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("sent to nobody: %v", err)
	}
}

// R137: what lies in a slot, or is held for a container, costs nothing while things happen to it.
func TestIdleDescriptors(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	f := p.openFDs()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	req := p.withFDs("c", "sleep 1000")
	req.LeakFDs = f.send(theirs)
	p.create(req)
	p.start("c")
	f.send(theirs)
	gone := p.openFDs()
	gone.send(theirs)
	_ = gone.Close()
	p.alive()
	p.settled(openCount(p.pid))
	stable, last := 0, -1
	eventually(t, exitLimit, "monitor comes to rest", func() bool {
		if now := switches(p.pid); now != last {
			last, stable = now, 0
		}
		stable++
		return stable > 50
	})
	for range 100 {
		if _, err := ours.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := theirs.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // so that each event could wake it
	}
	if n := switches(p.pid) - last; n > 50 {
		t.Errorf("the monitor woke up %d times", n)
	}
}

// switches returns how often the threads of a process have gone to sleep.
func switches(pid int) (n int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", pid))
	for _, task := range tasks {
		tid, _ := strconv.Atoi(filepath.Base(task))
		n += statusNumber(tid, "voluntary_ctxt_switches")
	}
	return n
}

// The monitor lives on with descriptors that block when they are closed.
func TestLingeringDescriptor(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	f := p.openFDs()
	lingering := lingeringFile(t)
	slots := f.send(lingering, lingering)
	lingering.Close()
	slot, r := f.sendPipe()
	req := p.withFDs("c", "true")
	req.LeakFDs = []uint64{slots[0], slot}
	p.create(req)
	_ = f.Close()
	p.start("c")
	p.wantExit("c", 0)
	if text := p.readAll(r); text != "" {
		t.Errorf("read %q", text)
	}
	p.remove("c")
	p.run("c", "true") // the id is free
	p.wantExit("c", 0)
	p.shutdown()
}

// lingeringFile returns a connection whose last close waits for a minute.
func lingeringFile(t *testing.T) *os.File {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(err)
	defer unix.Close(l)
	check(unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	check(unix.Listen(l, 1))
	address, err := unix.Getsockname(l)
	check(err)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(err)
	check(unix.Connect(fd, address))
	peer, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
	check(err)
	t.Cleanup(func() { unix.Close(peer) })
	for err == nil { // until both buffers are full
		err = unix.Sendto(fd, make([]byte, 1<<16), unix.MSG_DONTWAIT, nil)
	}
	check(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 60}))
	return os.NewFile(uintptr(fd), "lingering")
}
