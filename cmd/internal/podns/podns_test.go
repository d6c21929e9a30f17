package podns

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestArgs(t *testing.T) {
	for _, test := range []struct {
		name string
		req  Request
		want string
	}{
		{"nothing of its own", Request{Base: "/b", PodID: "p"}, "--base-path=/b --pod-id=p"},
		{
			"all, twice", Request{Base: "/b", PodID: "p", Unshare: []Kind{UTS, User, Net, PID, IPC, UTS}},
			"--base-path=/b --pod-id=p --ipc --pid --net --user --uts",
		},
		{
			"mappings", Request{Base: "/b=c", PodID: "p", UIDMappings: []string{"0 1 2", ""}, GIDMappings: []string{"--pid"}},
			"--base-path=/b=c --pod-id=p --uid-mappings=0 1 2 --uid-mappings= --gid-mappings=--pid",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			args := test.req.Args()
			if got := strings.Join(args, " "); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
			back, err := Parse(args)
			if err != nil || !slices.Equal(back.Args(), args) {
				t.Errorf("%+v, %v", back, err)
			}
		})
	}
	for _, bad := range []string{"", "--ipcs", "--pid=", "--base-path", "-p", "x", "--mnt"} {
		if r, err := Parse([]string{bad}); err == nil {
			t.Errorf("%q: %+v", bad, r)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("--base-path=/b\x00--pod-id=p\x00--ipc\x00--user\x00--uid-mappings=0 1 2\x00--gid-mappings=0 1 2")
	f.Add("--pid\x00--pid")
	f.Fuzz(func(t *testing.T, line string) {
		r, err := Parse(strings.Split(line, "\x00"))
		if err != nil {
			return
		}
		again, err := Parse(r.Args())
		if err != nil || !slices.Equal(again.Args(), r.Args()) {
			t.Errorf("%q becomes %q, %v", r.Args(), again.Args(), err)
		}
	})
}

func TestPaths(t *testing.T) {
	r := &Request{Base: "/var/run", PodID: "a.b"}
	if got := r.Path(IPC); got != "/var/run/ipcns/a.b" {
		t.Error(got)
	}
	if got := r.PIDFile(); got != "/var/run/conmonrs/a.b.pid" {
		t.Error(got)
	}
}

// What was never bound: files of a reboot go, what is somebody else's stays.
func TestRemove(t *testing.T) {
	r := &Request{Base: t.TempDir(), PodID: "p"}
	if err := r.Remove(); err != nil {
		t.Errorf("nothing there: %v", err)
	}
	for _, k := range Kinds() {
		if err := os.MkdirAll(filepath.Dir(r.Path(k)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(r.Path(IPC), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.Path(UTS), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", r.Path(Net)); err != nil {
		t.Fatal(err)
	}
	if err := r.Remove(); err != nil {
		t.Error(err)
	}
	for k, want := range map[Kind]bool{IPC: false, UTS: true, Net: true} {
		if _, err := os.Lstat(r.Path(k)); (err == nil) != want {
			t.Errorf("%s: %v", k, err)
		}
	}
	if IsBound(r.Path(UTS)) || IsBound(r.Path(PID)) || !IsBound("/proc/self/ns/pid") {
		t.Error("what is bound is not told from what is not")
	}
	if err := (&Request{Base: r.Path(UTS), PodID: "p"}).Remove(); err != nil {
		t.Errorf("base is a file: %v", err)
	}
}
