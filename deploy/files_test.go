package deploy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const howto = "../docs/howto/monitoring.md"

func file(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// prose is the document without its line breaks.
func prose(t *testing.T) string {
	t.Helper()
	return strings.Join(strings.Fields(file(t, howto)), " ")
}

// yamls reads all documents of a file into values of one type, and refuses fields that it lacks.
func yamls[T any](t *testing.T, path string) (list []T) {
	t.Helper()
	from := yaml.NewDecoder(strings.NewReader(file(t, path)))
	from.KnownFields(true)
	for {
		var one T
		if err := from.Decode(&one); err != nil {
			require.EqualError(t, err, "EOF", path)
			require.NotEmpty(t, list, path)
			return list
		}
		list = append(list, one)
	}
}

// A rule records a query under a name, or is an alert.
type rule struct {
	Record, Alert, Expr, For string
	Labels, Annotations      map[string]string
}

func rules(t *testing.T) []rule {
	t.Helper()
	groups := yamls[struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}](t, "delayq.rules.yml")[0].Groups
	require.Len(t, groups, 1) // a rule sees what the rules before it in its group have recorded
	return groups[0].Rules
}

func alerts(t *testing.T) (list []rule) {
	t.Helper()
	for _, r := range rules(t) {
		if r.Alert != "" {
			list = append(list, r)
		}
	}
	return list
}

// A board is grafana.json, as far as the tests read it.
type board struct {
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
	Annotations struct {
		List []struct{ Name, Expr, TextFormat string }
	}
	Panels []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ X, Y, W, H int }
		Datasource               struct{ Type, UID string }
		Targets                  []struct {
			RefID, Expr, LegendFormat string
			Datasource                struct{ Type, UID string }
		}
		FieldConfig struct {
			Defaults struct{ Unit string }
		}
	}
}

func grafana(t *testing.T) (b board) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(file(t, "grafana.json")), &b))
	return b
}

// A query is in PromQL, from one of the files.
type query struct{ where, expr, legend string }

// queries returns those of the rules, the board and the scalers.
func queries(t *testing.T) (list []query) {
	t.Helper()
	for _, r := range rules(t) {
		list = append(list, query{where: r.Record + r.Alert, expr: r.Expr})
	}
	b := grafana(t)
	grafana := strings.NewReplacer("$__rate_interval", "5m", `=~"$prefix"`, `=~".*"`, `=~"$topic"`, `=~".*"`, `=~"$outbox"`, `=~".*"`)
	for _, p := range b.Panels {
		for _, target := range p.Targets {
			list = append(list, query{"panel " + p.Title, grafana.Replace(target.Expr), target.LegendFormat})
		}
	}
	for _, a := range b.Annotations.List {
		list = append(list, query{"annotation " + a.Name, grafana.Replace(a.Expr), a.TextFormat})
	}
	for _, v := range b.Templating.List {
		if v.Type == "query" {
			m := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`).FindStringSubmatch(v.Definition)
			require.NotNil(t, m, v.Definition)
			list = append(list, query{"variable " + v.Name, "count by (" + m[2] + ") (" + grafana.Replace(m[1]) + ")", ""})
		}
	}
	for _, trigger := range keda(t).Spec.Triggers {
		list = append(list, query{where: "keda.yml, " + trigger.Name, expr: trigger.Metadata["query"]})
	}
	hpa, adapter := hpa(t)
	for _, metric := range hpa.Spec.Metrics {
		var matchers []string
		for label, value := range metric.External.Metric.Selector.MatchLabels {
			matchers = append(matchers, fmt.Sprintf("%s=%q", label, value))
		}
		slices.Sort(matchers)
		fill := strings.NewReplacer("<<.Series>>", metric.External.Metric.Name, "<<.LabelMatchers>>", strings.Join(matchers, ","))
		list = append(list, query{where: "hpa.yml, " + metric.External.Metric.Name, expr: fill.Replace(adapter.MetricsQuery)})
	}
	for _, q := range list {
		require.NotContains(t, q.expr, "$", q.where)
		require.NotContains(t, q.expr, "<<", q.where)
	}
	return list
}

// A scaler is a ScaledObject of KEDA.
type scaler struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
		ScaleTargetRef  struct{ Name string } `yaml:"scaleTargetRef"`
		MinReplicaCount int                   `yaml:"minReplicaCount"`
		MaxReplicaCount int                   `yaml:"maxReplicaCount"`
		PollingInterval int                   `yaml:"pollingInterval"`
		CooldownPeriod  int                   `yaml:"cooldownPeriod"`
		Triggers        []struct {
			Type, Name string
			Metadata   map[string]string
		}
	}
}

func keda(t *testing.T) scaler {
	t.Helper()
	return yamls[scaler](t, "keda.yml")[0]
}

type autoscaler struct {
	Kind string
	Spec struct {
		MinReplicas, MaxReplicas int
		Metrics                  []struct {
			Type     string
			External struct {
				Metric struct {
					Name     string
					Selector struct {
						MatchLabels map[string]string `yaml:"matchLabels"`
					}
				}
				Target map[string]string
			}
		}
	}
	Data map[string]string
}

type adapterRule struct {
	SeriesQuery  string `yaml:"seriesQuery"`
	MetricsQuery string `yaml:"metricsQuery"`
	Resources    map[string]bool
}

// hpa returns the HorizontalPodAutoscaler and the rule of the adapter.
func hpa(t *testing.T) (autoscaler, adapterRule) {
	t.Helper()
	from := yaml.NewDecoder(strings.NewReader(file(t, "hpa.yml")))
	var scaler, config autoscaler
	require.NoError(t, from.Decode(&scaler))
	require.NoError(t, from.Decode(&config))
	require.Equal(t, "HorizontalPodAutoscaler", scaler.Kind)
	var adapter struct {
		ExternalRules []adapterRule `yaml:"externalRules"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(config.Data["config.yaml"]), &adapter))
	require.Len(t, adapter.ExternalRules, 1)
	return scaler, adapter.ExternalRules[0]
}
