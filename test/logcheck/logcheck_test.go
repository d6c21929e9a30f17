package logcheck

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestLinesAreReproducible(t *testing.T) {
	for _, spec := range []Spec{{}, {Seed: 7, Min: 1, Max: 65536}, {Min: 80, Max: 80}, {Binary: true, Max: 300}, {Min: 1, Max: 1}} {
		a, err := NewLines(spec)
		if err != nil {
			t.Fatal(err)
		}
		b, err := NewLines(spec)
		if err != nil {
			t.Fatal(err)
		}
		shortest, longest := maxLength, 0
		for seq := range uint64(3000) {
			got, want := a.Line(Stderr, seq), b.Line(Stderr, seq)
			if !bytes.Equal(got, want) || bytes.IndexByte(got, '\n') >= 0 || got[len(got)-1] == ' ' {
				t.Fatalf("%+v: line %d: %q and %q", spec, seq, got, want)
			}
			shortest, longest = min(shortest, len(got)), max(longest, len(got))
		}
		if shortest < a.spec.Min || longest > a.spec.Max || longest < a.spec.Max/2 {
			t.Errorf("%+v: lengths %d to %d", spec, shortest, longest)
		}
	}
}

func TestLinesRefuseBadLengths(t *testing.T) {
	for _, spec := range []Spec{{Min: -1, Max: 5}, {Min: 10, Max: 5}, {Min: 1, Max: maxLength + 1}} {
		if _, err := NewLines(spec); err == nil {
			t.Errorf("%+v was accepted", spec)
		}
	}
}

func TestParseCRI(t *testing.T) {
	tests := []struct {
		line string
		want string // "stream partial content", or empty for an error
	}{
		{"2026-01-02T03:04:05.000000009Z stdout F hello", "stdout false hello"},
		{"2026-01-02T03:04:05.000000009+02:00 stderr P a b ", "stderr true a b "},
		{"2026-01-02T03:04:05.000000009+00:00 stdout F ", "stdout false "},
		{"2026-01-02T03:04:05.000000009Z stdout F \xff\x00", "stdout false \xff\x00"},
		{"2026-01-02T03:04:05.000000009Z stdout F", ""},
		{"2026-01-02T03:04:05.00000009Z stdout F x", ""},
		{"2026-01-02T03:04:05Z stdout F x", ""},
		{"2026-01-02 03:04:05.000000009Z stdout F x", ""},
		{"2026-01-02T03:04:05.000000009Z stdin F x", ""},
		{"2026-01-02T03:04:05.000000009Z stdout X x", ""},
		{"2026-01-02T03:04:05.000000009Z  stdout F x", ""},
		{"", ""},
	}
	for _, test := range tests {
		rec, err := ParseCRI([]byte(test.line))
		got := ""
		if err == nil {
			got = fmt.Sprintf("%s %v %s", rec.Stream, rec.Partial, rec.Content)
		}
		if got != test.want {
			t.Errorf("%q: got %q (%v), want %q", test.line, got, err, test.want)
		}
	}
}

func TestParseJSON(t *testing.T) {
	tests := []struct {
		line string
		want string
	}{
		{`{"timestamp":1700000000,"pipe":"stdout","message":"hello"}`, "stdout false hello"},
		{`{"timestamp":1700000000,"pipe":"stderr","message":"  a\t\"\u00e9","partial":true}`, "stderr true   a\t\"\u00e9"},
		{`{"timestamp":1.5,"pipe":"stdout","message":"x"}`, ""},
		{`{"timestamp":"1","pipe":"stdout","message":"x"}`, ""},
		{`{"pipe":"stdout","timestamp":1,"message":"x"}`, ""},
		{`{"timestamp":1,"pipe":"both","message":"x"}`, ""},
		{`{"timestamp":1,"pipe":"stdout"}`, ""},
		{`{"timestamp":1,"pipe":"stdout","message":"x","partial":false}`, ""},
		{`{"timestamp":1,"pipe":"stdout","message":"x","more":1}`, ""},
		{`{"timestamp":1,"pipe":"stdout","message":"x"} `, ""},
		{`{"timestamp":1,"pipe":"stdout","message":"x"`, ""},
		{``, ""},
	}
	for _, test := range tests {
		rec, err := ParseJSON([]byte(test.line))
		got := ""
		if err == nil {
			got = fmt.Sprintf("%s %v %s", rec.Stream, rec.Partial, rec.Content)
		}
		if got != test.want {
			t.Errorf("%q: got %q (%v), want %q", test.line, got, err, test.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("2026-01-02T03:04:05.000000009Z stdout F hello"))
	f.Add([]byte(`{"timestamp":1700000000,"pipe":"stdout","message":"hello","partial":true}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if rec, err := ParseCRI(line); err == nil && !bytes.HasSuffix(line, rec.Content) {
			t.Errorf("content %q is not the end of %q", rec.Content, line)
		}
		if rec, err := ParseJSON(line); err == nil && rec.Stream != Stdout && rec.Stream != Stderr {
			t.Errorf("stream %q", rec.Stream)
		}
	})
}

// criLog writes what a logger makes of stdout when it reads size bytes at a time.
func criLog(stream []byte, name Stream, size int) string {
	var log strings.Builder
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for len(stream) > 0 {
		chunk := stream[:min(size, len(stream))]
		stream = stream[len(chunk):]
		at = at.Add(time.Millisecond)
		for len(chunk) > 0 {
			piece, rest, ended := bytes.Cut(chunk, []byte("\n"))
			tag := "P"
			if ended {
				tag = "F"
			}
			fmt.Fprintf(&log, "%s %s %s %s\n", at.Format("2006-01-02T15:04:05.000000000Z07:00"), name, tag, piece)
			chunk = rest
		}
	}
	return log.String()
}

func written(t *testing.T, spec Spec, stream Stream, from, to uint64) []byte {
	t.Helper()
	lines, err := NewLines(spec)
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for seq := from; seq < to; seq++ {
		out = lines.Append(out, stream, seq)
	}
	return out
}

func TestVerifierAcceptsWhole(t *testing.T) {
	for _, size := range []int{1, 7, 4096, 1 << 20} {
		for _, spec := range []Spec{{Max: 300}, {Max: 20000, Seed: 3, Binary: true}} {
			v, err := NewVerifier(spec)
			if err != nil {
				t.Fatal(err)
			}
			if spec.Max > 1000 && size < 100 {
				continue // too many records for a quick test
			}
			log := criLog(written(t, spec, Stdout, 0, 200), Stdout, size) + criLog(written(t, spec, Stderr, 0, 100), Stderr, size)
			if err := v.ReadLog(strings.NewReader(log), ParseCRI); err != nil {
				t.Fatalf("size %d, %+v: %v", size, spec, err)
			}
			if err := v.Finish(map[Stream]uint64{Stdout: 200, Stderr: 100}); err != nil {
				t.Errorf("size %d, %+v: %v", size, spec, err)
			}
		}
	}
}

// A line may begin in the file before a reopen and end in the next.
func TestVerifierAcrossFiles(t *testing.T) {
	spec := Spec{Max: 300}
	records := strings.SplitAfter(criLog(written(t, spec, Stdout, 0, 50), Stdout, 100), "\n")
	for cut := range records {
		v, err := NewVerifier(spec)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range [][]string{records[:cut], records[cut:]} {
			if err := v.ReadLog(strings.NewReader(strings.Join(part, "")), ParseCRI); err != nil {
				t.Fatalf("cut at record %d: %v", cut, err)
			}
		}
		if err := v.Finish(map[Stream]uint64{Stdout: 50}); err != nil {
			t.Errorf("cut at record %d: %v", cut, err)
		}
	}
}

func TestVerifierFindsFaults(t *testing.T) {
	spec := Spec{Min: 20, Max: 60}
	whole := criLog(written(t, spec, Stdout, 0, 50), Stdout, 1<<20)
	lines := strings.SplitAfter(whole, "\n")
	with := func(edit func(l []string) []string) string {
		return strings.Join(edit(append([]string(nil), lines...)), "")
	}
	tests := []struct{ name, log, want string }{
		{"lost line", with(func(l []string) []string { return append(l[:10], l[11:]...) }), "(1 lines lost)"},
		{"repeated line", with(func(l []string) []string { l[10] = l[9]; return l }), "(line 9 again)"},
		{"swapped lines", with(func(l []string) []string { l[10], l[11] = l[11], l[10]; return l }), "(1 lines lost)"},
		{"altered byte", with(func(l []string) []string { l[10] = l[10][:len(l[10])-2] + "!\n"; return l }), "(altered copy of line 10)"},
		{"cut line", with(func(l []string) []string { l[10] = l[10][:len(l[10])-2] + "\n"; return l }), "(cut)"},
		{"wrong stream", with(func(l []string) []string { l[0] = strings.Replace(l[0], "stdout", "stderr", 1); return l }), "(it is line 0 of stdout)"},
		{"lost at the end", strings.Join(lines[:49], ""), "ends after line 49"},
		{"unfinished record", whole[:len(whole)-1], "EOF"},
		{"unfinished line", with(func(l []string) []string { l[49] = strings.Replace(l[49], " F ", " P ", 1); return l }), "unfinished line"},
		{"joined lines", with(func(l []string) []string { l[10] = strings.Replace(l[10], " F ", " P ", 1); return l }), "(joined with what follows)"},
		{"time backwards", with(func(l []string) []string { l[10] = "2025" + l[10][4:]; return l }), "after 2026"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			v, err := NewVerifier(spec)
			if err != nil {
				t.Fatal(err)
			}
			err = v.ReadLog(strings.NewReader(test.log), ParseCRI)
			if err == nil {
				err = v.Finish(map[Stream]uint64{Stdout: 50})
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestVerifierAllowGaps(t *testing.T) {
	spec := Spec{Min: 1, Max: 200}
	stream := written(t, spec, Stdout, 100, 300)
	log := criLog(stream[5:], Stdout, 64) // begins inside line 100
	v, err := NewVerifier(spec)
	if err != nil {
		t.Fatal(err)
	}
	v.AllowGaps = true
	if err := v.ReadLog(strings.NewReader(log), ParseCRI); err != nil {
		t.Fatal(err)
	}
	if err := v.Finish(map[Stream]uint64{Stdout: 300}); err != nil {
		t.Error(err)
	}
	if s := v.Summary(Stdout); s.Next != 300 || s.Lines+s.Lost != 300 || s.Lost < 100 {
		t.Errorf("summary %+v", s)
	}
	again := criLog(written(t, spec, Stdout, 150, 160), Stdout, 1<<20)
	if err := v.ReadLog(strings.NewReader(again+again), ParseCRI); err == nil {
		t.Error("lines that went before were accepted")
	}
}
