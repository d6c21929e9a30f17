// Command demo shows the main job of the monitor on real containers, and says in a line what each step is. It needs root,
// an OCI runtime and a static busybox.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: demo CONMONRS RUNTIME")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// demo is one pod.
type demo struct {
	dir, runtime, root string
	client             *client.Client
}

// clearToEnd is what the shell sends to clear the rest of the screen.
const clearToEnd = "\x1b[J"

func step(format string, args ...any) { fmt.Printf("\n==> "+format+"\n", args...) }

func run(binary, runtime string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "conmonrs-demo-")
	if err != nil {
		return err
	}
	d := &demo{dir: dir, runtime: runtime, root: filepath.Join(dir, "root")}
	defer func() { err = errors.Join(err, d.cleanUp()) }()

	step("Start a monitor for the pod, as an engine does: %s --runtime %s", filepath.Base(binary), runtime)
	d.client, err = client.Start(ctx, client.StartOptions{
		Binary: binary, Runtime: runtime, RuntimeDir: filepath.Join(dir, "pod"), RuntimeRoot: d.root, LogDriver: "none",
	})
	if err != nil {
		return err
	}
	v, err := d.client.Version(ctx, &conmon.VersionRequest{})
	if err != nil {
		return err
	}
	fmt.Printf("version %s, process %d; the command has returned, the monitor serves in the background\n", v.Version, v.ProcessID)
	d.memory(v.ProcessID, "without a container")
	return d.containers(ctx, v.ProcessID)
}

func (d *demo) containers(ctx context.Context, pid uint32) error {
	step("Create a container that prints a line twice a second, and start it with the runtime")
	const script = `trap 'echo asked to stop; exit 7' TERM; n=0; while :; do n=$((n+1)); echo "line $n"; sleep 0.5 & wait $!; done`
	if err := d.create(ctx, "printer", false, "sh", "-c", script); err != nil {
		return err
	}
	fmt.Println("its log, in the format that the kubelet reads, as it grows:")
	if err := d.follow(ctx, "printer", 3); err != nil {
		return err
	}
	step("Create a second container, with a terminal and a shell")
	if err := d.create(ctx, "shell", true, "sh"); err != nil {
		return err
	}
	d.memory(pid, "with two containers")
	step("Run a command in the first container (exec sync)")
	r, err := d.client.ExecSync(ctx, &conmon.ExecSyncRequest{
		ID: "printer", Command: []string{"sh", "-c", "echo hello from process $$; exit 3"}, Timeout: 10 * time.Second,
		CgroupManager: conmon.CgroupManagerCgroupfs,
	})
	if err != nil {
		return err
	}
	fmt.Printf("stdout %q, exit code %d\n", r.Stdout, r.ExitCode)
	if err := d.attach(ctx); err != nil {
		return err
	}
	step("Ask the first container to stop (SIGTERM), kill the second (SIGKILL): their exit files appear")
	if err := d.runtimeCommand("kill", "printer", "TERM"); err != nil {
		return err
	}
	if err := d.runtimeCommand("kill", "shell", "KILL"); err != nil {
		return err
	}
	for _, id := range []string{"printer", "shell"} {
		code, err := d.exitCode(ctx, id)
		if err != nil {
			return err
		}
		fmt.Printf("%s: exit code %s\n", id, code)
	}
	step("End the pod (Shutdown): sockets are removed, the monitor leaves")
	return d.client.Shutdown(ctx)
}

func (d *demo) attach(ctx context.Context) error {
	step("Attach to the shell, resize its terminal, type a command")
	if err := d.client.SetWindowSize(ctx, &conmon.SetWindowSizeRequest{
		ID: "shell", WindowSize: conmon.WindowSize{Width: 120, Height: 40},
	}); err != nil {
		return err
	}
	input, typed := io.Pipe()
	var output bytes.Buffer
	err := d.client.Attach(ctx, client.AttachOptions{
		ID: "shell", SocketPath: filepath.Join(d.dir, "pod", "shell", "attach"), Stdin: input, Stdout: &output,
		Attached: func() {
			go func() {
				fmt.Fprint(typed, "echo size: $(stty size); exit 0\n")
				typed.Close()
			}()
		},
	})
	for line := range strings.Lines(output.String()) {
		fmt.Printf("  %s\n", strings.TrimRight(strings.ReplaceAll(line, clearToEnd, ""), "\r\n"))
	}
	if err != nil {
		return err
	}
	code, err := d.exitCode(ctx, "shell")
	if err != nil {
		return err
	}
	fmt.Printf("the shell has left with exit code %s; create it once more under the same name\n", code)
	if err := d.runtimeCommand("delete", "shell"); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(d.dir, "exit-shell")); err != nil {
		return err
	}
	return d.create(ctx, "shell", true, "sh")
}

func (d *demo) create(ctx context.Context, id string, terminal bool, args ...string) error {
	dir := filepath.Join(d.dir, id)
	if err := bundle.Make(dir, bundle.Options{Args: args, Terminal: terminal, CgroupsPath: "/conmonrs-demo-" + id}); err != nil {
		return err
	}
	r, err := d.client.CreateContainer(ctx, &conmon.CreateContainerRequest{
		ID: id, BundlePath: dir, Terminal: terminal, Stdin: terminal,
		ExitPaths:     []string{filepath.Join(d.dir, "exit-"+id)},
		LogDrivers:    []conmon.LogDriver{{Type: conmon.LogDriverCRI, Path: d.log(id)}},
		CgroupManager: conmon.CgroupManagerCgroupfs,
	})
	if err != nil {
		return err
	}
	fmt.Printf("%s: process %d, log %s\n", id, r.ContainerPID, d.log(id))
	return d.runtimeCommand("start", id)
}

func (d *demo) log(id string) string { return filepath.Join(d.dir, id+".log") }

// follow prints the first lines of a log as they come.
func (d *demo) follow(ctx context.Context, id string, lines int) error {
	f, err := os.Open(d.log(id))
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	part := ""
	for lines > 0 {
		line, err := r.ReadString('\n')
		part += line
		if err == nil {
			fmt.Print("  ", part)
			part = ""
			lines--
			continue
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) exitCode(ctx context.Context, id string) (string, error) {
	for {
		b, err := os.ReadFile(filepath.Join(d.dir, "exit-"+id))
		if err == nil {
			return string(b), nil
		}
		if err := pause(ctx); err != nil {
			return "", fmt.Errorf("wait for the exit of %s: %w", id, err)
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(20 * time.Millisecond):
		return nil
	}
}

func (d *demo) runtimeCommand(args ...string) error {
	cmd := exec.Command(d.runtime, append([]string{"--root=" + d.root}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(d.runtime), strings.Join(args, " "), err, out)
	}
	return nil
}

// memory prints what the monitor holds: in all, and what no other process shares.
func (d *demo) memory(pid uint32, when string) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return
	}
	fmt.Printf("memory of the monitor %s:", when)
	for line := range strings.Lines(string(b)) {
		for _, field := range []string{"VmRSS:", "RssAnon:"} {
			if rest, ok := strings.CutPrefix(line, field); ok {
				fmt.Printf(" %s %s", field, strings.TrimSpace(rest))
			}
		}
	}
	fmt.Println()
}

func (d *demo) cleanUp() error {
	var err error
	if d.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		err = errors.Join(d.client.Shutdown(ctx), d.client.Close())
	}
	for _, id := range []string{"printer", "shell"} {
		_ = d.runtimeCommand("delete", "--force", id) // gone already when all went well
	}
	if err == nil {
		step("Cleaned up; nothing is left running")
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}
