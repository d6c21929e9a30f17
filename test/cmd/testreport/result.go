package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// skip is one test that did not run.
type skip struct{ Package, Test, Reason string }

// result is what one run, or all of them together, came to.
type result struct {
	Name    string
	Passed  int
	Failed  []string
	Skipped []skip
}

func (res *result) write(dir string) error {
	data, err := json.MarshalIndent(res, "", "\t")
	if err != nil {
		return fmt.Errorf("encode result of %s: %w", res.Name, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make result directory: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, res.Name+".json"), data, 0o644)
}

// readResults adds up what write left in dir.
func readResults(dir string) (*result, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("list results: %w", err)
	}
	sum := &result{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var res result
		if err := json.Unmarshal(data, &res); err != nil {
			return nil, fmt.Errorf("decode %s: %w", file, err)
		}
		sum.Passed += res.Passed
		for _, name := range res.Failed {
			if name != res.Name {
				name = res.Name + ": " + name
			}
			sum.Failed = append(sum.Failed, name)
		}
		sum.Skipped = append(sum.Skipped, res.Skipped...)
	}
	return sum, nil
}

func (res *result) printFailures(out io.Writer) {
	if len(res.Failed) == 0 {
		return
	}
	fmt.Fprintf(out, "\nFAILED (%d):\n", len(res.Failed))
	for _, name := range res.Failed {
		fmt.Fprintf(out, "  %s\n", name)
	}
}

// printSkips lists what was skipped, and returns how many of these are failures.
func (res *result) printSkips(out io.Writer, allowed []string, strict bool) int {
	if len(res.Skipped) == 0 {
		return 0
	}
	refused := 0
	fmt.Fprintf(out, "\n*** %d SKIPPED: these tests did not run ***\n", len(res.Skipped))
	for _, s := range res.Skipped {
		mark := " "
		if strict && !matchesAny(allowed, s.Test) {
			mark = "!"
			refused++
		}
		fmt.Fprintf(out, "%s %s %s: %s\n", mark, s.Package, s.Test, s.Reason)
	}
	if refused > 0 {
		fmt.Fprintf(out, "*** CI=true: %d of them (marked !) make this a failure ***\n", refused)
	}
	return refused
}

// matchesAny tells whether a pattern matches the test or one of its parents.
func matchesAny(patterns []string, test string) bool {
	for _, pattern := range patterns {
		for name := test; name != "."; name = path.Dir(name) {
			if ok, _ := path.Match(pattern, name); ok {
				return true
			}
		}
	}
	return false
}

// readAllowedSkips reads lines of a test name pattern (path.Match) and a reason; empty
// lines and those that start with # are passed over. A reason must be there.
func readAllowedSkips(file string) ([]string, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var patterns []string
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		line := strings.TrimSpace(scan.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		pattern, reason, _ := strings.Cut(line, " ")
		if strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s: skip of %s has no reason", file, pattern)
		}
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, fmt.Errorf("%s: pattern %q: %w", file, pattern, err)
		}
		patterns = append(patterns, pattern)
	}
	return patterns, scan.Err()
}
