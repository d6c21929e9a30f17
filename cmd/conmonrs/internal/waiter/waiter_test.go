package waiter

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newSet(t testing.TB) *Set {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func pipe(t testing.TB) (r, w int) {
	t.Helper()
	p := make([]int, 2)
	if err := unix.Pipe2(p, unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	return p[0], p[1]
}

func wait(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatal("no event in 10 s")
	}
}

func TestFiresOncePerArm(t *testing.T) {
	s := newSet(t)
	r, w := pipe(t)
	fired := make(chan struct{}, 10)
	watch := s.Watch(r, func() { fired <- struct{}{} })
	if _, err := unix.Write(w, []byte("x")); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := watch.Arm(); err != nil {
			t.Fatal(err)
		}
		wait(t, fired) // the byte is still there: each Arm fires
	}
	// Another descriptor's event comes after any second event of the first.
	r2, w2 := pipe(t)
	other := make(chan struct{}, 1)
	if err := s.Watch(r2, func() { other <- struct{}{} }).Arm(); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(w2, []byte("x")); err != nil {
		t.Fatal(err)
	}
	wait(t, other)
	if len(fired) != 0 {
		t.Fatal("fired without Arm")
	}
}

func TestHangUpFires(t *testing.T) {
	s := newSet(t)
	p := make([]int, 2)
	if err := unix.Pipe2(p, unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	fired := make(chan struct{}, 1)
	if err := s.Watch(p[0], func() { fired <- struct{}{} }).Arm(); err != nil {
		t.Fatal(err)
	}
	unix.Close(p[1])
	wait(t, fired)
}

func TestArmInsideReady(t *testing.T) {
	s := newSet(t)
	r, w := pipe(t)
	fired := make(chan struct{}, 1)
	var watch *Watch
	watch = s.Watch(r, func() {
		var b [1]byte
		if _, err := unix.Read(r, b[:]); err != nil {
			t.Error(err)
		}
		if err := watch.Arm(); err != nil {
			t.Error(err)
		}
		fired <- struct{}{}
	})
	if err := watch.Arm(); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if _, err := unix.Write(w, []byte("x")); err != nil {
			t.Fatal(err)
		}
		wait(t, fired)
	}
}

func TestClosedWatchNeverFires(t *testing.T) {
	s := newSet(t)
	r, w := pipe(t)
	watch := s.Watch(r, func() { t.Error("fired after Close") })
	if err := watch.Arm(); err != nil {
		t.Fatal(err)
	}
	watch.Close()
	watch.Close()
	if err := watch.Arm(); !errors.Is(err, os.ErrClosed) {
		t.Fatalf("Arm after Close: %v", err)
	}
	if _, err := unix.Write(w, []byte("x")); err != nil {
		t.Fatal(err)
	}
	fired := make(chan struct{}, 1)
	if err := s.Watch(r, func() { fired <- struct{}{} }).Arm(); err != nil {
		t.Fatal(err)
	}
	wait(t, fired)
	if n := s.Len(); n != 1 {
		t.Fatalf("%d watches, want 1", n)
	}
}

func TestMoreEventsThanOneBatch(t *testing.T) {
	s := newSet(t)
	const n = 3*batch + 1
	fired := make(chan struct{}, n)
	for range n {
		r, w := pipe(t)
		if _, err := unix.Write(w, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := s.Watch(r, func() { fired <- struct{}{} }).Arm(); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		wait(t, fired)
	}
}

func TestCloseEndsGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		s, err := New()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// A goroutine has gone a moment after it has said so.
	for end := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
	}
}

// BenchmarkIdleWatch reports what one more quiet descriptor costs: the figure that the package exists for.
func BenchmarkIdleWatch(b *testing.B) {
	s := newSet(b)
	r, _ := pipe(b)
	fds := make([]int, b.N)
	for i := range fds {
		fd, err := unix.FcntlInt(uintptr(r), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			b.Skipf("descriptor %d: %v", i, err)
		}
		fds[i] = fd
	}
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	for _, fd := range fds {
		if err := s.Watch(fd, func() {}).Arm(); err != nil {
			b.Fatal(err)
		}
	}
}
