package web

import (
	"context"
	"html/template"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

func pointers(list ...float64) (all []*float64) {
	for _, n := range list {
		if n < 0 {
			all = append(all, nil)
		} else {
			all = append(all, &n)
		}
	}
	return all
}

// Columns are stacked from the bottom up, and lines have gaps.
func TestHistoryAsSVG(t *testing.T) {
	svg := stacks([][len(historyGroups)]int64{{}, {6, 2, 1, 1}, {5}}, 30, 10, `two <b>`, func(i int) string { return "<i>" + string(rune('0'+i)) })
	require.Equal(t, template.HTML(`<svg class="bars stacks" viewBox="0 0 30 10" preserveAspectRatio="none" role="img" aria-label="two &lt;b&gt;">`+
		`<rect class="zero" x="0.00" y="9" width="8.00" height="1"/>`+
		`<g><title>&lt;i&gt;1</title><rect class="acked" x="10.00" y="4.00" width="8.00" height="6.00"/>`+
		`<rect class="retried" x="10.00" y="2.00" width="8.00" height="2.00"/><rect class="buried" x="10.00" y="1.00" width="8.00" height="1.00"/>`+
		`<rect class="other" x="10.00" y="0.00" width="8.00" height="1.00"/></g>`+
		`<g><title>&lt;i&gt;2</title><rect class="acked" x="20.00" y="5.00" width="8.00" height="5.00"/></g></svg>`), svg)
	svg = lines(map[string][]*float64{"p50": pointers(0, 1, -1, 2), "p99": pointers(-1, -1, -1, 4)}, 40, 12, "<b>")
	require.Equal(t, template.HTML(`<svg class="bars lines" viewBox="0 0 40 12" preserveAspectRatio="none" role="img" aria-label="&lt;b&gt;">`+
		`<path class="p50" d="M4.00 11.00L14.00 8.50M30.00 6.00h8.00"/><path class="p99" d="M30.00 1.00h8.00"/></svg>`), svg)
	for _, empty := range []template.HTML{stacks(nil, 1, 1, "", nil), lines(nil, 1, 1, "")} {
		require.True(t, strings.HasSuffix(string(empty), "</svg>"))
	}
}

// Steps are added up, their histograms too, and every outcome is in a group.
func TestHistoryOfSteps(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 0, 0, 0, time.UTC)
	bounds := []time.Duration{time.Second, 2 * time.Second}
	late := func(counts ...int64) delayq.Histogram { return delayq.Histogram{Bounds: bounds, Counts: counts} }
	steps := []delayq.HistoryStep{
		{At: at, Outcomes: map[delayq.Outcome]int64{delayq.OutcomeAcked: 3, delayq.OutcomeHeld: 1}, Lateness: late(2, 0, 0), RunTime: late(0, 0, 4)},
		{At: at.Add(time.Minute), Outcomes: map[delayq.Outcome]int64{delayq.OutcomeAgain: 1, delayq.OutcomeBuried: 2}, Lateness: late(0, 2, 0), RunTime: late(0, 0, 0)},
		{At: at.Add(2 * time.Minute), Lateness: late(0, 0, 0), RunTime: late(0, 0, 0)},
		{At: at.Add(3 * time.Minute), Lateness: late(0, 0, 0), RunTime: late(0, 0, 0)},
	}
	h := historyOf("six", steps, time.Minute, 2)
	require.Equal(t, at, h.From)
	require.EqualValues(t, 7, h.Runs)
	require.InDelta(t, 120, h.Step, 0)
	require.Equal(t, [][len(historyGroups)]int64{{4, 0, 2, 1}, {}}, h.columns)
	require.Equal(t, []int64{3, 0}, h.Outcomes[delayq.OutcomeAcked])
	require.Equal(t, pointers(1, -1), h.Lateness["p50"])
	require.Equal(t, pointers(2, -1), h.RunTime["p99"])
	require.Equal(t, []int64{2, 0, 0}, steps[0].Lateness.Counts, "what was read is shared")
	rows := h.Rows()
	require.Len(t, rows, 1)
	require.Equal(t, historyRow{At: at, Runs: []int64{4, 0, 2, 1}, Times: []string{short(time.Second), short(1980 * time.Millisecond), short(2 * time.Second), short(2 * time.Second)}}, rows[0])
	require.Equal(t, []string{"p50", "p99"}, h.Percentiles())
	require.EqualValues(t, 7, h.Most())
	require.Equal(t, 2*time.Minute, h.Width())
	require.Equal(t, 1980*time.Millisecond, h.Highest())
	require.Equal(t, []historyLate{{"p50", time.Second}, {"p99", 1980 * time.Millisecond}}, h.Late())
	steps[0].Lateness, steps[1].Lateness = late(0, 0, 0), late(0, 0, 0)
	require.Empty(t, historyOf("six", steps, time.Minute, 2).Late(), "no run started")
}

// An entry that is kept longer is read again only after that.
func TestCacheKeeps(t *testing.T) {
	c := cache{every: time.Nanosecond}
	reads := 0
	fetch := func(context.Context) (any, error) { reads++; return reads, nil }
	for _, want := range []int{1, 1} {
		got, err := c.get(t.Context(), "kept", time.Hour, fetch)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	c.entries["kept"].at = time.Now().Add(-2 * time.Hour)
	got, err := c.get(t.Context(), "kept", time.Hour, fetch)
	require.NoError(t, err)
	require.Equal(t, 2, got)
}
