package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/script"
)

// A target whose jobs another server has delivered, after this one has failed, is not looked at
// again and again while others are stuck.
func TestThenForgetsATargetThatHasItsJobs(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		for _, topic := range []string{"bad", "late"} {
			require.NoError(b, b.RDB.Set(b.Context(), queuetest.PoolKey(topic), "x", 0).Err())
		}
		var log queuetest.Logbook
		var calls queuetest.HookLog
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			require.NoError(b, job.Then("late", "", nil))
			return job.Then("bad", "", nil)
		}, log.To(), delayq.Hooks(&calls))
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		front := fmt.Sprintf("%02x%s", len("late"), "late")
		n, err := b.RDB.ZRemRangeByLex(b.Context(), parcelsKey, "["+front, "("+front+"g").Result()
		require.NoError(b, err)
		require.Equal(b, int64(1), n)
		b.Pass(time.Minute)
		before := calls.Calls(script.ParcelPlan.Name)
		b.Pass(time.Minute)
		require.Less(b, calls.Calls(script.ParcelPlan.Name)-before, 200, "calls in a minute")
		require.Len(b, log.With("relay to late works again"), 1)
	})
}

// Many targets that are stuck cost few calls.
func TestThenWithManyStuckTargets(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const targets = 50 // a look lists 20
		for i := range targets {
			require.NoError(b, b.RDB.Set(b.Context(), queuetest.PoolKey(fmt.Sprint("bad", i)), "x", 0).Err())
		}
		var calls queuetest.HookLog
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			for i := range targets {
				require.NoError(b, job.Then(fmt.Sprint("bad", i), "", nil))
			}
			return nil
		}, delayq.Hooks(&calls))
		b.Enqueue("a", "1")
		b.Pass(3 * time.Minute)
		before := calls.Calls(script.ParcelPlan.Name)
		b.Pass(time.Minute)
		n := calls.Calls(script.ParcelPlan.Name) - before
		require.Less(b, n, 12*targets, "calls in a minute")
	})
}

// A server that stops while it delivers says nothing about that, and the next server goes on.
func TestThenAtAStop(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		w := queuetest.NewWire(b.Redis)
		var log queuetest.Logbook
		work := func(_ context.Context, job *delayq.Job) error { return job.Then("b", job.ID, nil) }
		s := b.ServeOn(w, "a", work, log.To())
		w.Stall(script.Replace.Digest.(string))
		b.Enqueue("a", "1")
		b.Pass(10 * time.Millisecond)
		require.NoError(b, s.Stop())
		require.Empty(b, log.With("relay to"))
		require.Empty(b, log.With("redis away"))
		b.Serve("a", work)
		b.Pass(10 * time.Second)
		require.Equal(b, delayq.StateReady, b.State("b", "1"))
		noParcels(b)
	})
}
