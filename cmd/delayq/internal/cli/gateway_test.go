package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A runningGateway is the command gateway as a process, on a real Redis.
type runningGateway struct {
	*testing.T
	cmd    *exec.Cmd
	url    string
	probes string
	env    []string // for programs that use it
	tokens string   // the file
}

// startGateway starts a gateway whose token may do everything.
func startGateway(t *testing.T, cli *tool, args ...string) *runningGateway {
	t.Helper()
	g := &runningGateway{T: t, tokens: filepath.Join(t.TempDir(), "tokens")}
	made := cli.do("", "gateway", "--add-token", "all", "--rights", "produce,consume,operate")
	require.Zero(t, made.code, made.err)
	token := regexp.MustCompile(`dq_\S+`).FindString(made.err)
	require.NotEmpty(t, token)
	require.NotContains(t, made.out, token)
	require.NoError(t, os.WriteFile(g.tokens, []byte(made.out), 0o600))
	g.cmd = cli.command(append([]string{"gateway", "--tokens", g.tokens, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"}, args...)...)
	errs, err := g.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, g.cmd.Start())
	lines := bufio.NewScanner(errs)
	for g.url == "" && lines.Scan() {
		if m := regexp.MustCompile(`^livez, readyz, healthz and metrics on (\S+)/$`).FindStringSubmatch(lines.Text()); m != nil {
			g.probes = m[1]
		}
		if m := regexp.MustCompile(`^gateway of prefix "\S+" on (https?://\S+)/$`).FindStringSubmatch(lines.Text()); m != nil {
			g.url = m[1]
		}
	}
	require.NotEmpty(t, g.url)
	go func() { _, _ = io.Copy(io.Discard, errs) }() // the log
	g.env = append(os.Environ(), "DELAYQ_URL="+g.url, "DELAYQ_TOKEN="+token)
	t.Cleanup(func() {
		if g.cmd.ProcessState == nil {
			_ = g.cmd.Process.Kill()
			_ = g.cmd.Wait()
		}
	})
	return g
}

// program returns a program that uses the gateway, or skips the test if there is none.
func (g *runningGateway) program(name string, args ...string) *exec.Cmd {
	g.Helper()
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv("CI") != "" {
			g.Fatal(err)
		}
		g.Skip(err)
	}
	cmd := exec.CommandContext(g.Context(), name, args...)
	cmd.Env = g.env
	return cmd
}

// guideBlock returns the first block of a language below a heading of the how-to.
func guideBlock(t *testing.T, heading, language string) string {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/howto/gateway.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	require.True(t, found, heading)
	_, block, found := strings.Cut(section, "\n```"+language+"\n")
	require.True(t, found, language)
	block, _, _ = strings.Cut(block, "```\n")
	return block
}

// The programs of docs/howto/gateway.md work together: curl and Node enqueue, Python consumes, and
// Node gets the result.
func TestGatewayGuide(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	g := startGateway(t, cli)
	t.Run("curl", func(t *testing.T) {
		out, err := g.program("sh", "-euc", guideBlock(t, "With curl", "sh")).CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), `"outcome":"acked"`)
		_, err = client.Get(t.Context(), "order:cancel", "order-42")
		require.ErrorIs(t, err, delayq.ErrNotFound)
	})
	t.Run("python and node", func(t *testing.T) {
		dir := t.TempDir()
		consumer, producer := filepath.Join(dir, "consumer.py"), filepath.Join(dir, "producer.mjs")
		code := guideBlock(t, "With Python 3", "python")
		require.LessOrEqual(t, strings.Count(code, "\n"), 60)
		require.NoError(t, os.WriteFile(consumer, []byte(code), 0o600))
		require.NoError(t, os.WriteFile(producer, []byte(guideBlock(t, "With Node", "js")), 0o600))
		python := g.program("python3", consumer, "double me")
		node := g.program("node", producer, "double me", "21")
		require.NoError(t, python.Start())
		out, err := node.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Equal(t, "{\"doubled\":42}\n", string(out))
		// A payload that it cannot handle fails the job, and not the consumer.
		_, err = client.Enqueue(t.Context(), "double me", "bad", nil, delayq.Retry(0))
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = client.Wait(ctx, "double me", "bad")
		require.ErrorContains(t, err, "KeyError('payload')")
		require.NoError(t, python.Process.Kill())
		require.Error(t, python.Wait())
	})
}

// A consumer that is killed with a job gives it back when its lease ends, and one that is killed
// while it waits takes none with it.
func TestGatewayConsumerIsKilled(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	g := startGateway(t, cli)
	take := func(lease string) *exec.Cmd {
		return g.program("curl", "-fsSN", "-H", "Authorization: Bearer "+strings.TrimPrefix(g.env[len(g.env)-1], "DELAYQ_TOKEN="),
			"--json", `{"wait":60,"lease":`+lease+`}`, g.url+"/v1/topics/mail/take")
	}
	waiting := take("600")
	require.NoError(t, waiting.Start())
	gauge := func(name string) string { return name + " " + g.metric(name) }
	queuetest.Until(t, func() bool { return gauge("delayq_gateway_wanted") == "delayq_gateway_wanted 1" })
	require.NoError(t, waiting.Process.Kill())
	require.Error(t, waiting.Wait())
	queuetest.Until(t, func() bool { return gauge("delayq_gateway_wanted") == "delayq_gateway_wanted 0" })
	_, err := client.Enqueue(t.Context(), "mail", "1", nil)
	require.NoError(t, err)
	out, err := take("1").Output() // curl has ended, and settles nothing
	require.NoError(t, err)
	require.Contains(t, string(out), `"attempt":1`)
	out, err = take("60").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), `"attempt":2`)
	require.Equal(t, "1", g.metric(`delayq_gateway_leases_ended_total{end="expired"}`))
	require.Equal(t, "ok\n", get(t, g.url+"/healthz"))
	require.Contains(t, get(t, g.probes+"/readyz"), "ok")
}

// metric returns the value of a metric of the gateway.
func (g *runningGateway) metric(name string) string {
	g.Helper()
	for line := range strings.Lines(get(g.T, g.probes+"/metrics")) {
		if value, is := strings.CutPrefix(line, name+" "); is {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// SIGHUP loads the tokens anew, and SIGTERM ends the gateway with exit code 0.
func TestGatewaySignals(t *testing.T) {
	t.Parallel()
	cli, _ := onRealRedis(t)
	g := startGateway(t, cli)
	status := func() int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.url+"/v1/topics/mail/jobs/1", nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+strings.TrimPrefix(g.env[len(g.env)-1], "DELAYQ_TOKEN="))
		a, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, a.Body.Close())
		return a.StatusCode
	}
	require.Equal(t, http.StatusNotFound, status())
	other := cli.ok("gateway", "--add-token", "other")
	require.NoError(t, os.WriteFile(g.tokens, []byte("a mistake"), 0o600))
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGHUP))
	require.Equal(t, http.StatusNotFound, status())
	require.NoError(t, os.WriteFile(g.tokens, []byte(other), 0o600))
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGHUP))
	queuetest.Until(t, func() bool { return status() == http.StatusUnauthorized })
	http.DefaultClient.CloseIdleConnections()
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, g.cmd.Wait())
}

// What cannot work is refused before anything is served.
func TestGatewayUsage(t *testing.T) {
	cli := newTool(t, "127.0.0.1:1", "shop")
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	good := file("good", cli.ok("gateway", "--add-token", "a", "--topics", "order:*,mail"))
	bad := file("bad", "shop:secret")
	seen := map[string]bool{}
	refused := func(code int, want string, args ...string) {
		t.Helper()
		r := cli.do("", append([]string{"gateway"}, args...)...)
		require.Equal(t, code, r.code, "%v: %s", args, r.err)
		require.Contains(t, r.err, want, args)
		require.NotContains(t, r.err, "secret")
		text, _, _ := strings.Cut(strings.TrimPrefix(r.err, "error: "), "\n")
		seen[text] = true
	}
	refused(exitUsage, "--tokens is needed: the file that says who may do what; --add-token writes a line for it")
	refused(exitUsage, `the address "here" must be HOST:PORT or :PORT`, "--tokens", good, "--listen", "here")
	for _, address := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		want := fmt.Sprintf("others can reach %s, and tokens would be readable: it needs --cert and --key, or --plain behind a proxy that has TLS", address)
		refused(exitUsage, want, "--tokens", good, "--listen", address)
	}
	refused(exitUsage, "--cert and --key are needed together", "--tokens", good, "--cert", "x")
	refused(exitUsage, "--plain excludes --cert and --key", "--tokens", good, "--cert", "x", "--key", "y", "--plain")
	refused(exitUsage, "--drain 2h0m0s: must be from 1ms to 1h", "--tokens", good, "--drain", "2h")
	for flag, most := range map[string]int{"max-body": maxPayload, "max-leases": 100_000, "max-waiters": 10_000, "max-requests": 10_000, "max-topics": 1000, "token-share": 100} {
		refused(exitUsage, fmt.Sprintf("--%s 0: must be from 1 to %d", flag, most), "--tokens", good, "--"+flag, "0")
	}
	refused(exitConfig, "line 1: expected name:sha256:rights:topics", "--tokens", bad)
	refused(exitConfig, "no such file", "--tokens", "/nothing")
	refused(exitConfig, "--cert, --key: ", "--tokens", good, "--cert", bad, "--key", bad)
	refused(exitUsage, "--add-token: the right \"x\": allowed are produce, consume and operate", "--add-token", "a", "--rights", "x")
	refused(exitUsage, "-o json: gateway has no output but its log", "-o", "json")
	refused(exitUsage, "takes no arguments", "x")
	refused(exitUsage, `the address "x" must be HOST:PORT or :PORT: `, "--tokens", good, "--listen", "127.0.0.1:0", "--metrics", "x")
	everyTextIsSeen(t, "gateway.go", "usage", seen)
}
