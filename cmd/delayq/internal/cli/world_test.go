package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	_ "github.com/delayq/delayq/cmd/delayq/internal/part/all" // the tests are about all commands
	"github.com/delayq/delayq/internal/queuetest"
)

var update = flag.Bool("update", false, "write the golden files and docs/cli.md instead of comparing them")

func TestMain(m *testing.M) {
	if os.Getenv(processEnv) != "" {
		Main("delayq")
	}
	queuetest.Main(m, nil)
}

// A world is a queue in a bubble, and the command line on it.
type world struct {
	*queuetest.Bubble
	env      map[string]string
	stdin    string
	terminal bool // stdin, stdout and stderr are one
	width    int
	ctx      context.Context
	down     bool // Redis cannot be reached
	dialer   dialer
	text     strings.Builder
	hidden   []string // what is different in every execution, each before what is shown instead
	server   string   // ID of the server of mail:welcome
	second   *queuetest.Running
}

// inWorld runs a test with a shop: topics in every state, and jobs in every state.
func inWorld(t *testing.T, test func(w *world)) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := &world{Bubble: b, env: map[string]string{"DELAYQ_PREFIX": queuetest.Prefix, "DELAYQ_TIME": "utc", "DELAYQ_ACTOR": "alice"}, ctx: b.Context()}
		w.shop()
		test(w)
	})
}

// shop fills the queue.
func (w *world) shop() {
	add := func(topic, id string, opts ...delayq.JobOption) { w.Enqueue(topic, id, opts...) }
	add("order:cancel", "order-1", delayq.ProcessIn(30*time.Minute), delayq.Header("tenant", "7"))
	add("order:cancel", "order-2", delayq.ProcessIn(90*time.Minute), delayq.Retry(5), delayq.Timeout(time.Minute), delayq.ExpireIn(48*time.Hour))
	add("order:cancel", "\xff\x00raw", delayq.ProcessIn(2*time.Hour), delayq.Header("raw", "\xfe"))
	add("order:cancel", "訂單-3", delayq.ProcessIn(72*time.Hour))
	add("refund:poll", "refund-9")

	stop := make(chan struct{})
	w.Cleanup(func() { close(stop) })
	server := w.Serve("mail:welcome", func(ctx context.Context, job *delayq.Job) error {
		switch {
		case strings.HasPrefix(job.ID, "dead"):
			return delayq.Permanent(fmt.Errorf("smtp: 550 mailbox %s is unavailable", strings.TrimPrefix(job.ID, "dead-")))
		case strings.HasPrefix(job.ID, "retry"):
			return delayq.RetryIn(time.Hour, errors.New("dial tcp: connection refused"))
		case strings.HasPrefix(job.ID, "done"):
			return job.SetOutput([]byte("250 2.0.0 Ok: queued as 4D2F\xff\n"))
		}
		select { // until it is cancelled, or the test ends
		case <-stop:
		case <-ctx.Done():
		}
		return ctx.Err()
	}, delayq.Concurrency(1))
	for _, id := range []string{"dead-1", "dead-2", "retry-1"} {
		add("mail:welcome", id)
		w.Pass(time.Second)
	}
	add("mail:welcome", "done-1", delayq.Retention(24*time.Hour))
	w.Pass(time.Second)
	add("mail:welcome", "long-1")
	w.Pass(time.Second)
	add("mail:welcome", "wait-1")
	host, err := os.Hostname()
	require.NoError(w, err)

	second := w.Serve("report:daily", func(_ context.Context, job *delayq.Job) error {
		return job.SetOutput([]byte("checked 12 accounts\nsum 4711.50 EUR\n"))
	})
	w.hidden = []string{server.ID(), "SERVER-1", second.ID(), "SERVER-2", host, "HOST"}
	w.server, w.second = server.ID(), second

	client := w.Client
	require.NoError(w, client.Schedule(w.Context(), "report:weekly", "tenant-7", delayq.Cron("0 9 * * 1", "Europe/Berlin"), []byte(`{"tenant":7}`),
		delayq.Retry(5), delayq.Jitter(time.Minute), delayq.MaxRuns(10)))
	require.NoError(w, client.Schedule(w.Context(), "report:weekly", "tick", delayq.Every(time.Minute), nil, delayq.OverlapQueueOne, delayq.MissedCatchUp(3)))
	require.NoError(w, client.Pause(w.Context(), "report:weekly", delayq.Pause{By: "bob", Reason: "bank is down", For: time.Hour}))
	require.NoError(w, client.Schedule(w.Context(), "report:daily", "sums", delayq.Every(20*time.Second), []byte("all")))
	w.Pass(time.Minute)
}

// A result is what a command has written, and its exit code.
type result struct {
	out, err string
	code     int
}

// do executes a command line.
func (w *world) do(args ...string) result {
	var out, errs bytes.Buffer
	p := w.process(args, &out, &errs)
	code := run(w.ctx, p)
	return result{out.String(), errs.String(), code}
}

// process returns the process of a command line.
func (w *world) process(args []string, out, errs io.Writer) *process {
	return &process{
		name: "delayq",
		args: args,
		in:   &input{Reader: strings.NewReader(w.stdin), terminal: w.terminal},
		out:  &output{Writer: out, terminal: w.terminal, width: w.width}, err: &output{Writer: errs, terminal: w.terminal, width: w.width},
		getenv: func(name string) string { return w.env[name] },
		user:   "operator",
		dial:   w.dial,
	}
}

// dial is the dialer of the command line.
func (w *world) dial(c *connection) (redis.UniversalClient, error) {
	if w.down {
		return dial(&connection{url: "unix:///nonexistent/redis.sock", timeout: c.timeout})
	}
	if w.dialer != nil {
		return w.dialer(c)
	}
	return w.Redis.Client(), nil
}

// ok is do for a command that is expected to succeed. It returns stdout.
func (w *world) ok(args ...string) string {
	w.Helper()
	r := w.do(args...)
	require.Zero(w, r.code, "%v: %s", args, r.err)
	return r.out
}

// show executes a command line and adds all of it to the golden file.
func (w *world) show(args ...string) result {
	r := w.do(args...)
	quotedArgs := make([]string, len(args))
	for i, arg := range args {
		quotedArgs[i] = quoted(arg)
	}
	fmt.Fprintf(&w.text, "$ delayq %s\n%s", w.clean(strings.Join(quotedArgs, " ")), w.clean(r.out))
	if r.out != "" && !strings.HasSuffix(r.out, "\n") {
		w.text.WriteString("\n")
	}
	for line := range strings.Lines(w.clean(r.err)) {
		fmt.Fprintf(&w.text, "! %s", line)
	}
	if r.err != "" && !strings.HasSuffix(r.err, "\n") {
		w.text.WriteString("\n")
	}
	if r.code != 0 {
		fmt.Fprintf(&w.text, "exit %d\n", r.code)
	}
	w.text.WriteString("\n")
	w.valid(args, r)
	return r
}

// every is show in each output.
func (w *world) every(args ...string) {
	for _, format := range formats {
		w.show(append(args, "-o", format)...)
	}
}

var (
	pid    = regexp.MustCompile(`("pid": ?|pid +)[0-9]+`)
	loops  = regexp.MustCompile(`"(extend|promote|take)": ?[0-9.]+|(extend|promote|take) [0-9a-z.µ]+`)
	gaps   = regexp.MustCompile(`([^ \n])  +`)
	goTags = regexp.MustCompile(`"go": ?"[^"]*"|go +go[0-9].*`)
	// The end of a lease depends on when its server has extended it.
	leaseEnds = regexp.MustCompile(`(2000-01-01[ T])00:01:(29\.9|30\.[01])\d\d`)
)

// clean replaces what is different in every execution. Then columns no longer line up, so gaps
// between them are made equal.
func (w *world) clean(text string) string {
	hidden := false
	for _, secret := range w.hidden[:len(w.hidden)-1] {
		hidden = hidden || strings.Contains(text, secret)
	}
	text = strings.NewReplacer(w.hidden...).Replace(text)
	text = loops.ReplaceAllString(text, "$1$2 loop")
	text = pid.ReplaceAllString(text, "${1}1")
	text = strings.ReplaceAll(text, fmt.Sprint("  ", os.Getpid(), "  "), "  1  ")
	text = goTags.ReplaceAllString(text, "go")
	text = strings.ReplaceAll(text, "23.9s", "  24s") // of a lease, whose end has microseconds
	text = leaseEnds.ReplaceAllString(text, "${1}00:01:30.000")
	if hidden {
		text = gaps.ReplaceAllString(text, "$1  ")
		text = strings.ReplaceAll(text, "HOST PID", "HOST  PID") // the ID of this process has three digits
	}
	return text
}

// golden compares what was shown with a file.
func (w *world) golden(name string) {
	w.Helper()
	compare(w.T, filepath.Join("testdata", name+".txt"), w.text.String())
}

// compare compares a text with a file, or writes the file.
func compare(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "go test -update writes it")
}
