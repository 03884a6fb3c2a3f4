package cli

import (
	"bufio"
	"bytes"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/queuetest"
)

// The demo needs no Redis, and can be looked into by other processes while it runs.
func TestDemo(t *testing.T) {
	t.Parallel()
	cli := newTool(t, "127.0.0.1:1", "shop")
	cmd := cli.command("demo")
	var out bytes.Buffer
	cmd.Stdout = &out
	errs, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(errs)
	said := ""
	for range 6 {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		said += line
	}
	m := regexp.MustCompile(`delayq topics --redis (redis://127\.0\.0\.1:\d+) --prefix shop\n`).FindStringSubmatch(said)
	require.NotNil(t, m, said)
	topics := cli.ok("topics", "--redis", m[1])
	for _, name := range []string{orderCancel, orderRemind, mailWelcome, invoicePrint, smsPromo, refundPoll, reportDaily, stockSync} {
		require.Contains(t, topics, name)
	}
	require.Contains(t, topics, "NO SERVER")
	require.Contains(t, topics, "paused by alice")
	require.Contains(t, cli.ok("schedules", "--redis", m[1]), "warehouse-2")
	cli.ok("enqueue", refundPoll, "--id", "mine", "--redis", m[1])
	require.Contains(t, cli.ok("find", "mine", "--redis", m[1]), refundPoll)
	metrics := regexp.MustCompile(`scrape its metrics from\n  (http://127\.0\.0\.1:\d+/metrics)\n`).FindStringSubmatch(said)
	require.NotNil(t, metrics, said)
	queuetest.Until(t, func() bool {
		scrape := get(t, metrics[1])
		return strings.Contains(scrape, `delayq_overdue_jobs{prefix="shop",topic="invoice:print"}`) &&
			strings.Contains(scrape, `delayq_runs_total{outcome="retried",topic="mail:welcome"}`) &&
			strings.Contains(scrape, `delayq_enqueues_total{result="stored",topic="order:cancel"}`)
	})
	lint(t, get(t, metrics[1]))
	page := regexp.MustCompile(`open its page\n  (http://127\.0\.0\.1:\d+/)\n`).FindStringSubmatch(said)
	require.NotNil(t, page, said)
	require.Contains(t, get(t, page[1]), "refund:poll")
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	rest, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "interrupted\n", rest)
	require.Error(t, cmd.Wait())
	require.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode())
	require.Equal(t, exitUnreachable, cli.do("", "topics", "--redis", m[1]).code)
}

// Without a terminal the demo writes one line a second. It ends by itself, in time, and leaves
// nothing: TestMain fails if a goroutine is left.
func TestDemoEndsByItself(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	p := &process{
		name: "delayq",
		args: []string{"demo", "--for", "2500ms", "--web", "127.0.0.1:0"}, in: &input{Reader: strings.NewReader("")}, out: &output{Writer: &out}, err: &output{Writer: &errs},
		getenv: func(string) string { return "" }, dial: dial,
	}
	require.Zero(t, run(t.Context(), p), errs.String())
	line := `\S+ \S+  in [0-9.,]+/s  out [0-9.,]+/s  failed [0-9.,]+/s  scheduled [0-9,]+  ready [0-9,]+  running [0-9,]+  dead [0-9,]+  overdue [0-9,]+\n`
	require.Regexp(t, `^(`+line+`)+$`, out.String()) // a line a second, on a machine that keeps up
}

// Options that the demo cannot follow are refused.
func TestDemoUsage(t *testing.T) {
	cli := newTool(t, "127.0.0.1:1", "shop")
	for _, args := range [][]string{{"demo", "--for", "0s"}, {"demo", "--redis", "redis://h"}, {"demo", "-o", "json"}, {"demo", "x"}, {"demo", "--metrics", "here"}, {"demo", "--web", ":0"}} {
		require.Equal(t, exitUsage, cli.do("", args...).code, args)
	}
}
