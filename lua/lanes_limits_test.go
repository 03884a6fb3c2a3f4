package lua_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// setLimits sets the limits of the topic, and gives all parked keys turns as the client does.
func (h *Hand) setLimits(l delayq.Limits) {
	h.T.Helper()
	_, err := h.tryLimits(l)
	require.NoError(h.T, err)
	_, err = h.tryUnpark()
	require.NoError(h.T, err)
}

// setKeyLimits sets the limits of a key.
func (h *Hand) setKeyLimits(key string, l delayq.KeyLimits) {
	h.T.Helper()
	r, err := h.Run(script.KeyLimits, h.Series.Next(), key, ruleOf(h.T, l), mostKeyLimits, script.ControlChannel(h.Prefix()), h.Keys.Topic)
	require.NoError(h.T, err)
	require.Equal(h.T, "set", r.Text(2))
}

// tryUnpark says that jobs have ended: their keys and IDs by turns.
func (h *Hand) tryUnpark(jobs ...any) (script.Reply, error) {
	var ends []keyEnd
	for some := range slices.Chunk(jobs, 2) {
		ends = append(ends, keyEnd{key: some[0].(string), id: some[1].(string)})
	}
	return h.tryEnds(ends...)
}

// tryEnds says that runs have ended.
func (h *Hand) tryEnds(ends ...keyEnd) (script.Reply, error) {
	args := []any{script.ControlChannel(h.Prefix()), h.Keys.Topic, 1000}
	for _, e := range ends {
		args = append(args, e.key, e.id, e.fence)
	}
	return h.Run(script.Unpark, args...)
}

// ended acknowledges a job and says so.
func (h *Hand) ended(key string, held hand.Held) {
	h.T.Helper()
	require.Equal(h.T, "o", h.Ack(held))
	_, err := h.tryUnpark(key, held.ID)
	require.NoError(h.T, err)
}

// parkedKeys returns the keys whose limits are reached.
func (h *Hand) parkedKeys() []string {
	return h.RDB.ZRange(h.T.Context(), h.Keys.Parked, 0, -1).Val()
}

// takeAll takes until nothing is ready. It returns the jobs by their IDs.
func (h *Hand) takeAll() map[string]hand.Held {
	h.T.Helper()
	got := map[string]hand.Held{}
	for {
		r, err := h.TryTake("", 10, time.Minute)
		require.NoError(h.T, err)
		if r.Status() != "ok" {
			return got
		}
		for _, one := range hand.HeldOf(r) {
			got[one.ID] = one
		}
	}
}

// cancel cancels a running job.
func (h *Hand) cancel(id string) {
	h.T.Helper()
	r, err := h.TryCancel(id)
	require.NoError(h.T, err)
	require.Equal(h.T, "u", r.Text(2))
}

func idsIn(m map[string]hand.Held) []string {
	var list []string
	for id := range m {
		list = append(list, id)
	}
	slices.Sort(list)
	return list
}

// No more jobs of a key run than its limit says. A key that has reached it waits until one of its
// jobs ends, and other keys and plain jobs go on.
func TestLimitOfRunningJobsOfAKey(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.setLimits(delayq.Limits{RunningPerKey: 2})
		h.setKeyLimits("vip", delayq.KeyLimits{Running: 3})
		h.putKeyed("a", "a1", "a2", "a3", "a4")
		h.putKeyed("b", "b1")
		h.putKeyed("vip", "v1", "v2", "v3", "v4")
		h.Put("+0", "plain")
		got := h.takeAll()
		require.Equal(t, []string{"a1", "a2", "b1", "plain", "v1", "v2", "v3"}, idsIn(got))
		require.ElementsMatch(t, []string{"a", "vip"}, h.parkedKeys())
		require.Zero(t, h.RDB.Exists(t.Context(), h.Keys.Turn).Val(), "parked keys have no turn")
		found, _ := h.look(false)
		require.Empty(t, found, "a check finds no fault in that")
		r, err := h.TryPromote(10, 1)
		require.NoError(t, err)
		require.InDelta(t, time.Minute, waitOf(r.Number(4)), float64(10*time.Second), "the timer knows the lease end")

		h.ended("a", got["a2"])
		require.Equal(t, []string{"a3"}, idsIn(h.takeAll()))
		require.Equal(t, "o", h.Ack(got["a1"])) // nobody says so: the key waits for the end of that lease
		require.Empty(t, h.takeAll())
		h.putKeyed("a", "a5") // and a job that becomes ready gives it a turn
		require.Equal(t, []string{"a4"}, idsIn(h.takeAll()))
		require.Equal(t, "o", h.Retry(time.Hour, got["v1"]))
		_, err = h.tryUnpark("vip", "v1")
		require.NoError(t, err)
		require.Equal(t, []string{"v4"}, idsIn(h.takeAll()))

		h.Hasten(2 * time.Minute) // all leases are over
		h.Promote()
		again := h.takeAll()
		require.Equal(t, []string{"a3", "a4", "v2", "v3", "v4"}, slices.DeleteFunc(idsIn(again), func(id string) bool { return id == "b1" || id == "plain" }))
		require.EqualValues(t, 6, h.RDB.ZCard(t.Context(), h.Keys.Holders).Val())
	})
}

// A job that is given back frees the place that it had.
func TestReturnFreesThePlaceOfAKey(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.setLimits(delayq.Limits{RunningPerKey: 1})
		h.putKeyed("a", "a1", "a2")
		held := h.Take(10, time.Minute)
		require.Equal(t, []string{"a1"}, idsOf(held))
		require.Empty(t, h.Take(10, time.Minute))
		require.Equal(t, "o", h.Return(held...))
		require.Equal(t, []string{"a1"}, idsOf(h.Take(10, time.Minute)), "in its own place")
		require.Empty(t, h.Take(10, time.Minute))
	})
}

// An entry of holders counts only while its job runs with that key. So entries that nobody removed
// keep no place, and the next take that needs one drops them.
func TestPlacesOfAKeyDoNotLeak(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.setLimits(delayq.Limits{RunningPerKey: 2})
		for round := range 5 {
			ids := []string{fmt.Sprint("x", round), fmt.Sprint("y", round)}
			h.putKeyed("a", ids...)
			held := h.takeAll()
			require.Len(t, held, 2, "round %d", round)
			for _, one := range held {
				require.Equal(t, "o", h.Ack(one)) // and its server dies before it says so
			}
		}
		require.EqualValues(t, 2, h.RDB.ZCard(t.Context(), h.Keys.Holders).Val())
		// The ID runs again with another key.
		h.putKeyed("b", "x4")
		require.Equal(t, []string{"x4"}, idsIn(h.takeAll()))
		h.putKeyed("a", "z1", "z2")
		last := h.takeAll()
		require.Equal(t, []string{"z1", "z2"}, idsIn(last))
		require.EqualValues(t, 3, h.RDB.ZCard(t.Context(), h.Keys.Holders).Val())
		require.Equal(t, "o", h.Ack(last["z1"]))
		found, _ := h.look(true)
		require.Empty(t, found, "the end of a job comes before unpark")
		require.EqualValues(t, 2, h.RDB.ZCard(t.Context(), h.Keys.Holders).Val(), "a repair drops the entry of z1")
	})
}

// Jobs that run when a limit is set count. A limit that is removed or raised lets keys go on at
// once.
func TestLimitsOfKeysChange(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.putKeyed("a", "a1")
		h.putKeyed("b", "b1")
		require.Len(t, h.takeAll(), 2)
		h.putKeyed("a", "a2", "a3", "a4", "a5")
		h.putKeyed("b", "b2", "b3")
		h.setLimits(delayq.Limits{RunningPerKey: 1})
		require.Empty(t, h.takeAll())
		require.ElementsMatch(t, []string{"a", "b"}, h.parkedKeys())
		h.setKeyLimits("a", delayq.KeyLimits{Running: 3})
		require.Equal(t, []string{"a2", "a3"}, idsIn(h.takeAll()))
		h.setKeyLimits("a", delayq.KeyLimits{Weight: 7})
		require.Empty(t, h.takeAll(), "three run, and the limit is 1")
		h.setLimits(delayq.Limits{})
		require.Equal(t, []string{"a4", "a5", "b2", "b3"}, idsIn(h.takeAll()))
		require.Empty(t, h.parkedKeys())
		h.putKeyed("c", "c1", "c2")
		got := h.takeAll()
		require.Equal(t, []string{"c1", "c2"}, idsIn(got))
		h.setKeyLimits("c", delayq.KeyLimits{Running: 2})
		h.putKeyed("c", "c3")
		require.Empty(t, h.takeAll(), "those that run count")
		require.Equal(t, "1", h.RDB.HGet(t.Context(), h.Keys.Meta, "limited").Val())
		h.setKeyLimits("c", delayq.KeyLimits{})
		require.Equal(t, []string{"c3"}, idsIn(h.takeAll()))
		require.Equal(t, "0", h.RDB.HGet(t.Context(), h.Keys.Meta, "limited").Val())
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Meta, "limited", "damaged").Err())
		h.setKeyLimits("c", delayq.KeyLimits{Running: 2})
		require.Equal(t, "1", h.RDB.HGet(t.Context(), h.Keys.Meta, "limited").Val())
	})
}

// Each key has its own rate, and one that has used it up waits for its next start.
func TestRateOfAKey(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.setLimits(delayq.Limits{RatePerKey: delayq.Per(6, time.Hour).Burst(2)})
		h.setKeyLimits("slow", delayq.KeyLimits{Rate: delayq.Per(1, 24*time.Hour)})
		h.putKeyed("a", hand.Numbered("a", 4)...)
		h.putKeyed("b", hand.Numbered("b", 1)...)
		h.putKeyed("slow", hand.Numbered("s", 2)...)
		h.Put("+0", "plain")
		require.Equal(t, 5, len(h.takeAll()), "two of a, one of b, one of slow, and the plain one")
		require.ElementsMatch(t, []string{"a", "slow"}, h.parkedKeys())
		r, err := h.TryPromote(10, 1)
		require.NoError(t, err)
		left := min(waitOf(r.Number(4)), 10*time.Minute) // a lease ends earlier
		require.Positive(t, left)
		now := h.RDB.Time(t.Context()).Val()
		next := time.UnixMilli(int64(h.RDB.ZScore(t.Context(), h.Keys.Parked, "a").Val()))
		require.WithinDuration(t, now.Add(10*time.Minute), next, 30*time.Second)

		h.hastenRates(11 * time.Minute)
		h.Promote()
		require.Equal(t, 1, len(h.takeAll()))
		h.hastenRates(25 * time.Hour)
		h.Promote()
		require.Equal(t, 2, len(h.takeAll()))
		require.Empty(t, h.parkedKeys())
		h.hastenRates(25 * time.Hour)
		h.Promote()
		require.Zero(t, h.RDB.Exists(t.Context(), h.Keys.Rates).Val(), "what is over is forgotten")

		// A tat of a clock that was set back is cut down to the burst.
		require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Rates, redis.Z{Score: float64(now.Add(1000 * time.Hour).UnixMicro()), Member: "a"}).Err())
		h.putKeyed("a", "last")
		require.Empty(t, h.takeAll())
		require.WithinDuration(t, now.Add(10*time.Minute), time.UnixMilli(int64(h.RDB.ZScore(t.Context(), h.Keys.Parked, "a").Val())), time.Minute)
	})
}

// hastenRates makes the starts of keys come earlier, as if time had passed.
func (h *Hand) hastenRates(d time.Duration) {
	ctx := h.T.Context()
	for _, z := range h.RDB.ZRangeWithScores(ctx, h.Keys.Rates, 0, -1).Val() {
		h.RDB.ZIncrBy(ctx, h.Keys.Rates, -float64(d.Microseconds()), z.Member.(string))
	}
	for _, z := range h.RDB.ZRangeWithScores(ctx, h.Keys.Parked, 0, -1).Val() {
		h.RDB.ZIncrBy(ctx, h.Keys.Parked, -float64(d.Milliseconds()), z.Member.(string))
	}
}

// A server that waits is rung when a place of a key becomes free, and when the rate of a key allows
// a start.
func TestServersAreRungForParkedKeys(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.setLimits(delayq.Limits{RunningPerKey: 1})
		h.putKeyed("a", "a1", "a2", "a3")
		first := h.Take(1, time.Minute)
		for name, free := range map[string]func(held hand.Held){
			"ended":   func(held hand.Held) { h.ended("a", held) },
			"changed": func(hand.Held) { h.setKeyLimits("a", delayq.KeyLimits{Running: 2}) },
		} {
			bell := h.listen("s")
			h.wait("s")
			require.Empty(t, h.Take(1, time.Minute), name)
			free(first[0])
			require.Equal(t, []string{h.Keys.Topic}, bell.heard(), name)
			first = h.Take(1, time.Minute)
			require.Len(t, first, 1, name)
		}
	})
}

// A key does not lose its turn if parked is of a wrong type, and the plain jobs keep their turn
// when another key gets one.
func TestParkingLosesNoTurn(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.setLimits(delayq.Limits{RunningPerKey: 1})
		h.putKeyed("a", "a1", "a2")
		held := h.Take(1, time.Minute)
		require.Len(t, held, 1)
		require.NoError(t, h.RDB.Set(t.Context(), h.Keys.Parked, "x", 0).Err())
		_, err := h.TryTake("", 1, time.Minute)
		require.ErrorContains(t, err, "WRONGTYPE")
		require.Equal(t, []string{"a"}, h.RDB.ZRange(t.Context(), h.Keys.Turn, 0, -1).Val())
		require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Parked).Err())
		require.Empty(t, h.takeAll())
		require.Equal(t, []string{"a"}, h.parkedKeys())
		require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Turn, redis.Z{Score: 7, Member: ""}).Err())
		h.ended("a", held[0])
		require.EqualValues(t, 7, h.RDB.ZScore(t.Context(), h.Keys.Turn, "").Val())
	})
}

// A repair gives a key its turn if it is parked for longer than any lease or its rate can say: it
// would wait for nothing.
func TestRepairOfKeysParkedForNothing(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		nextYear := float64(time.Now().AddDate(1, 0, 0).UnixMilli())
		h.setLimits(delayq.Limits{RunningPerKey: 1})
		h.setKeyLimits("slow", delayq.KeyLimits{Rate: delayq.Per(1, time.Hour)})
		h.putKeyed("a", "a1", "a2")
		h.putKeyed("slow", "s1", "s2")
		got := h.takeAll()
		require.Equal(t, []string{"a1", "s1"}, idsIn(got))
		require.Equal(t, []string{"a", "slow"}, h.parkedKeys())
		found, _ := h.look(true)
		require.Empty(t, found)
		require.Equal(t, []string{"a", "slow"}, h.parkedKeys(), "each waits for something")

		require.Equal(t, "o", h.Ack(got["a1"]))
		require.NoError(t, h.RDB.ZAdd(ctx, h.Keys.Parked, redis.Z{Score: nextYear, Member: "a"}, redis.Z{Score: nextYear, Member: "slow"}).Err())
		found, _ = h.look(false)
		require.Empty(t, found)
		require.Equal(t, []string{"a", "slow"}, h.parkedKeys(), "without repair nothing is written")
		found, _ = h.look(true)
		require.Empty(t, found)
		require.Empty(t, h.parkedKeys())
		require.Equal(t, []string{"a2"}, idsIn(h.takeAll()))
		require.Equal(t, []string{"slow"}, h.parkedKeys(), "its limit is reached")
		require.Less(t, h.RDB.ZScore(ctx, h.Keys.Parked, "slow").Val(), nextYear)
	})
}

// Limits of keys are in force again after a repair if the note that there are any was lost.
func TestRepairOfLostNoteOfKeyLimits(t *testing.T) {
	for _, lost := range []string{"", "0", "-1", "junk"} {
		t.Run(lost, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				ctx := t.Context()
				h.setKeyLimits("a", delayq.KeyLimits{Running: 1})
				h.setKeyLimits("b", delayq.KeyLimits{Weight: 3})
				h.putKeyed("a", "a1", "a2")
				harm := h.RDB.HDel(ctx, h.Keys.Meta, "limited").Err()
				if lost != "" {
					harm = h.RDB.HSet(ctx, h.Keys.Meta, "limited", lost).Err()
				}
				require.NoError(t, harm)
				h.look(true)
				require.Equal(t, []string{"a1"}, idsIn(h.takeAll()))
				h.setKeyLimits("a", delayq.KeyLimits{})
				h.look(true)
				require.Equal(t, []string{"a2"}, idsIn(h.takeAll()))
			})
		})
	}
}

// An entry of lane counts only with the job that it was made for. A client of a release without
// keys leaves it behind when it cancels that job, and the ID can be enqueued again with another
// key.
func TestEntryOfAFormerJobStartsNothing(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		h.putKeyed("a", "x")
		require.NoError(t, h.RDB.HDel(ctx, h.Keys.Pool, "x").Err())
		require.Equal(t, "held", h.holdKey("b", 60_000))
		h.putKeyed("b", "x")
		require.EqualValues(t, 2, h.RDB.ZCard(ctx, h.Keys.Lane).Val())
		require.Empty(t, h.takeAll(), "its key is held")
		require.EqualValues(t, 1, h.RDB.ZCard(ctx, h.Keys.Lane).Val())
		require.Equal(t, "free", h.holdKey("b", 0))
		require.Equal(t, []string{"x"}, idsIn(h.takeAll()))
	})
}

// A promote that takes jobs back because their leases are over frees their places too, so what
// Inspector.Key says of the running jobs is true at once.
func TestReclaimFreesThePlacesOfAKey(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.setLimits(delayq.Limits{RunningPerKey: 2})
		h.putKeyed("a", "a1", "a2", "a3")
		require.Len(t, h.takeAll(), 2)
		h.Hasten(2 * time.Minute)
		h.Promote()
		require.Zero(t, h.RDB.ZCard(t.Context(), h.Keys.Holders).Val())
		info, err := delayq.NewInspector(h.RDB, delayq.Prefix(h.Prefix())).Key(t.Context(), h.Keys.Topic, "a")
		require.NoError(t, err)
		require.Zero(t, info.Running)
		require.EqualValues(t, 3, info.Waiting)
		require.Len(t, h.takeAll(), 2)
	})
}

// Jobs of a key are taken when there are enough of them, and never beside those of too many keys.
func TestGatherByHand(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := NewHand(t, rdb, redistest.Prefix(t), "lanes")
		take := func(window delayq.GatherWindow, groups int) (script.Reply, []hand.Held) {
			t.Helper()
			if !window.ByKey {
				groups = 0
			}
			number := h.Series.Next()
			r, err := h.Try(script.Take, h.Keys.Of(script.Take, h.Keys.Taken(h.Series.ID)), number, number, 40, script.CallBytes, time.Minute.Milliseconds(), 40, "head", "", 0,
				window.Size, window.Wait.Milliseconds(), groups, 8, 0, 0)
			require.NoError(t, err)
			return r, hand.HeldOf(r)
		}
		put := func(key string, ids ...string) {
			t.Helper()
			for _, id := range ids {
				head, tail := h.Record("+0", 0)
				if key != "" {
					head, tail = h.keyedRecord("+0", key, 0)
				}
				_, err := h.TrySend(false, []any{id, head, tail, "+0"})
				require.NoError(t, err)
			}
		}
		byKey := delayq.GatherWindow{Size: 3, Wait: time.Hour, ByKey: true}
		put("k", "k1", "k2")
		r, got := take(byKey, 2)
		require.Empty(t, got)
		require.EqualValues(t, 3, r.Number(11), "limited")
		require.Equal(t, []string{"k"}, h.parkedKeys())
		put("k", "k3")
		put("l", "l1", "l2", "l3")
		put("m", "m1", "m2", "m3")
		var all []hand.Held
		for range 4 { // ready has empty IDs, which can be one of the keys
			_, got = take(byKey, 2)
			require.LessOrEqual(t, len(got), 6, "two keys")
			for i, one := range got {
				require.Equal(t, h.keyOf(got[i/3*3].ID), h.keyOf(one.ID))
			}
			all = append(all, got...)
		}
		require.Len(t, all, 9)
		require.NotContains(t, h.Ack(all...), "l")

		together := delayq.GatherWindow{Size: 3, Wait: time.Hour}
		put("", "p1", "p2")
		r, got = take(together, 0)
		require.Empty(t, got)
		require.Equal(t, "gather", r.Status())
		require.InDelta(t, time.Hour.Milliseconds(), r.Number(2), 60_000)
		require.Equal(t, "gather", first(take(together, 0)).Status())
		put("k", "k4")
		_, got = take(together, 0)
		require.Len(t, got, 3)
		require.Zero(t, rdb.HExists(t.Context(), h.Keys.Meta, "gather").Val())
	})
}

func first[T, U any](one T, _ U) T { return one }

// keyOf returns the key of a job by its place.
func (h *Hand) keyOf(id string) string {
	place := h.RDB.HGet(h.T.Context(), h.Keys.Keyed, id).Val()
	if place == "" {
		return ""
	}
	return place[1 : 1+int(place[0])]
}
