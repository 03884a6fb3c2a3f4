package cli

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// How a job has ended, in every output, with the exit code.
func TestGoldenWait(t *testing.T) {
	inWorld(t, func(w *world) {
		server := w.Serve("report:build", func(_ context.Context, job *delayq.Job) error {
			for page := range int64(3) {
				time.Sleep(2 * time.Second)
				if err := job.Progress(page+1, 3, "page \x1b[2J"); err != nil {
					return err
				}
			}
			time.Sleep(2 * time.Second)
			return job.SetOutput([]byte("a\x1b,b\n1,2\n"))
		})
		w.hidden = append([]string{server.ID(), "SERVER-3"}, w.hidden...)
		w.every("wait", "mail:welcome", "done-1")
		w.show("wait", "mail:welcome", "done-1", "--raw")
		w.every("wait", "mail:welcome", "dead-1")
		w.show("wait", "mail:welcome", "dead-1", "--raw")
		w.show("wait", "mail:welcome", "nobody")
		w.show("wait", "order:cancel", "order-1", "--for", "1m")
		for _, args := range [][]string{{"--for", "0s"}, {"--for", "soon"}} {
			w.show(append([]string{"wait", "order:cancel", "order-1"}, args...)...)
		}

		w.every("enqueue", "report:build", "--id", "r-1", "--wait")
		w.show("enqueue", "report:build", "--id", "r-2", "--wait", "--raw", "--progress")
		w.terminal = true
		w.show("enqueue", "report:build", "--id", "r-3", "--wait", "--raw")
		w.terminal = false
		w.show("enqueue", "report:build", "--id", "r-4", "--wait", "--wait-for", "3s")
		w.show("wait", "report:build", "r-4", "--progress")
		w.show("enqueue", "report:build", "--id", "r-5", "--in", "1h", "--expire-in", "30m", "--wait")
		w.show("enqueue", "order:cancel", "--id", "order-1", "--wait")
		for _, flag := range []string{"--raw", "--progress", "--wait-for=1s"} {
			w.show("enqueue", "report:build", "--id", "r-6", flag)
		}
		require.Empty(w, w.State("report:build", "r-6"))
		w.show("audit", "--limit", "3")
		w.golden("wait")
	})
}

// Each end of a job that is not its completion has an outcome and an exit code.
func TestWaitTellsOutcomes(t *testing.T) {
	inWorld(t, func(w *world) {
		for outcome, end := range map[string]func(id string) error{
			"cancelled": func(id string) error { _, err := w.Client.Dequeue(w.Context(), "t", id); return err },
			"replaced": func(id string) error {
				_, err := w.Client.Enqueue(w.Context(), "t", id, nil, delayq.Replace(), delayq.ProcessIn(time.Hour))
				return err
			},
			"dead": func(id string) error { return w.Client.Bury(w.Context(), "t", id, "no") },
		} {
			w.Enqueue("t", outcome, delayq.ProcessIn(time.Hour))
			ended := make(chan error, 1)
			go func() {
				time.Sleep(time.Second)
				ended <- end(outcome)
			}()
			began := time.Now()
			r := w.do("wait", "t", outcome, "-o", "json")
			require.NoError(w, <-ended)
			require.Equal(w, time.Second, time.Since(began).Round(100*time.Millisecond), "the message has ended the wait")
			require.Contains(w, r.out, `"outcome": "`+outcome+`"`)
			require.Contains(w, r.err, outcome)
			want := exitConflict
			if outcome == "dead" {
				want = exitError
			}
			require.Equal(w, want, r.code, outcome)
		}
	})
}

// An interrupt ends the wait, and the job goes on.
func TestWaitIsInterrupted(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx, interrupt := context.WithCancel(w.Context())
		w.ctx = ctx
		time.AfterFunc(time.Second, interrupt)
		r := w.do("enqueue", "t", "--id", "x", "--in", "1h", "--wait")
		require.Equal(w, exitInterrupted, r.code, r.err)
		require.Equal(w, delayq.StateScheduled, w.State("t", "x"))
		w.ctx = w.Context()
		require.Contains(w, w.ok("audit", "--limit", "1"), "enqueue", "it was recorded before the wait was over")
	})
}
