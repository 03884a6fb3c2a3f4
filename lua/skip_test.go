package lua_test

import (
	"fmt"
	"maps"
	"strconv"
	"testing"
	"time"

	"github.com/delayq/delayq"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// putEach enqueues a job of each of some keys.
func (h *Hand) putEach(suffix string, keys ...string) {
	h.T.Helper()
	for len(keys) > 0 {
		var args []any
		n := min(len(keys), 500)
		for _, key := range keys[:n] {
			head, tail := h.keyedRecord("+0", key, 0)
			args = append(args, key+suffix, head, tail, "+0")
		}
		_, err := h.TrySend(false, args)
		require.NoError(h.T, err)
		keys = keys[n:]
	}
}

// endless scores members of a zset with the time of a year from now.
func (h *Hand) endless(key string, score float64, members []string) {
	h.T.Helper()
	for len(members) > 0 {
		n := min(len(members), 500)
		var list []redis.Z
		for _, member := range members[:n] {
			list = append(list, redis.Z{Score: score, Member: member})
		}
		require.NoError(h.T, h.RDB.ZAdd(h.T.Context(), key, list...).Err())
		members = members[n:]
	}
}

// named makes n names.
func named(name string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("%s %05d", name, i))
	}
	return list
}

// A skipping call has to pass n entries that count for nothing, or not now, before those that do.
type skipping struct {
	set  func(h *Hand, n int)
	call func(h *Hand) (script.Reply, error)
	more func(r script.Reply) bool // the reply says that there is more; nil: never
	most int                       // commands of the call; 0: any number up to its bound
}

// taking is a take of 50 jobs with 48 keys that can be served.
func taking(set func(h *Hand, n int)) skipping {
	return skipping{
		set: func(h *Hand, n int) {
			h.putEach("", named("good", 48)...)
			set(h, n)
		},
		call: func(h *Hand) (script.Reply, error) { return h.TryTake("", 50, time.Hour) },
		more: func(r script.Reply) bool { return r.Number(7) == 1 },
		most: 200, // it does not list those again that it has found good
	}
}

// stopped gives n keys two jobs each, and ends the first ones as it is told to.
func stopped(h *Hand, n int, end func(keys []string)) {
	keys := named("stopped", n)
	h.putEach(" first", keys...)
	for got := 1; got > 0; {
		got = len(h.Take(250, time.Hour))
	}
	end(keys)
	h.putEach(" second", keys...)
}

// skippings are the scripts that look for what counts among what does not.
var skippings = map[string]skipping{
	"take: cancelled jobs": {
		set: func(h *Hand, n int) {
			for range n / 500 {
				h.Push(h.Keys.Ready, named("gone", 500)...)
			}
			h.Put("+0", "a", "b")
		},
		call: func(h *Hand) (script.Reply, error) { return h.TryTake("", 50, time.Hour) },
		more: func(r script.Reply) bool { return r.Number(7) == 1 },
	},
	"take: held keys": taking(func(h *Hand, n int) {
		h.setKeyLimits("good 00000", delayq.KeyLimits{Weight: 2})
		h.putEach("", named("held", n)...)
		h.endless(h.Keys.Held, 9e12, named("held", n))
	}),
	"take: limited keys": taking(func(h *Hand, n int) {
		h.setLimits(delayq.Limits{RunningPerKey: 1})
		stopped(h, n, func([]string) {})
		h.putEach(" again", named("good", 48)...)
		for _, one := range named("good", 48) {
			_, err := h.TryCancel(one)
			require.NoError(h.T, err)
		}
	}),
	"take: halted keys": taking(func(h *Hand, n int) {
		h.setLimits(delayq.Limits{Ordered: true, OnDead: delayq.HaltKey})
		stopped(h, n, func(keys []string) {
			for _, id := range h.RDB.ZRange(h.T.Context(), h.Keys.Leases, 0, -1).Val() {
				if place := h.RDB.HGet(h.T.Context(), h.Keys.Keyed, id).Val(); place != "" {
					h.RDB.ZAdd(h.T.Context(), h.Keys.Blockers, redis.Z{Member: place + id})
					h.RDB.ZAdd(h.T.Context(), h.Keys.Dead, redis.Z{Score: 1, Member: id})
				}
			}
			h.RDB.Del(h.T.Context(), h.Keys.Leases, h.Keys.Holders)
		})
	}),
	"promote: leases of no job": {
		set:  func(h *Hand, n int) { h.endless(h.Keys.Leases, 1, named("gone", n)) },
		call: func(h *Hand) (script.Reply, error) { return h.TryPromote(1000, 1) },
		more: func(r script.Reply) bool { return r.Number(4) == 0 },
	},
	"promote: keys without jobs": {
		set: func(h *Hand, n int) {
			h.endless(h.Keys.Held, 1, named("gone", n))
			h.endless(h.Keys.Parked, 1, named("gone", n))
			h.endless(h.Keys.Rates, 1, named("gone", n))
		},
		call: func(h *Hand) (script.Reply, error) { return h.TryPromote(1000, 1) },
		more: func(r script.Reply) bool { return r.Number(4) == 0 },
	},
	"unpark: keys without jobs": {
		set:  func(h *Hand, n int) { h.endless(h.Keys.Parked, 9e12, named("gone", n)) },
		call: func(h *Hand) (script.Reply, error) { return h.tryUnpark() },
		more: func(r script.Reply) bool { return r.Number(2) > 0 },
	},
	"unpark: entries of dead servers": {
		set: func(h *Hand, n int) {
			var entries []string
			for _, id := range named("gone", n) {
				entries = append(entries, "\x03key0"+id)
			}
			h.endless(h.Keys.Holders, 0, entries)
		},
		call: func(h *Hand) (script.Reply, error) { return h.tryUnpark("key", "job") },
		more: func(script.Reply) bool { return true }, // a part of them at each end of a job
	},
	"enqueue: servers that died": {
		set:  func(h *Hand, n int) { h.endless(h.Keys.Idle, 1, named("gone", n)) },
		call: func(h *Hand) (script.Reply, error) { return h.TryEnqueue(false, [2]string{"a", "+0"}) },
		more: func(script.Reply) bool { return true }, // those that it has rung are no longer in idle
	},
	"cancel: ready jobs": {
		set: func(h *Hand, n int) {
			h.Push(h.Keys.Ready, named("gone", n/2)...)
			h.Put("+0", "a")
			h.Push(h.Keys.Ready, named("more", n/2)...)
		},
		call: func(h *Hand) (script.Reply, error) { return h.TryCancel("a") },
	},
	"bury_waiting: ready jobs": {
		set: func(h *Hand, n int) {
			h.Push(h.Keys.Ready, named("gone", n/2)...)
			h.Put("+0", "a")
			h.Push(h.Keys.Ready, named("more", n/2)...)
		},
		call: func(h *Hand) (script.Reply, error) { return h.TryBury("a") },
	},
	"revive: dead jobs": {
		set: func(h *Hand, n int) {
			h.Put("+0", "a")
			require.Equal(h.T, "o", h.Bury(h.TakeOne("a")))
			h.endless(h.Keys.Dead, 1, named("gone", n))
		},
		call: func(h *Hand) (script.Reply, error) { return h.TryRevive("a") },
	},
	"prune: dead jobs that are gone": {
		set:  func(h *Hand, n int) { h.endless(h.Keys.Dead, 1, named("gone", n)) },
		call: func(h *Hand) (script.Reply, error) { return h.TryPrune(10, time.Hour, 500) },
		more: func(r script.Reply) bool { return r.Number(2) == 500 },
	},
}

// No call's work grows with what it has to skip: it costs at most twice as much as without that, or
// it ends at a bound and says that there is more. Counted in commands that Redis executes.
func TestWorkDoesNotGrowWithWhatIsSkipped(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	count := func(t *testing.T, s skipping, n int) (total int, r script.Reply) {
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		s.set(h, n)
		require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
		r, err := s.call(h)
		require.NoError(t, err)
		for _, times := range commandsOf(t, rdb) {
			calls, err := strconv.Atoi(times)
			require.NoError(t, err)
			total += calls
		}
		return total, r
	}
	all := maps.Clone(skippings)
	maps.Copy(all, viewSkippings)
	for name, s := range all {
		t.Run(name, func(t *testing.T) {
			const many = 10_000
			none, _ := count(t, s, 0)
			half, _ := count(t, s, many/2)
			all, r := count(t, s, many)
			t.Logf("%d commands with nothing to skip, %d with %d entries, %d with %d", none, half, many/2, all, many)
			if s.most > 0 {
				require.LessOrEqual(t, all, s.most)
			}
			if all > 2*none {
				require.True(t, s.more != nil && s.more(r), "%d commands instead of %d, and the reply does not say that there is more", all, none)
				require.LessOrEqual(t, all, half+half/10, "it does not end at a bound")
			}
		})
	}
}

// A take that has looked at as many IDs as it may says that there is more, even if it has found a
// job: nobody rings for what is behind them.
func TestTakeThatEndsAtItsBoundSaysSo(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "first")
		h.Push(h.Keys.Ready, named("gone", 999)...)
		h.Push(h.Keys.Ready, named("more", 500)...)
		h.Put("+0", "last")
		r, err := h.TryTake("", 10, time.Minute)
		require.NoError(t, err)
		require.Len(t, r.List(3), 1)
		require.EqualValues(t, 1, r.Number(7))
		r, err = h.TryTake("", 10, time.Minute)
		require.NoError(t, err)
		require.Equal(t, "last", r.List(3).Text(0))
		require.Zero(t, r.Number(7))
	})
}
