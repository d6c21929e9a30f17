package logfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// entry is one record, as a strict reader sees it.
type entry struct {
	stamp  string
	stream string
	whole  bool
	text   string
}

// parseCRI refuses everything that is not exactly the documented format.
func parseCRI(data []byte) (entries []entry, err error) {
	if len(data) > 0 && data[len(data)-1] != '\n' {
		return nil, fmt.Errorf("does not end with a newline: %q", tail(data))
	}
	last := ""
	for n, line := range strings.SplitAfter(string(data), "\n") {
		if line == "" {
			continue
		}
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(parts) != 4 {
			return entries, fmt.Errorf("record %d: %q", n, line)
		}
		const layout = "2006-01-02T15:04:05.000000000Z"
		if _, err := time.Parse(layout, parts[0]); err != nil || len(parts[0]) != len(layout) {
			return entries, fmt.Errorf("record %d: stamp %q", n, parts[0])
		}
		if parts[0] < last {
			return entries, fmt.Errorf("record %d: time went back", n)
		}
		last = parts[0]
		if s := parts[1]; s != "stdout" && s != "stderr" {
			return entries, fmt.Errorf("record %d: stream %q", n, s)
		}
		if tag := parts[2]; tag != "F" && tag != "P" {
			return entries, fmt.Errorf("record %d: tag %q", n, tag)
		}
		entries = append(entries, entry{parts[0], parts[1], parts[2] == "F", parts[3]})
	}
	return entries, nil
}

// parseJSON does the same for the other format.
func parseJSON(data []byte) (entries []entry, err error) {
	if len(data) > 0 && data[len(data)-1] != '\n' {
		return nil, fmt.Errorf("does not end with a newline: %q", tail(data))
	}
	for n, line := range bytes.SplitAfter(data, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		var r struct {
			Timestamp *int64
			Pipe      *string
			Message   *string
			Partial   bool
		}
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil {
			return entries, fmt.Errorf("record %d: %q: %w", n, line, err)
		}
		if r.Timestamp == nil || r.Pipe == nil || r.Message == nil {
			return entries, fmt.Errorf("record %d: a key is missing: %q", n, line)
		}
		entries = append(entries, entry{fmt.Sprint(*r.Timestamp), *r.Pipe, !r.Partial, *r.Message})
	}
	return entries, nil
}

func tail(p []byte) []byte { return p[max(0, len(p)-80):] }

// join rebuilds a stream from its records. The newline of an F record was in
// the stream, that of a P record was not.
func join(entries []entry, stream string) string {
	var b strings.Builder
	for _, e := range entries {
		if e.stream == stream {
			b.WriteString(e.text)
			if e.whole {
				b.WriteByte('\n')
			}
		}
	}
	return b.String()
}

func readCRI(t testing.TB, path string) []entry {
	t.Helper()
	data, err := os.ReadFile(path)
	check(t, err)
	entries, err := parseCRI(data)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return entries
}

func readJSON(t testing.TB, path string) []entry {
	t.Helper()
	data, err := os.ReadFile(path)
	check(t, err)
	entries, err := parseJSON(data)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return entries
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
