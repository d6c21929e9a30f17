package daemon

import (
	"runtime"
	"testing"
	"time"
)

func TestTrimmer(t *testing.T) {
	var trimmer Trimmer
	before := makeGarbage()
	trimmer.Touch()
	trimmer.Touch()
	for end := time.Now().Add(30 * time.Second); own() > before-(32<<20); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are ours, before %d", own(), before)
		}
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		trimmer.mu.Lock()
		idle := trimmer.timer == nil
		trimmer.mu.Unlock()
		if idle {
			break
		}
		if time.Now().After(end) {
			t.Fatal("there is a timer left")
		}
	}
	trimmer.Touch()
	trimmer.Close()
	trimmer.Touch()
	trimmer.look() // as if it had been on its way
}

// makeGarbage returns how much memory was in use with it.
func makeGarbage() int {
	garbage := make([]byte, 64<<20)
	for i := 0; i < len(garbage); i += 4096 {
		garbage[i] = 1
	}
	n := own()
	runtime.KeepAlive(garbage)
	return n
}

func own() int {
	_, n := resident()
	return n
}

func TestParseStatm(t *testing.T) {
	for text, want := range map[string][2]int{
		"1000 234 5 6 7 8 9\n": {234, 5}, "1000 234 5": {}, "": {}, "a b c d": {}, "1 -2 3 4": {}, "1 2 3 4": {}, "1 2 -3 4": {},
	} {
		if all, files := parseStatm([]byte(text)); all != want[0] || files != want[1] {
			t.Errorf("%q: %d, %d", text, all, files)
		}
	}
}
