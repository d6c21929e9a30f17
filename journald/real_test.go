package journald

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// realJournal connects to the journald of this machine.
func realJournal(t *testing.T) *Conn {
	t.Helper()
	c := dial(t, DefaultSocket)
	if err := c.Connect(); err != nil {
		t.Skipf("no journald here: %v", err)
	}
	if _, err := exec.LookPath("journalctl"); err != nil {
		t.Skip("no journalctl here")
	}
	return c
}

// query returns what journalctl finds. This process lives on meanwhile, so that
// journald can still look at it.
func query(t *testing.T, args ...string) []map[string]any {
	t.Helper()
	if out, err := exec.Command("journalctl", "--sync").CombinedOutput(); err != nil {
		t.Fatalf("sync: %v: %s", err, out)
	}
	out, err := exec.Command("journalctl", append([]string{"-o", "json", "--all"}, args...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	var entries []map[string]any
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var e map[string]any
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	return entries
}

// uniqueID is a container id that no earlier run has used.
func uniqueID() string {
	return fmt.Sprintf("%016x%048d", time.Now().UnixNano(), os.Getpid())
}

func TestRealSink(t *testing.T) {
	c := realJournal(t)
	ids := []string{uniqueID(), uniqueID()}
	large := strings.Repeat("0123456789", 400<<10/10)
	for _, id := range ids {
		s, err := NewSink(c, SinkOptions{ContainerID: id, Name: "web", MaxLine: 1 << 20,
			Extra: []Field{{"OBJECT_PID", fmt.Append(nil, os.Getpid())}, {"NOTE", []byte("a\nb")}}})
		if err != nil {
			t.Fatal(err)
		}
		write(t, s.Stream("stdout"), "first of "+id+"\nsec", "ond\r\n\x00\xff\n", large+"\n")
		write(t, s.Stream("stderr"), "trouble\n")
	}
	for _, id := range ids {
		entries := query(t, "CONTAINER_ID_FULL="+id)
		want := []any{"first of " + id, "second", []any{0.0, 255.0}, large, "trouble"}
		if len(entries) != len(want) {
			t.Fatalf("%d entries", len(entries))
		}
		for i, e := range entries {
			if fmt.Sprint(e["MESSAGE"]) != fmt.Sprint(want[i]) {
				t.Errorf("message %d: %.100v", i, e["MESSAGE"])
			}
			priority := "6"
			if i == 4 {
				priority = "3"
			}
			if e["PRIORITY"] != priority || e["SYSLOG_IDENTIFIER"] != id[:12] || e["CONTAINER_NAME"] != "web" || e["NOTE"] != "a\nb" {
				t.Errorf("entry %d: %.300v", i, e)
			}
			if os.Getuid() == 0 && e["OBJECT_COMM"] == nil {
				t.Errorf("entry %d: journald ignored OBJECT_PID", i)
			}
		}
	}
}

func TestRealLog(t *testing.T) {
	c := realJournal(t)
	id := uniqueID()
	fields := "PRIORITY=4\nSYSLOG_IDENTIFIER=conmonrs\nCONTAINER_ID_FULL=" + id + "\nCONMONRS_EXIT_CODE=3\n"
	NewLog(c).Send(AppendField([]byte(fields), "MESSAGE", "two\nlines"))
	entries := query(t, "-t", "conmonrs", "CONTAINER_ID_FULL="+id)
	if len(entries) != 1 {
		t.Fatalf("%d entries", len(entries))
	}
	e := entries[0]
	if e["MESSAGE"] != "two\nlines" || e["PRIORITY"] != "4" || e["CONMONRS_EXIT_CODE"] != "3" {
		t.Errorf("%v", e)
	}
}

// A restart of journald, which root of a machine for tests may cause.
func TestRealRestart(t *testing.T) {
	c := realJournal(t)
	if os.Getenv("CONMONRS_TEST_RESTART_JOURNALD") == "" {
		t.Skip("CONMONRS_TEST_RESTART_JOURNALD is not set")
	}
	log := newRecords()
	s, err := NewSink(c, SinkOptions{ContainerID: uniqueID(), Logger: log.Logger})
	if err != nil {
		t.Fatal(err)
	}
	st := s.Stream("stdout")
	const restarts, each = 3, 500
	for range restarts {
		cmd := exec.Command("systemctl", "restart", "systemd-journald.service")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for i := range each {
			_ = st.WriteChunk(time.Now(), fmt.Appendf(nil, "line %d\n", i), nil)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		write(t, st, "after the restart\n")
	}
	entries := query(t, "CONTAINER_ID_FULL="+s.o.ContainerID)
	if got := uint64(len(entries)) + s.Lost().Entries; got != restarts*(each+1) {
		t.Errorf("%d entries and %d counted as lost, of %d\n%s", len(entries), s.Lost().Entries, restarts*(each+1), log)
	}
	if n := len(entries); n == 0 || entries[n-1]["MESSAGE"] != "after the restart" {
		t.Errorf("last of %d entries is another", n)
	}
}
