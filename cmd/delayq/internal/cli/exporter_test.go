package cli

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// get returns the body of a page.
func get(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Body.Close()) }()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, r.StatusCode, "%s: %s", url, body)
	http.DefaultClient.CloseIdleConnections()
	return string(body)
}

// startExporter starts an exporter and returns its address.
func startExporter(t *testing.T, cli *tool, args ...string) (cmd *exec.Cmd, url string) {
	t.Helper()
	cmd = cli.command(append([]string{"exporter", "--listen", "127.0.0.1:0"}, args...)...)
	errs, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(errs).ReadString('\n')
	require.NoError(t, err)
	m := regexp.MustCompile(`^metrics of prefix "\S+" on (http://127\.0\.0\.1:\d+)/metrics\n$`).FindStringSubmatch(line)
	require.NotNil(t, m, line)
	return cmd, m[1]
}

// The exporter serves the state of a queue until it is asked to end.
func TestExporter(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	fill(t, client, "many", 25)
	fill(t, client, "more", 2)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		cmd, url := startExporter(t, cli, "--max-topics", "1", "--min-interval", "0s")
		body := get(t, url+"/metrics")
		require.Regexp(t, `(?m)^delayq_jobs\{prefix="\S+",state="ready",topic="many"\} 25$`, body)
		require.Regexp(t, `(?m)^delayq_jobs\{prefix="\S+",state="ready",topic="_other"\} 2$`, body)
		require.Regexp(t, `(?m)^delayq_redis_up\{prefix="\S+"\} 1$`, body)
		lint(t, body)
		require.Equal(t, "ok\n", get(t, url+"/healthz"))
		require.Contains(t, get(t, url+"/"), "/metrics")
		r, err := http.Get(url + "/nothing")
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, http.StatusNotFound, r.StatusCode)
		r, err = http.Post(url+"/metrics", "text/plain", nil)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, http.StatusMethodNotAllowed, r.StatusCode)
		http.DefaultClient.CloseIdleConnections()

		require.NoError(t, cmd.Process.Signal(signal))
		require.NoError(t, cmd.Wait(), "exit code 0")
	}
}

// lint lets promtool look at a scrape, if it is installed.
func lint(t *testing.T, scrape string) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("promtool is not installed: the scrape is linted by the module prom alone")
		return
	}
	cmd := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(scrape)
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, string(said))
	require.Empty(t, string(said))
}

// Without Redis the exporter starts and lives, and says that the queue cannot be read.
func TestExporterWithoutRedis(t *testing.T) {
	t.Parallel()
	cmd, url := startExporter(t, newTool(t, "127.0.0.1:1", "shop"))
	body := get(t, url+"/metrics")
	require.Contains(t, body, `delayq_redis_up{prefix="shop"} 0`)
	require.Contains(t, body, `delayq_collector_errors_total{prefix="shop"} 1`)
	require.NotContains(t, body, "delayq_folded_topics")
	require.Equal(t, "ok\n", get(t, url+"/healthz"))
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
}

// Wrong usage ends the exporter before it serves anything.
func TestExporterUsage(t *testing.T) {
	t.Parallel()
	cli := newTool(t, "127.0.0.1:1", "shop")
	for says, args := range map[string][]string{
		"takes no arguments":                   {"x"},
		"-o json":                              {"-o", "json"},
		`the address "here" must be HOST:PORT`: {"--listen", "here"},
		"MaxTopics(0)":                         {"--max-topics", "0"},
		"MinInterval(2h0m0s)":                  {"--min-interval", "2h"},
		"prefix \"a*\"":                        {"--prefix", "a*"},
		"--redis":                              {"--redis", "mysql://h"},
	} {
		r := cli.do("", append([]string{"exporter"}, args...)...)
		require.Equal(t, exitUsage, r.code, "%v: %s", args, r.err)
		require.Contains(t, r.err, says)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	r := cli.do("", "exporter", "--listen", l.Addr().String())
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.err, "address already in use")
}
