package deploy_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each alert says how bad it is, what has happened, and where to read on.
func TestAlertsHaveRunbooks(t *testing.T) {
	list := alerts(t)
	require.Len(t, list, 20)
	text := file(t, howto)
	var named []string
	for _, m := range regexp.MustCompile(`(?m)^### (Delayq\w+)$`).FindAllStringSubmatch(text, -1) {
		named = append(named, m[1])
	}
	var names []string
	for _, a := range list {
		names = append(names, a.Alert)
		require.Contains(t, []string{"critical", "warning", "info"}, a.Labels["severity"], a.Alert)
		require.Equal(t, "https://github.com/delayq/delayq/blob/main/docs/howto/monitoring.md#"+strings.ToLower(a.Alert),
			a.Annotations["runbook_url"])
		require.NotEmpty(t, a.Annotations["summary"], a.Alert)
		require.NotEmpty(t, a.Annotations["description"], a.Alert)

		_, section, _ := strings.Cut(text, "\n### "+a.Alert+"\n")
		section, _, _ = strings.Cut(section, "\n#")
		require.Contains(t, section, "**"+strings.ToUpper(a.Labels["severity"][:1])+a.Labels["severity"][1:]+"**", a.Alert)
		if a.For != "" {
			require.Contains(t, section, minutes(a.For), a.Alert)
		}
	}
	require.Equal(t, names, named, "the sections of the document, in the order of the alerts")
}

// minutes writes a duration such as 15m as documents do.
func minutes(text string) string {
	if text == "1m" {
		return "a minute"
	}
	return strings.TrimSuffix(text, "m") + " minutes"
}

// promtool plays cases of each alert: at least one that fires, and one that does not.
func TestAlertsHaveCases(t *testing.T) {
	cases := yamls[struct {
		RuleFiles          []string `yaml:"rule_files"`
		EvaluationInterval string   `yaml:"evaluation_interval"`
		Tests              []struct {
			Name, Interval string
			InputSeries    []struct{ Series, Values string } `yaml:"input_series"`
			AlertRuleTest  []struct {
				EvalTime  string `yaml:"eval_time"`
				Alertname string
				ExpAlerts []map[string]map[string]string `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}](t, "delayq.rules.test.yml")[0]
	fires, rests := map[string]int{}, map[string]int{}
	for _, c := range cases.Tests {
		name, does, found := strings.Cut(c.Name, " ")
		require.True(t, found)
		require.NotEmpty(t, c.AlertRuleTest, c.Name)
		fired := 0
		for _, at := range c.AlertRuleTest {
			require.Equal(t, name, at.Alertname, c.Name)
			fired += len(at.ExpAlerts)
		}
		require.Equal(t, strings.HasPrefix(does, "fires"), fired > 0, c.Name)
		if fired > 0 {
			fires[name]++
		} else {
			rests[name]++
		}
	}
	for _, a := range alerts(t) {
		require.Positive(t, fires[a.Alert], a.Alert)
		require.Positive(t, rests[a.Alert], a.Alert)
		delete(fires, a.Alert)
	}
	require.Empty(t, fires, "cases of alerts that do not exist")
}
