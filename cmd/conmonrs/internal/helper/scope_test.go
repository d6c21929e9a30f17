package helper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeRunner answers what a test wants.
type fakeRunner struct {
	mu     sync.Mutex
	calls  []string
	answer func(verb string, n int) (map[string]string, error) // n counts all calls from 1
}

func (f *fakeRunner) Run(ctx context.Context, args ...string) (map[string]string, error) {
	if _, ok := ctx.Deadline(); !ok {
		return nil, errors.New("no deadline")
	}
	f.mu.Lock()
	f.calls = append(f.calls, strings.Join(args, " "))
	n := len(f.calls)
	f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if f.answer != nil {
		return f.answer(args[1], n)
	}
	return map[string]string{"unit": "a.scope", "action": "registered"}, nil
}

func (f *fakeRunner) list(verb string) (calls []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if strings.HasPrefix(c, "scope "+verb+" ") {
			calls = append(calls, c)
		}
	}
	return calls
}

type logBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func newScope(t *testing.T, o ScopeOptions) (*Scope, *logBuffer) {
	t.Helper()
	checkLeaks(t)
	log := &logBuffer{}
	o.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := NewScope(o)
	s.describe.pause, s.stop.pause = 20*time.Millisecond, 20*time.Millisecond
	t.Cleanup(s.Close)
	return s, log
}

var place = Place{PodID: "p1", CgroupsPath: "a.slice:crio:c1", Description: "ns/pod: 1 container"}

func TestEnsure(t *testing.T) {
	f := &fakeRunner{}
	s, _ := newScope(t, ScopeOptions{Runner: f, StopTimeout: 12 * time.Second})
	if s.Unit() != "" {
		t.Error("a unit before it is asked for")
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if err := s.Ensure(t.Context(), place); err != nil || s.Unit() != "a.scope" {
				t.Errorf("%q, %v", s.Unit(), err)
			}
		})
	}
	all.Wait()
	calls := f.list("register")
	if len(calls) != 1 {
		t.Fatalf("%q", calls)
	}
	for _, want := range []string{
		"--pid=", "--pod=p1", "--mode=auto", "--description=ns/pod: 1 container", "--stop-timeout=12s",
		"--cgroups-path=a.slice:crio:c1", "--timeout=10s",
	} {
		if !strings.Contains(calls[0], want) {
			t.Errorf("%q has no %q", calls[0], want)
		}
	}
}

func TestEnsureOptions(t *testing.T) {
	f := &fakeRunner{}
	s, _ := newScope(t, ScopeOptions{Runner: f, Mode: Always, Slice: "b.slice", After: "crio.service"})
	if err := s.Ensure(t.Context(), place); err != nil {
		t.Fatal(err)
	}
	call := f.list("register")[0]
	if !strings.Contains(call, "--mode=always") || !strings.Contains(call, "--slice=b.slice") ||
		!strings.Contains(call, "--after=crio.service") || strings.Contains(call, "--cgroups-path") {
		t.Error(call)
	}
}

func TestEnsureFails(t *testing.T) {
	trouble := errors.New("trouble")
	for _, test := range []struct {
		name  string
		mode  Mode
		err   error
		fails bool
		again bool // another attempt is made later
		log   string
	}{
		{"auto", Auto, trouble, false, true, "level=WARN"},
		{"always", Always, trouble, true, true, ""},
		{"auto, no systemd", Auto, ErrNoSystemd, false, false, "level=DEBUG"},
		{"always, no systemd", Always, ErrNoSystemd, true, false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fakeRunner{answer: func(string, int) (map[string]string, error) { return nil, test.err }}
			s, log := newScope(t, ScopeOptions{Runner: f, Mode: test.mode})
			for range 3 { // not tried again at once
				err := s.Ensure(t.Context(), place)
				if errors.Is(err, test.err) != test.fails || !test.fails && err != nil {
					t.Errorf("%v", err)
				}
			}
			if n := len(f.list("register")); n != 1 {
				t.Errorf("%d attempts", n)
			}
			s.retry = time.Time{}
			f.answer = nil
			err := s.Ensure(t.Context(), place)
			if (s.Unit() != "") != test.again || test.again && err != nil || !test.again && test.fails != (err != nil) {
				t.Errorf("later: %q, %v", s.Unit(), err)
			}
			n := strings.Count(log.String(), test.err.Error())
			if test.log != "" && (n != 1 || !strings.Contains(log.String(), test.log)) {
				t.Errorf("log: %s", log)
			}
			s.Describe("x")
			s.CheckStop()
		})
	}
}

func TestNoScope(t *testing.T) {
	s, _ := newScope(t, ScopeOptions{Runner: &fakeRunner{}, Mode: Never})
	if err := s.Ensure(t.Context(), place); err != nil || s.Unit() != "" {
		t.Errorf("never: %q, %v", s.Unit(), err)
	}
	s, _ = newScope(t, ScopeOptions{})
	if err := s.Ensure(t.Context(), place); err != nil || s.Unit() != "" {
		t.Errorf("no helper: %q, %v", s.Unit(), err)
	}
	s, _ = newScope(t, ScopeOptions{Mode: Always})
	if err := s.Ensure(t.Context(), place); err == nil {
		t.Error("no helper, and always: no error")
	}
}

func TestDescribe(t *testing.T) {
	f := &fakeRunner{}
	s, _ := newScope(t, ScopeOptions{Runner: f})
	s.Describe("before there is a unit")
	if err := s.Ensure(t.Context(), place); err != nil {
		t.Fatal(err)
	}
	const changes = 1000
	for i := range changes {
		s.Describe(fmt.Sprintf("change %d", i+1))
	}
	last := func() string {
		calls := f.list("describe")
		if len(calls) == 0 {
			return ""
		}
		return calls[len(calls)-1]
	}
	want := fmt.Sprintf("--unit=a.scope --description=change %d --timeout", changes)
	if !eventually(func() bool { return strings.Contains(last(), want) }) {
		t.Errorf("last: %q", last())
	}
	if n := len(f.list("describe")); n > changes/10 {
		t.Errorf("%d calls", n)
	}
	n := len(f.list("describe"))
	s.Describe(fmt.Sprintf("change %d", changes)) // no change
	s.Describe("another")
	if !eventually(func() bool { return strings.Contains(last(), "another") }) || len(f.list("describe")) != n+1 {
		t.Errorf("%d calls, last: %q", len(f.list("describe")), last())
	}
}

func TestDescribeFixed(t *testing.T) {
	f := &fakeRunner{answer: func(string, int) (map[string]string, error) {
		return map[string]string{"unit": "crio-conmon-1.scope", "action": "adopted", "described": "no"}, nil
	}}
	s, _ := newScope(t, ScopeOptions{Runner: f})
	if err := s.Ensure(t.Context(), place); err != nil {
		t.Fatal(err)
	}
	s.Describe("x")
	s.Close()
	if calls := f.list("describe"); len(calls) > 0 {
		t.Errorf("%q", calls)
	}
}

func TestCheckStop(t *testing.T) {
	yes := false
	var mu sync.Mutex
	f := &fakeRunner{answer: func(verb string, _ int) (map[string]string, error) {
		mu.Lock()
		defer mu.Unlock()
		if verb == "stopping" && yes {
			return map[string]string{"stopping": "yes"}, nil
		}
		return map[string]string{"unit": "a.scope", "action": "adopted", "stopping": "no"}, nil
	}}
	stopped := make(chan struct{}, 10)
	s, _ := newScope(t, ScopeOptions{Runner: f, OnStop: func() { stopped <- struct{}{} }})
	s.CheckStop() // no unit
	if err := s.Ensure(t.Context(), place); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		s.CheckStop()
	}
	if !eventually(func() bool { return len(f.list("stopping")) > 0 }) {
		t.Fatal("not asked")
	}
	if n := len(f.list("stopping")); n > 50 {
		t.Errorf("asked %d times", n)
	}
	mu.Lock()
	yes = true
	mu.Unlock()
	s.CheckStop() // the one that counts comes right behind the others
	select {
	case <-stopped:
	case <-time.After(10 * time.Second):
		t.Fatal("not told")
	}
	n := len(f.list("stopping"))
	s.CheckStop()
	s.Close()
	if len(stopped) > 0 || len(f.list("stopping")) != n {
		t.Error("asked again")
	}
}

// Close does not wait for what takes long, and takes back what is to come.
func TestScopeClose(t *testing.T) {
	h := script(t, `case $2 in register) echo unit=a.scope ;; *) sleep 600 ;; esac`)
	s, _ := newScope(t, ScopeOptions{Runner: h})
	if err := s.Ensure(t.Context(), place); err != nil {
		t.Fatal(err)
	}
	s.describe.pause = time.Hour
	s.Describe("x")
	start := time.Now()
	s.CheckStop()
	s.Close()
	s.Close()
	s.Describe("y")
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestDescription(t *testing.T) {
	for _, test := range []struct {
		namespace, name string
		containers      int
		want            string
	}{
		{"ns", "pod", 3, "ns/pod: 3 containers"}, {"ns", "pod", 1, "ns/pod: 1 container"},
		{"", "pod", 0, "pod: 0 containers"},
		{"ns", "", 2, "id: 2 containers"}, {"", "", 2, "id: 2 containers"},
	} {
		if got := Description(test.namespace, test.name, "id", test.containers); got != test.want {
			t.Errorf("%q", got)
		}
	}
}

// The stop of the unit kills the helper that was started to ask about it, before it could ignore that.
func TestHelperKilledByTheStop(t *testing.T) {
	f := &fakeRunner{}
	f.answer = func(verb string, n int) (map[string]string, error) {
		switch {
		case verb == "register":
			return map[string]string{"unit": "a.scope", "action": "registered"}, nil
		case n < 4:
			return nil, &killedError{signal: 15}
		}
		return map[string]string{"stopping": "yes"}, nil
	}
	s, log := newScope(t, ScopeOptions{Runner: f})
	if err := s.Ensure(t.Context(), place); err != nil {
		t.Fatal(err)
	}
	if !s.SliceStopping(t.Context()) {
		t.Errorf("not known: %s", log)
	}
	if calls := f.list("stopping"); len(calls) != 3 || !strings.Contains(calls[0], "--unit=a.slice ") {
		t.Errorf("calls: %q", calls)
	}
	f.answer = func(string, int) (map[string]string, error) { return nil, &killedError{signal: 9} }
	if s.SliceStopping(t.Context()) {
		t.Error("nothing can be known")
	}
	if calls := f.list("stopping"); len(calls) != 3+maxAttempts {
		t.Errorf("%d calls", len(calls))
	}
}
