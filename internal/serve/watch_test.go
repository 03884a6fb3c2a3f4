package serve

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/delayq/delayq/internal/hand"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// lookAt is one look at some topics.
func lookAt(topics ...*hand.Hand) (now int64, waits []time.Duration, err error) {
	one := topics[0]
	s := New(one.RDB, Config{ID: "me", Prefix: one.Prefix(), Lease: 30 * time.Second, Tick: time.Second})
	s.Calls, s.Scripts = one.RDB, script.Caller{RDB: one.RDB}
	some := make([]watched, len(topics))
	for i, one := range topics {
		some[i] = watched{topic: &Topic{Keys: one.Keys}}
	}
	now, waits, _, err = s.watchCall(one.T.Context(), &Node{Only: true, Scripts: s.Scripts}, some)
	return now, waits, err
}

// The watch tells of each topic how far its earliest head is, and of one in which a key is of a
// wrong type that there is something to do, whatever there is in the others. It writes nothing.
// (J11)
func TestWatchTellsTheEarliestHead(t *testing.T) {
	hand.Each(t, func(t *testing.T, far *hand.Hand) {
		ctx, rdb := t.Context(), far.RDB
		began := rdb.Time(ctx).Val()
		far.Put("+3600000", "far")
		empty := hand.New(t, rdb, far.Prefix(), "empty")
		add := func(key string, score float64, member string) {
			require.NoError(t, rdb.ZAdd(ctx, key, redis.Z{Score: score, Member: member}).Err())
		}
		in := func(d time.Duration) float64 { return float64(rdb.Time(ctx).Val().Add(d).UnixMilli()) }
		look := func(t *testing.T, h *hand.Hand, want time.Duration) {
			before, sent := redistest.Dump(t, rdb, h.Prefix()), rdb.Time(ctx).Val()
			now, waits, err := lookAt(far, h, empty)
			received := rdb.Time(ctx).Val()
			require.NoError(t, err)
			require.Equal(t, before, redistest.Dump(t, rdb, h.Prefix()))
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
			require.Equal(t, nothingDue, waits[2])
		}
		for name, c := range map[string]struct {
			have func(h *hand.Hand)
			want time.Duration
		}{
			"nothing":       {func(*hand.Hand) {}, nothingDue},
			"bucket":        {func(h *hand.Hand) { h.Put("+60000", "a"); h.Put("+900000", "b") }, time.Minute},
			"bucket due":    {func(h *hand.Hand) { add(h.Keys.Bucket, in(-time.Minute), "a") }, 0},
			"ready":         {func(h *hand.Hand) { h.Put("+0", "a") }, nothingDue},
			"leases":        {func(h *hand.Hand) { h.Put("+0", "a"); h.Take(1, time.Minute) }, time.Minute},
			"leases lapsed": {func(h *hand.Hand) { h.Put("+0", "a", "b"); h.Take(1, time.Hour); h.Take(1, 0) }, 0},
			"leases over":   {func(h *hand.Hand) { h.Put("+0", "a"); h.Ack(h.Take(1, time.Minute)...) }, nothingDue},
			"anchor":        {func(h *hand.Hand) { add(h.Keys.Leases, math.Inf(1), strings.Repeat("-", 1025)) }, nothingDue},
			"slots":         {func(h *hand.Hand) { add(h.Keys.Slots, in(time.Minute), "s") }, time.Minute},
			"slots due":     {func(h *hand.Hand) { add(h.Keys.Slots, 0, "s") }, 0},
			"waiting":       {func(h *hand.Hand) { add(h.Keys.Waiting, in(time.Hour), "s") }, 0},
			"handoff":       {func(h *hand.Hand) { h.Push(h.Keys.Handoff, "a") }, 0},
			"impossible":    {func(h *hand.Hand) { add(h.Keys.Bucket, 1e300, "a") }, 9e15 * time.Microsecond},
			"held key":      {func(h *hand.Hand) { add(h.Keys.Held, in(time.Minute), "k") }, time.Minute},
			"paused key":    {func(h *hand.Hand) { add(h.Keys.Held, hand.KeyPaused, "k") }, nothingDue},
			"hold over":     {func(h *hand.Hand) { add(h.Keys.Held, in(-time.Minute), "k"); add(h.Keys.Held, hand.KeyPaused, "l") }, 0},
			"all three": {func(h *hand.Hand) {
				add(h.Keys.Bucket, in(time.Hour), "a")
				add(h.Keys.Leases, in(time.Hour), "b")
				add(h.Keys.Slots, in(time.Minute), "s")
			}, time.Minute},
		} {
			t.Run(name, func(t *testing.T) {
				h := hand.New(t, rdb, far.Prefix(), name)
				c.have(h)
				look(t, h, c.want)
			})
		}
		for _, key := range []string{"bucket", "leases", "slots", "handoff", "waiting"} {
			t.Run("wrong type of "+key, func(t *testing.T) {
				h := hand.New(t, rdb, far.Prefix(), "wrong "+key)
				add(h.Keys.Slots, in(time.Minute), "s")
				h.Deface(key)
				look(t, h, 0)
			})
		}
	})
}

// A time that cannot be, which only a hand has written, is far away for the timer, whatever it is:
// a wait of less than nothing would be no sleep.
func TestImpossibleTimesAreFarAway(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		for _, score := range []float64{1e13, 1.2e13, 1.5e13, 2e13, 2.2e13, 1e14, 1e18, 1e300, math.Inf(1)} {
			require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Bucket, redis.Z{Score: score, Member: "a"}).Err())
			r, err := h.TryPromote(1000, 1)
			require.NoError(t, err)
			require.Greater(t, waitOf(r.Number(4)), 200*365*24*time.Hour, score)
			_, waits, err := lookAt(h)
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
	h := hand.New(t, rdb, "delayq", "t")
	h.Deface("bucket")
	_, waits, err := lookAt(h)
	require.NoError(t, err)
	require.Equal(t, []time.Duration{0}, waits)
	require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	_, _, err = lookAt(h)
	require.True(t, script.Away(err), err)
	require.ErrorContains(t, err, "NOREPLICAS")
	require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
	require.NoError(t, rdb.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
	_, _, err = lookAt(h)
	require.True(t, script.Away(err), err)
	require.ErrorContains(t, err, "READONLY")
}
