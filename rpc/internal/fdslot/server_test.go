package fdslot

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Descriptors arrive in order, close-on-exec, and with the properties that the sender gave them.
func TestSend(t *testing.T) {
	for _, n := range []int{1, 100, 252, MaxFDs} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			f := serve(t)
			s := f.sender()
			fds, dir := make([]int, n), t.TempDir()
			for i := range fds {
				file, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				fds[i] = int(file.Fd())
			}
			slots := f.sent(s, fds...)
			for i := 1; i < n; i++ {
				if slots[i] != slots[0]+uint64(i) {
					t.Fatalf("slots %v", slots)
				}
			}
			slices.Reverse(slots)
			d := f.taken(slots)[0]
			if len(d.Numbers()) != n {
				t.Fatalf("%d descriptors", len(d.Numbers()))
			}
			for i, fd := range d.Numbers() {
				name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
				if err != nil || filepath.Base(name) != fmt.Sprint(n-1-i) {
					t.Fatalf("descriptor %d is %s, %v", i, name, err)
				}
				if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
					t.Fatalf("descriptor %d: flags %#x, %v", i, flags, err)
				}
			}
			d.Close()
			if len(d.Numbers()) != 0 {
				t.Error("descriptors after Close")
			}
			d.Close()
		})
	}
}

// Whether a descriptor blocks is the sender's business.
func TestModeIsLeftAlone(t *testing.T) {
	f := serve(t)
	s := f.sender()
	for _, mode := range []int{0, unix.O_NONBLOCK} {
		r, w := pipe(t)
		if err := unix.SetNonblock(int(w.Fd()), mode != 0); err != nil {
			t.Fatal(err)
		}
		d := f.taken(f.sent(s, int(w.Fd())))[0]
		flags, err := unix.FcntlInt(uintptr(d.Numbers()[0]), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_NONBLOCK != mode {
			t.Errorf("flags %#x, %v, want %#x", flags, err, mode)
		}
		d.Close()
		w.Close()
		eventually(t, "descriptor closed", func() bool { return closed(r) })
	}
}

// The bytes of the protocol.
func TestPackets(t *testing.T) {
	const all = 1<<32 - 1
	refusal := func(id uint64, text string) []byte { return append(words(id<<32|all), text...) }
	for _, c := range []struct {
		name   string
		packet []byte
		fds    int
		want   []byte
	}{
		{"one", words(7<<32 | 1), 1, words(7<<32|1, 1)},
		{"two", words(1<<32 | 2), 2, words(1<<32|2, 1, 2)},
		{"highest id", words(all<<32 | 1), 1, words(all<<32|1, 1)},
		{"id 0", words(1), 1, words(1, 1)},
		{"none", words(7 << 32), 0, words(7 << 32)},
		{"fewer than none", words(7 << 32), 1, refusal(7, "received 1 fds, but expected 0 fds")},
		{"too few", words(7<<32 | 2), 1, refusal(7, "received 1 fds, but expected 2 fds")},
		{"too many", words(7<<32 | 1), 2, refusal(7, "received 2 fds, but expected 1 fds")},
		{"right in 8 bits", words(7<<32 | 257), 1, refusal(7, "received 1 fds, but expected 257 fds")},
		{"all bits", words(7<<32 | all), 1, refusal(7, "received 1 fds, but expected 4294967295 fds")},
		{"1 byte", []byte{1}, 1, refusal(0, "request has 1 bytes, expected 8")},
		{"7 bytes", make([]byte, 7), 1, refusal(0, "request has 7 bytes, expected 8")},
		{"9 bytes", append(words(7<<32|1), 0), 1, refusal(7, "request has 9 bytes, expected 8")},
		{"64 KiB", append(words(7<<32|1), make([]byte, 1<<16-8)...), 1, refusal(7, "request has 65536 bytes, expected 8")},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t)
			conn := f.raw()
			r, w := pipe(t)
			conn.send(c.packet, slices.Repeat([]int{int(w.Fd())}, c.fds)...)
			w.Close()
			got := conn.reply()
			if !bytes.Equal(got, c.want) {
				t.Fatalf("reply %x %q, want %x", got, got, c.want)
			}
			held := (len(got)-headerSize)/slotSize*slotSize + headerSize
			if refused := bytes.Equal(got[:4], []byte{255, 255, 255, 255}); refused || held == headerSize {
				eventually(t, "descriptors closed", func() bool { return closed(r) })
			} else if closed(r) {
				t.Error("descriptor closed")
			}
			// It goes on.
			before := uint64(f.waiting())
			_, w = pipe(t)
			conn.send(words(8<<32|1), int(w.Fd()))
			if got := conn.reply(); !bytes.Equal(got, words(8<<32|1, before+1)) {
				t.Errorf("next reply %x", got)
			}
		})
	}
}

// A release, and the end of a connection, concern its own descriptors that have not been taken.
func TestRelease(t *testing.T) {
	for name, end := range map[string]func(s *Sender) error{
		"release": func(s *Sender) error { return s.Release(t.Context()) },
		"close":   (*Sender).Close,
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t)
			one, other := f.sender(), f.sender()
			lost, lostPipe := f.sentPipe(one)
			takenSlot, takenPipe := f.sentPipe(one)
			kept, keptPipe := f.sentPipe(other)
			d := f.taken([]uint64{takenSlot})[0]
			if err := end(one); err != nil {
				t.Fatal(err)
			}
			eventually(t, "descriptor closed", func() bool { return closed(lostPipe) })
			if _, err := f.Take([]uint64{lost}); err == nil {
				t.Error("its slot is not empty")
			}
			if closed(takenPipe) || closed(keptPipe) {
				t.Error("another descriptor closed")
			}
			d.Close()
			f.taken([]uint64{kept})[0].Close()
			eventually(t, "all closed", func() bool { return closed(takenPipe) && closed(keptPipe) })
			if name == "release" {
				slot, _ := f.sentPipe(one)
				f.taken([]uint64{slot})
			}
		})
	}
}

// R045: a slot that is not there is an error, and whatever was named with it is closed.
func TestTake(t *testing.T) {
	f := serve(t)
	s := f.sender()
	for _, c := range []struct {
		name  string
		lists func(slot uint64) [][]uint64
		want  SlotError
	}{
		{"none", func(uint64) [][]uint64 { return [][]uint64{{0}} }, SlotError{}},
		{"unknown", func(n uint64) [][]uint64 { return [][]uint64{{n, 1000}} }, SlotError{Slot: 1000, Index: 1}},
		{"before", func(n uint64) [][]uint64 { return [][]uint64{{1000}, {n}} }, SlotError{Slot: 1000}},
		{"second list", func(n uint64) [][]uint64 { return [][]uint64{{n}, {1000}} }, SlotError{Slot: 1000, List: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			slot, r := f.sentPipe(s)
			_, err := f.Take(c.lists(slot)...)
			var got *SlotError
			if !errors.As(err, &got) || *got != c.want {
				t.Fatalf("error %v", err)
			}
			if want := fmt.Sprintf("no file descriptor in slot %d", c.want.Slot); err.Error() != want {
				t.Errorf("error %q", err)
			}
			if c.name != "none" {
				eventually(t, "descriptor closed", func() bool { return closed(r) })
			}
		})
	}
	for name, lists := range map[string]func(uint64) [][]uint64{
		"twice in a list":   func(n uint64) [][]uint64 { return [][]uint64{{n, n}} },
		"twice in two":      func(n uint64) [][]uint64 { return [][]uint64{{n}, {n}} },
		"and a third time":  func(n uint64) [][]uint64 { return [][]uint64{{n}, {}, {n, n}} },
		"after it was used": nil,
	} {
		t.Run(name, func(t *testing.T) {
			slot, r := f.sentPipe(s)
			if lists == nil {
				f.taken([]uint64{slot})[0].Close()
				lists = func(n uint64) [][]uint64 { return [][]uint64{{n}} }
			}
			var got *SlotError
			if _, err := f.Take(lists(slot)...); !errors.As(err, &got) || got.Slot != slot {
				t.Errorf("error %v", err)
			}
			eventually(t, "descriptor closed", func() bool { return closed(r) })
		})
	}
	if d := f.taken(nil, []uint64{}); len(d) != 2 || d[0].Numbers() != nil || d[1].Numbers() != nil {
		t.Errorf("nothing is %v", d)
	}
	var none *Descriptors
	none.Close()
	if none.Numbers() != nil {
		t.Error("nil has descriptors")
	}
}

// Slot numbers start at 1 and go round, past those in use.
func TestSlotNumbers(t *testing.T) {
	var s table
	if n := s.put(0, nil); n != 1 {
		t.Errorf("first slot %d", n)
	}
	s.last = ^uint64(0) - 1
	if a, b := s.put(0, nil), s.put(0, nil); a != ^uint64(0) || b != 2 {
		t.Errorf("slots %d, %d", a, b)
	}
	s.takeAll(nil)
	if s.slots != nil {
		t.Error("an empty table has memory")
	}
}

// What is closed may block. That concerns nobody else.
func TestLingering(t *testing.T) {
	f := serve(t)
	begin := time.Now()
	s := f.sender()
	fd, release := lingeringSocket(t)
	another, releaseAnother := lingeringSocket(t) // nobody receives this one
	r, w := pipe(t)
	f.sent(s, fd, int(w.Fd()))
	unix.Close(fd)
	w.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pipe closed", func() bool { return closed(r) })

	other := f.sender()
	slot, r := f.sentPipe(other)
	f.taken([]uint64{slot})[0].Close()
	eventually(t, "another pipe closed", func() bool { return closed(r) })

	conn := f.raw()
	conn.send(words(1<<32|2), another)
	unix.Close(another)
	if reply := conn.reply(); !strings.Contains(string(reply), "received 1 fds") {
		t.Errorf("reply %q", reply)
	}
	if n := f.closer.waiting(); n != 2 {
		t.Errorf("%d descriptors are being closed", n)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > linger/2 {
		t.Errorf("took %v", d)
	}
	release()
	releaseAnother()
	eventually(t, "all closed", func() bool { return f.closer.waiting() == 0 })
}

// Without descriptors left, a request is refused whole, and the next one works.
func TestDescriptorShortage(t *testing.T) {
	f := serve(t)
	conn := f.raw()
	r, w := pipe(t)
	conn.send(words(1 << 32))
	conn.reply() // it has been accepted
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	free, err := unix.Dup(int(w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(free)
	low := old
	low.Cur = uint64(free + 3) // room for less than ten
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	conn.send(words(2<<32|10), slices.Repeat([]int{int(w.Fd())}, 10)...)
	w.Close()
	reply := conn.reply()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(reply), "but expected 10 fds") {
		t.Errorf("reply %q", reply)
	}
	eventually(t, "all closed", func() bool { return closed(r) })
	_, w = pipe(t)
	conn.send(words(3<<32|10), slices.Repeat([]int{int(w.Fd())}, 10)...)
	if reply := conn.reply(); len(reply) != headerSize+10*slotSize {
		t.Errorf("next reply %q", reply)
	}
}

// There is a limit to what waits.
func TestTooMany(t *testing.T) {
	f := serve(t)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < 2*MaxWaiting {
		t.Skipf("limit of descriptors is %d, %v", limit.Cur, err)
	}
	s := f.sender()
	_, w := pipe(t)
	const n = 128
	fds := slices.Repeat([]int{int(w.Fd())}, n)
	var slots []uint64
	for range MaxWaiting / n {
		slots = append(slots, f.sent(s, fds...)...)
	}
	var refused *RefusedError
	if _, err := s.Send(t.Context(), fds[:1]); !errors.As(err, &refused) || !strings.Contains(refused.Text, "4096") {
		t.Errorf("error %v", err)
	}
	f.taken(slots[:n])[0].Close()
	eventually(t, "room for more", func() bool { _, err := s.Send(t.Context(), fds); return err == nil })
}

// A client that does not read is cut off before it costs anything.
func TestDeafClient(t *testing.T) {
	f := serve(t)
	conn := f.raw()
	r, w := pipe(t)
	eventually(t, "client cut off", func() bool {
		err := unix.Sendmsg(conn.fd, words(1<<32|1), unix.UnixRights(int(w.Fd())), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
	})
	w.Close()
	eventually(t, "its descriptors closed", func() bool { return closed(r) })
	if n := f.connections(); n != 0 {
		t.Errorf("%d connections", n)
	}
	slot, _ := f.sentPipe(f.sender())
	f.taken([]uint64{slot})
}

// Packets that are in the queue when a client leaves were never answered: what they carry is closed.
func TestLeftInQueue(t *testing.T) {
	f := serve(t)
	for range 50 {
		conn := f.raw()
		r, w := pipe(t)
		for i := range 20 {
			conn.send(words(uint64(i)<<32|3), slices.Repeat([]int{int(w.Fd())}, 3)...)
		}
		w.Close()
		unix.Shutdown(conn.fd, unix.SHUT_RDWR)
		eventually(t, "all closed", func() bool { return closed(r) })
	}
	eventually(t, "connections end", func() bool { return f.connections() == 0 })
	if n := f.waiting(); n != 0 {
		t.Errorf("%d slots", n)
	}
}

func TestClose(t *testing.T) {
	f := serve(t)
	s := f.sender()
	slot, takenPipe := f.sentPipe(s)
	d := f.taken([]uint64{slot})[0]
	slot, waitingPipe := f.sentPipe(s)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "descriptor closed", func() bool { return closed(waitingPipe) })
	if closed(takenPipe) {
		t.Error("a descriptor that was taken is closed")
	}
	d.Close()
	if _, err := s.Send(t.Context(), d.Numbers()); err == nil {
		t.Error("sent after the end")
	}
	if _, err := f.Take([]uint64{slot}); err == nil {
		t.Error("taken after the end")
	}
	if err := f.Listen(listen(t, f.path+"2")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("listen: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// A new listener takes the place of the old one; connections stay.
func TestListenAgain(t *testing.T) {
	f := serve(t)
	s := f.sender()
	slot, _ := f.sentPipe(s)
	old := f.path
	f.path += "2"
	if err := f.Listen(listen(t, f.path)); err != nil {
		t.Fatal(err)
	}
	other, _ := f.sentPipe(f.sender())
	f.taken([]uint64{slot, other})
	f.sentPipe(s)
	eventually(t, "old socket closed", func() bool {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		return errors.Is(unix.Connect(fd, &unix.SockaddrUnix{Name: old}), unix.ECONNREFUSED)
	})
}

func TestMayConnect(t *testing.T) {
	for _, c := range []struct {
		peer uint32
		own  int
		want bool
	}{
		{0, 0, true}, {0, 1000, true}, {1000, 1000, true}, {1000, 0, false}, {1001, 1000, false}, {65534, 0, false},
		{^uint32(0), -1, false},
	} {
		if got := mayConnect(c.peer, c.own); got != c.want {
			t.Errorf("%d at %d: %t", c.peer, c.own, got)
		}
	}
}

// Another user who gets past the mode of the socket is not served.
func TestStranger(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to connect as somebody else")
	}
	f := serve(t)
	if err := f.Listen(listen(t, "@conmonrs-fdslot-test-"+fmt.Sprint(os.Getpid()))); err != nil {
		t.Fatal(err)
	}
	f.path = "@conmonrs-fdslot-test-" + fmt.Sprint(os.Getpid())
	f.sentPipe(f.sender())
	connected := make(chan error, 1)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its user
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 12345, 12345, 12345); errno != 0 {
			connected <- errno
			return
		}
		connected <- unix.Connect(fd, &unix.SockaddrUnix{Name: f.path})
	}()
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	if reply := (&raw{t, fd}).reply(); reply != nil {
		t.Errorf("reply %q", reply)
	}
	eventually(t, "refusal logged", func() bool { return strings.Contains(fmt.Sprint(f.log.all()), "uid 12345") })
}

// linger is how long the close of a lingering socket takes.
const linger = 60 * time.Second

// lingeringSocket returns a connection with unsent data, and what makes the other end reset it.
func lingeringSocket(t *testing.T) (fd int, release func()) {
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
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(err)
	check(unix.Connect(fd, address))
	peer, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
	check(err)
	for err == nil { // until both buffers are full
		err = unix.Sendto(fd, make([]byte, 1<<16), unix.MSG_DONTWAIT, nil)
	}
	check(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: int32(linger / time.Second)}))
	return fd, func() {
		_ = unix.SetsockoptLinger(peer, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		unix.Close(peer)
	}
}
