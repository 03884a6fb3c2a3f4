package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// figureText is how a figure is shown.
type figureText struct {
	figure   string
	label    string
	unit     string
	decimals int
}

// columns are the figures of every row.
var columns = []figureText{
	{figRate, "jobs/s", "", 0},
	{figCPU, "Redis µs/job", "", 1},
	{figCommands, "commands/job", "", 3},
	{figBytes, "bytes/job", "", 0},
	{figAllocs, "allocs/job", "", 1},
}

// extras are the figures of single rows, in the order in which they are shown.
var extras = []figureText{
	{figMemory, "memory", "bytes/job", 0},
	{figP50, "p50", "ms", 2},
	{figP99, "p99", "ms", 2},
	{figFirst, "least", "ms", 2},
	{figWorst, "most", "ms", 2},
	{figEarly, "early", "jobs", 0},
	{figLoad, "load", "jobs/s", 0},
	{figIdleCommands, "idle", "commands/s", 1},
	{figIdleCPU, "Redis", "µs/s", 0},
	{figIdleBytes, "network", "bytes/s", 0},
	{figBusy, "busy", "%", 1},
	{figSlowScripts, "scripts over 5 ms", "", 0},
	{figLongestScript, "longest", "ms", 1},
	{figPing, "PING p99", "ms", 2},
	{figPingWorst, "most", "ms", 2},
	{figRTT, "round trip", "ms", 2},
	{figCallP50, "call p50", "round trips", 2},
	{figCallP99, "call p99", "round trips", 2},
	{figCeiling, "of the ceiling", "%", 0},
	{figStartP50, "start p50", "round trips", 2},
	{figStartP99, "start p99", "round trips", 2},
	{figConns, "connections idle", "", 0},
	{figConnsLoaded, "loaded", "", 0},
	{figGoroutines, "goroutines", "", 0},
	{figHeap, "heap", "bytes/topic", 0},
	{figIdleCalls, "seen by Redis", "calls/s", 1},
	{figTakes, "takes", "per job", 2},
	{figPageP50, "page p50", "ms", 2},
	{figPageP99, "page p99", "ms", 2},
	{figProcess, "process", "µs/job", 2},
	{figNodeMost, "busiest node", "µs/job", 2},
	{figNodeLeast, "least busy", "µs/job", 2},
	{figDatabase, "PostgreSQL", "µs/job", 0},
	{figCommitP50, "start p50", "ms", 2},
	{figCommitP99, "start p99", "ms", 2},
	{figTripP50, "to the result p50", "ms", 2},
	{figTripP99, "p99", "ms", 2},
	{figShare, "of the rate", "%", 1},
	{figWindow, "worst second", "starts", 0},
	{figRedis, "Redis", "%", 1},
	{figGrowth(stepEnqueue), figGrowth(stepEnqueue), "×", 2},
	{figGrowth(stepScatter), figGrowth(stepScatter), "×", 2},
	{figGrowth(stepRun), figGrowth(stepRun), "×", 2},
	{figGrowth(stepCancel), figGrowth(stepCancel), "×", 2},
}

// textOf returns how figure is shown.
func textOf(figure string) figureText {
	for _, list := range [][]figureText{columns, extras} {
		for _, f := range list {
			if f.figure == figure {
				return f
			}
		}
	}
	return figureText{figure, figure, "", 2}
}

// with is value v of the figure with its unit.
func (f figureText) with(v float64) string {
	text := number(v, f.decimals)
	switch f.unit {
	case "":
		return text
	case "×":
		return text + f.unit
	default:
		return text + " " + f.unit
	}
}

// number writes v with that many decimals (-1: as many as it has) and commas between thousands. A
// value that would be written as 0 but is not gets the decimals it needs.
func number(v float64, decimals int) string {
	text := strconv.FormatFloat(v, 'f', decimals, 64)
	if v != 0 && strings.Trim(text, "-0.") == "" {
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
	sign := ""
	if rest, ok := strings.CutPrefix(text, "-"); ok {
		sign, text = "-", rest
	}
	whole, fraction, _ := strings.Cut(text, ".")
	var grouped strings.Builder
	for i, digit := range whole {
		if i > 0 && (len(whole)-i)%3 == 0 {
			grouped.WriteByte(',')
		}
		grouped.WriteRune(digit)
	}
	if fraction != "" {
		fraction = "." + fraction
	}
	return sign + grouped.String() + fraction
}

// labelWidth and columnWidth are the widths of the table in characters.
const labelWidth, columnWidth = 14, 14

// pad fills text up with spaces to width, on the right or, for numbers, on
// the left.
func pad(text string, width int, left bool) string {
	space := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
	if left {
		return space + text
	}
	return text + space
}

// writeText writes the report as a table for people.
func (r report) writeText(out io.Writer) error {
	var t strings.Builder
	m := r.Machine
	fmt.Fprintf(&t, "%s · %d cores %s · %s/%s · %s · Redis %s · asynq %s · rounds: %d, medians\n",
		r.Date.Format("2006-01-02"), m.Cores, m.CPU, m.OS, m.Arch, m.Go, m.Redis, m.Asynq, r.Rounds)
	if m.Postgres != "" {
		fmt.Fprintf(&t, "PostgreSQL %s · River %s\n", m.Postgres, m.River)
	}
	if m.BullMQ != "" {
		fmt.Fprintf(&t, "BullMQ %s\n", m.BullMQ)
	}
	if r.Quick {
		t.WriteString("Quick run: it shows that everything works. The targets are for the full run.\n")
	}
	t.WriteString("\n" + pad("", labelWidth, false))
	for _, c := range columns {
		t.WriteString(pad(c.label, columnWidth, true))
	}
	t.WriteString("\n")
	met, missed := 0, 0
	for _, row := range r.Rows {
		fmt.Fprintf(&t, "\n%s (%s)\n", row.Title, row.ID)
		row.writeSides(&t)
		for _, target := range row.Targets {
			fmt.Fprintf(&t, "  target %s\n", target)
			switch {
			case target.Met:
				met++
			case target.Value != nil:
				missed++
			}
		}
	}
	fmt.Fprintf(&t, "\n%d targets met, %d missed\n", met, missed)
	_, err := io.WriteString(out, t.String())
	return err
}

// writeSides writes the lines with the figures of a row.
func (r rowReport) writeSides(t *strings.Builder) {
	for k, side := range r.Sides {
		writeLine(t, side.Label, func(c figureText) string {
			v, ok := side.Summary[c.figure]
			if !ok {
				return ""
			}
			return number(v, c.decimals)
		})
		var more []string
		for _, e := range extras {
			if v, ok := side.Summary[e.figure]; ok {
				more = append(more, e.label+" "+e.with(v))
			}
		}
		if len(more) > 0 {
			fmt.Fprintf(t, "    %s\n", strings.Join(more, " · "))
		}
		for _, c := range curvesOf(side) {
			var points []string
			for _, p := range c.Points {
				points = append(points, fmt.Sprintf("%s @ %s", number(p.Cost, 2), number(float64(p.Pending), 0)))
			}
			fmt.Fprintf(t, "    %s: %s\n", c.Step, strings.Join(points, " · "))
		}
		switch {
		case k == 1 && r.Ratios != nil:
			writeRatios(t, r.Ratios)
		case k > 0: // the second of the row may have been left out
			writeRatios(t, side.Ratios)
		}
	}
}

// writeRatios writes a line of ratios.
func writeRatios(t *strings.Builder, ratios sample) {
	writeLine(t, "ratio", func(c figureText) string {
		v, ok := ratios[c.figure]
		if !ok {
			return ""
		}
		return number(v, 2) + "×"
	})
}

// writeLine writes one line with a cell for each column, or none if all cells
// are empty but the label of a side.
func writeLine(t *strings.Builder, label string, cell func(figureText) string) {
	line := pad("  "+label, labelWidth, false)
	for _, c := range columns {
		line += pad(cell(c), columnWidth, true)
	}
	if line = strings.TrimRight(line, " "); line != "  ratio" {
		t.WriteString(line + "\n")
	}
}

// String says the target and how it was met.
func (t targetReport) String() string {
	f := textOf(t.Figure)
	if t.Ratio {
		f.unit, f.decimals = "×", 2
	}
	bound := f
	bound.decimals = -1
	sign := "≥"
	if t.Most {
		sign = "≤"
	}
	text := fmt.Sprintf("%s %s %s: ", f.label, sign, bound.with(t.Bound))
	switch {
	case t.Value == nil:
		return text + "not measured"
	case t.Met:
		return text + f.with(*t.Value) + ", met"
	default:
		return text + f.with(*t.Value) + ", MISSED"
	}
}
