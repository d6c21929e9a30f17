package container

import (
	"syscall"
	"testing"
)

func TestParseSignal(t *testing.T) {
	for text, want := range map[string]syscall.Signal{
		"": 0, "SIGTERM": 15, "term": 15, "INT": 2, "9": 9, "64": 64, "65": 0, "0": 0, "-1": 0, "SIGRTMIN": 34,
		"SIGRTMIN+3": 37, "RTMAX-1": 63, "RTMAX+1": 0, "RTMIN+x": 0, "SIGNONE": 0, "HUP": 1, "SYS": 31, "SIGWINCH": 28,
	} {
		sig, ok := parseSignal(text)
		if ok != (want != 0) || ok && sig != want {
			t.Errorf("%q: %d, %v; want %d", text, sig, ok, want)
		}
	}
}

func FuzzParseSignal(f *testing.F) {
	f.Add("SIGRTMIN+3")
	f.Fuzz(func(t *testing.T, text string) {
		if sig, ok := parseSignal(text); ok && (sig < 1 || sig > sigRTMax) {
			t.Errorf("%q: %d", text, sig)
		}
	})
}
