package delayq

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
)

// eachHand runs a test of scripts on both backends.
func eachHand(t *testing.T, test func(t *testing.T, h *Hand)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		test(t, NewHand(t, rdb, redistest.Prefix(t), "topic"))
	})
}

// put enqueues jobs that are all due at the same time, as the script reads it.
func (h *Hand) put(when string, ids ...string) {
	h.t.Helper()
	for chunk := range slices.Chunk(ids, 1000) {
		jobs := make([][2]string, len(chunk))
		for i, id := range chunk {
			jobs[i] = [2]string{id, when}
		}
		r, err := h.tryEnqueue(false, jobs...)
		require.NoError(h.t, err)
		require.Empty(h.t, r.Text(2), "all are stored")
	}
}

func (h *Hand) list(key string) []string {
	h.t.Helper()
	ids, err := h.rdb.LRange(context.Background(), key, 0, -1).Result()
	require.NoError(h.t, err)
	return ids
}

func (h *Hand) push(key string, ids ...string) {
	h.t.Helper()
	for chunk := range slices.Chunk(ids, 1000) {
		require.NoError(h.t, h.rdb.RPush(context.Background(), key, slices.Collect(anys(chunk))...).Err())
	}
}

func anys(list []string) func(yield func(any) bool) {
	return func(yield func(any) bool) {
		for _, s := range list {
			if !yield(s) {
				return
			}
		}
	}
}

// numbered makes n IDs.
func numbered(name string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s%05d", name, i)
	}
	return ids
}

func idsOf(held []Held) []string {
	ids := make([]string, len(held))
	for i, one := range held {
		ids[i] = one.ID
	}
	return ids
}

// (B4)
func TestTakeDropsWhatIsNotReady(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.put("+0", "buried", "leased")
		held := h.Take(2, time.Minute)
		require.Equal(t, []string{"buried", "leased"}, idsOf(held))
		require.Equal(t, "o", h.Bury(held[0]))
		h.put("+60000", "scheduled")
		h.put("+0", "first", "second")
		require.NoError(t, h.rdb.Del(t.Context(), h.keys.Ready).Err())
		h.push(h.keys.Ready, "", "no record", "first", "buried", "first", "leased", "scheduled", "", "second", "first")
		before := Dump(t, h.rdb, h.prefix())

		require.Equal(t, []string{"first", "second"}, idsOf(h.Take(10, time.Minute)))
		require.Empty(t, h.list(h.keys.Ready))
		require.Empty(t, h.Take(10, time.Minute))
		after := Dump(t, h.rdb, h.prefix())
		for _, same := range []string{"pool", "bucket", "dead", "attempts", "errors"} {
			require.Equal(t, before[h.Key(same)], after[h.Key(same)], same)
		}
	})
}

func TestTakeOfLeftOversAlone(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.push(h.keys.Ready, "", "gone")
		r, err := h.tryTake("", 5, time.Minute)
		require.NoError(t, err)
		require.Equal(t, "ok", r.Status(), "which means: ask again")
		require.Empty(t, r.List(3))
		r, err = h.tryTake("", 5, time.Minute)
		require.NoError(t, err)
		require.Equal(t, "empty", r.Status())
		require.Empty(t, Dump(t, h.rdb, h.prefix()), "no lease, no counter")
	})
}

// (G4)
func TestTakeLooksAtABoundedNumber(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		const stale, limit = 7999, 10
		h.push(h.keys.Ready, numbered("gone", stale)...)
		h.put("+0", "real")
		left := stale + 1
		for left > 0 {
			held := h.Take(limit, time.Minute)
			now := len(h.list(h.keys.Ready))
			require.Less(t, left-now, 1000+limit, "looked at in one call")
			require.Less(t, now, left)
			if left = now; left > 0 {
				require.Empty(t, held)
			} else {
				require.Equal(t, []string{"real"}, idsOf(held))
			}
		}
	})
}

// (C11, G1)
func TestPromoteMovesAtMostLimit(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ids := numbered("job", 2500)
		for i, chunk := range slices.Collect(slices.Chunk(ids, 500)) {
			h.put("+"+strconv.Itoa(3_600_000+i), chunk...)
		}
		r, err := h.tryPromote(1000, 0)
		require.NoError(t, err)
		require.Zero(t, r.Number(2), "nothing is due yet")
		require.InDelta(t, 3_600_000_000, r.Number(4), 600_000_000, "µs until the first one is due")

		h.Hasten(2 * time.Hour)
		for i, want := range []int64{1000, 1000, 500, 0} {
			r, err := h.tryPromote(1000, 0)
			require.NoError(t, err)
			require.Equal(t, want, r.Number(2))
			if i < 2 {
				require.Zero(t, r.Number(4), "more is due now")
			} else {
				require.EqualValues(t, -1, r.Number(4), "nothing is left")
			}
		}
		require.Equal(t, ids, h.list(h.keys.Ready), "the oldest due first")
	})
}

func TestPromotePutsLapsedLeasesToTheHead(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.put("+0", "a", "b", "c", "waits")
		require.Len(t, h.Take(1, 0), 1)
		require.NoError(t, h.rdb.ZIncrBy(t.Context(), h.keys.Leases, -5, "a").Err()) // the first to run out
		require.Len(t, h.Take(1, 0), 1)
		require.Len(t, h.Take(1, time.Hour), 1)

		r, err := h.tryPromote(1, 0)
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Number(3))
		require.Equal(t, []string{"a", "waits"}, h.list(h.keys.Ready))
		_, reclaimed := h.Promote()
		require.Equal(t, 1, reclaimed, "b; c still has its lease")
		require.Equal(t, []string{"b", "a", "waits"}, h.list(h.keys.Ready))

		info := h.info("a")
		require.Equal(t, 2, info.Attempt)
		require.Len(t, info.Errors, 1)
		require.Equal(t, KindLeaseLost, info.Errors[0].Kind)
		require.Equal(t, 1, info.Errors[0].Attempt)
		require.Equal(t, 1, h.info("c").Attempt)
	})
}

func (h *Hand) client() *Client { return NewClient(h.rdb, Prefix(h.prefix())) }

func (h *Hand) info(id string) *JobInfo {
	h.t.Helper()
	info, err := h.client().Get(context.Background(), h.keys.Topic, id)
	require.NoError(h.t, err)
	return info
}

func TestHandoffIsHealed(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		h.put("+0", "a", "b", "c")
		for range 2 { // two servers that die between their wait and their take
			require.NoError(t, h.rdb.LMove(ctx, h.keys.Ready, h.keys.Handoff, "LEFT", "RIGHT").Err())
		}
		_, err := h.tryPromote(1000, 0)
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b"}, h.list(h.keys.Handoff), "only a healing turn does it")
		_, err = h.tryPromote(1000, 1)
		require.NoError(t, err)
		require.Empty(t, h.list(h.keys.Handoff))
		require.Equal(t, []string{"a", "b", "c"}, h.list(h.keys.Ready), "in their old places")
	})
}

func TestTakeEmptiesHandoffFirst(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.put("+0", "first", "second", "third")
		require.NoError(t, h.rdb.LMove(t.Context(), h.keys.Ready, h.keys.Handoff, "LEFT", "RIGHT").Err())
		require.Equal(t, []string{"first", "second"}, idsOf(h.Take(2, time.Minute)))
		require.Equal(t, []string{"third"}, idsOf(h.Take(2, time.Minute)))
	})
}

// (A4)
func TestTakeSentAgainGivesTheSameJobs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.put("+0", "acked", "cancelled", "extended", "held", "next")
		r, err := h.tryTake("7", 4, time.Minute)
		require.NoError(t, err)
		first := heldOf(r)
		require.Equal(t, []string{"acked", "cancelled", "extended", "held"}, idsOf(first))

		before := Dump(t, h.rdb, h.prefix())
		r, err = h.tryTake("7", 4, time.Hour)
		require.NoError(t, err)
		require.Equal(t, first, heldOf(r), "also with the lease of the first time")
		require.Equal(t, before, Dump(t, h.rdb, h.prefix()))

		require.Equal(t, "o", h.Ack(first[0]))
		_, err = h.tryCancel("cancelled")
		require.NoError(t, err)
		_, err = h.tryExtend(first[2].fence()+1000, first[2])
		require.NoError(t, err)
		r, err = h.tryTake("7", 4, time.Minute)
		require.NoError(t, err)
		require.Equal(t, []string{"held"}, idsOf(heldOf(r)), "what is still its own by that lease")

		r, err = h.tryTake("8", 4, time.Minute)
		require.NoError(t, err)
		require.Equal(t, []string{"next"}, idsOf(heldOf(r)))
	})
}

// The largest calls of a server and a client stay below what unpack can take: 7,999 values on
// Redis, about 5,000 on miniredis. (G4)
func TestLargestCalls(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		const n = 1000
		ids := numbered("job", n)
		all := func(held []Held) []Held {
			require.Equal(t, n, len(held))
			return held
		}
		// go-redis sends a call again that a busy machine has not answered in 3 s, and promote and
		// prune then find nothing left to do: it counts what is in the keys.
		promote := func() {
			h.Hasten(2 * time.Hour)
			h.Promote()
			require.EqualValues(t, n, h.rdb.LLen(t.Context(), h.keys.Ready).Val())
		}
		h.put("+3600000", ids...)
		promote()
		held := all(h.Take(n, time.Minute))
		ending := held[0].fence() + 1
		r, err := h.tryExtend(ending, held...)
		require.NoError(t, err)
		require.Len(t, r.Text(2), n)
		for i := range held {
			held[i].Fence = strconv.FormatInt(ending, 10)
		}
		require.NotContains(t, h.Return(held...), "l")
		require.NotContains(t, h.Snooze(0, all(h.Take(n, time.Minute))...), "l")
		h.Promote()
		require.NotContains(t, h.Retry(0, all(h.Take(n, time.Minute))...), "l")
		h.Promote()
		all(h.Take(n, 0))
		h.Promote()
		require.Zero(t, h.rdb.ZCard(t.Context(), h.keys.Leases).Val())
		promote() // they had attempts, so they back off
		require.NotContains(t, h.Bury(all(h.Take(n, time.Minute))...), "l")
		page, err := inspectorOf(h.client()).Jobs(t.Context(), Query{Topic: "topic", State: StateDead, Limit: n})
		require.NoError(t, err)
		require.Len(t, page.Jobs, n)
		_, err = h.tryPrune(0, time.Hour, n)
		require.NoError(t, err)
		require.Zero(t, h.rdb.ZCard(t.Context(), h.keys.Dead).Val())
		h.put("+0", ids...)
		require.NotContains(t, h.Ack(all(h.Take(n, time.Minute))...), "l")
		require.Equal(t, []string{h.keys.Stats}, keysOf(Dump(t, h.rdb, h.prefix())), "nothing else is left")
	})
}

func keysOf(dump map[string]any) []string {
	list := make([]string, 0, len(dump))
	for key := range dump {
		list = append(list, key)
	}
	slices.Sort(list)
	return list
}

// Whoever lost the lease can write nothing about the job any more. (B7, B16)
func TestSettlingNeedsTheLease(t *testing.T) {
	settle := map[string]func(h *Hand, held ...Held) string{
		"ack":    (*Hand).Ack,
		"expire": (*Hand).Expire,
		"return": (*Hand).Return,
		"bury":   (*Hand).Bury,
		"retry":  func(h *Hand, held ...Held) string { return h.Retry(time.Second, held...) },
		"snooze": func(h *Hand, held ...Held) string { return h.Snooze(time.Second, held...) },
		"again":  func(h *Hand, held ...Held) string { return h.Again(time.Second, held...) },
	}
	for verb, settle := range settle {
		t.Run(verb, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				h.put("+0", "gone", "ours", "other")
				held := h.Take(3, time.Minute)
				_, err := h.tryCancel("gone")
				require.NoError(t, err)
				require.NoError(t, h.rdb.ZIncrBy(t.Context(), h.keys.Leases, 1, "other").Err()) // another lease
				record := h.info("other")

				require.Equal(t, "gol", settle(h, held[0], held[1], held[2]))
				require.Empty(t, h.Traces("gone"))
				require.Equal(t, []string{"leases", "pool"}, h.Traces("other"))
				require.Equal(t, record, h.info("other"))
				require.NotContains(t, h.Traces("ours"), "leases")
				require.NotContains(t, settle(h, held...), "o", "none is ours now")
			})
		})
	}
}
