package notify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// R105, R108: each message is relayed once, in order, for the relay's life.
func TestRelay(t *testing.T) {
	checkFDs(t)
	h, at := newHost(t)
	r, socket := newRelay(t, Options{Socket: at})
	serve(t, r)
	s := newSender(t, socket)
	long := "STATUS=" + strings.Repeat("s", 4096)
	for range 10 {
		for _, m := range []string{"", "MAINPID=1\n", "READY=1", "FDSTORE=1\nSTATUS=up\n", long, "\xff\xfe\x00", "STOPPING=1\n"} {
			s.send(m)
		}
		h.want("READY=1", "STATUS=up", long, "STOPPING=1")
	}
	h.wantNothing()
}

func TestManySenders(t *testing.T) {
	checkFDs(t)
	const senders, messages = 8, 100
	h, at := newHost(t)
	r, socket := newRelay(t, Options{Socket: at})
	serve(t, r)
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range senders {
		s := newSender(t, socket)
		wg.Go(func() {
			for j := range messages {
				s.send(fmt.Sprintf("STATUS=%d %d", i, j))
			}
		})
	}
	var next [senders]int
	for range senders * messages {
		var got string
		eventually(t, "all messages", func() (ok bool) { got, ok = h.next(); return ok })
		var i, j int
		if _, err := fmt.Sscanf(got, "STATUS=%d %d", &i, &j); err != nil || next[i] != j {
			t.Fatalf("got %q, want number %d of sender %d: %v", got, next[i], i, err)
		}
		next[i]++
	}
	h.wantNothing()
}

// One that sends without end does not keep Ready from returning.
func TestBoundedWork(t *testing.T) {
	checkFDs(t)
	_, at := newHost(t)
	r, socket := newRelay(t, Options{Socket: at})
	s := newSender(t, socket)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Sendto(s.fd, []byte("X=1"), unix.MSG_DONTWAIT, nil)
			}
		}
	}()
	for range 1000 {
		r.Ready()
	}
	close(stop)
	<-done
}

// Longer than what is read: the whole lines of the part that is.
func TestOversize(t *testing.T) {
	checkFDs(t)
	h, at := newHost(t)
	r, socket := newRelay(t, Options{Socket: at})
	serve(t, r)
	s := newSender(t, socket)
	s.send("READY=1\nSTATUS=" + strings.Repeat("x", 100_000))
	s.send(strings.Repeat("x", 100_000) + "\nREADY=1")
	whole := "STATUS=" + strings.Repeat("x", maxMessage-len("STATUS="))
	s.send(whole)
	s.send(whole + "x")
	s.send("STATUS=next")
	h.want("READY=1", whole, "STATUS=next")
	h.wantNothing()
}

// R107: the barrier's descriptor is closed behind all that came before it.
func TestBarrier(t *testing.T) {
	checkFDs(t)
	h, at := newHost(t)
	r, socket := newRelay(t, Options{Socket: at})
	s := newSender(t, socket)
	s.send("READY=1")
	alone, with := s.barrier("BARRIER=1"), s.barrier("STATUS=x")
	if alone() || with() {
		t.Fatal("answered before anything was read")
	}
	serve(t, r)
	eventually(t, "answers", func() bool { return alone() && with() })
	h.want("READY=1", "STATUS=x") // both are there already
}

// A barrier waits as long as what was sent before it may still get through.
func TestBarrierBehindFullQueue(t *testing.T) {
	checkFDs(t)
	h, at := newHost(t)
	r, socket := newRelay(t, Options{Socket: at})
	queued := fill(t, at)
	s := newSender(t, socket)
	s.send("READY=1")
	answered := s.barrier("BARRIER=1")
	for range 3 {
		if after := r.Ready(); after <= 0 || after > time.Second {
			t.Fatalf("to be called after %v", after)
		}
	}
	if answered() {
		t.Error("answered although nothing was relayed")
	}
	for range queued {
		h.want("STATUS=filler")
	}
	serve(t, r)
	eventually(t, "answer", answered)
	h.want("READY=1")
}

// fill sends until the receiver's queue is full.
func fill(t *testing.T, socket string) (count int) {
	t.Helper()
	for ; count < 1<<20; count++ {
		switch err := send(socket, []byte("STATUS=filler"), 0); err {
		case nil:
		case unix.EAGAIN:
			return count
		default:
			t.Fatal(err)
		}
	}
	t.Fatal("queue without end")
	return 0
}

// R109: descriptors that nobody wants are closed, however many, also when there is no room for them.
func TestUnwantedDescriptors(t *testing.T) {
	checkFDs(t)
	h, at := newHost(t)
	r, socket := newRelay(t, Options{Socket: at})
	serve(t, r)
	s := newSender(t, socket)
	null, err := os.Open(os.DevNull)
	check(t, err)
	defer null.Close()
	many := make([]int, 250)
	for i := range many {
		many[i] = int(null.Fd())
	}
	before := len(openFDs(t))
	for i := range 1000 {
		s.send("FDSTORE=1\nFDNAME=x\nUNKNOWN=1", many[:10]...)
		if i%100 == 0 {
			s.send("FDSTORE=1\nSTATUS=with", many...)
			h.want("STATUS=with")
		}
	}
	eventually(t, "descriptors closed", func() bool { return len(openFDs(t)) <= before })
	answered := s.barrier("BARRIER=1")
	eventually(t, "barrier answered", answered)
	h.wantNothing()
}

// A descriptor that blocks whoever closes it last keeps no method from returning. It holds up its own container only.
func TestDescriptorThatBlocks(t *testing.T) {
	checkFDs(t)
	h, at := newHost(t)
	r, socket := newRelay(t, Options{Socket: at})
	s := newSender(t, socket)
	lingering, release := lingeringSocket(t)
	var fds []int
	for range maxFDs - 1 {
		fds = append(fds, s.fd)
	}
	s.send("STATUS=with", append(fds, lingering)...)
	unix.Close(lingering)
	s.send("STATUS=next")
	start := time.Now()
	for range 20 {
		r.Ready()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	r.Drain(ctx)
	another, releaseAnother := lingeringSocket(t) // this one nobody receives
	unread, socketOfUnread := newRelay(t, Options{Socket: at})
	newSender(t, socketOfUnread).send("STATUS=unread", another)
	unix.Close(another)
	check(t, unread.Close())
	h.want("STATUS=with")
	h.wantNothing()
	if d := time.Since(start); d > linger/2 {
		t.Errorf("took %v", d)
	}
	release()
	releaseAnother()
	serve(t, r)
	h.want("STATUS=next")
	if d := time.Since(start); d > linger/2 {
		t.Errorf("took %v", d)
	}
}

// linger is how long the close of a lingering socket takes.
const linger = 60 * time.Second

// lingeringSocket returns a connection with unsent data, and what makes the other end reset it.
func lingeringSocket(t *testing.T) (fd int, release func()) {
	t.Helper()
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(l)
	check(t, unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	check(t, unix.Listen(l, 1))
	addr, err := unix.Getsockname(l)
	check(t, err)
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	check(t, unix.Connect(fd, addr))
	peer, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
	check(t, err)
	data := make([]byte, 1<<16)
	for err == nil {
		err = unix.Sendto(fd, data, unix.MSG_DONTWAIT, nil)
	}
	check(t, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: int32(linger / time.Second)}))
	return fd, func() { unix.Close(peer) }
}

// The manager goes away and comes back: messages of a short time are kept, one warning is given, and the rest is dropped.
func TestHostGoneAndBack(t *testing.T) {
	checkFDs(t)
	var log memo
	dir := t.TempDir()
	at := dir + "/host.sock"
	r, socket := newRelay(t, Options{Socket: at, Logger: log.logger()})
	serve(t, r)
	s := newSender(t, socket)

	s.send("STATUS=before") // nobody is there yet
	first := hostAt(t, at)
	first.want("STATUS=before")
	first.close()
	s.send("STATUS=between") // refused
	check(t, os.Remove(at))
	second := hostAt(t, at)
	second.want("STATUS=between")
	if n := log.count("\n"); n != 0 {
		t.Errorf("%d messages logged", n)
	}

	second.close()
	for i := range 50 {
		s.send(fmt.Sprintf("STATUS=lost %d", i))
	}
	eventually(t, "answer in spite of the outage", s.barrier("BARRIER=1"))
	if n := log.count("not relayed"); n != 1 {
		t.Errorf("outage reported %d times", n)
	}
	check(t, os.Remove(at))
	third := hostAt(t, at)
	s.send("READY=1")
	third.want("READY=1")
	third.wantNothing()
	eventually(t, "end of the outage reported", func() bool { return log.count("lost=50") == 1 })
}

// Neither a receiver that does not read nor one that is not there makes Ready block.
func TestReadyNeverBlocks(t *testing.T) {
	checkFDs(t)
	h, at := newHost(t)
	fill(t, at)
	for _, at := range []string{at, "/no/such/socket", "@no such socket", h.directory(), "/proc/self/fd/nothing"} {
		r, socket := newRelay(t, Options{Socket: at})
		s := newSender(t, socket)
		s.send("READY=1")
		start := time.Now()
		for range 100 {
			r.Ready()
		}
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("%q: %v for 100 calls", at, d)
		}
	}
}

func (h *host) directory() string { return h.t.TempDir() }

func TestAddresses(t *testing.T) {
	checkFDs(t)
	deep := filepath.Join(t.TempDir(), strings.Repeat("d", 200), strings.Repeat("e", 200))
	check(t, os.MkdirAll(deep, 0o755))
	name := fmt.Sprintf("conmonrs test %d", os.Getpid())
	full := "@" + name + strings.Repeat("f", maxPath-1-len(name))
	exact := filepath.Join(t.TempDir(), "x")
	exact += strings.Repeat("x", maxPath-len(exact))
	for _, at := range []string{"@" + name, full, exact, exact + "y", filepath.Join(deep, "host.sock")} {
		h := hostAt(t, at)
		aliases := []string{at}
		if at[0] == '@' {
			aliases = append(aliases, "\x00"+at[1:])
		}
		for _, alias := range aliases {
			check(t, Notify(alias, "READY=1"))
			h.want("READY=1")
			bundle := filepath.Join(deep, "bundle")
			check(t, os.MkdirAll(bundle, 0o755))
			r, err := Listen(bundle, Options{Socket: alias})
			check(t, err)
			check(t, send(filepath.Join(bundle, "notify/notify.sock"), []byte("STATUS=x"), 0))
			r.Ready()
			h.want("STATUS=x")
			check(t, r.Close())
		}
		h.close()
	}
}

func TestCheckSocket(t *testing.T) {
	for socket, ok := range map[string]bool{
		"/run/x": true, "@x": true, "\x00x": true, "/" + strings.Repeat("x", maxLongPath-1): true,
		"": false, "@": false, "\x00": false, "run/x": false, "vsock:2:1": false, "/x\x00": false, "@a\x00": false,
		"/" + strings.Repeat("x", maxLongPath): false, "@" + strings.Repeat("x", maxPath): false,
	} {
		if err := CheckSocket(socket); (err == nil) != ok {
			t.Errorf("%.20q: %v", socket, err)
		}
		if ok {
			continue
		}
		if err := Notify(socket, "READY=1"); err == nil {
			t.Errorf("sent to %.20q", socket)
		}
		if _, err := Listen(t.TempDir(), Options{Socket: socket}); err == nil {
			t.Errorf("relay to %.20q", socket)
		}
	}
}

func TestNotifyErrors(t *testing.T) {
	checkFDs(t)
	h, at := newHost(t)
	fill(t, at)
	if err := Notify(at, "READY=1"); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("full queue: %v", err)
	}
	h.close()
	if err := Notify(at, "READY=1"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("closed socket: %v", err)
	}
	for _, socket := range []string{"/no/such/socket", "/" + strings.Repeat("x/", 100)} {
		if err := Notify(socket, "READY=1"); !errors.Is(err, unix.ENOENT) {
			t.Errorf("no socket: %v", err)
		}
	}
}

// The socket is open to all users whatever the umask, and goes at the end with what was made for it.
func TestSocketFile(t *testing.T) {
	checkFDs(t)
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	for _, existing := range []string{"", "directory", "socket", "file", "other file"} {
		t.Run(existing, func(t *testing.T) {
			bundle := t.TempDir()
			dir := filepath.Join(bundle, "notify")
			socket := filepath.Join(dir, "notify.sock")
			if existing != "" {
				check(t, os.Mkdir(dir, 0o755))
			}
			switch existing {
			case "socket":
				hostAt(t, socket)
			case "file":
				check(t, os.WriteFile(socket, nil, 0o600))
			case "other file":
				check(t, os.WriteFile(filepath.Join(dir, "other"), nil, 0o600))
			}
			r, err := Listen(bundle, Options{Socket: "/x"})
			check(t, err)
			info, err := os.Lstat(socket)
			check(t, err)
			if info.Mode() != os.ModeSocket|0o777 {
				t.Errorf("mode %v", info.Mode())
			}
			if flags, err := unix.FcntlInt(uintptr(r.FD()), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("descriptor's flags %#x, %v", flags, err)
			}
			check(t, r.Close())
			check(t, r.Close())
			if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("socket left: %v", err)
			}
			if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) != (existing == "") {
				t.Errorf("directory: %v", err)
			}
		})
	}
}

// What has taken the socket's place meanwhile is not removed, and it does no harm if all of it has gone.
func TestCloseRemovesOnlyItsOwn(t *testing.T) {
	checkFDs(t)
	bundle := t.TempDir()
	first, err := Listen(bundle, Options{Socket: "/x"})
	check(t, err)
	second, err := Listen(bundle, Options{Socket: "/x"})
	check(t, err)
	check(t, first.Close())
	if _, err := os.Lstat(bundle + "/notify/notify.sock"); err != nil {
		t.Error(err)
	}
	check(t, os.RemoveAll(bundle+"/notify"))
	check(t, second.Close())
	if r, socket := newRelay(t, Options{Socket: "/x"}); true {
		check(t, os.RemoveAll(filepath.Dir(filepath.Dir(socket))))
		check(t, r.Close())
	}
}

// Links that lead elsewhere are not followed, and a failure leaves nothing.
func TestListenErrors(t *testing.T) {
	checkFDs(t)
	elsewhere := t.TempDir()
	for name, prepare := range map[string]func(bundle string) error{
		"no bundle":         os.Remove,
		"directory is link": func(b string) error { return os.Symlink(elsewhere, b+"/notify") },
		"directory is file": func(b string) error { return os.WriteFile(b+"/notify", nil, 0o600) },
		"socket's name is a directory": func(b string) error {
			return os.MkdirAll(b+"/notify/notify.sock", 0o755)
		},
	} {
		bundle := t.TempDir()
		check(t, prepare(bundle))
		if r, err := Listen(bundle, Options{Socket: "/x"}); err == nil {
			t.Errorf("%s: no error", name)
			check(t, r.Close())
		}
	}
	if entries, err := os.ReadDir(elsewhere); err != nil || len(entries) > 0 {
		t.Errorf("made elsewhere: %v, %v", entries, err)
	}
	bundle := t.TempDir()
	check(t, os.Mkdir(bundle+"/notify", 0o755))
	check(t, os.Symlink(elsewhere+"/x", bundle+"/notify/notify.sock")) // only the link is replaced
	r, err := Listen(bundle, Options{Socket: "/x"})
	check(t, err)
	check(t, r.Close())
}

func TestDrain(t *testing.T) {
	checkFDs(t)
	h, at := newHost(t)
	r, socket := newRelay(t, Options{Socket: at})
	s := newSender(t, socket)
	for i := range 5 {
		s.send(fmt.Sprintf("STATUS=%d", i))
	}
	r.Drain(t.Context())
	h.want("STATUS=0", "STATUS=1", "STATUS=2", "STATUS=3", "STATUS=4")

	queued := fill(t, at)
	s.send("STOPPING=1")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	r.Drain(ctx) // gives up
	for range queued {
		h.want("STATUS=filler")
	}
	r.Drain(t.Context())
	h.want("STOPPING=1")
}

// Close answers who waits, and ends all other methods.
func TestClose(t *testing.T) {
	checkFDs(t)
	var log memo
	h, at := newHost(t)
	fill(t, at)
	r, socket := newRelay(t, Options{Socket: at, Logger: log.logger()})
	s := newSender(t, socket)
	answered := s.barrier("READY=1")
	r.Ready()
	if answered() {
		t.Error("answered although the message is held")
	}
	check(t, r.Close())
	if !answered() || log.count("not relayed") != 1 {
		t.Errorf("answered %t, logged %d times", answered(), log.count("not relayed"))
	}
	if after := r.Ready(); after != 0 || r.FD() != -1 {
		t.Errorf("after %v, descriptor %d", after, r.FD())
	}
	r.Drain(t.Context())
	eventually(t, "senders are refused", func() bool {
		return unix.Sendto(s.fd, []byte("READY=1"), unix.MSG_DONTWAIT, nil) == unix.ECONNREFUSED
	})
	h.close()
}

// Steps of one relay do not mix when several goroutines take them.
func TestConcurrentUse(t *testing.T) {
	checkFDs(t)
	h, at := newHost(t)
	r, socket := newRelay(t, Options{Socket: at})
	serve(t, r)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				r.Drain(t.Context())
				r.Ready()
			}
		})
	}
	s := newSender(t, socket)
	for i := range 200 {
		s.send(fmt.Sprintf("STATUS=%d", i))
		h.want(fmt.Sprintf("STATUS=%d", i))
	}
	wg.Wait()
	check(t, r.Close())
}
