package delayq

import (
	"fmt"
	"slices"
	"strings"
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

// A job that expires in the very millisecond in which it is due could never run. In calls that say
// both as delays, or one as a delay, only the script can tell.
func TestExpiryAtTheVeryDueTimeIsRefused(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for words, letters := range map[string]string{"+5 +5": "x", "+5 +6": "", "+5 +4": "x", "+0 +0": "x", "+0 +1": ""} {
			due, _, _ := strings.Cut(words, " ")
			head, tail := h.record(due, 0)
			r, err := h.trySend(false, []any{words, head, tail, words})
			require.NoError(t, err)
			require.Equal(t, letters, r.text(2), words)
			require.Equal(t, letters == "", h.rdb.HExists(t.Context(), h.keys.pool, words).Val(), words)
		}
	})
}

// A job that was ready, and is replaced by one that is due later, leaves no entry in ready.
func TestReplaceForLaterLeavesNothingInReady(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.put("+0", "before", "x", "after")
		_, err := h.client().Enqueue(t.Context(), "topic", "x", nil, Replace(), ProcessIn(time.Hour))
		require.NoError(t, err)
		require.Equal(t, []string{"before", "after"}, h.list(h.keys.ready))
		require.Equal(t, []string{"bucket", "pool"}, h.Traces("x"))
	})
}

// A lease that runs out leaves the tally of its job as it was: the attempts that do not count any
// more, how often it was snoozed, and that it was revived.
func TestLapsedLeaseKeepsTheTally(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		h.put("+0", "x")
		require.Len(t, h.Take(1, 0), 1)
		require.NoError(t, h.rdb.HSet(ctx, h.keys.attempts, "x", 3).Err())
		require.NoError(t, h.rdb.HSet(ctx, h.keys.moved, "x", "1750000000000 revive 2 5 1").Err())
		_, reclaimed := h.Promote()
		require.Equal(t, 1, reclaimed)
		require.Regexp(t, `^\d{13} retry 2 5 1$`, h.rdb.HGet(ctx, h.keys.moved, "x").Val())
	})
}

// A page of running jobs is of jobs: the anchor of the zset is none.
func TestListOfRunningJobsLeavesTheAnchorOut(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.put("+0", "x")
		h.TakeOne("x")
		r, err := h.run(listScript, string(StateRunning), 0, 10)
		require.NoError(t, err)
		require.EqualValues(t, 1, r.number(2))
		require.Equal(t, []string{"x"}, r.list(3).texts())
	})
}

// A job that was buried without a run, because its record cannot be read, was at its first attempt.
func TestJobBuriedUnrunIsAtItsFirstAttempt(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.put("+0", "x")
		require.Equal(t, "o", h.letters([]Held{h.TakeOne("x")}, row{verb: verbBury, entry: byHand}))
		info := h.info("x")
		require.Equal(t, StateDead, info.State)
		require.Equal(t, 1, info.Attempt)
	})
}
