package integration

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// vmLimit is for what the machine does on its own; it may be an emulation, tens of times slower than a real one.
const vmLimit = 60 * time.Second

// needVM is called by every test whose name begins with TestVM. run-integration runs these in the virtual machine of
// test/env/vm only: they need unified cgroups with all controllers, or the machine's kernel settings for themselves.
func needVM(t *testing.T) {
	t.Helper()
	if os.Getenv("CONMONRS_TEST_ENV") != "vm" {
		unable(t, "needs the virtual machine (make integration-vm)")
	}
}

// A pod's life on unified cgroups, as Linux distributions have them.
func TestVMLifecycle(t *testing.T) {
	needVM(t)
	each(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		p.run("c", "sh", "-c", "echo hello; while [ ! -e /tmp/stop ]; do usleep 50000; done; exit 7")
		want := "/" + p.name + "-c"
		if v.manager == conmon.CgroupManagerSystemd {
			want = "/system.slice" + want + ".scope"
		}
		if group := p.onlyCgroup("c"); !strings.HasPrefix(group, want) {
			t.Errorf("the container is in %s, want %s", group, want)
		}
		p.waitOutput("c", "hello\n")
		if out := p.wantExec("c", 4, "sh", "-c", "echo out; exit 4"); out != "out\n" {
			t.Errorf("exec printed %q", out)
		}
		p.wantExec("c", 0, "touch", "/tmp/stop")
		p.wantExit("c", 7)
		if out := p.output("c"); out != "hello\n" {
			t.Errorf("log is %q", out)
		}
		p.remove("c")
	})
}

// onlyCgroup returns the control group of the container's processes, in the unified hierarchy.
func (p *pod) onlyCgroup(id string) string {
	p.t.Helper()
	processes := p.containerProcesses(id)
	if len(processes) == 0 {
		p.t.Fatal("no process of the container")
	}
	group, ok := strings.CutPrefix(readFile(p.t, "/proc/"+strconv.Itoa(processes[0].pid)+"/cgroup"), "0::")
	if !ok || strings.Count(group, "\n") != 1 {
		p.t.Fatalf("control groups %q, want one, unified", group)
	}
	return group
}

// R148: a crash leaves a core dump and a traceback where people look, and an exit status that an engine sees. The
// containers run on, and the next monitor starts. A real panic is not forced here: that would need a
// hook in the monitor. The Go runtime ends it by the same code as these signals, as the tests of package daemon show.
func TestVMCrash(t *testing.T) {
	needVM(t)
	for name, c := range map[string]struct {
		signal syscall.Signal
		text   string
		before func(p *pod)
	}{
		"fault":              {unix.SIGSEGV, "SIGSEGV: segmentation violation", func(*pod) {}},
		"abort":              {unix.SIGABRT, "SIGABRT: abort", func(*pod) {}},
		"core limit 0":       {unix.SIGSEGV, "SIGSEGV: segmentation violation", (*pod).forbidCore},
		"journald restarted": {unix.SIGABRT, "SIGABRT: abort", func(p *pod) { p.systemctl("restart", "systemd-journald") }},
		"journald stopped":   {unix.SIGABRT, "SIGABRT: abort", (*pod).stopJournald},
	} {
		t.Run(name, func(t *testing.T) {
			p := preparePod(t, anyVariant(), podOptions{})
			becomeSubreaper(t)
			if out, err := p.byHand(podOptions{}).CombinedOutput(); err != nil || len(out) > 0 {
				t.Fatalf("%v, printed %q", err, out)
			}
			p.dial()
			pid := p.run("c", "sleep", "1000")
			c.before(p)
			unit := unitOf(t, p.pid)
			if err := unix.Kill(p.pid, c.signal); err != nil {
				t.Fatal(err)
			}
			var status syscall.WaitStatus
			if _, err := syscall.Wait4(p.pid, &status, 0, nil); err != nil || status.Signal() != unix.SIGABRT {
				t.Errorf("status %#x, %v; want death by SIGABRT", status, err)
			}
			p.checkTraceback(c.text, unit)
			p.checkDump(unit)
			if !alivePID(pid) {
				t.Error("the container has gone too")
			}
			if err := p.startMonitor(podOptions{}); err != nil {
				t.Fatal(err)
			}
			p.wantExec("c", 3, "sh", "-c", "exit 3")
		})
	}
}

// becomeSubreaper lets this process wait for monitors in the background, as a service manager does.
func becomeSubreaper(t *testing.T) {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
}

func (p *pod) forbidCore() {
	if err := unix.Prlimit(p.pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil); err != nil {
		p.t.Fatal(err)
	}
}

// stopJournald ends the monitor's connection. It is renewed when the monitor has something to do.
func (p *pod) stopJournald() {
	p.t.Helper()
	before := descriptors(p.pid)[2]
	p.systemctl("stop", "systemd-journald")
	p.systemctl("start", "systemd-journald")
	p.wantExec("c", 0, "true")
	if now := descriptors(p.pid)[2]; now == before || !strings.HasPrefix(now, "socket:") {
		p.t.Errorf("standard error of the monitor is %s, was %s", now, before)
	}
}

func (p *pod) systemctl(args ...string) {
	p.t.Helper()
	if out, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil {
		p.t.Fatalf("systemctl %q: %v: %s", args, err, out)
	}
}

// unitOf returns the systemd unit that a process belongs to.
func unitOf(t *testing.T, pid int) string {
	t.Helper()
	group := strings.TrimSpace(readFile(t, "/proc/"+strconv.Itoa(pid)+"/cgroup"))
	for name := range strings.SplitSeq(group, "/") {
		if strings.HasSuffix(name, ".scope") || strings.HasSuffix(name, ".service") {
			return name
		}
	}
	t.Fatalf("process %d is in no unit: %s", pid, group)
	return ""
}

// checkTraceback looks for it as people do: under the name, of the unit.
func (p *pod) checkTraceback(text, unit string) {
	p.t.Helper()
	args := []string{"-t", "conmonrs", "-u", unit, "_PID=" + strconv.Itoa(p.pid), "PRIORITY=2", "-o", "cat", "--no-pager"}
	var got string
	if !poll(vmLimit, func() bool {
		got = journal(p.t, args...)
		return strings.Contains(got, text) && strings.Contains(got, "goroutine 1 ") && strings.Contains(got, "main.main()")
	}) {
		p.t.Errorf("no traceback with %q in the journal, but %.3000q", text, got)
	}
}

func (p *pod) checkDump(unit string) {
	p.t.Helper()
	var got []byte
	eventually(p.t, vmLimit, "coredumpctl has the dump", func() bool {
		got, _ = exec.Command("coredumpctl", "--no-pager", "info", strconv.Itoa(p.pid)).CombinedOutput()
		return bytes.Contains(got, []byte("Storage:"))
	})
	for _, want := range []string{
		" (conmonrs)\n", "Signal: 6 (ABRT)", "Executable: " + os.Getenv("CONMONRS_BINARY") + "\n",
		"Unit: " + unit + "\n", "(present)\n",
	} {
		if !bytes.Contains(got, []byte(want)) {
			p.t.Errorf("no %q in what coredumpctl says:\n%s", want, got)
		}
	}
}
