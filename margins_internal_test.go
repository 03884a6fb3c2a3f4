package delayq

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A job that was cut off backs off for 2 s after its second attempt, twice as long after each
// further one, and never for more than 64 s. Jobs of one call get up to a fifth more.
func TestBackoffOfLostLeasesIsCapped(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		for finished, seconds := range map[int]int64{1: 2, 2: 4, 5: 32, 6: 64, 7: 64, 8: 64, 50: 64} {
			ids := numbered(fmt.Sprint("after-", finished, "-"), 20)
			h.put("+0", ids...)
			require.Len(t, h.Take(len(ids), 0), len(ids))
			for _, id := range ids {
				require.NoError(t, h.rdb.HSet(ctx, h.keys.attempts, id, finished).Err())
			}
			r, err := h.tryPromote(1000, 0)
			require.NoError(t, err)
			require.EqualValues(t, len(ids), r.number(3))
			var delays []int64
			for _, id := range ids {
				due, err := h.rdb.ZScore(ctx, h.keys.bucket, id).Result()
				require.NoError(t, err)
				delays = append(delays, int64(due)-r.now())
			}
			require.Equal(t, seconds*1000, slices.Min(delays), "after %d attempts", finished)
			require.LessOrEqual(t, slices.Max(delays), seconds*1200, "after %d attempts", finished)
			require.NoError(t, h.rdb.Del(ctx, h.keys.bucket).Err())
		}
	})
}

// A lease whose record is gone is dropped, which is counted, and is not a job that was reclaimed.
func TestPromoteCountsWhatItDrops(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		h.put("+0", "gone", "gone too", "here")
		require.Len(t, h.Take(3, 0), 3)
		require.NoError(t, h.rdb.HDel(ctx, h.keys.pool, "gone", "gone too").Err())
		_, reclaimed := h.Promote()
		require.Equal(t, 1, reclaimed)
		require.Equal(t, "2", h.rdb.HGet(ctx, h.keys.stats, "dropped").Val())
		require.Equal(t, "1", h.rdb.HGet(ctx, h.keys.stats, "reclaimed").Val())
		require.Empty(t, h.Traces("gone"))
		h.TakeOne("here")
	})
}

// A job that is on its way to a server, between ready and a lease, has a place.
func TestPruneCountsTheHandoff(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		missing := func() int64 {
			t.Helper()
			r, err := h.tryPrune(10, time.Hour, 500)
			require.NoError(t, err)
			return r.number(4)
		}
		h.put("+0", "a")
		require.NoError(t, h.rdb.LMove(ctx, h.keys.ready, h.keys.handoff, "LEFT", "RIGHT").Err())
		require.Zero(t, missing())
		require.NoError(t, h.rdb.Del(ctx, h.keys.handoff).Err())
		require.EqualValues(t, 1, missing())
	})
}
