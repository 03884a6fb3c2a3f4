package lua_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/script"
)

// gatherTake is a take of a server that gathers: of the jobs of each key if groups is above 0.
func (h *Hand) gatherTake(size int, wait time.Duration, groups int) (script.Reply, []hand.Held) {
	h.T.Helper()
	number := h.Series.Next()
	r, err := h.Try(script.Take, h.Keys.Of(script.Take, h.Keys.Taken(h.Series.ID)), number, number, 40, script.CallBytes,
		time.Minute.Milliseconds(), 40, "head", "", 0, size, wait.Milliseconds(), groups, 20, 0, 0)
	require.NoError(h.T, err)
	return r, hand.HeldOf(r)
}

// A job with a larger head start comes before the others of its key, and does not make them wait
// again: the jobs are gathered from the time on at which the first one was due.
func TestGatheredJobsWaitOnce(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		put := func(id string, headStart int64) {
			head, tail := h.keyedRecord("+0", "k", headStart)
			_, err := h.TrySend(false, []any{id, head, tail, "+0"})
			require.NoError(t, err)
		}
		till := func() int64 { return int64(h.RDB.ZScore(ctx, h.Keys.Parked, "k").Val()) }
		gather := func() []hand.Held {
			_, held := h.gatherTake(10, time.Hour, 2)
			return held
		}
		put("first", 0)
		require.Empty(t, gather())
		ends := till()
		for i := range 5 {
			before := h.RDB.Time(ctx).Val()
			require.Eventually(t, func() bool { return h.RDB.Time(ctx).Val().Sub(before) > 2*time.Millisecond }, time.Minute, time.Millisecond)
			put(fmt.Sprint("urgent ", i), int64(1+i)*60_000)
			require.Empty(t, gather())
			require.Equal(t, ends, till(), "when the batch begins")
		}
		require.NoError(t, h.RDB.ZRem(ctx, h.Keys.Parked, "k").Err()) // known no more
		require.NoError(t, h.RDB.ZAdd(ctx, h.Keys.Turn, redis.Z{Member: "k"}).Err())
		require.Empty(t, gather())
		require.Equal(t, ends, till(), "when the batch begins")

		// Its time has come, and promote gives the key its turn.
		require.NoError(t, h.RDB.ZAdd(ctx, h.Keys.Parked, redis.Z{Score: 1, Member: "k"}).Err())
		h.Promote()
		_, held := h.gatherTake(10, time.Millisecond, 2)
		require.Len(t, held, 6)
	})
}

// Jobs that cannot run are not counted when jobs of all keys are gathered: those of held keys, of
// parked ones, and those beyond a limit.
func TestJobsThatCannotRunAreNotGathered(t *testing.T) {
	const size = 10
	for name, stop := range map[string]func(h *Hand){
		"paused": func(h *Hand) {
			h.putKeyed("stopped", hand.Numbered("s", size)...)
			require.Equal(h.T, "held", h.holdKey("stopped", -1))
		},
		"held before": func(h *Hand) {
			require.Equal(h.T, "held", h.holdKey("stopped", 3_600_000))
			h.putKeyed("stopped", hand.Numbered("s", size)...)
		},
		"limited": func(h *Hand) {
			h.setKeyLimits("stopped", delayq.KeyLimits{Running: 1})
			h.putKeyed("stopped", hand.Numbered("s", size)...)
			require.Len(h.T, h.takeAll(), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				stop(h)
				for i := range size - 1 {
					if i%2 == 0 {
						h.Put("+0", fmt.Sprint("plain ", i))
					} else {
						h.putKeyed("other", fmt.Sprint("keyed ", i))
					}
					r, held := h.gatherTake(size, time.Hour, 0)
					require.Empty(t, held)
					require.Equal(t, "gather", r.Status(), "%d jobs can run", i+1)
				}
				h.Put("+0", "last")
				var got []hand.Held
				for more := true; more; {
					r, held := h.gatherTake(size, time.Hour, 0)
					got, more = append(got, held...), r.Number(7) == 1
				}
				require.Len(t, got, size)
			})
		})
	}
}
