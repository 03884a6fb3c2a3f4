package lua_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
)

func idsOf(held []hand.Held) []string {
	ids := make([]string, len(held))
	for i, one := range held {
		ids[i] = one.ID
	}
	return ids
}

// (B4)
func TestTakeDropsWhatIsNotReady(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "buried", "leased")
		held := h.Take(2, time.Minute)
		require.Equal(t, []string{"buried", "leased"}, idsOf(held))
		require.Equal(t, "o", h.Bury(held[0]))
		h.Put("+60000", "scheduled")
		h.Put("+0", "first", "second")
		require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Ready).Err())
		h.Push(h.Keys.Ready, "", "no record", "first", "buried", "first", "leased", "scheduled", "", "second", "first")
		before := redistest.Dump(t, h.RDB, h.Prefix())

		require.Equal(t, []string{"first", "second"}, idsOf(h.Take(10, time.Minute)))
		require.Empty(t, h.List(h.Keys.Ready))
		require.Empty(t, h.Take(10, time.Minute))
		after := redistest.Dump(t, h.RDB, h.Prefix())
		for _, same := range []string{"pool", "bucket", "dead", "attempts", "errors"} {
			require.Equal(t, before[h.Key(same)], after[h.Key(same)], same)
		}
	})
}

func TestTakeOfLeftOversAlone(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Push(h.Keys.Ready, "", "gone")
		r, err := h.TryTake("", 5, time.Minute)
		require.NoError(t, err)
		require.Equal(t, "ok", r.Status(), "which means: ask again")
		require.Empty(t, r.List(3))
		r, err = h.TryTake("", 5, time.Minute)
		require.NoError(t, err)
		require.Equal(t, "empty", r.Status())
		require.Empty(t, redistest.Dump(t, h.RDB, h.Prefix()), "no lease, no counter")
	})
}

// (G4)
func TestTakeLooksAtABoundedNumber(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		const stale, limit = 7999, 10
		h.Push(h.Keys.Ready, hand.Numbered("gone", stale)...)
		h.Put("+0", "real")
		left := stale + 1
		for left > 0 {
			held := h.Take(limit, time.Minute)
			now := len(h.List(h.Keys.Ready))
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
		ids := hand.Numbered("job", 2500)
		for i, chunk := range slices.Collect(slices.Chunk(ids, 500)) {
			h.Put("+"+strconv.Itoa(3_600_000+i), chunk...)
		}
		r, err := h.TryPromote(1000, 0)
		require.NoError(t, err)
		require.Zero(t, r.Number(2), "nothing is due yet")
		require.InDelta(t, 3_600_000_000, r.Number(4), 600_000_000, "µs until the first one is due")

		h.Hasten(2 * time.Hour)
		for i, want := range []int64{1000, 1000, 500, 0} {
			r, err := h.TryPromote(1000, 0)
			require.NoError(t, err)
			require.Equal(t, want, r.Number(2))
			if i < 2 {
				require.Zero(t, r.Number(4), "more is due now")
			} else {
				require.EqualValues(t, -1, r.Number(4), "nothing is left")
			}
		}
		require.Equal(t, ids, h.List(h.Keys.Ready), "the oldest due first")
	})
}

func TestPromotePutsLapsedLeasesToTheHead(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a", "b", "c", "waits")
		require.Len(t, h.Take(1, 0), 1)
		require.NoError(t, h.RDB.ZIncrBy(t.Context(), h.Keys.Leases, -5, "a").Err()) // the first to run out
		require.Len(t, h.Take(1, 0), 1)
		require.Len(t, h.Take(1, time.Hour), 1)

		r, err := h.TryPromote(1, 0)
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Number(3))
		require.Equal(t, []string{"a", "waits"}, h.List(h.Keys.Ready))
		_, reclaimed := h.Promote()
		require.Equal(t, 1, reclaimed, "b; c still has its lease")
		require.Equal(t, []string{"b", "a", "waits"}, h.List(h.Keys.Ready))

		info := h.info("a")
		require.Equal(t, 2, info.Attempt)
		require.Len(t, info.Errors, 1)
		require.Equal(t, delayq.KindLeaseLost, info.Errors[0].Kind)
		require.Equal(t, 1, info.Errors[0].Attempt)
		require.Equal(t, 1, h.info("c").Attempt)
	})
}

func TestHandoffIsHealed(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		h.Put("+0", "a", "b", "c")
		for range 2 { // two servers that die between their wait and their take
			require.NoError(t, h.RDB.LMove(ctx, h.Keys.Ready, h.Keys.Handoff, "LEFT", "RIGHT").Err())
		}
		_, err := h.TryPromote(1000, 0)
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b"}, h.List(h.Keys.Handoff), "only a healing turn does it")
		_, err = h.TryPromote(1000, 1)
		require.NoError(t, err)
		require.Empty(t, h.List(h.Keys.Handoff))
		require.Equal(t, []string{"a", "b", "c"}, h.List(h.Keys.Ready), "in their old places")
	})
}

func TestTakeEmptiesHandoffFirst(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "first", "second", "third")
		require.NoError(t, h.RDB.LMove(t.Context(), h.Keys.Ready, h.Keys.Handoff, "LEFT", "RIGHT").Err())
		require.Equal(t, []string{"first", "second"}, idsOf(h.Take(2, time.Minute)))
		require.Equal(t, []string{"third"}, idsOf(h.Take(2, time.Minute)))
	})
}

// (A4)
func TestTakeSentAgainGivesTheSameJobs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "acked", "cancelled", "extended", "held", "next")
		r, err := h.TryTake("7", 4, time.Minute)
		require.NoError(t, err)
		first := hand.HeldOf(r)
		require.Equal(t, []string{"acked", "cancelled", "extended", "held"}, idsOf(first))

		before := redistest.Dump(t, h.RDB, h.Prefix())
		r, err = h.TryTake("7", 4, time.Hour)
		require.NoError(t, err)
		require.Equal(t, first, hand.HeldOf(r), "also with the lease of the first time")
		require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()))

		require.Equal(t, "o", h.Ack(first[0]))
		_, err = h.TryCancel("cancelled")
		require.NoError(t, err)
		_, err = h.TryExtend(first[2].LeaseEnd()+1000, first[2])
		require.NoError(t, err)
		r, err = h.TryTake("7", 4, time.Minute)
		require.NoError(t, err)
		require.Equal(t, []string{"held"}, idsOf(hand.HeldOf(r)), "what is still its own by that lease")

		r, err = h.TryTake("8", 4, time.Minute)
		require.NoError(t, err)
		require.Equal(t, []string{"next"}, idsOf(hand.HeldOf(r)))
	})
}

// The largest calls of a server and a client stay below what unpack can take: 7,999 values on
// Redis, about 5,000 on miniredis. (G4)
func TestLargestCalls(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		const n = 1000
		ids := hand.Numbered("job", n)
		all := func(held []hand.Held) []hand.Held {
			require.Equal(t, n, len(held))
			return held
		}
		// go-redis sends a call again that a busy machine has not answered in 3 s, and promote and
		// prune then find nothing left to do: it counts what is in the keys.
		promote := func() {
			h.Hasten(2 * time.Hour)
			h.Promote()
			require.EqualValues(t, n, h.RDB.LLen(t.Context(), h.Keys.Ready).Val())
		}
		h.Put("+3600000", ids...)
		promote()
		held := all(h.Take(n, time.Minute))
		ending := held[0].LeaseEnd() + 1
		r, err := h.TryExtend(ending, held...)
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
		require.Zero(t, h.RDB.ZCard(t.Context(), h.Keys.Leases).Val())
		promote() // they had attempts, so they back off
		require.NotContains(t, h.Bury(all(h.Take(n, time.Minute))...), "l")
		page, err := h.client().insp.Jobs(t.Context(), delayq.Query{Topic: "topic", State: delayq.StateDead, Limit: n})
		require.NoError(t, err)
		require.Len(t, page.Jobs, n)
		_, err = h.TryPrune(0, time.Hour, n)
		require.NoError(t, err)
		require.Zero(t, h.RDB.ZCard(t.Context(), h.Keys.Dead).Val())
		h.Put("+0", ids...)
		require.NotContains(t, h.Ack(all(h.Take(n, time.Minute))...), "l")
		require.Equal(t, []string{h.Keys.Stats}, keysOf(redistest.Dump(t, h.RDB, h.Prefix())), "nothing else is left")
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
	settle := map[string]func(h *Hand, held ...hand.Held) string{
		"ack":    (*Hand).Ack,
		"expire": (*Hand).Expire,
		"return": (*Hand).Return,
		"bury":   (*Hand).Bury,
		"retry":  func(h *Hand, held ...hand.Held) string { return h.Retry(time.Second, held...) },
		"snooze": func(h *Hand, held ...hand.Held) string { return h.Snooze(time.Second, held...) },
		"again":  func(h *Hand, held ...hand.Held) string { return h.Again(time.Second, held...) },
	}
	for verb, settle := range settle {
		t.Run(verb, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				h.Put("+0", "gone", "ours", "other")
				held := h.Take(3, time.Minute)
				_, err := h.TryCancel("gone")
				require.NoError(t, err)
				require.NoError(t, h.RDB.ZIncrBy(t.Context(), h.Keys.Leases, 1, "other").Err()) // another lease
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
