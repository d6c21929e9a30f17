package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// result is what a run leaves.
type result struct {
	Machine machine `json:"machine"`
	Short   bool    `json:"short"`
	Rows    []*row  `json:"rows"`
}

// readResult reads an earlier run's file; without a name there is none.
func readResult(path string) (*result, error) {
	if path == "" {
		return nil, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read previous figures: %w", err)
	}
	r := &result{}
	if err := json.Unmarshal(content, r); err != nil {
		return nil, fmt.Errorf("read previous figures %q: %w", path, err)
	}
	return r, nil
}

func (r *result) write(path string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write figures: %w", err)
	}
	if err := os.WriteFile(path, append(content, '\n'), 0o644); err != nil {
		return fmt.Errorf("write figures: %w", err)
	}
	return nil
}

// value returns the earlier value of our figure.
func (r *result) value(id string) (float64, bool) {
	if r == nil {
		return 0, false
	}
	for _, row := range r.Rows {
		if row.ID == id {
			v, ok := row.Values[ours]
			return v, ok
		}
	}
	return 0, false
}

// print writes the table. The peer's column and that of the previous run are there only if there is such a thing.
func (r *result) print(w io.Writer, previous *result) {
	r.Machine.print(w)
	columns := r.columns()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := append([]string{"figure", "unit"}, columns...)
	head = append(head, "target", "")
	if previous != nil {
		head = append(head, "previous", "change")
	}
	head = append(head, "counter")
	missed, last := 0, ""
	for _, row := range r.Rows {
		if row.Section != last {
			last = row.Section
			fmt.Fprintf(t, "\n%s\n", strings.Join(head, "\t"))
		}
		verdict := row.verdict()
		if verdict == "MISSED" {
			missed++
		}
		cells := []string{row.Title, row.Unit}
		for _, c := range columns {
			cells = append(cells, row.cell(c))
		}
		cells = append(cells, row.Target.String(), verdict)
		if previous != nil {
			cells = append(cells, row.compare(previous)...)
		}
		fmt.Fprintln(t, strings.Join(append(cells, row.Counter), "\t"))
	}
	_ = t.Flush()
	fmt.Fprintf(w, "\n%d figures, %d targets missed\n", len(r.Rows), missed)
}

// columns are the subjects that have a figure.
func (r *result) columns() []string {
	var found []string
	for _, s := range subjects {
		for _, row := range r.Rows {
			if _, ok := row.Values[s]; ok {
				found = append(found, s)
				break
			}
		}
	}
	return found
}

func (r *row) cell(subject string) string {
	if v, ok := r.Values[subject]; ok {
		return number(v)
	}
	return "-"
}

func (r *row) verdict() string {
	if r.Target == nil {
		return ""
	}
	v, ok := r.Values[ours]
	switch {
	case !ok:
		return "not measured"
	case r.Target.met(v):
		return "ok"
	}
	return "MISSED"
}

func (r *row) compare(previous *result) []string {
	old, ok := previous.value(r.ID)
	if !ok {
		return []string{"-", "-"}
	}
	change := "-"
	if v, ok := r.Values[ours]; ok && old != 0 {
		change = fmt.Sprintf("%+.0f %%", 100*(v-old)/old)
	}
	return []string{number(old), change}
}

func (t *target) String() string {
	switch {
	case t == nil:
		return ""
	case t.AtMost != nil:
		return "<= " + number(*t.AtMost)
	case t.AtLeast != nil:
		return ">= " + number(*t.AtLeast)
	}
	return ""
}

func number(v float64) string {
	switch {
	case v == float64(int64(v)) || v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
