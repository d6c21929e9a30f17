package integration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// allKinds is the order of answers.
var allKinds = []conmon.Namespace{
	conmon.NamespaceIPC, conmon.NamespacePID, conmon.NamespaceNet, conmon.NamespaceUser, conmon.NamespaceUTS,
}

// Mappings of three ranges, as lines and as a bundle has them.
var (
	threeRanges = []string{"0 100000 1000", "1000 200000 500", "1500  300000\t500"}
	threeIDs    = []bundle.IDMapping{
		{HostID: 100000, Size: 1000}, {ContainerID: 1000, HostID: 200000, Size: 500}, {ContainerID: 1500, HostID: 300000, Size: 500},
	}
)

// namespaces asks for namespaces below the pod's own directory.
func (p *pod) namespaces(kinds ...conmon.Namespace) *conmon.CreateNamespacesRequest {
	req := &conmon.CreateNamespacesRequest{Namespaces: kinds, BasePath: p.path("ns"), PodID: p.name}
	if slices.Contains(kinds, conmon.NamespaceUser) {
		req.UIDMappings, req.GIDMappings = threeRanges, threeRanges
	}
	return req
}

// createNamespaces returns the paths by kind. At the end of the test nothing may be left of them.
func (p *pod) createNamespaces(req *conmon.CreateNamespacesRequest) map[conmon.Namespace]string {
	p.t.Helper()
	r, err := p.client.CreateNamespaces(p.ctx(), req)
	if err != nil {
		p.t.Fatal(err)
	}
	paths := map[conmon.Namespace]string{}
	var order []conmon.Namespace
	for _, n := range r.Namespaces {
		order = append(order, n.Type)
		paths[n.Type] = n.Path
	}
	if !slices.Equal(order, allKinds) {
		p.t.Errorf("answer has %v", order)
	}
	return paths
}

// holders are the processes that hold a pid namespace for the pod.
func (p *pod) holders() []process {
	return matching(func(proc process) bool {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", proc.pid))
		return string(b) == "conmonrs-pause\x00hold\x00"+p.name+"\x00"
	})
}

// boundFiles are the files and the mounts of the pod below a base path.
func (p *pod) boundFiles(base string) (found []string) {
	files, _ := filepath.Glob(base + "/*ns/" + p.name)
	state, _ := filepath.Glob(base + "/conmonrs/" + p.name + "*")
	return slices.Concat(files, state, mounts("self", p.name))
}

// mounts lists what is mounted below paths with that text, as a process sees it.
func mounts(pid, text string) (found []string) {
	b, _ := os.ReadFile("/proc/" + pid + "/mountinfo")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.Contains(f[4], text) {
			found = append(found, f[4])
		}
	}
	return found
}

// wantNoNamespaces checks that nothing is left of what createNamespaces has made.
func (p *pod) wantNoNamespaces() {
	p.t.Helper()
	if left := p.boundFiles(p.path("ns")); len(left) > 0 {
		p.t.Errorf("left behind: %v", left)
	}
	if exists(p.path("run", "namespaces")) {
		p.t.Error("record left behind")
	}
	if !poll(exitLimit, func() bool { return len(p.holders()) == 0 }) {
		p.t.Errorf("left behind: %v", p.holders())
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return st.Ino
}

// owner returns the inode of the user namespace that owns the one at path, ioctl_nsfs(2).
func owner(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	return inode(t, "/proc/self/fd/"+strconv.Itoa(fd))
}

func (p *pod) pidFile() int {
	p.t.Helper()
	b, err := os.ReadFile(p.path("ns/conmonrs", p.name+".pid"))
	if err != nil {
		p.t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(b)) // no newline
	if err != nil {
		p.t.Fatal(err)
	}
	return pid
}

// R123, R124, R125, R127: every combination is what was asked for; what was not is the host's; nothing is left.
func TestNamespaces(t *testing.T) {
	for set := range 1 << len(allKinds) {
		var kinds []conmon.Namespace
		name := "none"
		for i, k := range allKinds {
			if set&(1<<i) != 0 {
				kinds = append(kinds, k)
				name = strings.TrimPrefix(name+"+"+k.String(), "none+")
			}
		}
		t.Run(name, func(t *testing.T) {
			p := newPod(t, anyVariant(), podOptions{})
			paths := p.createNamespaces(p.namespaces(kinds...))
			for _, k := range allKinds {
				p.checkNamespace(k, paths[k], slices.Contains(kinds, k))
			}
			p.checkOwners(paths, kinds)
			p.checkHolder(paths, kinds)
			p.shutdown()
			p.wantNoNamespaces()
		})
	}
}

func (p *pod) checkNamespace(k conmon.Namespace, path string, own bool) {
	p.t.Helper()
	if want := p.path("ns", k.String()+"ns", p.name); path != want {
		p.t.Errorf("path %q, want %q", path, want)
	}
	info, err := os.Lstat(path)
	if err != nil {
		p.t.Fatal(err)
	}
	if info.Mode() != 0o444 || info.Size() != 0 {
		p.t.Errorf("%s: %v, %d bytes", path, info.Mode(), info.Size())
	}
	host := inode(p.t, "/proc/self/ns/"+k.String())
	if got := inode(p.t, path); (got != host) != own {
		p.t.Errorf("%s namespace %d, the host's is %d, unshared: %v", k, got, host, own)
	}
}

// checkOwners: with a user namespace all others that are new belong to it, without to the host's.
func (p *pod) checkOwners(paths map[conmon.Namespace]string, kinds []conmon.Namespace) {
	p.t.Helper()
	user := inode(p.t, paths[conmon.NamespaceUser])
	for _, k := range kinds {
		if k == conmon.NamespaceUser {
			continue
		}
		if got := owner(p.t, paths[k]); got != user {
			p.t.Errorf("%s namespace belongs to %d, want %d", k, got, user)
		}
	}
	if !slices.Contains(kinds, conmon.NamespaceUser) {
		return
	}
	for _, name := range []string{"uid_map", "gid_map"} {
		out, err := exec.Command("nsenter", "--user="+paths[conmon.NamespaceUser], "--preserve-credentials", "cat", "/proc/self/"+name).Output()
		if err != nil {
			p.t.Fatal(err)
		}
		if got, want := strings.Fields(string(out)), strings.Fields(strings.Join(threeRanges, " ")); !slices.Equal(got, want) {
			p.t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// checkHolder: there is a process if there is a pid namespace, and it is where it should be.
func (p *pod) checkHolder(paths map[conmon.Namespace]string, kinds []conmon.Namespace) {
	p.t.Helper()
	holders := p.holders()
	if !slices.Contains(kinds, conmon.NamespacePID) {
		if len(holders) > 0 || exists(p.path("ns/conmonrs", p.name+".pid")) {
			p.t.Errorf("processes that nobody needs: %v", holders)
		}
		return
	}
	if len(holders) != 1 || holders[0].pid != p.pidFile() {
		p.t.Fatalf("processes %v, pid file %d", holders, p.pidFile())
	}
	pid := holders[0].pid
	for _, k := range kinds {
		if got, want := inode(p.t, fmt.Sprintf("/proc/%d/ns/%s", pid, k)), inode(p.t, paths[k]); got != want {
			p.t.Errorf("process is in %s namespace %d, not %d", k, got, want)
		}
	}
	if parent := statusNumber(pid, "PPid"); parent != p.pid {
		p.t.Errorf("parent is %d, the monitor is %d", parent, p.pid)
	}
	if fields := strings.Fields(statusField(pid, "NSpid")); fields[len(fields)-1] != "1" {
		p.t.Errorf("it is %v, not the init", fields)
	}
	if open := descriptors(pid); len(open) > 0 {
		p.t.Errorf("it has descriptors %v", open)
	}
	if anon := statusNumber(pid, "RssAnon"); anon > 1024 && os.Getenv("CONMONRS_RACE") == "" {
		p.t.Errorf("private memory is %d KiB", anon)
	}
	if name := statusField(pid, "Name"); strings.TrimSpace(name) != "conmonrs-pause" {
		p.t.Errorf("its name is %q", name)
	}
}

// The mounts reach every mount namespace that mounts reach, and so does their end.
func TestNamespacesVisible(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	base := p.path("ns")
	if err := os.Mkdir(base, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
	if err := unix.Mount("", base, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	other := exec.Command("unshare", "--mount", "--propagation", "slave", "sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	pid := strconv.Itoa(other.Process.Pid)
	mine, _ := os.Readlink("/proc/self/ns/mnt")
	eventually(t, exitLimit, "other mount namespace", func() bool {
		its, _ := os.Readlink("/proc/" + pid + "/ns/mnt")
		comm, _ := os.ReadFile("/proc/" + pid + "/comm")
		return its != mine && string(comm) == "sleep\n"
	})
	p.createNamespaces(p.namespaces(allKinds...))
	inside := func() (n int) {
		for _, path := range mounts(pid, p.name) {
			if strings.HasSuffix(path, "ns/"+p.name) {
				n++
			}
		}
		return n
	}
	if n := inside(); n != len(allKinds) {
		t.Errorf("%d mounts elsewhere: %v", n, mounts(pid, p.name))
	}
	p.shutdown()
	if n := inside(); n != 0 {
		t.Errorf("%d mounts left elsewhere", n)
	}
}

// R124, R155: what cannot be is refused in words, and leaves nothing.
func TestNamespacesRefused(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	user := func(uids, gids []string) *conmon.CreateNamespacesRequest {
		req := p.namespaces(allKinds...)
		req.UIDMappings, req.GIDMappings = uids, gids
		return req
	}
	named := func(id string) *conmon.CreateNamespacesRequest {
		req := p.namespaces(conmon.NamespaceNet)
		req.PodID = id
		return req
	}
	good := []string{"0 100000 10"}
	busy := p.path("file")
	if err := os.WriteFile(busy, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	inTheWay := p.namespaces(allKinds...)
	inTheWay.BasePath = p.path("way")
	taken := p.path("way/utsns", p.name)
	if err := os.MkdirAll(filepath.Dir(taken), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(taken, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		req  *conmon.CreateNamespacesRequest
		want string
	}{
		{"no pod id", named(""), "no pod ID provided"},
		{"dots", named(".."), "podId"},
		{"slash", named("a/b"), "podId"},
		{"dash", named("-a"), "podId"},
		{"newline", named("a\nb"), "podId"},
		{"long", named(strings.Repeat("a", 300)), "podId"},
		{"no uids", user(nil, good), "user ID mappings are empty"},
		{"no gids", user(good, nil), "group ID mappings are empty"},
		{"two fields", user([]string{"0 1"}, good), "mapping '0 1' has wrong format, expected 'CONTAINER_ID HOST_ID SIZE'"},
		{"no number", user(good, []string{"0 x 1"}), "mapping '0 x 1' has wrong format, expected all to be u32"},
		{"negative", user([]string{"0 -1 1"}, good), "expected all to be u32"},
		{"too large", user([]string{"0 4294967296 1"}, good), "expected all to be u32"},
		{"empty range", user([]string{"0 1 0"}, good), "expected a range"},
		{"beyond the last id", user([]string{"0 4294967295 1"}, good), "expected a range"},
		{"overlap", user([]string{"0 100000 10", "9 200000 10"}, good), "overlaps '0 100000 10'"},
		{"relative base", &conmon.CreateNamespacesRequest{PodID: "p", BasePath: "x"}, "basePath"},
		{"base is a file", &conmon.CreateNamespacesRequest{PodID: p.name, BasePath: busy}, "not a directory"},
		{"file in the way", inTheWay, "file exists"},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "-"), func(t *testing.T) {
			_, err := p.client.CreateNamespaces(p.ctx(), test.req)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			p.wantNoNamespaces()
		})
	}
	if left := p.boundFiles(p.path("way")); !slices.Equal(left, []string{taken}) {
		t.Errorf("left: %v", left)
	}
	p.createNamespaces(p.namespaces(allKinds...)) // the refusals are no obstacle
	p.shutdown()
	p.wantNoNamespaces()
}

// A pod has one set. What somebody else has bound is not touched.
func TestNamespacesOnce(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	first := p.createNamespaces(p.namespaces(conmon.NamespaceNet, conmon.NamespacePID))
	again := p.createNamespaces(p.namespaces(conmon.NamespacePID, conmon.NamespaceNet, conmon.NamespacePID))
	for k, path := range first {
		if again[k] != path {
			t.Errorf("%s: %s, then %s", k, path, again[k])
		}
	}
	other := p.namespaces(conmon.NamespaceNet, conmon.NamespacePID)
	other.PodID += "x"
	for _, req := range []*conmon.CreateNamespacesRequest{other, p.namespaces(conmon.NamespaceNet)} {
		if _, err := p.client.CreateNamespaces(p.ctx(), req); err == nil || !strings.Contains(err.Error(), "exist already") {
			t.Errorf("%v", err)
		}
	}
	q := newPod(t, anyVariant(), podOptions{})
	if _, err := q.client.CreateNamespaces(q.ctx(), p.namespaces(conmon.NamespaceIPC)); err == nil || !strings.Contains(err.Error(), "exist already") {
		t.Errorf("%v", err)
	}
	q.shutdown()
	p.checkNamespace(conmon.NamespaceNet, first[conmon.NamespaceNet], true)
	if len(p.holders()) != 1 {
		t.Errorf("held by %v", p.holders())
	}
	p.shutdown()
	p.wantNoNamespaces()
}

// R125: containers join the pod's namespaces, with a user namespace and without, and mount what belongs to them.
func TestNamespacesOfContainers(t *testing.T) {
	each(t, func(t *testing.T, v variant) {
		for _, kinds := range [][]conmon.Namespace{
			{conmon.NamespaceIPC, conmon.NamespacePID, conmon.NamespaceNet, conmon.NamespaceUTS}, allKinds,
		} {
			t.Run(strconv.Itoa(len(kinds)), func(t *testing.T) {
				if len(kinds) == len(allKinds) && !v.isCrun() { // crun does with a bind mount then
					needProcMounts(t)
				}
				p := newPod(t, v, podOptions{})
				for _, dir := range []string{p.dir, p.path("bundles")} {
					if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // other users are in the user namespace
						t.Fatal(err)
					}
				}
				paths := p.createNamespaces(p.namespaces(kinds...))
				o := bundle.Options{
					Args: []string{"sh", "-c", "readlink /proc/self/ns/*; ls -d /sys/class; cat /proc/1/comm; sleep 1000"}, Sysfs: true,
					Namespaces: map[string]string{
						"ipc": paths[conmon.NamespaceIPC], "uts": paths[conmon.NamespaceUTS],
						"network": paths[conmon.NamespaceNet], "pid": paths[conmon.NamespacePID],
					},
				}
				if len(kinds) == len(allKinds) {
					o.Namespaces["user"], o.IDs = paths[conmon.NamespaceUser], threeIDs
				}
				for _, id := range []string{"a", "b"} {
					pid := p.runOptions(id, o)
					for _, k := range kinds {
						if got, want := inode(t, fmt.Sprintf("/proc/%d/ns/%s", pid, k)), inode(t, paths[k]); got != want {
							t.Errorf("container is in %s namespace %d, not %d", k, got, want)
						}
					}
					eventually(t, exitLimit, "output", func() bool { return strings.Contains(p.output(id), "conmonrs-pause") })
					if !strings.Contains(p.output(id), "/sys/class") {
						t.Errorf("no sysfs: %s", p.output(id))
					}
				}
				p.shutdown()
				p.wantExit("a", 137)
				p.wantExit("b", 137)
				p.wantNoNamespaces()
			})
		}
	})
}

// needProcMounts skips the test where the root of a user namespace may not mount a proc because parts of the one that is
// there are hidden, mount_namespaces(7).
func needProcMounts(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true").CombinedOutput(); err != nil {
		t.Skipf("no proc can be mounted in user namespaces here: %v: %s", err, out)
	}
}

// Nobody in the pod's pid namespace sees the host through its init, or can end it.
func TestPauseGivesNothingAway(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{conditions: conditions{Copies: []int{3, 77}}})
		paths := p.createNamespaces(p.namespaces(conmon.NamespacePID))
		p.runOptions("c", bundle.Options{Args: []string{"sleep", "1000"}, PIDNamespace: paths[conmon.NamespacePID]})
		for _, what := range []string{"root/etc", "cwd/etc", "fd/3", "environ", "exe"} {
			if r := p.exec("c", callLimit, "sh", "-c", "ls -d /proc/1/"+what+" && cat /proc/1/"+what); r.ExitCode == 0 {
				t.Errorf("container sees %s: %s", what, r.Stdout)
			}
		}
		if entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", p.pidFile())); err != nil || len(entries) > 0 {
			t.Errorf("its root directory has %v, %v", entries, err)
		}
		p.exec("c", callLimit, "sh", "-c", "kill -KILL 1; kill -TERM 1; kill -STOP 1; kill -HUP 1")
		for _, sig := range []unix.Signal{
			unix.SIGTERM, unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGPIPE, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGURG, 64,
		} {
			if err := unix.Kill(p.pidFile(), sig); err != nil {
				t.Fatalf("%v: %v", sig, err)
			}
		}
		p.wantExec("c", 0, "true") // it is alive after all that
		p.shutdown()
		p.wantNoNamespaces()
	})
}

// Orphans of the pod's pid namespace are reaped, however many.
func TestNamespacesOrphans(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		const atOnce = 1000
		p := newPod(t, v, podOptions{})
		paths := p.createNamespaces(p.namespaces(conmon.NamespacePID))
		space := inode(t, paths[conmon.NamespacePID])
		members := func() []process {
			return matching(func(proc process) bool {
				var st unix.Stat_t
				err := unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", proc.pid), &st)
				holder := statusNumber(proc.pid, "PPid") == p.pidFile() // a zombie has no namespaces
				return err == nil && st.Ino == space || holder
			})
		}
		p.runOptions("c", bundle.Options{
			Args: []string{"sleep", "1000"}, PIDNamespace: paths[conmon.NamespacePID],
			Mounts: []bundle.Mount{{Source: tool(t, "orphans"), Destination: "/mnt/orphans"}},
		})
		for range scaled(1) {
			p.wantExec("c", 0, "/mnt/orphans", "-n", strconv.Itoa(atOnce), "-after", "1ms")
			eventually(t, callLimit, "orphans are reaped", func() bool { return len(members()) == 2 }) // init and sleep
		}
		if zombies := p.zombies(); len(zombies) > 0 {
			t.Errorf("the monitor has zombies %v", zombies)
		}
		p.shutdown()
		p.wantNoNamespaces()
	})
}

// A killed monitor leaves everything as it is; the next one in its directory cleans up, and can begin again.
func TestNamespacesAfterKill(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		req := p.namespaces(allKinds...)
		paths := p.createNamespaces(req)
		pid := p.runOptions("c", bundle.Options{Args: []string{"sleep", "1000"}, PIDNamespace: paths[conmon.NamespacePID]})
		p.kill()
		if len(p.holders()) != 1 || !alivePID(pid) {
			t.Errorf("held by %v, container alive %v", p.holders(), alivePID(pid))
		}
		for _, k := range allKinds {
			p.checkNamespace(k, paths[k], true)
		}
		if err := p.startMonitor(podOptions{}); err != nil {
			t.Fatal(err)
		}
		p.wantNoNamespaces()
		eventually(t, exitLimit, "container ends with its pid namespace", func() bool { return !alivePID(pid) })
		p.createNamespaces(req)
		p.shutdown()
		p.wantNoNamespaces()
	})
}

// A pid file that has come to name a stranger is not believed.
func TestNamespacesAfterKillSparesStrangers(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	p.createNamespaces(p.namespaces(allKinds...))
	holder := p.pidFile()
	p.kill()
	if err := unix.Kill(holder, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	stranger := exec.Command("sleep", "1000")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stranger.Process.Kill(); _ = stranger.Wait() })
	if err := os.WriteFile(p.path("ns/conmonrs", p.name+".pid"), []byte(strconv.Itoa(stranger.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.startMonitor(podOptions{}); err != nil {
		t.Fatal(err)
	}
	p.wantNoNamespaces()
	if !alivePID(stranger.Process.Pid) {
		t.Error("a stranger was killed")
	}
}

// R121: the paths stay what they are when the process has gone.
func TestNamespacesWithoutHolder(t *testing.T) {
	p := newPod(t, anyVariant(), podOptions{})
	paths := p.createNamespaces(p.namespaces(allKinds...))
	before := map[conmon.Namespace]uint64{}
	for k, path := range paths {
		before[k] = inode(t, path)
	}
	if err := unix.Kill(p.pidFile(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, exitLimit, "the monitor says so", func() bool {
		return strings.Contains(string(tail(p.log, 4000)), "pid namespace of the pod has ended")
	})
	for k, path := range paths {
		if got := inode(t, path); got != before[k] {
			t.Errorf("%s: %d, was %d", path, got, before[k])
		}
	}
	p.shutdown()
	p.wantNoNamespaces()
}

// R153: files have the same modes whatever umask the engine has.
func TestNamespacesUmask(t *testing.T) {
	for _, umask := range []string{"000", "077"} {
		t.Run(umask, func(t *testing.T) {
			p := newPod(t, anyVariant(), podOptions{conditions: conditions{Umask: umask}})
			p.createNamespaces(p.namespaces(conmon.NamespacePID))
			for path, want := range map[string]fs.FileMode{
				"ns": 0o755, "ns/conmonrs": 0o755, "ns/pidns": 0o755, "ns/conmonrs/" + p.name + ".pid": 0o644, "run/namespaces": 0o600,
			} {
				if info, err := os.Stat(p.path(path)); err != nil || info.Mode().Perm() != want {
					t.Errorf("%s: %v, %v", path, info, err)
				}
			}
		})
	}
}

// The monitor leaves while namespaces are being created: either they are there and go, or they never come.
func TestNamespacesDuringShutdown(t *testing.T) {
	for range scaled(10) {
		p := newPod(t, anyVariant(), podOptions{})
		done := make(chan error, 1)
		begun := make(chan struct{})
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), callLimit)
			defer cancel()
			close(begun)
			_, err := p.client.CreateNamespaces(ctx, p.namespaces(allKinds...))
			done <- err
		}()
		<-begun
		p.signal(unix.SIGINT)
		<-done
		p.waitGone(callLimit)
		p.wantNoNamespaces()
	}
}

// conmonrs pause is the same by hand.
func TestPauseCommand(t *testing.T) {
	p := preparePod(t, anyVariant(), podOptions{})
	cmd := exec.Command(os.Getenv("CONMONRS_BINARY"), "pause", "--base-path", p.path("ns"), "--pod-id", p.name,
		"--pid", "--user", "-u", "0 100000 10", "-u", "10 200000 10", "-g", "0 100000 20")
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v: %s", err, out)
	}
	pid := p.pidFile()
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	p.checkNamespace(conmon.NamespacePID, p.path("ns/pidns", p.name), true)
	p.checkNamespace(conmon.NamespaceNet, p.path("ns/netns", p.name), false)
	out, err := exec.Command(os.Getenv("CONMONRS_BINARY"), "pause", "--base-path", p.path("ns"), "--pod-id", p.name, "--pid").CombinedOutput()
	if err == nil || !strings.HasPrefix(string(out), "Error: create server: run pause: ") || !strings.Contains(string(out), "exists already") {
		t.Errorf("%v: %s", err, out)
	}
	for _, k := range allKinds {
		path := p.path("ns", k.String()+"ns", p.name)
		if err := errors.Join(unix.Unmount(path, 0), os.Remove(path)); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(unix.Kill(pid, unix.SIGKILL), os.Remove(p.path("ns/conmonrs", p.name+".pid"))); err != nil {
		t.Error(err)
	}
	p.wantNoNamespaces()
}

// Without conmonrs-pause there are no namespaces, everything else works, and the error says what is missing.
func TestPauseMissing(t *testing.T) {
	if exists("/usr/libexec/conmonrs/conmonrs-pause") {
		t.Skip("it is installed")
	}
	p := preparePod(t, anyVariant(), podOptions{})
	b, err := os.ReadFile(os.Getenv("CONMONRS_BINARY"))
	if err != nil {
		t.Fatal(err)
	}
	binary := p.path("conmonrs")
	if err := os.WriteFile(binary, b, 0o755); err != nil { //nolint:gosec // it is executed
		t.Fatal(err)
	}
	out, err := exec.Command(binary, "pause", "--base-path", p.path("ns"), "--pod-id", p.name, "--pid").CombinedOutput()
	if err == nil || !strings.HasPrefix(string(out), "Error: create server: run pause: find conmonrs-pause: ") {
		t.Errorf("%v: %s", err, out)
	}
	t.Setenv("CONMONRS_BINARY", binary)
	if err := p.startMonitor(podOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = p.client.CreateNamespaces(p.ctx(), p.namespaces(allKinds...))
	if err == nil || !strings.Contains(err.Error(), "find conmonrs-pause: ") {
		t.Errorf("%v", err)
	}
	p.wantNoNamespaces()
}

// An unprivileged user who is root in a user and a mount namespace can do the same there; without these he is told what
// is missing.
func TestPauseRootless(t *testing.T) {
	p := preparePod(t, anyVariant(), podOptions{})
	if err := errors.Join(os.Chmod(p.dir, 0o755), os.Mkdir(p.path("ns"), 0o755), os.Chown(p.path("ns"), 1234, 1234)); err != nil {
		t.Fatal(err)
	}
	line := []string{
		os.Getenv("CONMONRS_BINARY"), "pause", "--base-path", p.path("ns"), "--pod-id", p.name, "--pid", "--net", "--user", "-u", "0 0 1", "-g", "0 0 1",
	}
	asUser := func(args ...string) ([]byte, error) {
		return exec.Command("setpriv", append([]string{"--reuid=1234", "--regid=1234", "--clear-groups"}, args...)...).CombinedOutput()
	}
	out, err := asUser(line...)
	if err == nil || !strings.Contains(string(out), "operation not permitted (") {
		t.Errorf("%v: %s", err, out)
	}
	p.wantNoNamespaces()
	if out, err := asUser("unshare", "--user", "--map-root-user", "--mount", "true"); err != nil {
		unable(t, fmt.Sprintf("no unprivileged user namespaces: %v: %s", err, out))
	}
	script := `"$@" && stat -f -c %T ` + p.path("ns/pidns", p.name) + ` && readlink /proc/$(cat ` + p.path("ns/conmonrs", p.name+".pid") + `)/ns/user`
	out, err = asUser(append([]string{"unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"}, line...)...)
	if err != nil || !strings.HasPrefix(string(out), "nsfs\nuser:[") {
		t.Errorf("%v: %s", err, out)
	}
	for _, holder := range p.holders() {
		_ = unix.Kill(holder.pid, unix.SIGKILL)
	}
}

// unifiedGroup is the control group of a process that systemd goes by.
func unifiedGroup(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return path
		}
	}
	return ""
}

// The process in the pod's pid namespace is in the monitor's scope although it is older, and outlives the stop signal that systemd sends to all of a scope: the containers
// have their time.
func TestScopeStopWithNamespaces(t *testing.T) {
	systemdVariants(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		paths := p.createNamespaces(p.namespaces(conmon.NamespacePID))
		req := p.request("c", bundle.Options{
			Args: []string{"sh", "-c", obedient}, PIDNamespace: paths[conmon.NamespacePID],
			CgroupsPath: p.units().slice + ":crio:" + p.name + "-c",
			Annotations: map[string]string{"io.kubernetes.cri-o.SandboxID": p.units().id},
		})
		p.runRequest(req)
		eventually(t, exitLimit, "container is ready", func() bool { return strings.Contains(p.output("c"), "ready") })
		if show(t, p.units().scope, "ActiveState") != "active" {
			t.Fatal("no scope")
		}
		if own, its := unifiedGroup(p.pid), unifiedGroup(p.pidFile()); own != its || !strings.HasSuffix(own, "/"+p.units().scope) {
			t.Errorf("monitor in %q, process of the pid namespace in %q", own, its)
		}
		if out, err := exec.Command("systemctl", "stop", p.units().scope).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		p.waitGone(30 * time.Second)
		p.wantExit("c", 7)
		p.wantNoNamespaces()
	})
}
