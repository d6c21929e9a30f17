package journald

import (
	"strings"
	"testing"
	"time"
)

func message(text string) []byte { return AppendField([]byte("PRIORITY=6\n"), "MESSAGE", text) }

func TestLog(t *testing.T) {
	j := startJournal(t)
	l := NewLog(dial(t, j.path))
	for _, text := range []string{"hello", "a\nb", "", strings.Repeat("x", 1<<20)} {
		l.Send(message(text))
		if e := j.next(); e.get("MESSAGE") != text || e.get("PRIORITY") != "6" || len(e) != 2 {
			t.Errorf("got %.100q, want %.100q", e, text)
		}
	}
	if n := l.Dropped(); n != 0 {
		t.Errorf("%d dropped", n)
	}
	j.none()
}

// Neither a missing journald nor a full queue delays the caller, and the log comes
// back by itself.
func TestLogNeverWaits(t *testing.T) {
	j := startJournal(t)
	l := NewLog(dial(t, j.path))
	filled := j.fill()
	start := time.Now()
	for range 100 {
		l.Send(message("dropped"))
	}
	j.stop()
	for range 100 {
		l.Send(message("dropped"))
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %v", took)
	}
	if n := l.Dropped(); n != 200 || filled == 0 {
		t.Errorf("%d dropped", n)
	}
	j.start()
	l.Send(message("back"))
	if e := j.next(); e.get("MESSAGE") != "back" {
		t.Errorf("%q", e)
	}
}
