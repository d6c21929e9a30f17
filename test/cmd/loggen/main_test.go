package main

import (
	"bytes"
	"testing"

	"github.com/conmonrs/conmonrs/test/logcheck"
)

// countWriter notes the size of each write.
type countWriter struct {
	bytes.Buffer
	sizes []int
}

func (w *countWriter) Write(p []byte) (int, error) {
	w.sizes = append(w.sizes, len(p))
	return w.Buffer.Write(p)
}

func TestGenerate(t *testing.T) {
	tests := []struct {
		name           string
		args           []string
		stdout, stderr uint64 // lines; 0 for none
	}{
		{"lines", []string{"-lines=100"}, 100, 0},
		{"stderr", []string{"-lines=100", "-streams=stderr", "-write-size=line"}, 0, 100},
		{"both", []string{"-lines=100", "-streams=both", "-max=100000", "-seed=5"}, 100, 100},
		{"binary", []string{"-lines=100", "-binary"}, 100, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			opts, err := parse(test.args)
			if err != nil {
				t.Fatal(err)
			}
			var stdout, stderr countWriter
			if err := generate(opts, &stdout, &stderr); err != nil {
				t.Fatal(err)
			}
			v, err := logcheck.NewVerifier(opts.spec)
			if err != nil {
				t.Fatal(err)
			}
			verifyRaw(t, v, logcheck.Stdout, stdout.Bytes())
			verifyRaw(t, v, logcheck.Stderr, stderr.Bytes())
			if err := v.Finish(map[logcheck.Stream]uint64{logcheck.Stdout: test.stdout, logcheck.Stderr: test.stderr}); err != nil {
				t.Error(err)
			}
			if n := uint64(len(stderr.sizes)); opts.writeSize == "line" && n != test.stderr {
				t.Errorf("%d writes for %d lines", n, test.stderr)
			}
		})
	}
}

func verifyRaw(t *testing.T, v *logcheck.Verifier, stream logcheck.Stream, out []byte) {
	t.Helper()
	for line := range bytes.Lines(out) {
		if err := v.Raw(stream, bytes.TrimSuffix(line, []byte("\n"))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGenerateBytes(t *testing.T) {
	opts, err := parse([]string{"-bytes=50000", "-max=100"})
	if err != nil {
		t.Fatal(err)
	}
	var stdout bytes.Buffer
	if err := generate(opts, &stdout, nil); err != nil {
		t.Fatal(err)
	}
	if n := stdout.Len(); n < 50000 || n > 50101 {
		t.Errorf("wrote %d bytes", n)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, args := range [][]string{
		{}, {"-lines=1", "x"}, {"-lines=1", "-streams=all"}, {"-lines=1", "-write-size=3"},
		{"-lines=1", "-min=5", "-max=2"}, {"-lines=-1"},
	} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}
