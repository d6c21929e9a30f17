package integration

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/test/bundle"
)

// journal runs journalctl behind everything that has been sent.
func journal(t *testing.T, args ...string) string {
	t.Helper()
	if out, err := exec.Command("journalctl", "--sync").CombinedOutput(); err != nil {
		t.Fatalf("journalctl --sync: %v: %s", err, out)
	}
	out, err := exec.Command("journalctl", args...).Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			t.Fatalf("journalctl %q: %v: %s", args, err, failed.Stderr)
		}
		t.Fatal(err)
	}
	return string(out)
}

func needJournal(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/run/systemd/journal/socket"); err != nil {
		t.Skip("no journald; the run under systemd has one")
	}
}

// An entry for each line, found by the monitor's name or by the container's id, with the stream's priority.
func TestLogJournald(t *testing.T) {
	needJournal(t)
	eachRuntimeIO(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		id := p.name + "-journal"
		req := p.request(id, bundle.Options{Args: []string{"sh", "-c", "echo hello; echo world"}})
		req.LogDrivers = []conmon.LogDriver{{Type: conmon.LogDriverJournald}}
		p.runRequest(req)
		p.wantExit(id, 0)
		got := journal(t, "-n2", "_COMM=conmonrs", "-o", "cat", "--no-pager")
		if got = strings.ReplaceAll(got, "\r", ""); got != "hello\nworld\n" {
			t.Errorf("the last two entries are %q", got)
		}
	})
}

// R008: the journal gets the bytes as they are, and the fields that say whose they are.
func TestLogJournaldBytes(t *testing.T) {
	needJournal(t)
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		id := p.name + "-journal-bytes"
		o := p.script("cat /mnt/data; echo failed >&2; printf tail")
		data := strings.Repeat("\xed\xab\x00\xee\xdb \x1b[31mred\x1b[0m ", 20) + strings.Repeat("long ", 10_000)
		if err := os.WriteFile(p.path("shared/data"), []byte(data+"\nok\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		req := p.request(id, o)
		req.LogDrivers = append(req.LogDrivers, conmon.LogDriver{Type: conmon.LogDriverJournald})
		p.runRequest(req)
		p.wantExit(id, 0)
		out := journal(t, "-o", "json", "--all", "--no-pager", "CONTAINER_ID_FULL="+id)
		type entry struct {
			Message    any    `json:"MESSAGE"`
			Priority   string `json:"PRIORITY"`
			ID         string `json:"CONTAINER_ID"`
			Identifier string `json:"SYSLOG_IDENTIFIER"`
			Partial    string `json:"CONTAINER_PARTIAL_MESSAGE"`
		}
		byPriority := make(map[string]string)
		for line := range strings.Lines(out) {
			var e entry
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%v: %.200q", err, line)
			}
			if e.ID != id[:12] || e.Identifier != id[:12] {
				t.Errorf("entry %.300q", line)
			}
			byPriority[e.Priority] += messageBytes(t, e.Message)
			if e.Partial == "" { // nothing of the line follows
				byPriority[e.Priority] += "\n"
			}
		}
		if got, want := byPriority["6"], data+"\nok\ntail\n"; got != want {
			t.Error(difference(got, want))
		}
		if byPriority["3"] != "failed\n" || len(byPriority) != 2 {
			t.Errorf("standard error: %q of %d priorities", byPriority["3"], len(byPriority))
		}
		if got := p.output(id); !strings.Contains(got, "\nok\n") {
			t.Errorf("the file has %d bytes", len(got))
		}
	})
}

// messageBytes decodes a field, which is an array of numbers if it is not text.
func messageBytes(t *testing.T, field any) string {
	t.Helper()
	switch m := field.(type) {
	case string:
		return m
	case []any:
		var b strings.Builder
		for _, n := range m {
			b.WriteByte(byte(n.(float64)))
		}
		return b.String()
	}
	t.Fatalf("message of type %T", field)
	return ""
}

// The last line of a container has no end, and a process that it left goes on to hold the stream: the line is in the
// journal when the exit is published, not when that process ends.
func TestLogJournaldUnfinishedLine(t *testing.T) {
	needJournal(t)
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		id := p.name + "-journal-rest"
		o := bundle.Options{SharePID: true, Args: []string{"sh", "-c", "sleep 1000 & printf 'the rest'; exit 6"}}
		req := p.request(id, o)
		req.LogDrivers = []conmon.LogDriver{{Type: conmon.LogDriverJournald}}
		p.runRequest(req)
		p.wantExit(id, 6)
		if got := journal(t, "-o", "cat", "--no-pager", "CONTAINER_ID_FULL="+id); got != "the rest\n" {
			t.Errorf("the journal has %q", got)
		}
		p.killRest(id)
	})
}

// The lines of a container belong to its own unit, to the last, byte by byte, and say which pod it is in.
func TestLogJournaldUnit(t *testing.T) {
	needJournal(t)
	systemdVariants(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		binary := "\xff\xfe\x01 \x1b[0m"
		line := strings.Repeat("0123456789abcdef", 1<<16)
		o := p.script("cat /mnt/data; exec sh -c 'kill -9 $$'") // gone as fast as can be
		if err := os.WriteFile(p.path("shared/data"), []byte("one\n\n"+binary+"\n"+line+"\nno end"), 0o644); err != nil {
			t.Fatal(err)
		}
		req := p.inPod("c", "")
		u := p.units()
		o.CgroupsPath, o.SharePID = u.slice+":crio:"+p.name+"-c", true
		o.Annotations = map[string]string{"io.kubernetes.cri-o.SandboxID": u.id, "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": "web"}
		*req = *p.request("c", o)
		req.LogDrivers = []conmon.LogDriver{{Type: conmon.LogDriverJournald}}
		p.runRequest(req)
		p.wantExit("c", 137)
		unit := "crio-" + p.name + "-c.scope"
		var text strings.Builder
		var seen []string
		out := journal(t, "-u", unit, "-o", "json", "--all", "--no-pager", "_COMM=conmonrs")
		for entry := range strings.Lines(out) {
			var e struct {
				Message   any    `json:"MESSAGE"`
				Partial   string `json:"CONTAINER_PARTIAL_MESSAGE"`
				Pod       string `json:"CONTAINER_POD_NAME"`
				Namespace string `json:"CONTAINER_POD_NAMESPACE"`
			}
			if err := json.Unmarshal([]byte(entry), &e); err != nil {
				t.Fatal(err)
			}
			if e.Pod != "web" || e.Namespace != "shop" {
				t.Errorf("pod %q of %q", e.Pod, e.Namespace)
			}
			text.WriteString(messageBytes(t, e.Message))
			if e.Partial == "" {
				seen = append(seen, text.String())
				text.Reset()
			}
		}
		want := []string{"one", "", binary, line, "no end"}
		if !slices.Equal(seen, want) {
			t.Errorf("%d lines: %.300q", len(seen), seen)
		}
	})
}

// A journald that is not there keeps neither the exit code nor the other log from being written, and is reported.
func TestLogJournaldGone(t *testing.T) {
	needJournal(t)
	eachRuntime(t, func(t *testing.T, v variant) {
		p := newPod(t, v, podOptions{})
		req := p.request("c", p.script(await("go")+"seq 1 1000; exit 7"))
		req.LogDrivers = append(req.LogDrivers, conmon.LogDriver{Type: conmon.LogDriverJournald})
		p.runRequest(req)
		units := []string{"systemd-journald.socket", "systemd-journald-dev-log.socket", "systemd-journald-audit.socket", "systemd-journald.service"}
		systemctl(t, append([]string{"stop"}, units...)...)
		t.Cleanup(func() { systemctl(t, append([]string{"start"}, units...)...) })
		p.release("go")
		p.wantExit("c", 7)
		if out := p.output("c"); !strings.HasSuffix(out, "\n1000\n") {
			t.Errorf("the log ends with %q", out[max(0, len(out)-40):])
		}
		eventually(t, exitLimit, "loss is reported", func() bool { return len(p.reported("journal")) > 0 })
	})
}

func systemctl(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil {
		t.Errorf("systemctl %q: %v: %s", args, err, out)
	}
}
