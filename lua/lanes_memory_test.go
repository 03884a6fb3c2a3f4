package lua_test

import (
	"fmt"
	"maps"
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
	"cancelled by a server that died": {
		limits: delayq.Limits{RunningPerKey: 2},
		end: func(h *Hand, _ []string, held []hand.Held) {
			for _, one := range held {
				h.cancel(one.ID)
			}
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
			for round := range redistest.Size(10_000) / each {
				play(hand.Numbered(fmt.Sprint("once ", round, " "), each))
			}
			for range 5 { // the topic goes on
				play([]string{"steady"})
			}
			h.putKeyed("last", "last job")
			h.ended("last", h.TakeOne("last job"))
			left := map[string]int64{}
			for _, key := range []string{h.Keys.Pool, h.Keys.Keyed, h.Keys.Attempts, h.Keys.Moved, h.Keys.Rules} {
				left[key] = rdb.HLen(t.Context(), key).Val()
			}
			for _, key := range []string{h.Keys.Lane, h.Keys.Turn, h.Keys.Held, h.Keys.Parked, h.Keys.Holders, h.Keys.Blockers, h.Keys.Leases, h.Keys.Bucket} {
				left[key] = rdb.ZCard(t.Context(), key).Val()
			}
			maps.DeleteFunc(left, func(key string, n int64) bool { return n == 0 || key == h.Keys.Turn && n == 1 })
			require.Empty(t, left)
			if n := rdb.ZCard(t.Context(), h.Keys.Rates).Val(); n > 0 {
				require.Less(t, n, int64(few), "tats")
				ttl := rdb.PTTL(t.Context(), h.Keys.Rates).Val()
				require.True(t, ttl > 0 && ttl <= 70*time.Second, "tats expire: %v", ttl)
			}
		})
	}
}

// Batches of one key leave nothing of the key.
func TestGatheredNamesLeaveNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		for round := range redistest.Size(1000) / 10 {
			for i := range 10 {
				key := fmt.Sprint("once ", round, " ", i)
				h.putKeyed(key, key+" a", key+" b")
			}
			for {
				number := h.Series.Next()
				r, err := h.Try(script.Take, h.Keys.Of(script.Take, h.Keys.Taken(h.Series.ID)), number, number, 40, script.CallBytes,
					time.Minute.Milliseconds(), 40, "head", "", 0, 2, time.Hour.Milliseconds(), 4, 8)
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
