package gateway

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/queuetest"
)

// docs/metrics.md has each metric of a gateway, as the code has it.
func TestManualHasTheMetrics(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/metrics.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "| metric of a gateway | type | labels | meaning |\n| --- | --- | --- | --- |\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	parts := regexp.MustCompile(`fqName: "(.*?)", help: "(.*?)", .*variableLabels: \{(.*?)\}`)
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		var rows []string
		for _, c := range w.Metrics.all {
			kind := "gauge"
			switch c.(type) {
			case *prometheus.CounterVec:
				kind = "counter"
			case *prometheus.HistogramVec:
				kind = "histogram"
			}
			list := make(chan *prometheus.Desc, 1)
			c.Describe(list)
			m := parts.FindStringSubmatch((<-list).String())
			require.Len(b, m, 4)
			labels := "–"
			if m[3] != "" {
				labels = strings.ReplaceAll(m[3], ",", ", ")
			}
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |", m[1], kind, labels, m[2]))
		}
		require.Equal(b, strings.Join(rows, "\n"), table)
	})
}
