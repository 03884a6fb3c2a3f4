package lua_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/settle"
)

// holdKey makes the call, and returns the state of the key.
func (h *Hand) holdKey(key string, ms int64) string {
	h.T.Helper()
	r, err := h.TryKeyHold(key, ms, mostHeldKeys)
	require.NoError(h.T, err)
	return r.Text(2)
}

// heldKeys returns the ends of the holds, as the time that is left at the time of Redis.
func (h *Hand) heldKeys() map[string]time.Duration {
	h.T.Helper()
	now := h.RDB.Time(context.Background()).Val().UnixMilli()
	left := map[string]time.Duration{}
	for _, z := range h.RDB.ZRangeWithScores(context.Background(), h.Keys.Held, 0, -1).Val() {
		left[z.Member.(string)] = time.Duration(int64(z.Score)-now) * time.Millisecond
	}
	return left
}

func (h *Hand) requireHeld(want map[string]time.Duration) {
	h.T.Helper()
	left := h.heldKeys()
	require.Len(h.T, left, len(want))
	for key, d := range want {
		require.InDelta(h.T, d, left[key], float64(time.Minute), key)
	}
}

// A hold prolongs another one and never shortens it, a pause stays, and a resume ends both.
func TestKeyHoldsOnlyGrow(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		hour := time.Hour.Milliseconds()
		h.putKeyed("k", "job")
		require.Equal(t, "held", h.holdKey("k", 2*hour))
		require.Zero(t, h.RDB.Exists(t.Context(), h.Keys.Turn).Val())
		require.Equal(t, "held", h.holdKey("k", hour))
		h.requireHeld(map[string]time.Duration{"k": 2 * time.Hour})
		require.Equal(t, "held", h.holdKey("k", 3*hour))
		h.requireHeld(map[string]time.Duration{"k": 3 * time.Hour})
		require.Equal(t, "held", h.holdKey("k", -1))
		require.Equal(t, "held", h.holdKey("k", hour))
		require.EqualValues(t, hand.KeyPaused, h.RDB.ZScore(t.Context(), h.Keys.Held, "k").Val())
		h.Hasten(400 * 24 * time.Hour)
		h.Promote()
		require.EqualValues(t, hand.KeyPaused, h.RDB.ZScore(t.Context(), h.Keys.Held, "k").Val())
		require.Equal(t, "free", h.holdKey("k", 0))
		require.Equal(t, "free", h.holdKey("k", 0), "it has none")
		require.Empty(t, h.heldKeys())
	})
}

// Only so many keys can be held. A key that is held already does not count twice.
func TestKeyHoldsAreBounded(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for i, want := range []string{"held", "held", "full", "full"} {
			r, err := h.TryKeyHold(fmt.Sprint("k", i), 1000, 2)
			require.NoError(t, err)
			require.Equal(t, want, r.Text(2))
		}
		require.Len(t, h.heldKeys(), 2)
		r, err := h.TryKeyHold("k1", 5000, 2)
		require.NoError(t, err)
		require.Equal(t, "held", r.Text(2))
		r, err = h.TryKeyHold("k3", 0, 2)
		require.NoError(t, err)
		require.Equal(t, "free", r.Text(2))
	})
}

// Jobs of a held key stay where they are, whatever gives the key a turn, and however many keys are
// held. Other keys and plain jobs are served.
func TestTakePassesOverHeldKeys(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for i := range 300 {
			key := fmt.Sprint("held ", i)
			require.Equal(t, "held", h.holdKey(key, -1))
			h.putKeyed(key, fmt.Sprint("of ", key))
		}
		h.putKeyed("free", "a", "b")
		h.Put("+0", "plain")
		var ids []string
		for range 4 {
			ids = append(ids, idsOf(h.Take(2, time.Minute))...)
		}
		require.ElementsMatch(t, []string{"a", "b", "plain"}, ids)
		require.EqualValues(t, 300, h.RDB.ZCard(t.Context(), h.Keys.Lane).Val())
		require.Zero(t, h.RDB.Exists(t.Context(), h.Keys.Turn).Val(), "held keys have no turn")
		found, _ := h.look(false)
		require.Empty(t, found, "a check finds no fault in that")

		// An older server has put a job of a held key into ready.
		require.NoError(t, h.RDB.RPush(t.Context(), h.Keys.Ready, "of held 8").Err())
		require.Empty(t, h.Take(10, time.Minute))

		require.Equal(t, "free", h.holdKey("held 7", 0))
		require.Equal(t, []string{"of held 7"}, idsOf(h.Take(10, time.Minute)))
	})
}

// A take that finds only held keys says that nothing is ready, and its server is rung when a hold
// is over, and when a key is resumed.
func TestServersAreRungWhenAHoldEnds(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for name, end := range map[string]func(){
			"over":    func() { h.Hasten(2 * time.Hour); h.Promote() },
			"resumed": func() { h.holdKey("k", 0) },
		} {
			h.holdKey("k", time.Hour.Milliseconds())
			h.putKeyed("k", "job "+name)
			bell := h.listen("s")
			h.wait("s")
			require.Empty(t, h.Take(1, time.Minute))
			r, err := h.TryPromote(10, 1)
			require.NoError(t, err)
			require.InDelta(t, time.Hour, waitOf(r.Number(4)), float64(time.Minute), "the timer knows the end")
			end()
			require.Equal(t, []string{h.Keys.Topic}, bell.heard())
			held := h.Take(1, time.Minute)
			require.Equal(t, []string{"job " + name}, idsOf(held))
			require.Equal(t, "o", h.Ack(held...))
			require.Empty(t, h.heldKeys())
		}
	})
}

// The handlers of several keys hold them in one call, each for its own time. The jobs go back to
// their places, with no attempt used up. A job whose lease is lost holds nothing.
func TestHandlersHoldKeys(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.putKeyed("a", "a1", "a2")
		h.putKeyed("b", "b1", "b2")
		h.putKeyed("c", "c1")
		held := h.Take(5, time.Minute)
		require.Len(t, held, 5)
		of := map[string]hand.Held{}
		for _, one := range held {
			of[one.ID] = one
		}
		lost := of["c1"]
		lost.Fence = "1"
		hour := settle.Row{Verb: settle.HoldKey, Delay: time.Hour, Err: errTest}
		require.Equal(t, "oo", h.Letters([]hand.Held{of["a1"], of["b1"]}, hour))
		require.Equal(t, "l", h.Letters([]hand.Held{lost}, hour))
		require.Equal(t, "o", h.Letters([]hand.Held{of["a2"]}, settle.Row{Verb: settle.HoldKey, Delay: time.Minute, Err: errTest}))
		h.requireHeld(map[string]time.Duration{"a": time.Hour, "b": time.Hour})
		require.Equal(t, "o", h.Ack(of["b2"]))
		require.Equal(t, "o", h.Return(of["c1"]))
		require.Equal(t, []string{"c1"}, idsOf(h.Take(5, time.Minute)))
		h.Hasten(2 * time.Hour)
		h.Promote()
		again := h.Take(5, time.Minute)
		require.ElementsMatch(t, []string{"a1", "a2", "b1", "c1"}, idsOf(again))
		for _, one := range again {
			if one.ID != "c1" {
				require.Zero(t, atoi(one.Attempts), one.ID)
			}
		}
	})
}

// What a hand has written into held is found and removed, and the jobs of such a key run.
func TestCheckOfHeldKeys(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.putKeyed("k", "job")
		h.holdKey("sound", -1)
		require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Held,
			redis.Z{Score: 1e15, Member: "k"}, redis.Z{Score: 1, Member: ""}).Err())
		require.NoError(t, h.RDB.ZRem(t.Context(), h.Keys.Turn, "k").Err())
		found, _ := h.look(false)
		require.ElementsMatch(t, []string{"held ", "held k"}, found[delayq.FindingUnreadable])
		_, mended := h.look(true)
		require.Equal(t, 2, mended)
		found, _ = h.look(false)
		require.Empty(t, found)
		require.Equal(t, []string{"job"}, idsOf(h.Take(1, time.Minute)))
		require.Len(t, h.heldKeys(), 1)
	})
}

// If a key of the topic is of a wrong type when a hold ends, nothing is lost.
func TestWrongTypeWhenAHoldEnds(t *testing.T) {
	for _, wrong := range []string{"turn", "lane"} {
		t.Run(wrong, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				ctx := t.Context()
				h.putKeyed("k", "job")
				h.holdKey("k", 1000)
				lane := h.RDB.ZRange(ctx, h.Keys.Lane, 0, -1).Val()
				require.NoError(t, h.RDB.Del(ctx, h.Key(wrong)).Err())
				require.NoError(t, h.RDB.Set(ctx, h.Key(wrong), "wrong", 0).Err())
				h.Hasten(time.Hour)
				_, err := h.TryPromote(10, 0)
				require.Error(t, err)
				require.NoError(t, h.RDB.Del(ctx, h.Key(wrong)).Err())
				require.NoError(t, h.RDB.ZAdd(ctx, h.Keys.Lane, redis.Z{Member: lane[0]}).Err())
				h.Promote()
				require.Equal(t, []string{"job"}, idsOf(h.Take(1, time.Minute)))
			})
		})
	}
}

// Holds that are over do not count, whether a server has removed them or not.
func TestKeyHoldsThatAreOverDoNotCount(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.holdKey("a", 1000)
		h.Hasten(time.Hour)
		r, err := h.TryKeyHold("b", 1000, 1)
		require.NoError(t, err)
		require.Equal(t, "held", r.Text(2))
	})
}

// A server with a rate takes jobs of keys from a Redis that is full.
func TestTakeOfKeysFromAFullRedis(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	h := NewHand(t, rdb, "delayq", "t")
	_, err := h.tryLimits(delayq.Limits{Rate: delayq.Per(100, time.Second).Burst(100)})
	require.NoError(t, err)
	h.putKeyed("k", "a", "b")
	require.NoError(t, rdb.Del(t.Context(), h.Keys.Ready).Err())
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.Equal(t, []string{"a", "b"}, idsOf(h.Take(2, time.Minute)))
}
