package journald

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// valuer resolves late, to a group.
type valuer struct{}

func (valuer) LogValue() slog.Value {
	return slog.GroupValue(slog.Int("a", 1), slog.String("b", "x y"))
}

type nilStringer struct{ s string }

func (n *nilStringer) String() string { return n.s }

func TestHandler(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef"
	j := startJournal(t)
	h := NewHandler(dial(t, j.path), HandlerOptions{Level: slog.LevelDebug - 4, Identifier: "conmonrs"})
	log := slog.New(h)
	tests := []struct {
		name string
		log  func()
		want map[string]string // beside the identifier
	}{
		{"plain", func() { log.Info("hello") }, map[string]string{"PRIORITY": "6", "MESSAGE": "hello"}},
		{"error", func() { log.Error("e") }, map[string]string{"PRIORITY": "3", "MESSAGE": "e"}},
		{"warn", func() { log.Warn("w") }, map[string]string{"PRIORITY": "4", "MESSAGE": "w"}},
		{"debug", func() { log.Debug("d") }, map[string]string{"PRIORITY": "7", "MESSAGE": "d"}},
		{"trace", func() { log.Log(context.Background(), slog.LevelDebug-4, "t") }, map[string]string{"PRIORITY": "7", "MESSAGE": "t"}},
		{"above error", func() { log.Log(context.Background(), slog.LevelError+4, "x") }, map[string]string{"PRIORITY": "3", "MESSAGE": "x"}},
		{"several lines", func() { log.Info("a\nb") }, map[string]string{"PRIORITY": "6", "MESSAGE": "a\nb"}},
		{"container", func() { log.Info("started", "container", id, "pid", 7) }, map[string]string{"PRIORITY": "6",
			"MESSAGE": "started container=" + id + " pid=7", "CONTAINER_ID_FULL": id, "CONTAINER_ID": "0123456789ab", "CONMONRS_PID": "7"}},
		{"short container", func() { log.Info("m", "container", "abc") }, map[string]string{"PRIORITY": "6",
			"MESSAGE": "m container=abc", "CONTAINER_ID_FULL": "abc", "CONTAINER_ID": "abc"}},
		{"names", func() { log.Info("m", "exit-code", 1, "bad key", 2, "é", 3, strings.Repeat("k", 60), 4) }, map[string]string{"PRIORITY": "6",
			"MESSAGE": "m exit-code=1 bad key=2 é=3 " + strings.Repeat("k", 60) + "=4", "CONMONRS_EXIT_CODE": "1"}},
		{"values", func() {
			log.Info("m", "e", errors.New("two\nlines"), "d", 2*time.Second, "q", "a b", "z", "", "f", 1.5, "b", true, "n", nil, "u", uint64(9), "y", []byte("raw"))
		}, map[string]string{"PRIORITY": "6",
			"MESSAGE":    `m e="two\nlines" d=2s q="a b" z="" f=1.5 b=true n=<nil> u=9 y=raw`,
			"CONMONRS_E": "two\nlines", "CONMONRS_D": "2s", "CONMONRS_Q": "a b", "CONMONRS_Z": "", "CONMONRS_F": "1.5",
			"CONMONRS_B": "true", "CONMONRS_N": "<nil>", "CONMONRS_U": "9", "CONMONRS_Y": "raw"}},
		{"panicking value", func() { log.Info("m", "p", (*nilStringer)(nil)) }, map[string]string{"PRIORITY": "6",
			"MESSAGE": "m p=<nil>", "CONMONRS_P": "<nil>"}},
		{"group", func() {
			log.With("c", 0).WithGroup("g").With("a", 1).WithGroup("").Info("m", slog.Group("h", "b", 2), slog.Group("", "i", 3), slog.Attr{})
		},
			map[string]string{"PRIORITY": "6", "MESSAGE": "m c=0 g.a=1 g.h.b=2 g.i=3",
				"CONMONRS_C": "0", "CONMONRS_G_A": "1", "CONMONRS_G_H_B": "2", "CONMONRS_G_I": "3"}},
		{"late group", func() { log.Info("m", "v", valuer{}) }, map[string]string{"PRIORITY": "6",
			"MESSAGE": `m v.a=1 v.b="x y"`, "CONMONRS_V_A": "1", "CONMONRS_V_B": "x y"}},
		{"large", func() { log.Info(strings.Repeat("x", 1<<20)) }, map[string]string{"PRIORITY": "6", "MESSAGE": strings.Repeat("x", 1<<20)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.log()
			e := j.next()
			tt.want["SYSLOG_IDENTIFIER"] = "conmonrs"
			for name, value := range tt.want {
				if e.get(name) != value {
					t.Errorf("%s is %.80q, want %.80q", name, e.get(name), value)
				}
			}
			if len(e) != len(tt.want) {
				t.Errorf("fields %.300q", e)
			}
		})
	}
	if n := h.Dropped(); n != 0 {
		t.Errorf("%d dropped", n)
	}
	j.none()
}

func TestHandlerLevel(t *testing.T) {
	j := startJournal(t)
	log := slog.New(NewHandler(dial(t, j.path), HandlerOptions{}))
	log.Debug("not sent")
	log.Info("sent")
	if e := j.next(); e.get("MESSAGE") != "sent" || e["SYSLOG_IDENTIFIER"] != nil {
		t.Errorf("%q", e)
	}
	j.none()
}

// Neither a missing journald nor a full queue delays the caller, and the log comes
// back by itself.
func TestHandlerNeverWaits(t *testing.T) {
	j := startJournal(t)
	h := NewHandler(dial(t, j.path), HandlerOptions{})
	log := slog.New(h)
	filled := j.fill()
	start := time.Now()
	for range 100 {
		log.Info("dropped")
	}
	j.stop()
	for range 100 {
		log.Info("dropped")
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %v", took)
	}
	if n := h.Dropped(); n != 200 || filled == 0 {
		t.Errorf("%d dropped", n)
	}
	j.start()
	log.Info("back")
	if e := j.next(); e.get("MESSAGE") != "back" {
		t.Errorf("%q", e)
	}
}
