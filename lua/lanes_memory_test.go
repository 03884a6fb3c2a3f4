package lua_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// passing are the features of keys that are played with names that never come again. A feature sets
// the limits of the topic, and says how the jobs of one round end. Nothing is due later and nobody
// promotes, unless the feature needs it.
var passing = map[string]struct {
	limits delayq.Limits
	end    func(h *Hand, keys []string, held []hand.Held)
}{
	"keys":    {},
	"running": {limits: delayq.Limits{RunningPerKey: 2}},
	"rates":   {limits: delayq.Limits{RatePerKey: delayq.Per(1000, time.Second)}},
	"order":   {limits: delayq.Limits{Ordered: true}},
	"order, and a job that fails": {
		limits: delayq.Limits{Ordered: true},
		end: func(h *Hand, _ []string, held []hand.Held) {
			r, err := h.Settle(held, settle.Row{Verb: settle.Retry, Delay: time.Hour, Failure: hand.Failed})
			require.NoError(h.T, err)
			require.NotContains(h.T, r.Text(2), "l")
			for _, one := range held {
				_, err := h.TryCancel(one.ID)
				require.NoError(h.T, err)
			}
		},
	},
	"order, and a dead job": {
		limits: delayq.Limits{Ordered: true, OnDead: delayq.HaltKey},
		end: func(h *Hand, keys []string, held []hand.Held) {
			require.NotContains(h.T, h.Bury(held...), "l")
			for _, key := range keys {
				h.putKeyed(key, key+" more")
			}
			require.Empty(h.T, h.takeAll(), "it waits for the dead one")
			for _, key := range keys {
				_, err := h.TryCancel(key+" more", key+" job")
				require.NoError(h.T, err)
			}
		},
	},
	"pauses of keys": {
		end: func(h *Hand, keys []string, held []hand.Held) {
			for _, key := range keys {
				_, err := h.TryKeyHold(key, -1, mostHeldKeys)
				require.NoError(h.T, err)
				_, err = h.TryKeyHold(key, 0, mostHeldKeys)
				require.NoError(h.T, err)
			}
			require.NotContains(h.T, h.Ack(held...), "l")
		},
	},
	"schedules": {
		end: func(h *Hand, keys []string, held []hand.Held) {
			client := delayq.NewClient(h.RDB, delayq.Prefix(h.Prefix()))
			for _, name := range keys {
				require.NoError(h.T, client.Schedule(h.T.Context(), h.Keys.Topic, name, delayq.Every(time.Hour), nil, delayq.Key(name)))
				_, err := client.Trigger(h.T.Context(), h.Keys.Topic, name)
				require.NoError(h.T, err)
			}
			for _, one := range h.takeAll() {
				require.Equal(h.T, "o", h.Ack(one))
			}
			for _, name := range keys {
				require.NoError(h.T, client.Unschedule(h.T.Context(), h.Keys.Topic, name))
			}
			require.NotContains(h.T, h.Ack(held...), "l")
		},
	},
	"ended by a server that died": {
		limits: delayq.Limits{RunningPerKey: 2},
		end: func(h *Hand, _ []string, held []hand.Held) {
			require.NotContains(h.T, h.Ack(held...), "l")
		},
	},
	"cancelled when its server has died": {
		limits: delayq.Limits{Running: 1000, RunningPerKey: 2},
		end: func(h *Hand, _ []string, held []hand.Held) {
			for _, one := range held {
				h.cancel(one.ID)
			}
			h.hastenStragglers(2 * time.Minute)
			h.Promote()
		},
	},
	"weights and own limits": {
		end: func(h *Hand, keys []string, held []hand.Held) {
			for _, key := range keys {
				h.setKeyLimits(key, delayq.KeyLimits{Weight: 7, Running: 3, Rate: delayq.Per(1000, time.Second)})
				h.setKeyLimits(key, delayq.KeyLimits{})
			}
			require.NotContains(h.T, h.Ack(held...), "l")
		},
	},
	"priority": {
		end: func(h *Hand, _ []string, held []hand.Held) {
			for _, one := range held {
				_, err := h.TryPriority(one.ID, 60_000)
				require.NoError(h.T, err)
			}
			require.NotContains(h.T, h.Ack(held...), "l")
		},
	},
	"holds": {
		end: func(h *Hand, keys []string, held []hand.Held) {
			r, err := h.Settle(held, settle.Row{Verb: settle.HoldKey, Delay: time.Hour})
			require.NoError(h.T, err)
			require.Empty(h.T, r.Text(2))
			for _, key := range keys {
				require.NoError(h.T, h.RDB.ZIncrBy(h.T.Context(), h.Keys.Held, -float64(2*time.Hour.Milliseconds()), key).Err())
			}
			h.Promote()
			again := h.takeAll()
			require.Len(h.T, again, len(held))
			for _, one := range again {
				require.Equal(h.T, "o", h.Ack(one))
			}
		},
	},
	"parked, and cancelled meanwhile": {
		limits: delayq.Limits{RunningPerKey: 1},
		end: func(h *Hand, keys []string, held []hand.Held) {
			for _, key := range keys {
				h.putKeyed(key, key+" more")
			}
			require.Empty(h.T, h.takeAll(), "one of each key runs")
			for _, key := range keys {
				_, err := h.TryCancel(key + " more")
				require.NoError(h.T, err)
			}
			require.NotContains(h.T, h.Ack(held...), "l")
			var told []any
			for _, one := range held {
				told = append(told, strings.TrimSuffix(one.ID, " job"), one.ID)
			}
			_, err := h.tryUnpark(told...)
			require.NoError(h.T, err)
		},
	},
}

// Nothing stays in Redis of keys that have no jobs, although the topic goes on: with each feature,
// names that come once and never again leave no more than the last ones of them.
func TestNamesThatNeverComeAgainLeaveNothing(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	rdb := redistest.Shared(t)
	const each, few = 100, 250
	for name, feature := range passing {
		t.Run(name, func(t *testing.T) {
			h := NewHand(t, rdb, redistest.Prefix(t), "topic")
			h.setLimits(feature.limits)
			play := func(keys []string) {
				for _, key := range keys {
					h.putKeyed(key, key+" job")
				}
				var held []hand.Held
				for _, one := range h.takeAll() {
					held = append(held, one)
				}
				require.Len(t, held, len(keys))
				if feature.end != nil {
					feature.end(h, keys, held)
					return
				}
				require.NotContains(t, h.Ack(held...), "l")
				var told []any
				for _, one := range held {
					told = append(told, strings.TrimSuffix(one.ID, " job"), one.ID)
				}
				_, err := h.tryUnpark(told...)
				require.NoError(t, err)
			}
			for round := range redistest.Size(1_000) / each {
				play(hand.Numbered(fmt.Sprint("once ", round, " "), each))
			}
			for range 5 { // the topic goes on
				play([]string{"steady"})
			}
			h.putKeyed("last", "last job")
			h.ended("last", h.TakeOne("last job"))
			requireLittle(t, h, few)
		})
	}
}

// gone is the PTTL of a key that has expired since it was listed.
const gone = -2 * time.Nanosecond

// requireLittle requires that of all names only the last ones have left something, in keys that
// expire. The others are those of a topic that has had one job.
func requireLittle(t *testing.T, h *Hand, few int64) {
	t.Helper()
	known := map[string]int64{h.Keys.Stats: 100, h.Keys.Sizes: 2, h.Keys.Meta: 20, h.Keys.Turn: 1, h.Keys.Ready: 64} // wake-ups
	keys := h.RDB.Scan(t.Context(), 0, strings.NewReplacer("{", "\\{", "[", "\\[").Replace(h.Keys.Root)+"*", 10_000).Iterator()
	for keys.Next(t.Context()) {
		key := keys.Val()
		most, stays := known[key]
		ttl, err := h.RDB.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		if ttl == gone {
			continue
		}
		if !stays {
			require.GreaterOrEqual(t, ttl, time.Duration(0), "%s stays", key)
			require.LessOrEqual(t, ttl, 11*time.Minute, "%s stays", key)
			most = few
		}
		size := map[string]func(string) int64{
			"hash":   func(key string) int64 { return h.RDB.HLen(t.Context(), key).Val() },
			"zset":   func(key string) int64 { return h.RDB.ZCard(t.Context(), key).Val() },
			"list":   func(key string) int64 { return h.RDB.LLen(t.Context(), key).Val() },
			"string": func(string) int64 { return 1 },
		}[h.RDB.Type(t.Context(), key).Val()]
		require.NotNil(t, size, key)
		require.LessOrEqual(t, size(key), most, key)
	}
	require.NoError(t, keys.Err())
}

// Topics that come once and are removed, as those that a pattern finds, leave nothing: neither keys
// of their own, nor names.
func TestTopicsThatNeverComeAgainLeaveNothing(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	rdb, prefix := redistest.Shared(t), redistest.Prefix(t)
	client := delayq.NewClient(rdb, delayq.Prefix(prefix))
	steady := NewHand(t, rdb, prefix, "steady")
	for i := range redistest.Size(1_000) {
		h := NewHand(t, rdb, prefix, fmt.Sprint("once ", i))
		_, err := client.Enqueue(t.Context(), h.Keys.Topic, "job", nil, delayq.Key("k"))
		require.NoError(t, err)
		if i%3 == 0 {
			h.setLimits(delayq.Limits{RunningPerKey: 1, RatePerKey: delayq.Per(1, time.Second)})
		}
		require.Equal(t, "o", h.Ack(h.TakeOne("job")))
		require.NoError(t, client.RemoveTopic(t.Context(), h.Keys.Topic))
		if i%100 == 0 {
			steady.Put("+0", "job")
			require.Equal(t, "o", steady.Ack(steady.TakeOne("job")))
		}
	}
	require.NoError(t, rdb.SRem(t.Context(), script.TopicsKey(prefix), "steady").Err())
	require.Zero(t, rdb.Exists(t.Context(), script.TopicsKey(prefix)).Val())
	left := rdb.Scan(t.Context(), 0, prefix+":\\{once*", 10_000).Iterator()
	receipts := 0
	for ; left.Next(t.Context()); receipts++ {
		ttl, err := rdb.PTTL(t.Context(), left.Val()).Result()
		require.NoError(t, err)
		require.True(t, ttl == gone || ttl >= 0 && ttl <= 4*time.Minute, "%s stays for %v", left.Val(), ttl)
	}
	require.NoError(t, left.Err())
	require.NotZero(t, receipts, "the test looks for the wrong names")
}

// Batches of one key leave nothing of the key.
func TestGatheredNamesLeaveNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		names := redistest.Size(3_000)
		if strings.HasSuffix(t.Name(), "miniredis") { // it is slow
			names = 500
		}
		for round := range names / 10 {
			for i := range 10 {
				key := fmt.Sprint("once ", round, " ", i)
				h.putKeyed(key, key+" a", key+" b")
			}
			for {
				number := h.Series.Next()
				r, err := h.Try(script.Take, h.Keys.Of(script.Take, h.Keys.Taken(h.Series.ID)), number, number, 40, script.CallBytes,
					time.Minute.Milliseconds(), 40, "head", "", 0, 2, time.Hour.Milliseconds(), 4, 8, 0, 0)
				require.NoError(t, err)
				if r.Status() != "ok" {
					break
				}
				if held := hand.HeldOf(r); len(held) > 0 {
					require.NotContains(t, h.Ack(held...), "l")
				}
			}
		}
		for _, key := range []string{h.Keys.Lane, h.Keys.Turn, h.Keys.Parked, h.Keys.Keyed, h.Keys.Pool} {
			require.Zero(t, rdb.Exists(t.Context(), key).Val(), key)
		}
	})
}
