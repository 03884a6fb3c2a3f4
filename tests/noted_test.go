package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// noteOf returns the note of a job as the note script stores it: progress 40 of 100, and two steps.
func noteOf(nonce string, at time.Time) string {
	return fmt.Sprintf("%s14:6:charge4:mail %d 40 100 0 1 page 40", nonce, at.UnixMilli())
}

// Progress and steps of a job are in each view of it, in each state in which it has them. What is
// noted of another incarnation, and what cannot be read, is in none. It hides nothing else.
func TestEachViewHasTheNote(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		key := queuetest.Prefix + ":{t}:all:notes"
		b.Serve("t", func(ctx context.Context, job *delayq.Job) error {
			switch job.ID {
			case "running":
				<-ctx.Done()
				return ctx.Err()
			case "dead":
				return delayq.Permanent(errors.New("no"))
			case "put off":
				return delayq.Snooze(time.Hour)
			}
			return delayq.RetryIn(time.Hour, errors.New("no"))
		})
		states := map[string]delayq.State{
			"running": delayq.StateRunning, "dead": delayq.StateDead, "put off": delayq.StateScheduled, "failed": delayq.StateScheduled, "later": delayq.StateReady,
		}
		nonces := map[string]string{}
		for id := range states {
			if id != "later" {
				nonces[id] = b.Enqueue("t", id).Nonce()
			}
		}
		b.Pass(time.Second)
		require.NoError(b, b.Client.Pause(b.Context(), "t", delayq.Pause{}))
		nonces["later"] = b.Enqueue("t", "later").Nonce()
		b.Pass(time.Second)
		noted := time.Now()
		views := func(id string) map[string]*delayq.JobInfo {
			views := map[string]*delayq.JobInfo{"Get": b.Get("t", id)}
			require.Equal(b, states[id], views["Get"].State, id)
			got, err := b.Client.GetBatch(b.Context(), []delayq.JobRef{{Topic: "t", ID: id}})
			require.NoError(b, err)
			views["GetBatch"] = got[0].Job
			one, err := b.Inspector.Job(b.Context(), "t", id)
			require.NoError(b, err)
			views["Job"] = one
			found, err := b.Inspector.Find(b.Context(), id)
			require.NoError(b, err)
			views["Find"] = found[0]
			for info, err := range b.Inspector.All(b.Context(), delayq.Query{Topic: "t", State: states[id]}) {
				require.NoError(b, err)
				if info.ID == id {
					views["All"] = info
				}
			}
			e, err := b.Inspector.Explain(b.Context(), "t", id)
			require.NoError(b, err)
			views["Explain"] = e.Job
			require.Len(b, views, 6)
			return views
		}
		for id, nonce := range nonces {
			require.NoError(b, b.RDB.HSet(b.Context(), key, "p"+id, noteOf(nonce, noted)).Err())
			for view, info := range views(id) {
				require.Equal(b, []string{"charge", "mail"}, info.Steps, "%s of %s", view, id)
				require.NotNil(b, info.Progress, "%s of %s", view, id)
				require.True(b, noted.Truncate(time.Millisecond).Equal(info.Progress.At))
				info.Progress.At = time.Time{}
				require.Equal(b, &delayq.Progress{Done: 40, Total: 100, Text: "page 40"}, info.Progress, "%s of %s", view, id)
			}
			for what, note := range map[string]string{
				"of another":   noteOf("12345678", noted),
				"damaged":      nonce + "9:" + noteOf(nonce, noted)[8:],
				"of no number": nonce + "0: 1 x 0 0 0 ",
				"empty":        nonce,
			} {
				require.NoError(b, b.RDB.HSet(b.Context(), key, "p"+id, note).Err())
				for view, info := range views(id) {
					require.Nil(b, info.Progress, "%s: %s of %s", what, view, id)
					require.Empty(b, info.Steps, "%s: %s of %s", what, view, id)
				}
			}
			for what, note := range map[string]string{
				"steps alone": nonce + "3:1:a", "damaged progress": nonce + "3:1:a 1 2 3 4", "a damaged name": nonce + "6:1:a9:b 1 2 3 4 5 ",
			} {
				require.NoError(b, b.RDB.HSet(b.Context(), key, "p"+id, note).Err())
				for view, info := range views(id) {
					require.Nil(b, info.Progress, "%s: %s of %s", what, view, id)
					require.Equal(b, []string{"a"}, info.Steps, "%s: %s of %s", what, view, id)
				}
			}
		}
	})
}

// Explain says how far a job has come and who waits for it. A waiter for an earlier job of the ID,
// and one that has not looked for a minute, is not counted.
func TestExplainSaysWhoWaits(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		key := queuetest.Prefix + ":{t}:all:notes"
		nonce := b.Enqueue("t", "x", delayq.ProcessIn(time.Hour)).Nonce()
		waiter := func(nonce string, since time.Time, name string) string {
			entry := fmt.Sprintf("%s%013d%s", nonce, since.UnixMilli(), name)
			return fmt.Sprintf("%d:%s", len(entry), entry)
		}
		b.Pass(2 * time.Minute)
		now := time.Now()
		require.NoError(b, b.RDB.HSet(b.Context(), key,
			"wx", waiter(nonce, now, "a")+waiter("12345678", now, "b")+waiter(nonce, now.Add(-time.Minute-time.Millisecond), "c")+waiter(nonce, now.Add(-59*time.Second), "d"),
			"px", noteOf(nonce, now.Add(-2*time.Second)),
		).Err())
		e, err := b.Inspector.Explain(b.Context(), "t", "x")
		require.NoError(b, err)
		require.Equal(b, 2, e.Waiters)
		require.Equal(b, `Scheduled: it is due at 2000-01-01 01:00:00.000 UTC, in 58m; its progress is 40 of 100 ("page 40"), 2s ago; `+
			`steps done: "charge", "mail"; 2 clients wait for it.`, e.Verdict)
		require.Equal(b, "It is due at 2000-01-01 01:00:00.000 UTC, in 58m.", e.Reasons[0].Text)

		e, err = b.Inspector.Explain(b.Context(), "t", "none")
		require.NoError(b, err)
		require.Zero(b, e.Waiters)
	})
}
