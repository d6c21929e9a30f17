package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/logcheck"
)

const (
	lossBegins = "output is lost until it works again"
	lossEnded  = "log file lost output"
)

// smallDisk mounts a file system of some KiB at full in the pod's directory.
func (p *pod) smallDisk(size int) (dir string) {
	p.t.Helper()
	dir = p.path("full")
	if err := os.Mkdir(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dk", size)); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// even are lines of one length: each record of a whole one has 141 bytes, and a read that cuts one adds 41.
func even(total int64) numbered {
	return numbered{spec: logcheck.Spec{Min: 100, Max: 100}, bytes: total}
}

const (
	evenRecord  = 40 + 100 + 1
	evenCut     = 40 + 1
	evenPerLine = 101
)

// checkLoss checks that the monitor has told of one loss, once when it began and once with what is exactly missing.
func (p *pod) checkLoss(path string, written int64) {
	p.t.Helper()
	begun, ended := p.reported(lossBegins), p.reported(lossEnded)
	if len(begun) != 1 || len(ended) != 1 {
		p.t.Fatalf("reported %q and %q", begun, ended)
	}
	if lost := number(p.t, ended[0], "records"); lost <= 0 {
		p.t.Errorf("reported %q", ended[0])
	}
	missing := number(p.t, ended[0], "bytes")
	whole := written / evenPerLine * evenRecord
	if cuts := fileSize(path) + missing - whole; missing <= 0 || cuts < 0 || cuts%evenCut != 0 || cuts/evenCut > written/1000 {
		p.t.Errorf("%d bytes in the log and %d lost, which is not %d and some cuts", fileSize(path), missing, whole)
	}
}

// R003: a container on a full disk runs to its end, and its exit code is right.
func TestLogFullDisk(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		n := even(5 << 20)
		req := p.request("c", p.script(n.command()+"; exit 7"))
		req.LogDrivers[0].Path = p.smallDisk(1024) + "/log"
		p.runRequest(req)
		p.wantExit("c", 7)
		p.alive()
		eventually(t, exitLimit, "loss is reported", func() bool { return len(p.reported(lossEnded)) > 0 })
		written := int64(n.lines(t)[logcheck.Stdout]) * evenPerLine
		p.checkLoss(req.LogDrivers[0].Path, written)
		// What is there is whole records, and until the disk was full every line.
		check, whole := n.verifier(t), 0
		for _, r := range records(t, logcheck.ParseCRI, req.LogDrivers[0].Path) {
			if check.Record(r) != nil {
				break
			}
			whole++
		}
		if whole < 6000 {
			t.Errorf("only the first %d records are right", whole)
		}
	})
}

// R003: when there is space again, logging goes on by itself; the loss is reported once, with its amount.
func TestLogSpaceAgain(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		n := even(500_000)
		o := p.script(n.command() + "; touch /mnt/written; " + await("go") +
			"n=0; while ! test -e /mnt/end; do n=$((n+1)); printf '%099d.\\n' $n; usleep 10000; done; exit 7")
		req := p.request("c", o)
		disk := p.smallDisk(256)
		filler := disk + "/filler"
		if err := os.WriteFile(filler, make([]byte, 128<<10), 0o644); err != nil {
			t.Fatal(err)
		}
		path := disk + "/log"
		req.LogDrivers[0].Path = path
		p.runRequest(req)
		eventually(t, exitLimit, "reading goes on", func() bool { return fileSize(p.path("shared/written")) >= 0 })
		eventually(t, exitLimit, "beginning of the loss is reported", func() bool { return len(p.reported(lossBegins)) == 1 })
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		size := fileSize(path)
		p.release("go")
		eventually(t, exitLimit, "later lines are logged", func() bool { return fileSize(path) > size })
		eventually(t, exitLimit, "end of the loss is reported while the container runs", func() bool { return len(p.reported(lossEnded)) == 1 })
		p.release("end")
		p.wantExit("c", 7)
		all := records(t, logcheck.ParseCRI, path)
		later := 0
		for _, r := range all {
			if !r.Partial && strings.HasPrefix(string(r.Content), "00000") {
				later++
			}
		}
		var last int
		if _, err := fmt.Sscanf(string(all[len(all)-1].Content), "%d.", &last); err != nil || last != later {
			t.Errorf("%d lines after the loss, the last is %q (%v)", later, all[len(all)-1].Content, err)
		}
		p.checkLoss(path, (int64(n.lines(t)[logcheck.Stdout])+int64(last))*evenPerLine)
	})
}

// A driver that fails does not keep the others from the output, whatever their order.
func TestLogFailingDriver(t *testing.T) {
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		n := numbered{spec: logcheck.Spec{Min: 1, Max: 8192, Seed: 3}, bytes: 2 << 20, both: !v.terminal}
		req := p.request("c", p.script(n.command()))
		full := p.smallDisk(64)
		good := req.LogDrivers[0]
		req.LogDrivers = []conmon.LogDriver{
			{Type: conmon.LogDriverJSON, Path: full + "/json"}, good, {Type: conmon.LogDriverCRI, Path: full + "/cri"},
			{Type: conmon.LogDriverJSON, Path: p.path("logs/json")},
		}
		p.runRequest(req)
		p.wantExit("c", 0)
		n.verify(t, v.format(conmon.LogDriverCRI), good.Path)
		n.verify(t, v.format(conmon.LogDriverJSON), p.path("logs/json"))
		for kind, name := range map[conmon.LogDriverType]string{conmon.LogDriverJSON: "json", conmon.LogDriverCRI: "cri"} {
			_ = records(t, v.format(kind), filepath.Join(full, name)) // whole lines, or it fails
			eventually(t, exitLimit, "loss is reported", func() bool {
				lines := p.reported(lossEnded)
				return len(lines) == 2 && strings.Contains(lines[0]+lines[1], filepath.Join(full, name))
			})
		}
	})
}

// frozenDisk is a file system on which every write hangs between freeze and thaw.
func (p *pod) frozenDisk() (dir string, freeze, thaw func()) {
	p.t.Helper()
	image, dir := p.path("image"), p.path("frozen")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 64<<20), os.Mkdir(dir, 0o755)); err != nil {
		p.t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			why := fmt.Sprintf("no file system that can be frozen: %s: %v: %s", args[0], err, out)
			if os.Getenv("CONMONRS_TEST_ENV") == "ns" { // no block devices
				p.t.Skip(why)
			}
			unable(p.t, why)
		}
	}
	f, err := os.Open(dir)
	if err != nil {
		p.t.Fatal(err)
	}
	const fifreeze, fithaw = 0xC0045877, 0xC0045878 // linux/fs.h; the argument is not used
	frozen := false
	thaw = func() {
		if frozen {
			if err := unix.IoctlSetInt(int(f.Fd()), fithaw, 0); err != nil {
				p.t.Errorf("thaw: %v", err)
			}
			frozen = false
		}
	}
	freeze = func() {
		p.t.Helper()
		if err := unix.IoctlSetInt(int(f.Fd()), fifreeze, 0); err != nil {
			p.t.Fatalf("freeze: %v", err)
		}
		frozen = true
	}
	p.t.Cleanup(func() {
		thaw()
		_ = f.Close()
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
	return dir, freeze, thaw
}

// R021: a disk that hangs stops the container that logs to it, and nobody else: not its own exit, not its siblings.
func TestLogStuckDisk(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	dir, freeze, thaw := p.frozenDisk()
	n := numbered{spec: logcheck.Spec{Min: 1, Max: 4096, Seed: 21}, bytes: 1 << 20, both: true}
	var stuck []string
	for i := range 5 { // more than there are processors, threads to spare or buffers
		id := fmt.Sprint("stuck-", i)
		req := p.request(id, p.script(n.command()))
		req.LogDrivers[0].Path = filepath.Join(dir, id)
		p.create(req)
		stuck = append(stuck, id)
	}
	freeze()
	for _, id := range stuck {
		p.start(id)
	}
	begin := time.Now()
	fast := []string{"fast-0", "fast-1", "fast-2", "fast-3"}
	for _, id := range fast {
		p.runOptions(id, p.script(n.command()))
	}
	for _, id := range fast {
		p.wantExit(id, 0)
		n.verify(t, p.v.format(conmon.LogDriverCRI), p.path("logs", id))
	}
	p.wantExec(stuck[0], 0, "true")
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("the others took %v", d)
	}
	for _, id := range stuck {
		if p.exited(id) {
			t.Fatalf("%s has ended: the disk does not hang", id)
		}
	}
	begin = time.Now()
	p.mustCommand("kill", stuck[0], "KILL")
	p.wantExit(stuck[0], 137)
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("exit after %v", d)
	}
	thaw()
	for _, id := range stuck[1:] {
		p.wantExit(id, 0)
		n.verify(t, p.v.format(conmon.LogDriverCRI), filepath.Join(dir, id))
	}
}
