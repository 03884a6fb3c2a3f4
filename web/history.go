package web

import (
	"context"
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/delayq/delayq"
)

// historyEvery is the age at which a history is read again: servers send their numbers that often.
const historyEvery = 10 * time.Second

// A history is what happened in a topic in each of some steps that end now.
type history struct {
	Name     string                      `json:"name"` // hour, six (hours) or month
	From     time.Time                   `json:"from"`
	Step     float64                     `json:"step_seconds"`
	Runs     int64                       `json:"runs"`     // that ended
	Outcomes map[delayq.Outcome][]int64  `json:"outcomes"` // those of the runs; one number for each step
	Lateness map[string][]*float64       `json:"lateness_seconds"`
	RunTime  map[string][]*float64       `json:"run_time_seconds"` // p50 and p99 of each step; null without runs
	late     []time.Duration             // the percentiles of all steps; none without runs that started
	columns  [][len(historyGroups)]int64 // the runs of each step by groups
}

var percentiles = [...]struct {
	name  string
	share float64
}{{"p50", 0.50}, {"p99", 0.99}}

// historyGroups are the parts of a column, from the bottom up. The last one has all other outcomes.
var historyGroups = [...]struct {
	name     string
	outcomes []delayq.Outcome
}{
	{"acked", []delayq.Outcome{delayq.OutcomeAcked, delayq.OutcomeAgain}},
	{"retried", []delayq.Outcome{delayq.OutcomeRetried}},
	{"buried", []delayq.Outcome{delayq.OutcomeBuried}},
	{"other", nil},
}

// histories returns the histories of a topic that end with the minute or the hour of a time. There
// are none if nothing ended within 30 days.
func (h *Handler) histories(ctx context.Context, topic string, at time.Time) ([]*history, error) {
	return readFor(h, ctx, historyEvery, "history\x00"+topic, func(ctx context.Context) ([]*history, error) {
		end := at.Truncate(time.Minute).Add(time.Minute)
		minutes, err := h.insp.History(ctx, topic, end.Add(-6*time.Hour), end, time.Minute)
		if err != nil {
			return nil, err
		}
		end = at.Truncate(time.Hour).Add(time.Hour)
		hours, err := h.insp.History(ctx, topic, end.Add(-30*24*time.Hour), end, time.Hour)
		if err != nil {
			return nil, err
		}
		list := []*history{
			historyOf("hour", minutes.Steps[len(minutes.Steps)-60:], time.Minute, 1),
			historyOf("six", minutes.Steps, time.Minute, 5), historyOf("month", hours.Steps, time.Hour, 12),
		}
		if list[1].Runs+list[2].Runs == 0 {
			return nil, nil
		}
		return list, nil
	})
}

// historyOf adds up each few of some steps, whose number is a multiple of few.
func historyOf(name string, steps []delayq.HistoryStep, step time.Duration, few int) *history {
	h := &history{
		Name: name, Step: (step * time.Duration(few)).Seconds(), Outcomes: make(map[delayq.Outcome][]int64),
		Lateness: make(map[string][]*float64), RunTime: make(map[string][]*float64),
	}
	var all delayq.Histogram
	n := len(steps) / few
	h.columns = make([][len(historyGroups)]int64, n)
	for i := range n {
		var late, ran delayq.Histogram
		for _, one := range steps[i*few : (i+1)*few] {
			if h.From.IsZero() {
				h.From = utc(one.At)
			}
			for outcome, runs := range one.Outcomes {
				if h.Outcomes[outcome] == nil {
					h.Outcomes[outcome] = make([]int64, n)
				}
				h.Outcomes[outcome][i] += runs
				h.columns[i][groupOf(outcome)] += runs
				h.Runs += runs
			}
			late, ran = sum(late, one.Lateness), sum(ran, one.RunTime)
		}
		for _, p := range percentiles {
			h.Lateness[p.name] = append(h.Lateness[p.name], quantile(late, p.share))
			h.RunTime[p.name] = append(h.RunTime[p.name], quantile(ran, p.share))
		}
		all = sum(all, late)
	}
	for _, p := range percentiles {
		if all.Count() > 0 {
			h.late = append(h.late, all.Quantile(p.share))
		}
	}
	return h
}

func groupOf(outcome delayq.Outcome) int {
	for i, group := range historyGroups {
		for _, one := range group.outcomes {
			if one == outcome {
				return i
			}
		}
	}
	return len(historyGroups) - 1
}

// sum adds up two histograms of the same bounds. It changes neither.
func sum(a, b delayq.Histogram) delayq.Histogram {
	if a.Counts == nil {
		return b
	}
	counts := append([]int64(nil), a.Counts...)
	for i, n := range b.Counts {
		counts[i] += n
	}
	return delayq.Histogram{Bounds: a.Bounds, Counts: counts}
}

// quantile returns nil for no durations.
func quantile(h delayq.Histogram, share float64) *float64 {
	if h.Count() == 0 {
		return nil
	}
	d := h.Quantile(share).Seconds()
	return &d
}

// What follows is for templates.

// A historyRow is a step with runs.
type historyRow struct {
	At    time.Time
	Runs  []int64  // by groups
	Times []string // p50 and p99 of lateness, and of run time
}

// Groups returns the names of the parts of a column.
func (h *history) Groups() (names []string) {
	for _, group := range historyGroups {
		names = append(names, group.name)
	}
	return names
}

// Percentiles returns their names.
func (h *history) Percentiles() (names []string) {
	for _, p := range percentiles {
		names = append(names, p.name)
	}
	return names
}

func (h *history) at(i int) time.Time { return h.From.Add(time.Duration(i) * seconds(h.Step)) }

// Rows returns the steps with runs.
func (h *history) Rows() (rows []historyRow) {
	for i, column := range h.columns {
		if column == [len(historyGroups)]int64{} {
			continue
		}
		row := historyRow{At: h.at(i), Runs: column[:]}
		for _, times := range []map[string][]*float64{h.Lateness, h.RunTime} {
			for _, p := range percentiles {
				text := "–"
				if n := times[p.name][i]; n != nil {
					text = short(seconds(*n))
				}
				row.Times = append(row.Times, text)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// Width returns the time of a step.
func (h *history) Width() time.Duration { return seconds(h.Step) }

// Most returns the runs of the highest column.
func (h *history) Most() (most int64) {
	for _, column := range h.columns {
		most = max(most, total(column[:]))
	}
	return most
}

// A historyLate is a percentile of the lateness of all steps.
type historyLate struct {
	Name string
	Time time.Duration
}

// Late returns the percentiles of all steps. There are none if no run started.
func (h *history) Late() (list []historyLate) {
	for i, d := range h.late {
		list = append(list, historyLate{percentiles[i].name, d})
	}
	return list
}

// Highest returns the value at the top of the lines.
func (h *history) Highest() time.Duration { return seconds(highest(h.Lateness)) }

// HistoryRuns returns the runs of a history as columns.
func (v *view) HistoryRuns(h *history) template.HTML {
	failed := int64(0)
	for _, column := range h.columns {
		failed += column[1] + column[2]
	}
	layout := "15:04"
	if h.Name == "month" {
		layout = time.DateTime[:len("2006-01-02 15:04")]
	}
	name := v.T("history." + h.Name)
	return stacks(h.columns, 360, 72, v.T("chart.runs", name, number(h.Runs), number(failed)), func(i int) string {
		parts := []string{h.at(i).Format(layout) + " UTC"}
		for g, n := range h.columns[i] {
			if n > 0 {
				parts = append(parts, v.T("history."+historyGroups[g].name)+" "+number(n))
			}
		}
		return strings.Join(parts, " · ")
	})
}

// HistoryLateness returns the lateness of a history as lines. It needs runs that started.
func (v *view) HistoryLateness(h *history) template.HTML {
	return lines(h.Lateness, 360, 48, v.T("chart.late", v.T("history."+h.Name), short(h.late[0]), short(h.late[1])))
}

// stacks returns columns as SVG. See bars.
func stacks(columns [][len(historyGroups)]int64, width, height int, label string, title func(i int) string) template.HTML {
	top := int64(1)
	for _, column := range columns {
		top = max(top, total(column[:]))
	}
	var b strings.Builder
	open(&b, "bars stacks", width, height, label)
	step := float64(width) / float64(max(len(columns), 1))
	for i, column := range columns {
		if total(column[:]) == 0 {
			fmt.Fprintf(&b, `<rect class="zero" x="%.2f" y="%d" width="%.2f" height="1"/>`, float64(i)*step, height-1, step*0.8)
			continue
		}
		fmt.Fprintf(&b, `<g><title>%s</title>`, template.HTMLEscapeString(title(i)))
		y := float64(height)
		for g, n := range column {
			if n > 0 {
				h := max(1, float64(height)*float64(n)/float64(top))
				y -= h
				fmt.Fprintf(&b, `<rect class="%s" x="%.2f" y="%.2f" width="%.2f" height="%.2f"/>`, historyGroups[g].name, float64(i)*step, max(0, y), step*0.8, h)
			}
		}
		b.WriteString(`</g>`)
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

func total(list []int64) (sum int64) {
	for _, n := range list {
		sum += n
	}
	return sum
}

// highest returns the largest value of the percentiles.
func highest(values map[string][]*float64) (top float64) {
	for _, p := range percentiles {
		for _, n := range values[p.name] {
			if n != nil {
				top = max(top, *n)
			}
		}
	}
	return top
}

// lines returns the lines of the percentiles as SVG, from 0 at the bottom to the largest value, at
// least 1 ms, at the top. A step without a value is a gap, and one between two gaps is a dash as
// wide as a column. See bars.
func lines(values map[string][]*float64, width, height int, label string) template.HTML {
	top := max(1e-3, highest(values))
	var b strings.Builder
	open(&b, "bars lines", width, height, label)
	for _, p := range percentiles {
		list := values[p.name]
		step := float64(width) / float64(max(len(list), 1))
		fmt.Fprintf(&b, `<path class="%s" d="`, p.name)
		for i, n := range list {
			if n == nil {
				continue
			}
			x, y := (float64(i)+0.4)*step, 1+float64(height-2)*(1-*n/top)
			switch first, last := i == 0 || list[i-1] == nil, i == len(list)-1 || list[i+1] == nil; {
			case first && last:
				fmt.Fprintf(&b, "M%.2f %.2fh%.2f", float64(i)*step, y, 0.8*step)
			case first:
				fmt.Fprintf(&b, "M%.2f %.2f", x, y)
			default:
				fmt.Fprintf(&b, "L%.2f %.2f", x, y)
			}
		}
		b.WriteString(`"/>`)
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

func open(b *strings.Builder, class string, width, height int, label string) {
	fmt.Fprintf(b, `<svg class="%s" viewBox="0 0 %d %d" preserveAspectRatio="none" role="img" aria-label="%s">`,
		class, width, height, template.HTMLEscapeString(label))
}
