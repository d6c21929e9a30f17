package main

import (
	"math"
	"slices"
)

// Whose figure it is: a column of the table.
const (
	ours = "conmonrs"
	peer = "peer"
	cmon = "conmon" // the C monitor
	bare = "bare"   // the runtime itself, or cat
)

var subjects = []string{ours, peer, cmon, bare}

// row is one figure of all that were measured.
type row struct {
	ID      string `json:"id"` // for comparing with other runs
	Section string `json:"section"`
	Title   string `json:"title"`
	Unit    string `json:"unit"`
	// Counter says where the number comes from.
	Counter string             `json:"counter"`
	Values  map[string]float64 `json:"values"`  // by subject
	Samples map[string]int     `json:"samples"` // how many each value is the median or percentile of
	Target  *target            `json:"target,omitempty"`
}

// target bounds our own value.
type target struct {
	AtMost  *float64 `json:"at_most,omitempty"`
	AtLeast *float64 `json:"at_least,omitempty"`
}

func atMost(v float64) *target  { return &target{AtMost: &v} }
func atLeast(v float64) *target { return &target{AtLeast: &v} }

func (t *target) met(v float64) bool {
	return (t.AtMost == nil || v <= *t.AtMost) && (t.AtLeast == nil || v >= *t.AtLeast)
}

// add makes a row of the table.
func (b *bench) add(section, id, title, unit, counter string, t *target) *row {
	r := &row{
		ID: section + "." + id, Section: section, Title: title, Unit: unit, Counter: counter, Target: t,
		Values: map[string]float64{}, Samples: map[string]int{},
	}
	b.rows = append(b.rows, r)
	return r
}

func (r *row) set(subject string, value float64, samples int) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	r.Values[subject] = value
	r.Samples[subject] = samples
}

// median sets the median of the samples.
func (r *row) median(subject string, samples []float64) { r.percentile(subject, samples, 50) }

func (r *row) percentile(subject string, samples []float64, p float64) {
	if len(samples) > 0 {
		r.set(subject, percentile(samples, p), len(samples))
	}
}

// percentile is the value that p percent of the samples do not exceed; between two samples for the median of an even number.
func percentile(samples []float64, p float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	if n := len(sorted); p == 50 && n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// ratio adds a row of our value in parts of another's.
func (b *bench) ratio(section, id, title string, of *row, subject string, t *target) {
	r := b.add(section, id, title, "x", "ratio of the figures above", t)
	if theirs, ok := of.Values[subject]; ok && theirs != 0 {
		if mine, ok := of.Values[ours]; ok {
			r.set(ours, mine/theirs, of.Samples[ours])
		}
	}
}
