package lua_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// Of the jobs of one call the first that is due wakes the timers, wherever it is among them.
func TestAgainWakesTheTimersForTheFirst(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		sub := h.RDB.Subscribe(ctx, script.ControlChannel(h.Prefix()))
		defer func() { require.NoError(t, sub.Close()) }()
		_, err := sub.Receive(ctx)
		require.NoError(t, err)
		for _, whens := range [][]string{{"+300", "+3600000"}, {"+3600000", "+300"}} {
			h.Put("+0", "1", "2")
			h.Renewals = map[string]*settle.Renewal{"1": h.Renewal(whens[0], 0), "2": h.Renewal(whens[1], 0)}
			require.Equal(t, "oo", h.Again(0, h.Take(2, time.Minute)...))
			m, err := sub.ReceiveTimeout(ctx, 10*time.Second)
			require.NoError(t, err, "%v", whens)
			require.IsType(t, &redis.Message{}, m)
			require.Regexp(t, "^wake ", m.(*redis.Message).Payload)
			require.NoError(t, h.RDB.Del(ctx, h.Keys.Bucket, h.Keys.Pool).Err())
		}
	})
}

// A stage of a plan that has failed for good counts as a failed run, and the next one is a job with
// clean books. Nothing of the stage is kept, also of one that has succeeded.
func TestAgainOfStages(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		h.Put("+0", "failed", "fine")
		held := h.Take(2, time.Minute)
		require.Equal(t, "oo", h.Retry(0, held...))
		require.NoError(t, h.RDB.Del(ctx, h.Keys.Stats).Err())
		held = nil
		for len(held) < 2 {
			h.Promote()
			held = append(held, h.Take(2, time.Minute)...)
		}
		stage := h.Renewal("+3600000", 0)
		stage.Stage = true
		for _, one := range held {
			h.Renewals = map[string]*settle.Renewal{one.ID: stage}
			verb := map[string]settle.Verb{"failed": settle.Pass, "fine": settle.Again}[one.ID]
			require.Equal(t, "o", h.Letters([]hand.Held{one}, settle.Row{Verb: verb}))
		}
		stats := h.RDB.HGetAll(ctx, h.Keys.Stats).Val()
		for name, want := range map[string]string{"retried": "1", "acked": "1", "again": "1", "enqueued": "1"} {
			require.Equal(t, want, stats[name], name)
		}
		require.ElementsMatch(t, []string{"failed", "fine"}, h.RDB.ZRange(ctx, h.Keys.Bucket, 0, -1).Val())
		require.Zero(t, h.RDB.Exists(ctx, h.Keys.Attempts, h.Keys.Errors, h.Keys.Moved, h.Keys.Leases, h.Keys.Done, h.Keys.Results).Val())
	})
}
