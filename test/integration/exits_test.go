package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// life is one container of TestRandomLives.
type life struct {
	id     string
	sleep  time.Duration
	lines  int
	code   int
	signal unix.Signal // 0: exits with code
}

func (l life) script() string {
	end := fmt.Sprintf("exit %d", l.code)
	if l.signal != 0 {
		end = fmt.Sprintf("kill -%d $$; sleep 1000", l.signal)
	}
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo %s $i; i=$((i+1)); done; usleep %d; %s",
		l.lines, l.id, l.sleep.Microseconds(), end)
}

func (l life) output() string {
	var b strings.Builder
	for i := range l.lines {
		fmt.Fprintln(&b, l.id, i)
	}
	return b.String()
}

func (l life) exit() int {
	if l.signal != 0 {
		return 128 + int(l.signal)
	}
	return l.code
}

// randomLife may be killed by a signal of its own, for which it needs the host's pid namespace: the first process of
// another one ignores it.
func randomLife(r *rand.Rand, i int) (life, bundle.Options) {
	signals := []unix.Signal{unix.SIGKILL, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGSEGV, unix.SIGABRT}
	l := life{
		id: fmt.Sprintf("c%d", i), sleep: time.Duration(r.IntN(50_000)) * time.Microsecond,
		lines: r.IntN(30), code: r.IntN(256),
	}
	if r.IntN(2) == 0 {
		l.signal = signals[r.IntN(len(signals))]
	}
	return l, bundle.Options{SharePID: l.signal != 0, Args: []string{"sh", "-c", l.script()}}
}

// Containers that live for 0 to 50 ms, twenty at a time, end in all ways: each code is right, each log whole, nothing is
// left.
func TestRandomLives(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		const lanes = 20
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		p := newPod(t, v, podOptions{})
		p.run("warm", "true")
		p.wantExit("warm", 0)
		fds := openCount(p.pid)
		for done, n := 0, scaled(40); done < n; done += lanes {
			var all sync.WaitGroup
			for i := range lanes {
				l, o := randomLife(r, done+i)
				req := p.request(l.id, o)
				p.ids = append(p.ids, l.id)
				all.Go(func() { p.live(l, req) })
			}
			all.Wait()
		}
		p.settled(fds)
	})
}

// live runs one container from create to delete. It does not end the test, since it is not on its goroutine.
func (p *pod) live(l life, req *conmon.CreateContainerRequest) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := p.client.CreateContainer(ctx, req); err != nil {
		p.t.Errorf("create %+v: %v", l, err)
		return
	}
	if out, err := p.command("start", l.id); err != nil {
		p.t.Errorf("start %+v: %v: %s", l, err, out)
		return
	}
	code, err := waitExit(req.ExitPaths[0], exitLimit)
	if err != nil || code != l.exit() {
		p.t.Errorf("exit of %+v: %d, %v", l, code, err)
	}
	if got := p.output(l.id); got != l.output() { // whole as soon as the exit is seen
		p.t.Errorf("log of %+v: %q", l, got)
	}
	if out, err := p.command("delete", l.id); err != nil {
		p.t.Errorf("delete %+v: %v: %s", l, err, out)
	}
	if err := os.RemoveAll(req.BundlePath); err != nil {
		p.t.Error(err)
	}
}

// exitTroubles are what may go on while a container ends. Each starts it and returns what ends it.
var exitTroubles = map[string]func(p *pod, pid int) (end func()){
	"reopen": func(p *pod, _ int) func() {
		n := 0
		return p.inLoop(1, func(ctx context.Context) { // as engines rotate logs
			n++
			_ = os.Rename(p.path("logs/c"), p.path(fmt.Sprintf("logs/c.old.%06d", n)))
			_ = p.client.ReopenLog(ctx, &conmon.ReopenLogRequest{ID: "c"})
		})
	},
	"stuck attach client": func(p *pod, _ int) func() {
		p.attachRaw("c", p.path("attach"))
		return func() {}
	},
	"execs": func(p *pod, _ int) func() {
		return p.inLoop(4, func(ctx context.Context) { _, _ = p.client.ExecSync(ctx, p.execRequest("c", 0, "sleep", "1000")) })
	},
	"engine gone": func(p *pod, _ int) func() {
		if err := p.client.Close(); err != nil {
			p.t.Error(err)
		}
		return func() {
			c, err := client.Dial(p.ctx(), filepath.Join(p.runDir, "conmon.sock"))
			if err != nil {
				p.t.Fatal(err)
			}
			p.client = c
		}
	},
	"SIGTERM of the monitor": func(p *pod, _ int) func() {
		p.signal(unix.SIGTERM)
		return func() {}
	},
}

// inLoop calls f again and again, from n goroutines, until end is called.
func (p *pod) inLoop(n int, f func(ctx context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				f(ctx)
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

// Whatever goes on at that moment, the exit code is published, and all output is in the log.
func TestExitDuringTrouble(t *testing.T) {
	for name, begin := range exitTroubles {
		t.Run(name, func(t *testing.T) {
			eachRuntime(t, func(t *testing.T, v variant) {
				for range scaled(1) {
					p := newPod(t, v, podOptions{args: []string{"--stop-timeout=20"}})
					script := "trap 'trap \"\" TERM; seq 1 20000; exit 7' TERM; echo ready; while :; do usleep 1000; done"
					pid := p.run("c", "sh", "-c", script)
					p.waitOutput("c", "ready")
					end := begin(p, pid)
					if err := unix.Kill(pid, unix.SIGTERM); err != nil {
						t.Error(err)
					}
					p.wantExit("c", 7)
					end()
					if out := p.output("c"); !strings.HasSuffix(out, "\n20000\n") || strings.Count(out, "\n") != 20001 {
						t.Errorf("the log has %d bytes, and ends with %q", len(out), out[max(0, len(out)-40):])
					}
				}
			})
		})
	}
}

// A container that runs for too long is killed, with all that it started. One that ends before is not touched.
func TestContainerTimeout(t *testing.T) {
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{args: []string{"--container-timeout=2"}})
		p.run("short", "sh", "-c", "exit 3")
		p.wantExit("short", 3)
		begin := time.Now()
		p.runOptions("long", bundle.Options{SharePID: true, Args: []string{"sh", "-c", "trap '' TERM; setsid sleep 1000 & sleep 1000"}})
		p.create(p.request("created", bundle.Options{Args: []string{"true"}}))
		p.wantExit("long", 137)
		if d := time.Since(begin); d < 1500*time.Millisecond {
			t.Errorf("killed after %v", d)
		}
		p.wantExit("created", 137)
		eventually(t, exitLimit, "all its processes have gone", func() bool { return len(p.containerProcesses("long")) == 0 })
		if log := string(tail(p.log, 1<<20)); !strings.Contains(log, "container killed at its time limit") {
			t.Errorf("nothing in the monitor's log: %s", log)
		}
	})
}
