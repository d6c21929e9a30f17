package oom

import (
	"os"
	"strconv"
	"testing"
	"time"
)

func TestValue(t *testing.T) {
	const events = "low 0\nhigh 12\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n"
	for key, want := range map[string]int64{"oom_kill": 1, "oom": 2, "max": 3} {
		if n, ok := value([]byte(events), key); n != want || !ok {
			t.Errorf("%s: %d, %v", key, n, ok)
		}
	}
	for _, bad := range []string{"", "oom_kill", "oom_kill x", "oom_kill -1", "xoom_kill 1", "oom_kill 99999999999999999999"} {
		if n, ok := value([]byte(bad), "oom_kill"); ok {
			t.Errorf("%q: %d", bad, n)
		}
	}
}

func TestParseVictim(t *testing.T) {
	const record = "6,1202,5091,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0," +
		"oom_memcg=/kubepods/pod1,task_memcg=/kubepods/pod1/crio-abc.scope,task=a,pid=3,b,pid=4242,uid=0\n SUBSYSTEM=x\n"
	v, ok := parseVictim([]byte(record))
	if !ok || v != (victim{"CONSTRAINT_MEMCG", "/kubepods/pod1", "/kubepods/pod1/crio-abc.scope", "a,pid=3,b", 4242}) {
		t.Errorf("%+v, %v", v, ok)
	}
	for dir, want := range map[string]Limit{
		"/sys/fs/cgroup/kubepods/pod1/crio-abc.scope": LimitPod, "/sys/fs/cgroup/x/pod1": LimitContainer, "/sys/fs/cgroup/a/b/c": LimitNode,
	} {
		if got := v.limit(Group{Dir: dir}); got != want {
			t.Errorf("%s: %s", dir, got)
		}
	}
	for _, bad := range []string{"", "6,1,2,-;oom-kill:", "6,1,2,-;oom-kill:task=x", "6,1,2,-;oom-kill:a,task=x,pid=", "6,1,2,-;oom-kill:a,task=x,pid=99999999999"} {
		if v, ok := parseVictim([]byte(bad)); ok {
			t.Errorf("%q: %+v", bad, v)
		}
	}
}

func TestParseKilled(t *testing.T) {
	for record, want := range map[string]int{
		"3,1203,5091,-;Memory cgroup out of memory: Killed process 4242 (a b) total-vm:1kB, anon-rss:2kB\n": 4242,
		"3,1203,5091,-;Out of memory: Killed process 7 (x) total-vm:1kB":                                    7,
		"3,1203,5091,-;Tasks in /a are going to be killed due to memory.oom.group set":                      0,
		"3,1203,5091,-;Killed process 4242 (a b) total-vm:1kB, anon-rss:2kB, file-rss:0kB":                  4242, // Linux 4.13
		"12,1203,5091,-;Killed process 4242 (a b) total-vm:1kB":                                             0,    // not the kernel
		"3,1203,5091,-;said: Killed process 7 (x)":                                                          0,
		"3,1203,5091,-;Out of memory: Killed process x":                                                     0,
		"": 0,
	} {
		if pid, _, ok := parseKilled([]byte(record)); pid != want || ok != (want != 0) {
			t.Errorf("%q: %d, %v", record, pid, ok)
		}
	}
	const odd = "3,1203,5091,-;Out of memory: Killed process 7 (a (b) c) total-vm:1kB"
	if _, name, ok := parseKilled([]byte(odd)); name != "a (b) c" || !ok {
		t.Errorf("%q, %v", name, ok)
	}
	if at, ok := parseTime([]byte("3,1203,5091,-;text")); at != 5091*time.Microsecond || !ok {
		t.Errorf("%v, %v", at, ok)
	}
}

// A log that names nobody denies nothing.
func TestWitness(t *testing.T) {
	const named, other = "3,1,5,-;Killed process 7 (x) total-vm", "3,2,6,-;Out of memory: Killed process 8 (y) total-vm"
	for name, c := range map[string]struct {
		records    []string
		complete   bool
		kills      int64
		hit, known bool
	}{
		"named":                {[]string{other, named}, true, 1, true, true},
		"named, some are lost": {[]string{named}, false, 2, true, true},
		"another one":          {[]string{other}, true, 1, false, true},
		"too few":              {[]string{other}, true, 2, false, false},
		"nobody":               {nil, true, 1, false, false},
		"other words":          {[]string{"3,1,5,-;Process 7 was killed"}, true, 1, false, false},
		"some are lost":        {[]string{other}, false, 1, false, false},
	} {
		w := witness{pid: 7}
		for _, r := range c.records {
			w.hear([]byte(r))
		}
		if hit, known := w.says(c.complete, c.kills); hit != c.hit || known != c.known {
			t.Errorf("%s: %v, %v", name, hit, known)
		}
	}
	if d := drift(100 * 24 * time.Hour); d < time.Hour {
		t.Errorf("after a hundred days the clocks are taken to differ by %v at most", d)
	}
}

func TestIsDying(t *testing.T) {
	if isDying(os.Getpid()) {
		t.Error("this process is dying")
	}
	if !isDying(1 << 29) { // above the greatest pid
		t.Error("nobody is alive")
	}
	const between = " 0 0 0 0 0 0 0 0 20 0 " // minor faults to nice
	for stat, want := range map[string][2]bool{
		"1 (a) b) S 0 1 1 0 -1 4194560" + between + "1 0": {false, true},
		"1 (a) Z 0 1 1 0 -1 4194560" + between + "1 0":    {true, true},
		"1 (a) Z 0 1 1 0 -1 4194560" + between + "3 0":    {true, false},
		"1 (a) R 0 1 1 0 -1 4194564" + between + "1 0":    {true, true},
		"1 (a": {}, "": {}, "1 (a) Z 0": {},
	} {
		if ending, alone := isEnding([]byte(stat)); ending != want[0] || alone != want[1] {
			t.Errorf("%q: %v, %v", stat, ending, alone)
		}
	}
	for status, want := range map[string]bool{
		"SigPnd:\t0000000000000100\n": true, "SigPnd:\t0000000000000000\n": false, "ShdPnd:\t0000000000000100\n": false, "SigPnd:\n": false, "": false,
	} {
		if got := hasKill([]byte(status), "SigPnd:"); got != want {
			t.Errorf("%q: %v", status, got)
		}
	}
}

func FuzzParsers(f *testing.F) {
	f.Add([]byte("oom_kill 1\noom 2\n"))
	f.Add([]byte("6,1,2,-;oom-kill:constraint=X,oom_memcg=/a,task_memcg=/a/b,task=t,pid=1,uid=0"))
	f.Add([]byte("3,1,2,-;Out of memory: Killed process 7 (x) total-vm:1kB"))
	f.Add([]byte("1 (a) Z 0 1 1 0 -1 4194560"))
	f.Add([]byte("SigPnd:\t0000000000000100\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, ok := value(b, "oom_kill"); ok && n < 0 {
			t.Error(strconv.FormatInt(n, 10))
		}
		if v, ok := parseVictim(b); ok && v.pid < 0 {
			t.Error(v.pid)
		}
		if pid, _, ok := parseKilled(b); ok && pid < 0 {
			t.Error(pid)
		}
		if at, ok := parseTime(b); ok && at < 0 {
			t.Error(at)
		}
		isEnding(b)
		hasKill(b, "SigPnd:")
	})
}
