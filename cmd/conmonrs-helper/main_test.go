package main

import (
	"os"
	"strings"
	"testing"
)

func TestCommandLine(t *testing.T) {
	noSystemd := func(status int) int {
		if _, err := os.Stat("/run/systemd/system"); err != nil {
			return statusNoSystemd
		}
		return status
	}
	for _, test := range []struct {
		args   string
		status int
		out    string // of standard output, or of standard error if that is empty
		err    string
	}{
		{"", statusUsage, "", "no verb"},
		{"dance", statusUsage, "", `unknown verb "dance"`},
		{"help", statusDone, "Usage: conmonrs-helper", ""},
		{"version", statusDone, "version: ", ""},
		{"scope", statusUsage, "", "no verb"},
		{"scope dance", statusUsage, "", `unknown verb "dance"`},
		{"scope register --pid=2", statusUsage, "", "--pod is missing"},
		{"scope register --pod=a", statusUsage, "", "--pid is missing"},
		{"scope register --pid=x --pod=a", statusUsage, "", "pid"},
		{"scope register --pid=2 --pod=a more", statusUsage, "", `unexpected argument "more"`},
		{"scope register --pid=2 --pod=a --unknown", statusUsage, "", "unknown"},
		{"scope register --pid=1 --pod=a", statusUsage, "", `pid "1"`},
		{"scope register --pid=2 --pod=", statusUsage, "", "pod id"},
		{"scope register --pid=2 --pod=a --mode=never", statusUsage, "", `--mode "never"`},
		{"scope register --pid=2 --pod=a --manager=none", statusUsage, "", `--manager "none"`},
		{"scope register --pid=2 --pod=a --slice=b", statusUsage, "", `slice "b" does not end in .slice`},
		{"scope register --pid=2 --pod=a --cgroups-path=/b", statusUsage, "", `linux.cgroupsPath "/b"`},
		{"scope describe --unit=a.scope", statusUsage, "", "--description is missing"},
		{"scope describe --description=a", statusUsage, "", "--unit is missing"},
		{"scope stopping", statusUsage, "", "--unit is missing"},
		{"scope describe --unit=c-none.scope --description=a", noSystemd(statusFailed), "", "c-none.scope"},
	} {
		var stdout, stderr strings.Builder
		status := run(strings.Fields(test.args), &stdout, &stderr)
		if status != test.status {
			t.Errorf("%q: status %d: %s", test.args, status, &stderr)
		}
		if !strings.Contains(stdout.String(), test.out) || (test.out == "") != (stdout.String() == "") {
			t.Errorf("%q: printed %q", test.args, &stdout)
		}
		complaint := stderr.String()
		if !strings.Contains(complaint, test.err) || strings.Count(complaint, "\n") > 1 ||
			(test.err == "") != (complaint == "") {
			t.Errorf("%q: complained %q", test.args, complaint)
		}
	}
}
