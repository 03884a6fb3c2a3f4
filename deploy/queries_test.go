package deploy_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
)

var promql = parser.NewParser(parser.Options{})

// Every query parses, and names metrics, labels and values of labels that exist.
func TestQueriesNameWhatExists(t *testing.T) {
	known := metrics(t)
	for _, rule := range rules(t) {
		if rule.Record != "" {
			known[rule.Record] = recorded(t, rule.Expr, known)
		}
	}
	used := map[string]bool{}
	for _, q := range queries(t) {
		expr, err := promql.ParseExpr(q.expr)
		require.NoError(t, err, "%s: %s", q.where, q.expr)
		parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
			switch n := node.(type) {
			case *parser.VectorSelector:
				labels, ok := known[n.Name]
				require.True(t, ok, "%s names %s", q.where, n.Name)
				used[n.Name] = true
				for _, m := range n.LabelMatchers {
					if m.Name == "__name__" {
						continue
					}
					values, ok := labels[m.Name]
					require.True(t, ok, "%s names the label %s of %s", q.where, m.Name, n.Name)
					if closed[m.Name] {
						for value := range strings.SplitSeq(m.Value, "|") {
							require.Contains(t, values, value, "%s names a value of %s of %s", q.where, m.Name, n.Name)
						}
					}
				}
			case *parser.AggregateExpr:
				for _, label := range n.Grouping {
					for _, s := range selectors(n.Expr) {
						require.Contains(t, known[s.Name], label, "%s groups %s by %s", q.where, s.Name, label)
					}
				}
			}
			return nil
		})
		for _, m := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(q.legend, -1) {
			found := slices.ContainsFunc(selectors(expr), func(s *parser.VectorSelector) bool { return known[s.Name][m[1]] != nil })
			require.True(t, found, "%s: legend %s", q.where, q.legend)
		}
	}
	require.Greater(t, len(used), 20) // or this test looks for the wrong thing

	version := regexp.MustCompile(`prometheus/prometheus v0\.(\d)(\d+)\.`).FindStringSubmatch(file(t, "go.mod"))
	require.NotNil(t, version)
	require.Contains(t, prose(t), "with the parser of Prometheus "+version[1]+"."+version[2]+".")
}

// closed are the labels that have a fixed set of values.
var closed = map[string]bool{"state": true, "event": true, "outcome": true, "result": true, "within": true, "le": true}

func selectors(expr parser.Node) (list []*parser.VectorSelector) {
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if s, ok := node.(*parser.VectorSelector); ok {
			list = append(list, s)
		}
		return nil
	})
	return list
}

// recorded returns the labels that a recording rule leaves: those of its first aggregation.
func recorded(t *testing.T, query string, known map[string]labels) labels {
	expr, err := promql.ParseExpr(query)
	require.NoError(t, err)
	kept := labels{}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if n, ok := node.(*parser.AggregateExpr); ok && len(kept) == 0 {
			for _, name := range n.Grouping {
				kept[name] = known[selectors(n)[0].Name][name]
			}
		}
		return nil
	})
	return kept
}

// The rules that docs/howto/monitoring.md derives for several clusters keep these apart.
func TestRulesForSeveralClusters(t *testing.T) {
	require.Contains(t, file(t, howto), "\nsed 's/\\(by\\|on\\) (/&cluster, /g' deploy/delayq.rules.yml\n")
	for _, rule := range rules(t) {
		query := regexp.MustCompile(`(by|on) \(`).ReplaceAllString(rule.Expr, "${0}cluster, ")
		expr, err := promql.ParseExpr(query)
		require.NoError(t, err)
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			if n, ok := node.(*parser.AggregateExpr); ok {
				require.Contains(t, n.Grouping, "cluster", rule.Alert+rule.Record)
			}
			if n, ok := node.(*parser.BinaryExpr); ok && n.VectorMatching != nil && n.VectorMatching.On {
				require.Contains(t, n.VectorMatching.MatchingLabels, "cluster", rule.Alert+rule.Record)
			}
			return nil
		})
	}
}

// The document says which alerts need the metrics of processes. Those have neither a prefix nor an
// outbox.
func TestAlertsOfProcesses(t *testing.T) {
	known := metrics(t)
	needs := map[string]bool{} // also of what is recorded
	var names []string
	for _, rule := range rules(t) {
		expr, err := promql.ParseExpr(rule.Expr)
		require.NoError(t, err)
		for _, s := range selectors(expr) {
			labels, ok := known[s.Name]
			if ok && labels["prefix"] == nil && labels["outbox"] == nil || needs[s.Name] {
				needs[rule.Alert+rule.Record] = true
			}
		}
		if needs[rule.Alert] {
			names = append(names, rule.Alert)
		}
	}
	last := len(names) - 1
	require.Contains(t, prose(t), strings.Join(names[:last], ", ")+" and "+names[last]+" need the metrics of processes.")
}
