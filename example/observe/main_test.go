package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/internal/queuetest"
)

// A screen is what the program has printed so far.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// get returns the status and the body of a response.
func get(t *testing.T, url string) (int, string) {
	response, err := http.Get(url)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

func TestProgram(t *testing.T) {
	t.Parallel()
	q, err := delayqtest.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, q.Close()) })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out screen
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, q.Redis, "127.0.0.1:0", &out) }()

	address := regexp.MustCompile(`(http://.+/)metrics\n.+/livez\n.+/readyz\n`)
	queuetest.Until(t, func() bool { return address.MatchString(out.String()) })
	base := address.FindStringSubmatch(out.String())[1]
	expect := func(page string, status int, body string) {
		queuetest.Until(t, func() bool {
			got, text := get(t, base+page)
			return got == status && strings.Contains(text, body)
		}, "%s: %d with %s", page, status, body)
	}
	expect("readyz", http.StatusOK, "ok")
	expect("livez", http.StatusOK, "ok")

	// A mail that takes an hour, so that the drain lasts.
	client := delayq.NewClient(q.Redis, delayq.Prefix("observe"))
	_, err = client.Enqueue(t.Context(), "mail", "long", []byte("1h"))
	require.NoError(t, err)
	expect("metrics", http.StatusOK, `delayq_runs_total{outcome="acked",topic="mail"} 2`+"\n")
	expect("metrics", http.StatusOK, `delayq_runs_total{outcome="retried",topic="mail"} 1`+"\n")
	expect("metrics", http.StatusOK, `delayq_lateness_seconds_count{topic="mail"} 4`+"\n")
	expect("metrics", http.StatusOK, `delayq_running_jobs{topic="mail"} 1`+"\n")
	expect("metrics", http.StatusOK, `delayq_cancels_total{result="scheduled",topic="mail"} 1`+"\n")
	expect("metrics", http.StatusOK, `delayq_workers{prefix="observe",topic="mail"} 2`+"\n") // the collector

	stop()
	expect("readyz", http.StatusServiceUnavailable, "the server is draining")
	expect("livez", http.StatusOK, "ok")
	state, err := client.Dequeue(t.Context(), "mail", "long")
	require.NoError(t, err)
	require.Equal(t, delayq.StateRunning, state)
	require.NoError(t, queuetest.Receive(t, ended))
	_, err = http.Get(base + "livez")
	require.Error(t, err, "nothing listens any more")

	_, text, found := strings.Cut(out.String(), "\n\n")
	require.True(t, found, out.String())
	row := regexp.MustCompile(`(?m)^(\d+) +(\w) +(\w+) +(\w+) mail +(\S+) +(\S+) +(\S+) +(\S+) +(\w+)$`)
	rows := row.FindAllStringSubmatch(text, -1)
	require.Len(t, rows, strings.Count(text, "\n")-1, "%s", text)
	line := map[string]string{"-": "-"} // of a span, by what it is
	traces := map[string]bool{}
	for _, r := range rows {
		line[strings.Trim(r[4]+" "+r[5]+" "+r[7], " -")] = r[1]
		traces[r[2]] = true
	}
	require.Len(t, traces, len(rows), "each is a trace of its own")
	created, failed := line["enqueue bad-line"], line["process bad-line 1"]
	want := map[string]string{
		"enqueue welcome":    "producer - - Unset",
		"enqueue bad-line":   "producer - - Unset",
		"enqueue unwanted":   "producer - - Unset",
		"cancel unwanted":    "client - - Unset",
		"process welcome 1":  "consumer " + line["enqueue welcome"] + " acked Unset",
		"process bad-line 1": "consumer " + created + " retried Error",
		"process bad-line 2": "consumer " + created + "," + failed + " acked Unset",
		"process long 1":     "consumer - cancelled Unset",
	}
	got := map[string]string{}
	for _, r := range rows {
		got[strings.Trim(r[4]+" "+r[5]+" "+r[7], " -")] = strings.Join([]string{r[3], r[6], r[8], r[9]}, " ")
	}
	require.Equal(t, want, got)
}

// What watches the queue is at most 30 lines: those of observe.go after its imports, and those of
// main.go beside the hooks of the client and of the server.
func TestLines(t *testing.T) {
	t.Parallel()
	code := func(name, after string, of *regexp.Regexp) (n int) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		_, rest, found := strings.Cut(string(text), after)
		require.True(t, found)
		for line := range strings.Lines(rest) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") && of.MatchString(line) {
				n++
			}
		}
		return n
	}
	beside := code("main.go", "\nfunc run(", regexp.MustCompile(`\b(observe|registry|spans|serve|end)\b`))
	require.Equal(t, 5, beside)
	const check = 3 // of the error of serve
	require.LessOrEqual(t, code("observe.go", "\n)\n", regexp.MustCompile(``))+beside+check, 30)
}

// The lines in docs/metrics.md that lead from nothing to a scrape work when they are pasted.
func TestPaste(t *testing.T) {
	t.Parallel()
	for _, need := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(need); err != nil && os.Getenv("CI") == "" {
			t.Skip(err)
		}
	}
	text, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)## From nothing to a scrape\n.*?```\n(git clone [^\n]+)\n(.+?\n)(prometheus [^\n]+)\n```").FindSubmatch(text)
	require.NotNil(t, block)
	require.LessOrEqual(t, bytes.Count(block[0], []byte("\n")), 14, "ten lines, and what is around them")

	out := &screen{}
	address := "127.0.0.1:" + freePort(t)
	script := strings.ReplaceAll(string(block[2]), "127.0.0.1:9464", address)
	require.Contains(t, script, "example/observe . -for 5m &\n")
	// The program ends when the script does, and go run passes the signal on.
	script = "set -m\ntrap 'kill -INT -- -$!; wait $! || true' EXIT\n" +
		strings.Replace(script, " . -for 5m &", " . -for 1m -listen "+address+" &", 1)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(root(t), dir+"/delayq"))
	paste := exec.CommandContext(t.Context(), "bash", "-e", "-c", "cd delayq\n"+strings.ReplaceAll(script, ">prometheus.yml", ">"+dir+"/prometheus.yml"))
	paste.Dir, paste.Stdout, paste.Stderr = dir, out, out
	require.NoError(t, paste.Run(), "%s", out)
	require.Regexp(t, `(?m)^delayq_overdue_jobs\{prefix="observe",topic="mail"\} 0$`, out.String())
	config, err := os.ReadFile(dir + "/prometheus.yml")
	require.NoError(t, err)
	require.Contains(t, string(config), address)
	if promtool, err := exec.LookPath("promtool"); err == nil {
		said, err := exec.Command(promtool, "check", "config", dir+"/prometheus.yml").CombinedOutput()
		require.NoError(t, err, "%s", said)
	} else {
		require.Empty(t, os.Getenv("CI"), "CI has promtool")
	}
}

// freePort returns a port of 127.0.0.1 that nobody listens on.
func freePort(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, errors.Join(err, listener.Close()))
	return port
}

// root returns the directory of the repository.
func root(t *testing.T) string {
	path, err := filepath.Abs("../..")
	require.NoError(t, err)
	return path
}
