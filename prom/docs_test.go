package prom

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

var update = flag.Bool("update", false, "write the tables of docs/metrics.md instead of comparing them")

const manual = "../docs/metrics.md"

// table is a table of docs/metrics.md, by its first line.
type docTable struct {
	head string
	rows []string
}

func familyRows(list []*family) (rows []string) {
	for _, f := range list {
		labels := "–"
		if len(f.labels) > 0 {
			labels = strings.Join(f.labels, ", ")
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |", f.name, f.kind, labels, f.help))
	}
	return rows
}

// values returns the values that each label has in the code.
func values() map[string]string {
	all := map[string][]string{}
	for _, h := range horizons {
		all["within"] = append(all["within"], h.label)
	}
	for _, outcome := range outcomes {
		all["outcome"] = append(all["outcome"], string(outcome))
	}
	for _, k := range counters {
		all["event"] = append(all["event"], k.value)
		if k.family == scheduleSlotsTotal {
			all["result of slots"] = append(all["result of slots"], k.value)
		}
	}
	all["event"] = slices.DeleteFunc(all["event"], func(v string) bool {
		return !slices.ContainsFunc(slices.Collect(maps.Values(counters)), func(k key) bool { return k == key{jobEventsTotal, v} })
	})
	slices.Sort(all["event"])
	slices.Sort(all["result of slots"])
	text := map[string]string{
		"result of enqueues": strings.Join(enqueueResults, ", "), "result of cancels": strings.Join(cancelResults, ", "),
		"state of jobs": "scheduled, ready, running, dead, done", "state of pruned jobs": "dead, done",
		"script": "the files of `lua/`", "call": "the names of [`CallEvent`][CallEvent]",
	}
	for label, list := range all {
		text[label] = strings.Join(list, ", ")
	}
	return text
}

// The tables of docs/metrics.md are those of the code.
func TestManualHasTheMetrics(t *testing.T) {
	t.Parallel()
	text := file(t, manual)
	var labels []string
	for _, label := range slices.Sorted(maps.Keys(values())) {
		labels = append(labels, fmt.Sprintf("| %s | %s |", label, values()[label]))
	}
	bounds := func(f *family, list []float64) string {
		return fmt.Sprintf("| `%s` | %s |", f.name, strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ", "), "[]"))
	}
	tables := []docTable{
		{"| metric | type | labels besides prefix | meaning |", familyRows(queueFamilies)},
		{"| metric | type | labels besides outbox | meaning |", familyRows(outboxFamilies)},
		{"| metric | type | labels | meaning |", familyRows(processFamilies)},
		{"| histogram | classic bounds in seconds |", []string{
			bounds(lateness, latenessBounds), bounds(runDuration, durationBounds), bounds(callDuration, callBounds), bounds(redisCallDuration, callBounds),
		}},
		{"| label | values |", append([]string{
			"| prefix | that of the [`Inspector`][Inspector] |",
			fmt.Sprintf("| topic | up to %d topics ([`MaxTopics`][MaxTopics]), and `%s` |", defaults.maxTopics, Other),
			"| outbox | that of `NewOutboxCollector`, or the `--table` of the relay |",
			"| version | that of the module delayq in the program |",
		}, labels...)},
		{"| source | series for each topic |", []string{
			fmt.Sprintf("| the queue | %d |", seriesOfQueue(t)),
			fmt.Sprintf("| a process that runs its jobs | %d |", seriesOf(t, func(m *Metrics) { m.Run(t.Context(), delayq.RunEvent{Topic: "t"}) })),
			fmt.Sprintf("| a process that enqueues them | %d |", seriesOf(t, func(m *Metrics) { m.Enqueued(t.Context(), delayq.EnqueueEvent{Topic: "t"}) })),
			fmt.Sprintf("| a process that cancels them | %d |", seriesOf(t, func(m *Metrics) { m.Dequeued(t.Context(), delayq.DequeueEvent{Topic: "t"}) })),
		}},
	}
	want := text
	for _, table := range tables {
		before, after, found := strings.Cut(want, table.head+"\n")
		require.True(t, found, table.head)
		separator, rest, _ := strings.Cut(after, "\n")
		for strings.HasPrefix(rest, "|") {
			_, rest, _ = strings.Cut(rest, "\n")
		}
		want = before + table.head + "\n" + separator + "\n" + strings.Join(table.rows, "\n") + "\n" + rest
	}
	if *update {
		require.NoError(t, os.WriteFile(manual, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, text, "go test -update writes it")
}

// seriesOf returns how many series of a topic there are after an event, as Prometheus counts them.
func seriesOf(t *testing.T, event func(*Metrics)) (n int) {
	m := NewMetrics()
	event(m)
	for _, f := range gather(t, m) {
		for _, one := range f.Metric {
			if !slices.ContainsFunc(one.Label, func(l *dto.LabelPair) bool { return l.GetName() == "topic" }) {
				continue
			}
			if n++; one.Histogram != nil {
				n += len(one.Histogram.Bucket) + 2 // and +Inf, sum and count, which are one already
			}
		}
	}
	return n
}

func seriesOfQueue(t *testing.T) (n int) {
	now := time.UnixMilli(1)
	c := NewCollector(delayq.NewInspector(nil))
	for name := range scrapeOf(t, fixed(c.state.metrics(c.constant, look1(map[string]delayq.TopicStats{"t": {NextSlot: now}})))) {
		if strings.Contains(name, "topic=t") {
			n++
		}
	}
	return n
}

// The manual has the defaults, and the comments of the options too.
func TestManualHasTheDefaults(t *testing.T) {
	t.Parallel()
	text, options := file(t, manual), file(t, "options.go")
	require.Contains(t, text, fmt.Sprintf("waits %.0f s for Redis at most", defaults.timeout.Seconds()))
	require.Contains(t, text, fmt.Sprintf("at most once in %.0f s", defaults.interval.Seconds()))
	require.Contains(t, options, fmt.Sprintf("Default: %d.", defaults.maxTopics))
	require.Contains(t, options, fmt.Sprintf("Default: %.0f s.\nfunc MinInterval", defaults.interval.Seconds()))
	require.Contains(t, options, fmt.Sprintf("Default: %.0f s.\nfunc Timeout", defaults.timeout.Seconds()))
	require.Contains(t, options, fmt.Sprintf("A topic has up to %d series in [Metrics], and %d in a [Collector].",
		seriesOf(t, func(m *Metrics) {
			m.Run(t.Context(), delayq.RunEvent{Topic: "t"})
			m.Enqueued(t.Context(), delayq.EnqueueEvent{Topic: "t"})
			m.Dequeued(t.Context(), delayq.DequeueEvent{Topic: "t"})
		}), seriesOfQueue(t)))
}

// Each outcome and each counter of delayq is exported.
func TestNothingIsLeftOut(t *testing.T) {
	t.Parallel()
	source := file(t, "../retry.go") + file(t, "../stats.go")
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^\tOutcome\w+ +Outcome = "(\w+)"`).FindAllStringSubmatch(source, -1) {
		names = append(names, m[1])
		require.Contains(t, outcomes, delayq.Outcome(m[1]))
	}
	require.Len(t, outcomes, len(names))
	names = nil
	for _, m := range regexp.MustCompile(`(?m)^\tCounter\w+ +Counter = "(\w+)"`).FindAllStringSubmatch(source, -1) {
		names = append(names, m[1])
		require.Contains(t, counters, delayq.Counter(m[1]))
		if k := counters[delayq.Counter(m[1])]; k.family == jobEventsTotal || k.family == scheduleSlotsTotal {
			require.Equal(t, m[1], k.value, "its own word")
		}
	}
	require.Len(t, counters, len(names))
	require.NotEmpty(t, names)
}

// Names follow the conventions of Prometheus, and the list has no name twice.
func TestNamesAreConventional(t *testing.T) {
	t.Parallel()
	all := slices.Concat(processFamilies, queueFamilies, outboxFamilies)
	names := namesOf(all...)
	require.Len(t, slices.Compact(slices.Clone(names)), len(all))
	for _, f := range all {
		require.Regexp(t, `^delayq_[a-z_]+$`, f.name)
		require.Equal(t, f.kind == counter, strings.HasSuffix(f.name, "_total"), f.name)
		require.Regexp(t, `^[A-Z0-9].*\.$`, f.help)
		require.NotContains(t, f.help, "|")
		require.NotContains(t, f.labels, "schedule")
		for _, label := range f.labels {
			require.NotContains(t, []string{"id", "error", "server", "header"}, label)
		}
	}
}

// The Go of the manual and of the package comment is that of the examples, which are compiled.
func TestManualCodeIsTheExample(t *testing.T) {
	t.Parallel()
	example := file(t, "example_test.go")
	lines := 0
	for _, block := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(file(t, manual), -1) {
		for line := range strings.Lines(block[1]) {
			require.Contains(t, example, strings.TrimSpace(line))
			lines++
		}
	}
	for _, line := range regexp.MustCompile(`(?m)^//\t(.*)$`).FindAllStringSubmatch(file(t, "doc.go"), 3) {
		require.Contains(t, example, line[1])
		lines++
	}
	require.Equal(t, 14, lines)
}
