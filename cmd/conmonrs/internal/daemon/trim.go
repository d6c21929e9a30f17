package daemon

import (
	"bytes"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/conmonrs/conmonrs/cmd/internal/pages"
)

// Limits of a Trimmer.
const (
	// quiet is how long nothing must have happened.
	quiet = 2 * time.Second
	// manyPages and muchGarbage are the sizes, in bytes, above which something is done. Dropping pages costs a fraction of a
	// millisecond, now and when they are needed again. A collection costs some milliseconds and takes a quarter of a
	// MiB itself: a pod whose probes run every few seconds is to pay that once in a while only.
	manyPages   = 2 << 20
	muchGarbage = 2 << 20
)

// Trimmer gives back, some time after the last activity, what it left in memory: garbage, and pages of the executable that
// are not needed while nothing happens. The zero value is ready for use. It has no goroutine, and no timer while the
// monitor is idle.
type Trimmer struct {
	mu     sync.Mutex
	timer  *time.Timer // nil: nothing has happened since the last look
	last   time.Time
	closed bool
}

// Touch says that something has happened.
func (t *Trimmer) Touch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = time.Now()
	if t.timer == nil && !t.closed {
		t.timer = time.AfterFunc(quiet, t.look)
	}
}

func (t *Trimmer) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch left := quiet - time.Since(t.last); {
	case t.closed:
	case left > 0:
		t.timer.Reset(left)
		return
	default:
		files, private := resident()
		if private > muchGarbage {
			debug.FreeOSMemory()
		}
		if files > manyPages {
			own := pages.Own()
			own.Drop()
		}
	}
	t.timer = nil
}

// Close ends what Touch began.
func (t *Trimmer) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

// resident returns how much of files is mapped, and how much memory is this process's own, in bytes; proc_pid_statm(5).
func resident() (files, own int) {
	var buf [128]byte
	f, err := os.Open("/proc/self/statm")
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	n, _ := f.Read(buf[:])
	all, files := parseStatm(buf[:n])
	return files * os.Getpagesize(), (all - files) * os.Getpagesize()
}

// parseStatm returns the second and the third number: all that is resident, and what of it belongs to files, in pages.
func parseStatm(statm []byte) (all, files int) {
	fields := bytes.SplitN(statm, []byte(" "), 4)
	if len(fields) < 4 {
		return 0, 0
	}
	all, err := strconv.Atoi(string(fields[1]))
	files, err2 := strconv.Atoi(string(fields[2]))
	if err != nil || err2 != nil || files < 0 || all < files {
		return 0, 0
	}
	return all, files
}
