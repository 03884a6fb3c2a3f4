package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// incident fills the queue as docs/operating.md describes it, with fewer jobs that are scheduled.
func (w *world) incident() {
	client := w.Client
	var jobs []delayq.NewJob
	for i := range 1_000 {
		jobs = append(jobs, delayq.NewJob{Topic: "order:cancel", ID: fmt.Sprintf("order-%07d", i*1000),
			Options: []delayq.JobOption{delayq.ProcessIn(10*time.Minute + time.Duration(i)*43*time.Minute)}})
	}
	for i := range 40 {
		jobs = append(jobs, delayq.NewJob{Topic: "refund:poll", ID: fmt.Sprint("r-", i)}, delayq.NewJob{Topic: "report:weekly", ID: fmt.Sprint("w-", i)})
	}
	_, err := client.EnqueueBatch(w.Context(), jobs)
	require.NoError(w, err)
	require.NoError(w, client.Pause(w.Context(), "report:weekly", delayq.Pause{By: "alice", Reason: "bank is down", For: 2 * time.Hour}))
	runs := 0
	queuetest.ServeMany(w.T, w.RDB, queuetest.Prefix, func(s *delayq.Server) {
		require.NoError(w, s.HandlerFunc("order:cancel", queuetest.Nothing))
		require.NoError(w, s.HandlerFunc("report:weekly", queuetest.Nothing))
		require.NoError(w, s.HandlerFunc("mail:welcome", func(_ context.Context, job *delayq.Job) error {
			runs++
			switch runs % 10 {
			case 0:
				return fmt.Errorf("template %q has no field Name", job.ID)
			case 1, 2, 3:
				return fmt.Errorf("smtp: 550 mailbox %s@example.com unavailable", job.ID)
			}
			return fmt.Errorf("dial tcp 10.0.3.%d:587: connect: connection refused", runs%7)
		}, delayq.Concurrency(1)))
	})
	for i := range 200 {
		w.Enqueue("mail:welcome", fmt.Sprint("u-", 40_000+i), delayq.Retry(0))
	}
	w.Pass(10 * time.Second)
}

// Every command of docs/operating.md does what the document shows: it exits with 0, or with the
// code that the document names, and its first line has the same columns or the same sentence.
func TestOperatingGuide(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/operating.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)\n```console\n\\$ delayq ([^\n]*)\n([^\n]*)\n").FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(blocks), 15)
	codes := map[string]int{"check": 2, "explain order:cancel order-x": exitNotFound}
	varies := regexp.MustCompile(`[0-9][0-9:.,s-]*|ID +HOST.*|….*`)
	plain := func(line string) []string { return strings.Fields(varies.ReplaceAllString(line, "#")) }
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := &world{Bubble: b, env: map[string]string{"DELAYQ_PREFIX": queuetest.Prefix, "DELAYQ_TIME": "utc", "DELAYQ_ACTOR": "alice"}, ctx: b.Context()}
		w.incident()
		for _, block := range blocks {
			r := w.do(shellWords(block[1])...)
			require.Equal(b, codes[block[1]], r.code, "delayq %s: %s", block[1], r.err)
			shown := r.out
			if shown == "" {
				shown = r.err
			}
			first, _, _ := strings.Cut(shown, "\n")
			want := plain(block[2])
			if got := plain(first); len(want) <= len(got) && want[len(want)-1] == "#" {
				require.Equal(b, want[:len(want)-1], got[:len(want)-1], "delayq %s", block[1])
			} else {
				require.Equal(b, want, got, "delayq %s", block[1])
			}
		}
	})
}

// The file and the commands of docs/howto/tasks-table.md are accepted.
func TestTasksGuide(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/howto/tasks-table.md")
	require.NoError(t, err)
	block := func(language, begin string) string {
		_, rest, found := strings.Cut(string(text), "\n```"+language+"\n"+begin)
		require.True(t, found, begin)
		body, _, _ := strings.Cut(rest, "```\n")
		return begin + body
	}
	config := filepath.Join(t.TempDir(), "worker.yaml")
	require.NoError(t, os.WriteFile(config, []byte(block("yaml", "databases:")), 0o600))
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := &world{Bubble: b, env: map[string]string{"DELAYQ_PREFIX": queuetest.Prefix, "SHOP_DSN": "sqlite:///var/lib/shop.db"}, ctx: b.Context()}
		lines := strings.Split(strings.TrimSpace(block("sh", "delayq task add")), "\n")
		require.Len(b, lines, 3)
		for _, m := range regexp.MustCompile("`(delayq (?:task list|schedule )[^`]*)`").FindAllStringSubmatch(string(text), -1) {
			lines = append(lines, strings.NewReplacer("TOPIC", "sql", "NAME", "clean-zombies").Replace(m[1]))
		}
		require.Greater(b, len(lines), 7)
		lines = append(lines, "delayq worker --config "+config+" --check", "delayq task list", "delayq job mail report")
		for _, line := range lines {
			line, found := strings.CutPrefix(line, "delayq ")
			require.True(b, found, line)
			if line == "schedule pause" {
				continue // named, without its arguments
			}
			r := w.do(shellWords(line)...)
			require.Zero(b, r.code, "delayq %s: %s", line, r.err)
		}
	})
}

// shellWords splits a command line at spaces outside of single quotes.
func shellWords(line string) (list []string) {
	for _, m := range regexp.MustCompile(`'([^']*)'|\S+`).FindAllStringSubmatch(line, -1) {
		if m[1] != "" {
			list = append(list, m[1])
		} else {
			list = append(list, m[0])
		}
	}
	return list
}

// answers are what the commands of the catalogue in docs/operating.md say, in its order: a part of
// their output.
var answers = []string{
	"refund:poll", "CRITICAL", "no live server handles the topic", "refund:poll", "u-40010", `{"invoice":1}`, "inv-0", "order-0000000", "scheduled jobs that fall due:", "FAILED/S",
	"inv-1", "connection refused", "provider says 429", "550 mailbox", "RUNNING", "invoice:send", "order:cancel", "pool", "tenant-7", "tenant-7",
	"running 1", "report:weekly", "bob", "invoices are out", "edit schedule", "0 findings", "invoice:send", "3 jobs cancelled", "cancelled", "made due",
	"rescheduled", "jobs rescheduled", "revived", "jobs revived", "inv-9", "paused by alice", "10/1m", "0 7 * * 1", "0 jobs purged", "delayq.export/1",
}

// Each of the forty questions of docs/operating.md is answered by its one command.
func TestFortyQuestions(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/operating.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Forty questions\n")
	require.True(t, found)
	rows := regexp.MustCompile("(?m)^\\| ([^|]+) \\| `delayq ([^|]*)` \\|$").FindAllStringSubmatch(section, -1)
	require.Len(t, rows, 40)
	require.Len(t, answers, 40)
	t.Run("memory", func(t *testing.T) { // which only a real Redis knows
		cli, client := onRealRedis(t)
		fill(t, client, "mail:welcome", 100)
		fill(t, client, "order:cancel", 1000)
		for i, row := range rows {
			if args := shellWords(row[2]); args[0] == "memory" {
				require.Contains(t, cli.ok(args...), answers[i], row[1])
			}
		}
	})
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := &world{Bubble: b, env: map[string]string{"DELAYQ_PREFIX": queuetest.Prefix, "DELAYQ_TIME": "utc", "DELAYQ_ACTOR": "alice"}, ctx: b.Context()}
		w.incident()
		server := w.catalogue()
		used := map[string]bool{}
		for i, row := range rows {
			question, line := row[1], strings.ReplaceAll(row[2], "SERVER", server)
			require.NotContains(w, line, "|", "one command, and no pipe")
			args := shellWords(line)
			require.False(w, used[line], "a question of its own")
			used[line] = true
			if args[0] == "memory" {
				continue // see below
			}
			w.terminal, w.width, w.stdin, w.env["NO_COLOR"] = args[0] != "export", 300, "y\n", "1"
			r := w.do(args...)
			code := 0
			if args[0] == checkName {
				code = 2 // something is wrong
			}
			require.Equal(w, code, r.code, "%s: %s\n%s%s", question, line, r.out, r.err)
			require.Contains(w, r.out+r.err, answers[i], "%s: %s", question, line)
		}
		// They have done what they said.
		_, err := w.Client.Get(w.Context(), "order:cancel", "order-0000000")
		require.ErrorIs(w, err, delayq.ErrNotFound)
		info, err := w.Client.Get(w.Context(), "order:cancel", "order-0002000")
		require.NoError(w, err)
		require.Equal(w, "09:00:00", info.Due.UTC().Format(time.TimeOnly))
		info, err = w.Client.Get(w.Context(), "invoice:send", "inv-9")
		require.NoError(w, err)
		require.Equal(w, "tenant-7", info.Key)
	})
}

// catalogue adds what the questions are about, and returns the ID of a server.
func (w *world) catalogue() string {
	client, stop := w.Client, make(chan struct{})
	w.Cleanup(func() { close(stop) })
	for i := range 4 {
		_, err := client.Enqueue(w.Context(), "invoice:send", fmt.Sprint("inv-", i), fmt.Appendf(nil, `{"invoice":%d}`, i), delayq.Key("tenant-7"), delayq.Header("customer", fmt.Sprint(7-i/3)))
		require.NoError(w, err)
	}
	require.NoError(w, client.SetLimits(w.Context(), "invoice:send", delayq.Limits{Running: 1}))
	require.NoError(w, client.Schedule(w.Context(), "report:weekly", "tenant-7", delayq.Cron("0 9 * * 1", "Europe/Berlin"), nil))
	require.NoError(w, client.EditSchedule(delayq.WithActor(w.Context(), "bob"), "report:weekly", "tenant-7", func(d *delayq.ScheduleDefinition) error {
		d.EditedBy, d.Spec = "bob", delayq.Cron("0 8 * * 1", "Europe/Berlin")
		return nil
	}))
	require.NoError(w, client.Schedule(w.Context(), "invoice:remind", "daily", delayq.Every(20*time.Second), nil))
	w.Enqueue("sms:send", "sms-1", delayq.Retry(3), delayq.Backoff(time.Hour, time.Hour))
	server := queuetest.ServeMany(w.T, w.RDB, queuetest.Prefix, func(s *delayq.Server) {
		require.NoError(w, s.HandlerFunc("invoice:send", func(ctx context.Context, _ *delayq.Job) error {
			select {
			case <-stop:
			case <-ctx.Done():
			}
			return ctx.Err()
		}, delayq.Concurrency(1)))
		require.NoError(w, s.HandlerFunc("invoice:remind", func(_ context.Context, job *delayq.Job) error {
			return job.SetOutput([]byte("invoices are out"))
		}))
		require.NoError(w, s.HandlerFunc("sms:send", func(context.Context, *delayq.Job) error { return errors.New("provider says 429") }))
	})
	w.Pass(time.Minute)
	return server.ID()
}
