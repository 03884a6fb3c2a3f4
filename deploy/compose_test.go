package deploy_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// A compose is compose.yml.
type compose struct {
	Name     string
	Services map[string]struct {
		Image string
		Build struct {
			Context, Dockerfile string
		}
		Command     []string
		Init        bool
		Ports       []string
		Volumes     []string
		Environment map[string]string
		DependsOn   yaml.Node `yaml:"depends_on"`
		Healthcheck struct {
			Test     []string
			Interval string
		}
	}
	Volumes map[string]any
}

// The files that compose.yml mounts exist, its flags too, and its parts find each other.
func TestComposeFitsTogether(t *testing.T) {
	c := yamls[compose](t, "compose.yml")[0]
	cli := file(t, "../docs/cli.md")
	for name, s := range c.Services {
		for _, port := range s.Ports {
			require.True(t, strings.HasPrefix(port, "127.0.0.1:"), "%s is open to the network", name)
		}
		for _, volume := range s.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if strings.HasPrefix(source, "./") {
				file(t, source)
			} else {
				require.Contains(t, c.Volumes, source, name)
			}
		}
		if s.Image != "" {
			require.Regexp(t, `^[\w./-]+:v?\d+(\.\d+)+(-\w+)?$`, s.Image, "a version")
			continue
		}
		require.Equal(t, "..", s.Build.Context)
		file(t, "../"+s.Build.Dockerfile)
		at := regexp.MustCompile(`\n### delayqd? ` + regexp.QuoteMeta(s.Command[0]) + `\n`).FindStringIndex(cli)
		require.NotNil(t, at, s.Command[0])
		section := cli[at[1]:]
		section, _, _ = strings.Cut(section, "\n### ")
		_, global, _ := strings.Cut(cli, "\n### delayqd\n")
		global, _, _ = strings.Cut(global, "\n### ")
		for _, flag := range s.Command[1:] {
			if strings.HasPrefix(flag, "--") {
				require.Contains(t, section+global, " "+flag+" ", "%s of delayq %s", flag, s.Command[0])
			}
		}
	}

	prometheus := yamls[struct {
		Global        map[string]string
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []struct {
			JobName       string `yaml:"job_name"`
			StaticConfigs []struct {
				Targets []string
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}](t, "prometheus.yml")[0]
	require.Equal(t, []string{"delayq.rules.yml"}, prometheus.RuleFiles)
	for _, target := range prometheus.ScrapeConfigs[0].StaticConfigs[0].Targets {
		service, port, _ := strings.Cut(target, ":")
		require.Contains(t, c.Services[service].Command, ":"+port)
	}

	source := yamls[struct {
		APIVersion  int `yaml:"apiVersion"`
		Datasources []struct {
			Name, Type, UID, Access, URL string
			IsDefault                    bool              `yaml:"isDefault"`
			JSONData                     map[string]string `yaml:"jsonData"`
		}
	}](t, "grafana/datasource.yml")[0].Datasources[0]
	require.Equal(t, "http://prometheus:9090", source.URL)
	require.Equal(t, prometheus.Global["scrape_interval"], source.JSONData["timeInterval"])
	boards := yamls[struct {
		APIVersion int `yaml:"apiVersion"`
		Providers  []struct {
			Name, Type string
			Options    map[string]string
		}
	}](t, "grafana/dashboards.yml")[0].Providers[0].Options["path"]
	require.Contains(t, c.Services["grafana"].Volumes, "./grafana.json:"+boards+"/delayq.json:ro")
	require.Equal(t, boards+"/delayq.json", c.Services["grafana"].Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
}

// The image is that of a user who is not root, and the Go in it can build the command line.
func TestImage(t *testing.T) {
	text := file(t, "Dockerfile")
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)\.\d+$`).FindStringSubmatch(file(t, "../cmd/delayq/go.mod"))
	require.NotNil(t, version)
	require.Contains(t, text, "\nFROM golang:"+version[1]+" AS build\n")
	require.Regexp(t, `(?m)^FROM gcr\.io/distroless/static-debian12:nonroot$`, text)
}

// Both scalers ask for the same: the jobs that are overdue, and those that fall due in a minute.
func TestScalersAgree(t *testing.T) {
	k := keda(t)
	require.Equal(t, "ScaledObject", k.Kind)
	h, adapter := hpa(t)
	require.Equal(t, k.Spec.MinReplicaCount, 1)
	require.Len(t, k.Spec.Triggers, 2)
	for i, trigger := range k.Spec.Triggers {
		require.Equal(t, "prometheus", trigger.Type)
		require.Equal(t, "false", trigger.Metadata["ignoreNullValues"])
		metric := h.Spec.Metrics[i].External
		require.Contains(t, trigger.Metadata["query"], metric.Metric.Name+"{")
		require.Equal(t, map[string]string{"type": "AverageValue", "averageValue": trigger.Metadata["threshold"]}, metric.Target)
		for label, value := range metric.Metric.Selector.MatchLabels {
			require.Contains(t, trigger.Metadata["query"], label+`="`+value+`"`)
		}
		name := regexp.MustCompile(`__name__=~"(.*)"`).FindStringSubmatch(adapter.SeriesQuery)
		require.Regexp(t, "^(?:"+name[1]+")$", metric.Metric.Name)
	}
}
