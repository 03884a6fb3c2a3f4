package delayq

import (
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// tryWatch is one look at some topics.
func (h *Hand) tryWatch(topics ...*Hand) (now int64, waits []time.Duration, err error) {
	s := NewServer(h.rdb, Logger(slog.New(slog.DiscardHandler))).engine
	s.Calls, s.Scripts = h.rdb, script.Caller{RDB: h.rdb, Hooks: &hooks{}}
	some := make([]serve.Watched, len(topics))
	for i, one := range topics {
		some[i] = serve.Watched{Topic: one.ts}
	}
	n := &serve.Node{Only: true, Scripts: s.Scripts}
	now, waits, _, err = s.WatchCall(h.t.Context(), n, some)
	return now, waits, err
}

// The watch tells of each topic how far its earliest head is, and of one in which a key is of a
// wrong type that there is something to do, whatever there is in the others. It writes nothing.
// (J11)
func TestWatchTellsTheEarliestHead(t *testing.T) {
	eachHand(t, func(t *testing.T, far *Hand) {
		ctx, rdb := t.Context(), far.rdb
		began := rdb.Time(ctx).Val()
		far.put("+3600000", "far")
		empty := NewHand(t, rdb, far.prefix(), "empty")
		add := func(key string, score float64, member string) {
			require.NoError(t, rdb.ZAdd(ctx, key, redis.Z{Score: score, Member: member}).Err())
		}
		in := func(d time.Duration) float64 { return float64(rdb.Time(ctx).Val().Add(d).UnixMilli()) }
		look := func(t *testing.T, h *Hand, want time.Duration) {
			before, sent := Dump(t, rdb, h.prefix()), rdb.Time(ctx).Val()
			now, waits, err := h.tryWatch(far, h, empty)
			received := rdb.Time(ctx).Val()
			require.NoError(t, err)
			require.Equal(t, before, Dump(t, rdb, h.prefix()))
			require.GreaterOrEqual(t, now, sent.UnixMilli())
			require.LessOrEqual(t, now, received.UnixMilli())
			near := func(want, got time.Duration) { // all was stored after began; in whole milliseconds
				require.LessOrEqual(t, got, want+2*time.Millisecond)
				require.GreaterOrEqual(t, got, want-received.Sub(began)-2*time.Millisecond)
			}
			require.Len(t, waits, 3)
			near(time.Hour, waits[0])
			if want > 0 && want <= time.Hour {
				near(want, waits[1])
			} else {
				require.Equal(t, want, waits[1])
			}
			require.Equal(t, serve.NothingDue, waits[2])
		}
		for name, c := range map[string]struct {
			have func(h *Hand)
			want time.Duration
		}{
			"nothing":       {func(*Hand) {}, serve.NothingDue},
			"bucket":        {func(h *Hand) { h.put("+60000", "a"); h.put("+900000", "b") }, time.Minute},
			"bucket due":    {func(h *Hand) { add(h.keys.Bucket, in(-time.Minute), "a") }, 0},
			"ready":         {func(h *Hand) { h.put("+0", "a") }, serve.NothingDue},
			"leases":        {func(h *Hand) { h.put("+0", "a"); h.Take(1, time.Minute) }, time.Minute},
			"leases lapsed": {func(h *Hand) { h.put("+0", "a", "b"); h.Take(1, time.Hour); h.Take(1, 0) }, 0},
			"leases over":   {func(h *Hand) { h.put("+0", "a"); h.Ack(h.Take(1, time.Minute)...) }, serve.NothingDue},
			"anchor":        {func(h *Hand) { add(h.keys.Leases, math.Inf(1), strings.Repeat("-", 1025)) }, serve.NothingDue},
			"slots":         {func(h *Hand) { add(h.keys.Slots, in(time.Minute), "s") }, time.Minute},
			"slots due":     {func(h *Hand) { add(h.keys.Slots, 0, "s") }, 0},
			"waiting":       {func(h *Hand) { add(h.keys.Waiting, in(time.Hour), "s") }, 0},
			"handoff":       {func(h *Hand) { h.push(h.keys.Handoff, "a") }, 0},
			"impossible":    {func(h *Hand) { add(h.keys.Bucket, 1e300, "a") }, 9e15 * time.Microsecond},
			"held key":      {func(h *Hand) { add(h.keys.Held, in(time.Minute), "k") }, time.Minute},
			"paused key":    {func(h *Hand) { add(h.keys.Held, keyPaused, "k") }, serve.NothingDue},
			"hold over":     {func(h *Hand) { add(h.keys.Held, in(-time.Minute), "k"); add(h.keys.Held, keyPaused, "l") }, 0},
			"all three": {func(h *Hand) {
				add(h.keys.Bucket, in(time.Hour), "a")
				add(h.keys.Leases, in(time.Hour), "b")
				add(h.keys.Slots, in(time.Minute), "s")
			}, time.Minute},
		} {
			t.Run(name, func(t *testing.T) {
				h := NewHand(t, rdb, far.prefix(), name)
				c.have(h)
				look(t, h, c.want)
			})
		}
		for _, key := range []string{"bucket", "leases", "slots", "handoff", "waiting", "held"} {
			t.Run("wrong type of "+key, func(t *testing.T) {
				h := NewHand(t, rdb, far.prefix(), "wrong "+key)
				add(h.keys.Slots, in(time.Minute), "s")
				h.deface(key)
				look(t, h, 0)
			})
		}
	})
}

// A time that cannot be, which only a hand has written, is far away for the timer, whatever it is:
// a wait of less than nothing would be no sleep.
func TestImpossibleTimesAreFarAway(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for _, score := range []float64{1e13, 1.2e13, 1.5e13, 2e13, 2.2e13, 1e14, 1e18, 1e300, math.Inf(1)} {
			require.NoError(t, h.rdb.ZAdd(t.Context(), h.keys.Bucket, redis.Z{Score: score, Member: "a"}).Err())
			r, err := h.tryPromote(1000, 1)
			require.NoError(t, err)
			require.Greater(t, serve.WaitOf(r.Number(4)), 200*365*24*time.Hour, score)
			_, waits, err := h.tryWatch(h)
			require.NoError(t, err)
			require.Greater(t, waits[0], 200*365*24*time.Hour, score)
		}
	})
}

// A Redis that has become a replica can be read from still, and knows less and less. The watch says
// so, as everything does that writes: topics that have nothing to do would not notice. So it does
// where the master has too few replicas. A key of a wrong type says nothing of the kind.
func TestWatchOfARedisThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	h := NewHand(t, rdb, "delayq", "t")
	h.deface("bucket")
	_, waits, err := h.tryWatch(h)
	require.NoError(t, err)
	require.Equal(t, []time.Duration{0}, waits)
	require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	_, _, err = h.tryWatch(h)
	require.True(t, script.Away(err), err)
	require.ErrorContains(t, err, "NOREPLICAS")
	require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
	require.NoError(t, rdb.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
	_, _, err = h.tryWatch(h)
	require.True(t, script.Away(err), err)
	require.ErrorContains(t, err, "READONLY")
}
