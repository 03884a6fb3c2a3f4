package main

import (
	"context"
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
	text, err := os.ReadFile("../../docs/operating.md")
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
	text, err := os.ReadFile("../../docs/howto/tasks-table.md")
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
