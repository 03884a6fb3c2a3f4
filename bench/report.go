package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// report is the outcome of a run, as -json prints it.
type report struct {
	Date    time.Time   `json:"date"`
	Machine machine     `json:"machine"`
	Rounds  int         `json:"rounds"`
	Quick   bool        `json:"quick"`
	Rows    []rowReport `json:"rows"`
	Curves  []curve     `json:"curves,omitempty"`
}

// machine is where and with what a run was made.
type machine struct {
	OS    string `json:"os"`
	Arch  string `json:"arch"`
	CPU   string `json:"cpu,omitempty"`
	Cores int    `json:"cores"` // that this process may use at a time
	GOGC  string `json:"gogc,omitempty"`
	Go    string `json:"go"`
	Redis string `json:"redis"`
	Asynq string `json:"asynq"`
	River string `json:"river"`
	// Postgres is empty if no row needed it.
	Postgres string `json:"postgres,omitempty"`
	// BullMQ is empty if no row had it.
	BullMQ string `json:"bullmq,omitempty"`
}

// rowReport is the outcome of a row.
type rowReport struct {
	ID      string         `json:"id"`
	Title   string         `json:"title"`
	Sides   []sideReport   `json:"sides"`
	Ratios  sample         `json:"ratios,omitempty"` // first side by second
	Targets []targetReport `json:"targets"`
}

// sideReport is the outcome of one side of a row.
type sideReport struct {
	Label   string   `json:"label"`
	Summary sample   `json:"summary"` // medians; see worstCounts
	Rounds  []sample `json:"rounds"`
	// Ratios are of a third side and later ones: by the second, or, of BullMQ,
	// of the first by this one.
	Ratios sample `json:"ratios,omitempty"`
}

// targetReport is a target and how it was met.
type targetReport struct {
	Figure string  `json:"figure"`
	Most   bool    `json:"most"` // bound is the largest good value, else the smallest
	Bound  float64 `json:"bound"`
	Ratio  bool    `json:"ratio"`
	// Value is absent when what it needs was not measured.
	Value *float64 `json:"value,omitempty"`
	Met   bool     `json:"met"`
}

// report makes the outcome of the row from the samples of each side. A side
// without samples is left out.
func (r row) report(results [][]sample) rowReport {
	out := rowReport{ID: r.id, Title: r.title, Targets: []targetReport{}}
	of := func(k int) sample { return summary(results[k]) }
	for k, side := range r.sides {
		if len(results[k]) == 0 {
			continue
		}
		one := sideReport{Label: side.label, Summary: of(k), Rounds: results[k]}
		switch {
		case k == 1:
			out.Ratios = ratios(of(0), of(1))
		case k > 1 && side.beside:
			one.Ratios = ratios(of(0), of(k))
		case k > 1:
			one.Ratios = ratios(of(k), of(1))
		}
		out.Sides = append(out.Sides, one)
	}
	for _, t := range r.targets {
		out.Targets = append(out.Targets, t.report(out))
	}
	return out
}

// report says whether the target was met.
func (t target) report(r rowReport) targetReport {
	out := targetReport{Figure: t.figure, Most: t.most, Bound: t.bound, Ratio: t.ratio}
	values := r.Sides[0].Summary
	if t.ratio {
		values = r.Ratios
	}
	if v, ok := values[t.figure]; ok {
		out.Value = &v
		out.Met = v >= t.bound && !t.most || v <= t.bound && t.most
	}
	return out
}

// thisMachine describes the machine, with the Redis at s.
func thisMachine(redisVersion string) machine {
	m := machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: cpuModel(), Cores: runtime.GOMAXPROCS(0),
		GOGC: os.Getenv("GOGC"), Go: runtime.Version(), Redis: redisVersion,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			switch dep.Path {
			case "github.com/hibiken/asynq":
				m.Asynq = dep.Version
			case "github.com/riverqueue/river":
				m.River = dep.Version
			}
		}
	}
	return m
}

// cpuModel is the name of the processor where the system tells it, else empty.
func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// writeJSON writes the report as JSON. A figure that is no number (a growth
// from nothing) would make that fail, so it is left out.
func (r report) writeJSON(out io.Writer) error {
	for _, row := range r.Rows {
		for _, side := range row.Sides {
			for _, s := range append(side.Rounds, side.Summary, side.Ratios, row.Ratios) {
				for figure, v := range s {
					if math.IsNaN(v) || math.IsInf(v, 0) {
						delete(s, figure)
					}
				}
			}
		}
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
