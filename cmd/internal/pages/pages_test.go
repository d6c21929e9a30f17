package pages

import (
	"bytes"
	"os"
	"strconv"
	"testing"
)

func rssFile(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("RssFile:")); ok {
			n, err := strconv.Atoi(string(bytes.Fields(rest)[0]))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Skip("this kernel does not tell")
	return 0
}

func TestDrop(t *testing.T) {
	before := rssFile(t)
	own := Own()
	own.Drop()
	if after := rssFile(t); after >= before {
		t.Errorf("%d KiB of files mapped, before %d", after, before)
	}
}

func TestParseMapping(t *testing.T) {
	m, ok := parseMapping([]byte("00400000-00590000 r-xp 00000000 fe:00 1234                       /usr/bin/a b\n"))
	if !ok || m.start != 0x400000 || m.end != 0x590000 || m.writable || string(m.file) != "1234                       /usr/bin/a b" {
		t.Errorf("%+v, %v", m, ok)
	}
	if m, ok := parseMapping([]byte("007ab000-007b9000 rw-p 003ab000 fe:00 1234 /x\n")); !ok || !m.writable {
		t.Errorf("%+v, %v", m, ok)
	}
	for _, bad := range []string{
		"", "7f00-7f01 rw-p 0 00:00 0 \n", "7f00-7f01 rw-p 0 00:00 0                  [heap]", "2-1 r--p 0 fe:00 1 /x", "x-1 r--p 0 fe:00 1 /x", "1 r--p 0 fe:00 1 /x", "1-2 r 0 fe:00 1 /x",
	} {
		if m, ok := parseMapping([]byte(bad)); ok {
			t.Errorf("%q: %+v", bad, m)
		}
	}
}

func FuzzParseMapping(f *testing.F) {
	f.Add([]byte("00400000-00590000 r-xp 00000000 fe:00 1234 /usr/bin/a\n"))
	f.Add([]byte("7ffe-7fff rw-p 0 00:00 0 [stack]\n"))
	f.Fuzz(func(t *testing.T, line []byte) {
		if m, ok := parseMapping(line); ok && m.start >= m.end {
			t.Errorf("%+v", m)
		}
	})
}
