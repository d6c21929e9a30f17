package integration

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// echo sends a line through a session at this path, and sees it come back from cat.
func (p *pod) echo(id, path, line string) {
	p.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	s := p.attach(id, path, false, r)
	if _, err := w.WriteString(line); err != nil {
		p.t.Fatal(err)
	}
	eventually(p.t, exitLimit, "line comes back", func() bool { return strings.Contains(s.output(), line) })
	s.cancel()
	<-s.done
}

// Sockets appear where clients ask for them, whatever happened to earlier ones.
func TestAttachSockets(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	p.interactive("c", "exec cat")
	path := p.path("attach")
	p.echo("c", path, "first\n")
	p.echo("c", path, "again\n")
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o700 {
		t.Errorf("socket: %v, %v", info.Mode(), err)
	}

	// Removed, as the published client does it when its last session has ended; who was connected stays so.
	old := p.attachRaw("c", path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	p.echo("c", path, "removed\n")
	old.want(packetStdout, "removed\n")

	// Replaced by somebody else's, which does not listen any more.
	if err := errors.Join(os.Remove(path), staleSocket(path)); err != nil {
		t.Fatal(err)
	}
	p.echo("c", path, "stale\n")
	if err := staleSocket(p.path("stale")); err != nil {
		t.Fatal(err)
	}
	p.echo("c", p.path("stale"), "other stale\n")

	// In directories that are not there, and longer than a socket address.
	long := p.path("a/b", strings.Repeat("l", 100), strings.Repeat("m", 150), "attach")
	if len(long) < 250 {
		t.Fatal(long)
	}
	p.echo("c", long, "long\n")
	if err := os.Remove(long); err != nil {
		t.Fatal(err)
	}
	p.echo("c", long, "long again\n")
	if err := os.RemoveAll(p.path("a")); err != nil {
		t.Fatal(err)
	}
	p.echo("c", long, "directory removed\n")
	for _, line := range []string{"stale\n", "other stale\n", "long\n", "long again\n", "directory removed\n"} {
		old.want(packetStdout, line)
	}
}

func staleSocket(path string) error {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

// What cannot be attached to, or where nothing may be replaced, is an error that says so.
func TestAttachRefused(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	p.interactive("c", "exec cat")
	p.run("ended", "true")
	p.wantExit("ended", 0)
	for _, id := range []string{"unknown", "ended"} {
		if err := p.attachSocket(id, p.path("attach-"+id)); !errors.Is(err, conmon.ErrContainerNotFound) {
			t.Errorf("%s: %v", id, err)
		}
		if _, err := os.Lstat(p.path("attach-" + id)); err == nil {
			t.Errorf("%s has a socket", id)
		}
	}
	fds := openCount(p.pid)
	live, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: p.path("live"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	for path, want := range map[string]string{
		p.path("live"):                   p.path("live"),
		p.path("monitor.log"):            p.path("monitor.log"),
		p.path("logs"):                   p.path("logs"),
		p.path("logs/c/attach"):          p.path("logs/c"),
		"relative/attach":                "socketPath",
		"":                               "socketPath",
		p.path(strings.Repeat("n", 300)): strings.Repeat("n", 300),
	} {
		if err := p.attachSocket("c", path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100q: %v", path, err)
		}
	}
	p.settled(fds)
	for _, path := range []string{"live", "monitor.log", "logs"} {
		if _, err := os.Lstat(filepath.Join(p.dir, path)); err != nil {
			t.Error(err)
		}
	}
	p.echo("c", p.path("attach"), "alive\n")
}
