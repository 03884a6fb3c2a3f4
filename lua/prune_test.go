package lua_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/delayq/delayq"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// bury makes dead jobs, the first one the oldest: each is buried a minute after the one before it,
// the last one now.
func (h *Hand) buryAll(ids ...string) {
	h.T.Helper()
	h.Put("+0", ids...)
	held := h.Take(1000, time.Hour)
	require.Len(h.T, held, len(ids))
	require.NotContains(h.T, h.Bury(held...), "l")
	for i, id := range ids {
		require.NoError(h.T, h.RDB.ZIncrBy(h.T.Context(), h.Keys.Dead, -float64(len(ids)-1-i)*60_000, id).Err())
	}
}

// prune is one call, and gives what is dead after it, the oldest first.
func (h *Hand) prune(most int, age time.Duration, limit, removed int) (dead []string) {
	h.T.Helper()
	r, err := h.TryPrune(most, age, limit)
	require.NoError(h.T, err)
	require.EqualValues(h.T, removed, r.Number(2)+r.Number(3))
	dead, err = h.RDB.ZRange(h.T.Context(), h.Keys.Dead, 0, -1).Result()
	require.NoError(h.T, err)
	return dead
}

// (G2, L1)
func TestPruneByCount(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.buryAll("a", "b", "c", "d", "e")
		require.Len(t, h.prune(5, time.Hour, 500, 0), 5)
		require.Equal(t, []string{"c", "d", "e"}, h.prune(3, time.Hour, 500, 2), "the oldest go first")
		require.Empty(t, h.Traces("a"))
		require.Equal(t, []string{"attempts", "dead", "errors", "pool"}, h.Traces("c"))
		require.Equal(t, []string{"d", "e"}, h.prune(0, time.Hour, 1, 1), "at most limit in one call")
		require.Empty(t, h.prune(0, time.Hour, 500, 2))
		require.Equal(t, []string{h.Keys.Stats}, keysOf(redistest.Dump(t, h.RDB, h.Prefix())), "nothing is left of them")
	})
}

func TestPruneByAge(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.buryAll("a", "b", "c", "d", "e") // 4, 3, 2, 1, 0 minutes ago
		require.Len(t, h.prune(100, 4*time.Minute+30*time.Second, 500, 0), 5)
		require.Equal(t, []string{"c", "d", "e"}, h.prune(100, 2*time.Minute+30*time.Second, 500, 2))
		require.Equal(t, []string{"d", "e"}, h.prune(100, 30*time.Second, 1, 1), "at most limit in one call")
	})
}

// What is too old goes first; what is too many after it comes with the next call.
func TestPruneByBoth(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.buryAll("a", "b", "c", "d", "e")
		require.Equal(t, []string{"b", "c", "d", "e"}, h.prune(2, 3*time.Minute+30*time.Second, 500, 1))
		require.Equal(t, []string{"d", "e"}, h.prune(2, 3*time.Minute+30*time.Second, 500, 2))
	})
}

func TestPruneLeavesTheLivingAlone(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		stage(h)
		before := h.sketch()
		require.Empty(t, h.prune(0, time.Hour, 500, 1))
		delete(before, "dead")
		require.Equal(t, before, h.sketch())
	})
}

// A job that was revived is no longer among the dead, and is pruned no more.
func TestPruneAfterARevival(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.buryAll("a", "b")
		_, err := h.TryRevive("a")
		require.NoError(t, err)
		require.Empty(t, h.prune(0, time.Hour, 500, 1))
		h.TakeOne("a")
	})
}

func TestPruneOfDoneJobs(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		h := NewHand(t, rdb, "delayq", "topic")
		for i, keep := range []time.Duration{time.Second, time.Minute, time.Hour} {
			_, err := h.client().Enqueue(t.Context(), "topic", fmt.Sprint(i), []byte("p"), delayq.Retention(keep))
			require.NoError(t, err)
		}
		require.Equal(t, "ooo", h.Ack(h.Take(3, time.Minute)...))
		h.prune(0, time.Hour, 500, 0)
		time.Sleep(time.Second - 1)
		h.prune(0, time.Hour, 500, 0)
		time.Sleep(time.Nanosecond)
		h.prune(0, time.Hour, 500, 1)
		require.Empty(t, h.Traces("0"))
		require.Equal(t, []string{"done", "results"}, h.Traces("1"))
		info := h.info("1")
		require.Equal(t, delayq.StateDone, info.State)
		require.Equal(t, "p", string(info.Payload))
		time.Sleep(time.Hour)
		h.prune(0, time.Hour, 1, 1)
		h.prune(0, time.Hour, 1, 1)
		require.Equal(t, []string{h.Keys.Stats}, keysOf(redistest.Dump(t, rdb, h.Prefix())))
	})
}

// The ID of a done job is free. When its next job is done too, that one is kept in its place.
func TestDoneJobsGiveWayToNewerOnes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for _, payload := range []string{"first", "second"} {
			_, err := h.client().Enqueue(t.Context(), "topic", "x", []byte(payload), delayq.Retention(time.Hour))
			require.NoError(t, err)
			require.Equal(t, delayq.StateReady, h.info("x").State, "the live one is shown")
			require.Equal(t, "o", h.Ack(h.TakeOne("x")))
			require.Equal(t, payload, string(h.info("x").Payload))
		}
		require.EqualValues(t, 1, h.RDB.ZCard(t.Context(), h.Keys.Done).Val())
	})
}

// An expired job is dropped: it is not kept as done, whatever its Retention.
func TestExpiredJobsAreNotKept(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		_, err := h.client().Enqueue(t.Context(), "topic", "x", nil, delayq.Retention(time.Hour))
		require.NoError(t, err)
		require.Equal(t, "o", h.Expire(h.TakeOne("x")))
		require.Empty(t, h.Traces("x"))
	})
}

func TestPruneCounts(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.buryAll("a", "b", "c")
		h.prune(1, time.Hour, 500, 2)
		info := queuetest.StatsOf(t, h.client().insp, "topic")
		require.EqualValues(t, 2, info.Counters["pruned_dead"])
		require.Zero(t, info.Counters["pruned_done"])
	})
}

// A key of a wrong type is told, and what does not need it goes on. (J11)
func TestPruneGoesOnBesideAWrongType(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for _, key := range keysIn(t, "prune") {
			h := NewHand(t, h.RDB, redistest.Prefix(t), "topic")
			h.buryAll("a", "b", "c")
			_, err := h.client().Enqueue(t.Context(), "topic", "done", nil, delayq.Retention(time.Millisecond))
			require.NoError(t, err)
			require.Equal(t, "o", h.Ack(h.TakeOne("done")))
			require.NoError(t, h.RDB.ZIncrBy(t.Context(), h.Keys.Done, -1000, "done").Err())
			h.Put("+0", "lost")
			require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Ready).Err())
			h.Deface(key)
			r, err := h.TryPrune(1, time.Hour, 500)
			require.NoError(t, err)
			require.Equal(t, []string{h.Key(key)}, r.List(5).Texts())
			removed, missing := 3, 1
			switch key {
			case "pool", "dead":
				removed, missing = 1, 0
			case "done", "results":
				removed = 2
			case "bucket", "leases", "ready", "handoff", "lane":
				missing = 0
			}
			require.EqualValues(t, removed, r.Number(2)+r.Number(3), key)
			require.EqualValues(t, missing, r.Number(4), key)
		}
		h.Deface("stats")
		r, err := h.TryPrune(1, time.Hour, 500)
		require.NoError(t, err)
		require.Equal(t, []string{h.Keys.Stats}, r.List(5).Texts())
	})
}

// The pool alone is lost: prune tells that there are places without records, at once and not with
// the next regular check.
func TestPruneTellsOfALostPool(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.buryAll("a", "b", "c")
		h.Put("+3600000", "d")
		r, err := h.TryPrune(9, time.Hour, 500)
		require.NoError(t, err)
		require.Zero(t, r.Number(4))
		require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Pool).Err())
		h.Put("+0", "new")
		r, err = h.TryPrune(9, time.Hour, 500)
		require.NoError(t, err)
		require.EqualValues(t, 3, r.Number(4))
	})
}

// Entries of ready that count for nothing are removed when there are far more of them than jobs:
// from both ends, in bounded steps, and the jobs keep their order.
func TestPruneTrimsReady(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		trim := func() int64 {
			t.Helper()
			r, err := h.TryPrune(10, time.Hour, 100)
			require.NoError(t, err)
			return r.Number(6)
		}
		h.Put("+0", "running", "dead")
		held := h.Take(2, time.Hour)
		require.Equal(t, "o", h.Bury(held[1]))
		h.Put("+3600000", "later")
		h.Put("+0", "a", "b")
		var gone []string
		for i := range 250 {
			gone = append(gone, fmt.Sprint("gone", i))
		}
		// 4 places of jobs that are elsewhere, and twice a, behind the true ones; and then too many
		// at both ends.
		h.Push(h.Keys.Ready, "running", "dead", "later", "a", "")
		require.Zero(t, trim(), "that is not many")
		all := append(slices.Clone(gone), h.List(h.Keys.Ready)...)
		for range 4 {
			all = append(all, gone...)
		}
		require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Ready).Err())
		h.Push(h.Keys.Ready, all...)
		for left := len(all); left > 1004; {
			require.EqualValues(t, min(200, left), trim())
			left -= 200
			require.Len(t, h.List(h.Keys.Ready), left)
		}
		require.Zero(t, trim())
		require.Equal(t, []string{"a", "b"}, idsOf(h.Take(1000, time.Hour)))
	})
}

// The entries of live jobs at the ends are put back as they were.
func TestPruneTrimsAroundTheJobs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a", "b", "c", "d")
		list := []string{"gone", "a", "", "b", "a", "gone"}
		for range 1200 {
			list = append(list, "gone")
		}
		list = append(list, "gone", "c", "gone", "d", "c", "gone")
		require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Ready).Err())
		h.Push(h.Keys.Ready, list...)
		for range 3 {
			_, err := h.TryPrune(10, time.Hour, 100)
			require.NoError(t, err)
		}
		left := h.List(h.Keys.Ready)
		require.Equal(t, []string{"a", "b"}, left[:2])
		require.Equal(t, []string{"c", "d"}, left[len(left)-2:])
		require.Equal(t, []string{"a", "b", "c", "d"}, idsOf(h.Take(1000, time.Hour)))
	})
}
