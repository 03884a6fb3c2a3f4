package prom

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/queuetest"
)

func TestMain(m *testing.M) { queuetest.Main(m, func() error { return nil }) }

// A scrape has the values of one scrape, under names like those of Prometheus's text format without
// the quotes: delayq_jobs{state=ready,topic=mail}.
type scrape map[string]float64

// scrapeOf gathers from a new registry that checks what it gets.
func scrapeOf(t testing.TB, collectors ...prometheus.Collector) scrape {
	t.Helper()
	all := scrape{}
	for _, f := range gather(t, collectors...) {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			text := ""
			if len(labels) > 0 {
				text = "{" + strings.Join(labels, ",") + "}"
			}
			switch name := f.GetName(); f.GetType() {
			case dto.MetricType_COUNTER:
				all[name+text] = m.Counter.GetValue()
			case dto.MetricType_GAUGE:
				all[name+text] = m.Gauge.GetValue()
			case dto.MetricType_HISTOGRAM:
				all[name+"_count"+text] = float64(m.Histogram.GetSampleCount())
				all[name+"_sum"+text] = m.Histogram.GetSampleSum()
			default:
				t.Fatalf("%s is a %v", name, f.GetType())
			}
		}
	}
	return all
}

func gather(t testing.TB, collectors ...prometheus.Collector) []*dto.MetricFamily {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	for _, c := range collectors {
		require.NoError(t, reg.Register(c))
	}
	families, err := reg.Gather()
	require.NoError(t, err)
	return families
}

// of returns the series with a prefix that are not 0, without that prefix.
func (s scrape) of(prefix string) map[string]float64 {
	some := map[string]float64{}
	for name, v := range s {
		if rest, ok := strings.CutPrefix(name, prefix); ok && v != 0 {
			some[rest] = v
		}
	}
	return some
}

// names returns the names of the metrics.
func (s scrape) names() []string {
	set := map[string]bool{}
	for name := range s {
		name, _, _ = strings.Cut(name, "{")
		for _, suffix := range []string{"_count", "_sum"} {
			if bare := strings.TrimSuffix(name, suffix); slices.ContainsFunc(processFamilies, func(f *family) bool { return f.name == bare }) {
				name = bare
			}
		}
		set[name] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// topics returns the values of the label topic.
func (s scrape) topics() []string {
	set := map[string]bool{}
	for name := range s {
		if _, after, ok := strings.Cut(name, "topic="); ok {
			topic, _, _ := strings.Cut(after, ",")
			set[strings.TrimSuffix(topic, "}")] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func namesOf(list ...*family) (names []string) {
	for _, f := range list {
		names = append(names, f.name)
	}
	slices.Sort(names)
	return names
}

func topicName(i int) string { return fmt.Sprintf("t%05d", i) }

// cut removes the first of some parts from each name.
func (s scrape) cut(parts ...string) scrape {
	some := scrape{}
	for name, v := range s {
		some[strings.NewReplacer(parts...).Replace(name)] = v
	}
	return some
}

// file returns the text of a file.
func file(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// busy returns the CPU time that Redis has used.
func busy(t testing.TB, rdb *redis.Client) (sum time.Duration) {
	t.Helper()
	info, err := rdb.Info(t.Context(), "cpu").Result()
	require.NoError(t, err)
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			d, err := time.ParseDuration(value + "s")
			require.NoError(t, err)
			sum += d
		}
	}
	return sum
}
