package client_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/server"
	"golang.org/x/sys/unix"
)

// fdService has a descriptor socket at a path longer than an address.
type fdService struct {
	server.Service
	*server.FDSlots
	path string
}

func (s fdService) StartFDSocket(context.Context, *conmon.StartFDSocketRequest) (*conmon.StartFDSocketResponse, error) {
	return &conmon.StartFDSocketResponse{Path: s.path}, nil
}

type fdListener struct{ file *os.File }

func (l fdListener) File() *os.File { return l.file }
func (l fdListener) Close() error   { return l.file.Close() }

// serveFDs returns a client of such a service.
func serveFDs(t *testing.T) (fdService, *client.Client) {
	t.Helper()
	checkLeaks(t)
	var polls sync.WaitGroup
	ended := make(chan struct{})
	slots := server.NewFDSlots(server.FDOptions{Poll: func(fd int, ready func()) (arm func() error, cancel func()) {
		cancelled := make(chan struct{})
		arm = func() error {
			polls.Go(func() {
				for {
					select {
					case <-cancelled:
						return
					case <-ended:
						return
					default:
					}
					if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1); n > 0 {
						ready()
						return
					}
				}
			})
			return nil
		}
		return arm, sync.OnceFunc(func() { close(cancelled) })
	}})
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir) // binds to a short name
	err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: "fd"}), unix.Listen(fd, 4))
	if err == nil {
		err = slots.Listen(fdListener{os.NewFile(uintptr(fd), "fd")})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = slots.Close()
		close(ended)
		polls.Wait()
	})
	svc := fdService{FDSlots: slots, path: filepath.Join(dir, "fd")}
	_, control := serveService(t, svc)
	return svc, dial(t, control)
}

func openFDs(t *testing.T, c *client.Client) *client.FDs {
	t.Helper()
	f, err := c.OpenFDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return f
}

func filePipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// What is sent is what is taken, in order, and the sender's files stay as they were.
func TestSendFiles(t *testing.T) {
	svc, c := serveFDs(t)
	f := openFDs(t, c)
	for _, n := range []int{1, 100, client.MaxFDs} {
		r, w := filePipe(t)
		files := make([]*os.File, n)
		for i := range files {
			files[i] = r
		}
		files[n-1] = w
		slots, err := f.Send(t.Context(), files...)
		if err != nil || len(slots) != n {
			t.Fatalf("%d: %d slots, %v", n, len(slots), err)
		}
		w.Close()
		d, err := svc.Take(slots[n-1:], slots[:n-1])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := syscall.Write(d[0].Numbers()[0], []byte("x")); err != nil {
			t.Error(err)
		}
		d[0].Close()
		d[1].Close()
		// Reading with a deadline needs the pipe to be as package os has made it.
		if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Error(err)
		}
		b := make([]byte, 2)
		if n, err := r.Read(b); n != 1 || err != nil {
			t.Errorf("read %d, %v", n, err)
		}
		if _, err := r.Read(b); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("end: %v", err)
		}
	}
	if slots, err := f.Send(t.Context()); slots != nil || err != nil {
		t.Errorf("none: %v, %v", slots, err)
	}
}

func TestSendFilesErrors(t *testing.T) {
	svc, c := serveFDs(t)
	f := openFDs(t, c)
	r, w := filePipe(t)
	w.Close()
	var invalid *conmon.InvalidError
	if _, err := f.Send(t.Context(), make([]*os.File, client.MaxFDs+1)...); !errors.As(err, &invalid) {
		t.Errorf("too many: %v", err)
	}
	if _, err := f.Send(t.Context(), r, w); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := f.Send(t.Context(), r, nil); !errors.Is(err, os.ErrInvalid) {
		t.Errorf("nil: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Send(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	slots, err := f.Send(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := f.Send(t.Context(), r) // the answer comes after the release was dealt with
	if err != nil {
		t.Fatal(err)
	}
	if _, err := svc.Take(slots); err == nil {
		t.Error("taken after the release")
	}
	for range 40 {
		if _, err = f.Send(t.Context(), many(r)...); err != nil {
			break
		}
	}
	var refused *client.FDError
	if !errors.As(err, &refused) || !strings.HasPrefix(err.Error(), "send files: monitor refused descriptors: ") {
		t.Errorf("without end: %v", err)
	}
	if err := svc.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Send(t.Context(), r); !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("monitor gone: %v", err)
	}
	_ = f.Close()
	if _, err := f.Send(t.Context(), r); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed connection: %v", err)
	}
	if len(again) != 1 {
		t.Errorf("slots %v", again)
	}
}

func many(f *os.File) []*os.File {
	files := make([]*os.File, client.MaxFDs)
	for i := range files {
		files[i] = f
	}
	return files
}

// A monitor without descriptor socket says so; one whose socket has gone does too.
func TestOpenFDsErrors(t *testing.T) {
	svc, c := serveFDs(t)
	if err := os.Remove(svc.path); err != nil {
		t.Fatal(err)
	}
	if _, err := c.OpenFDs(t.Context()); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("no socket: %v", err)
	}
}
