package cli

import (
	"bufio"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/outbox"
)

// A monitor is a Prometheus with the rules of the project, which do not wait before they fire.
type monitor struct {
	*testing.T
	url string
}

// watch starts a Prometheus that scrapes targets twice a second.
func watch(t *testing.T, targets ...string) *monitor {
	path, err := exec.LookPath("prometheus")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("no prometheus in the PATH")
	}
	require.NoError(t, err)
	dir := t.TempDir()
	rules, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "deploy", "delayq.rules.yml"))
	require.NoError(t, err)
	write := func(name, text string) string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		return filepath.Join(dir, name)
	}
	write("rules.yml", regexp.MustCompile(`(?m)^(\s+)for: \d+[mh]$`).ReplaceAllString(string(rules), "${1}for: 100ms"))
	config := write("prometheus.yml", fmt.Sprintf(
		"global: {evaluation_interval: 100ms}\nrule_files: [rules.yml]\nscrape_configs:\n"+
			`- {job_name: delayq, scrape_interval: 500ms, scrape_timeout: 500ms, static_configs: [{targets: ["%s"]}]}`, strings.Join(targets, `", "`)))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	cmd := exec.Command(path, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("%s", text[max(0, len(text)-2000):])
		}
	})
	return &monitor{t, "http://" + address}
}

// ask reads an answer of Prometheus. It reports whether there was one.
func (m *monitor) ask(path string, into any) bool {
	r, err := http.Get(m.url + path)
	if err != nil {
		return false
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	return err == nil && r.StatusCode == http.StatusOK && json.Unmarshal(body, into) == nil
}

// until waits until a query has a result.
func (m *monitor) until(query string) {
	m.Helper()
	require.Eventually(m, func() bool {
		var answer struct{ Data struct{ Result []any } }
		return m.ask("/api/v1/query?query="+url.QueryEscape(query), &answer) && len(answer.Data.Result) > 0
	}, time.Minute, 50*time.Millisecond, query)
}

// fires returns the names of the alerts that fire.
func (m *monitor) fires() (names []string) {
	var answer struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	require.True(m, m.ask("/api/v1/alerts", &answer))
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			names = append(names, a.Labels["alertname"])
		}
	}
	return names
}

// untilFires waits until an alert fires.
func (m *monitor) untilFires(name string) {
	m.Helper()
	m.until(`ALERTS{alertname="` + name + `",alertstate="firing"}`)
}

// A real Prometheus says that nothing reports about an outbox any more after its relay was killed,
// although the exporter of the queue goes on.
func TestPrometheusSeesThatARelayIsGone(t *testing.T) {
	t.Parallel()
	cli, _ := onRealRedis(t)
	file := filepath.Join(t.TempDir(), "shop.db")
	cmd := cli.command("relay", "--migrate", "--metrics", "127.0.0.1:0")
	cmd.Env = append(cmd.Env, "DELAYQ_DSN=sqlite://"+file)
	errs, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // if the test has failed
	of := ""
	for lines := bufio.NewScanner(errs); of == "" && lines.Scan(); {
		_, of, _ = strings.Cut(lines.Text(), " on http://")
	}
	require.NotEmpty(t, of)
	go func() { _, _ = io.Copy(io.Discard, errs) }()
	exporter, url := startExporter(t, cli, "--min-interval", "0s")
	t.Cleanup(func() {
		_ = exporter.Process.Kill()
		_ = exporter.Wait()
	})
	m := watch(t, strings.TrimSuffix(of, "/metrics"), strings.TrimPrefix(url, "http://"))
	m.until(`delayq_outbox_up{outbox="delayq_outbox"} == 1`)
	m.until(`absent(ALERTS{alertname="DelayqOutboxGone",alertstate="firing"})`) // a scrape can be late

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	box, err := outbox.New(outbox.SQLite)
	require.NoError(t, err)
	_, err = box.Enqueue(t.Context(), outbox.Autocommit(db), "mail", "1", nil)
	require.NoError(t, err)
	m.untilFires("DelayqOutboxGone")
}

// A counter that falls by one, as after a failover of Redis that has lost a second, is no growth
// for a real Prometheus.
func TestPrometheusSeesNoGrowthInACounterThatFalls(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Shared(t), redistest.Prefix(t)
	cli := newTool(t, rdb.Options().Addr, prefix)
	fill(t, delayq.NewClient(rdb, delayq.Prefix(prefix)), "mail", 1)
	exporter, url := startExporter(t, cli, "--min-interval", "0s")
	t.Cleanup(func() {
		_ = exporter.Process.Kill()
		_ = exporter.Wait()
	})
	set := func(n int) {
		require.NoError(t, rdb.HSet(t.Context(), prefix+":{mail}:stats", "buried", n, "pruned_dead", n).Err())
	}
	set(120_000)
	m := watch(t, strings.TrimPrefix(url, "http://"))
	m.until(`delayq_job_events_total{event="buried",topic="mail"} == 120000`)
	m.until(`count_over_time(delayq_redis_up[5m]) > 3`)
	set(119_999)
	m.until(`count_over_time(delayq_redis_up[5m]) > 8`) // each scrape looks at Redis
	fires := m.fires()
	require.NotContains(t, fires, "DelayqDeadGrowing")
	require.NotContains(t, fires, "DelayqDeadDropped")
	set(120_007)
	m.untilFires("DelayqDeadGrowing")
	m.untilFires("DelayqDeadDropped")
}
