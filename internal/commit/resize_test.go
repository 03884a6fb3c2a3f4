package commit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// between does something after the first call of a script, before its caller goes on.
type between struct {
	name string
	do   func()
	once sync.Once
}

func (b *between) Listens() bool { return true }

func (b *between) Called(e script.Event) {
	if e.Name == b.name {
		b.once.Do(b.do)
	}
}

// resizeWith divides a topic, and does something after the first call of a script.
func resizeWith(ctx context.Context, rdb redis.UniversalClient, prefix string, g part.Generation, name string, do func()) (Resized, error) {
	c := newCaller(rdb, prefix)
	c.Scripts.Hooks = &between{name: name, do: do}
	return c.Resize(ctx, "topic", g, fewSettings)
}

// A setting that is made while a topic is divided is not lost, even if it is the first one.
func TestResizeNoticesTheFirstSetting(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		home, operator := script.NewKeys(prefix, "topic"), newCaller(rdb, prefix)
		until := fmt.Sprint(must(rdb.Time(ctx).Result()).UnixMilli() + 3_600_000)
		require.NoError(t, rdb.HSet(ctx, home.Meta, "hold", until, "holdby", "server", "holdwhy", "slow").Err()) // a handler has held it
		done, err := resizeWith(ctx, rdb, prefix, part.Generation{Parts: 3}, "hold", func() {
			_, err := operator.Pause(ctx, home, "pause", "anna", 0, "why", fewSettings.Pauses)
			require.NoError(t, err)
		})
		require.NoError(t, err)
		for _, place := range done.Now.Open().Names("topic") {
			fields, err := rdb.HMGet(ctx, script.NewKeys(prefix, place).Meta, "pauses", "holdwhy").Result()
			require.NoError(t, err)
			require.Contains(t, fields[0], "anna", place)
			require.Equal(t, "slow", fields[1], place)
		}
	})
}

// So are limits that are set when they have been divided, and the map is not stored yet.
func TestResizeNoticesTheFirstLimits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		home, c := script.NewKeys(prefix, "topic"), newCaller(rdb, prefix)
		next := after(nil, part.Generation{Number: 1, Parts: 3})
		set := func(changes string) string {
			r, err := c.setMap(ctx, home, nil, next, changes, "set", "")
			require.NoError(t, err)
			return r.Text(2)
		}
		_, err := c.setMap(ctx, home, nil, nil, "", "claim", "0")
		require.NoError(t, err)
		changes, err := c.copySettings(ctx, "topic", next.Open(), fewSettings)
		require.NoError(t, err)
		require.NoError(t, c.divide(ctx, "topic", next))
		_, err = c.SetShare(ctx, Place{Keys: home, Of: 1}, "8 0 0 0 0 0", false)
		require.NoError(t, err)
		require.Equal(t, "changed", set(changes))
		changes, err = c.copySettings(ctx, "topic", next.Open(), fewSettings)
		require.NoError(t, err)
		require.Equal(t, made, set(changes))
	})
}

// Limits of keys that are set while a topic is divided by ID end that. Nothing has changed then.
func TestResizeNoticesLimitsOfKeys(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		home, operator := script.NewKeys(prefix, "topic"), newCaller(rdb, prefix)
		refused, few := errors.New("refused"), fewSettings
		few.ByID = func(flow, limited string) error {
			if flow != "" || limited != "" {
				return fmt.Errorf("%w: %q %q", refused, flow, limited)
			}
			return nil
		}
		c := newCaller(rdb, prefix)
		c.Scripts.Hooks = &between{name: script.Partition.Name, do: func() { // the number is claimed
			_, err := operator.SetKey(ctx, home, "k", "1 0 0 0", few.KeyLimits)
			require.NoError(t, err)
		}}
		_, err := c.Resize(ctx, "topic", part.Generation{Parts: 3}, few)
		require.ErrorIs(t, err, refused)
		m, _, err := operator.readMap(ctx, "topic")
		require.NoError(t, err)
		require.Empty(t, m)
		c.Scripts.Hooks = nil
		_, err = c.Resize(ctx, "topic", part.Generation{Parts: 3, ByKey: true}, few)
		require.NoError(t, err)
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// What a call that has failed has set for its partitions does not come back with the next call.
func TestResizeAfterAFailure(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		home, operator := script.NewKeys(prefix, "topic"), newCaller(rdb, prefix)
		_, err := operator.Pause(ctx, home, "pause", "anna", 0, "why", fewSettings.Pauses)
		require.NoError(t, err)
		_, err = operator.HoldKey(ctx, home, "k", -1, fewSettings.HeldKeys)
		require.NoError(t, err)
		call, stop := context.WithCancel(ctx)
		_, err = resizeWith(call, rdb, prefix, part.Generation{Parts: 3}, "key_hold", stop)
		require.ErrorIs(t, err, context.Canceled)
		m, _, err := operator.readMap(ctx, "topic")
		require.NoError(t, err)
		require.Empty(t, m)
		first := (part.Generation{Number: 1, Parts: 3}).Names("topic")
		paused := func(place string) (n int64) {
			k := script.NewKeys(prefix, place)
			n, err := rdb.Exists(ctx, k.Meta, k.Held).Result()
			require.NoError(t, err)
			return n
		}
		require.Positive(t, paused(first[0]), "the call had come that far")

		_, err = operator.Pause(ctx, home, "resume all", "", 0, "", fewSettings.Pauses)
		require.NoError(t, err)
		_, err = operator.HoldKey(ctx, home, "k", 0, fewSettings.HeldKeys)
		require.NoError(t, err)
		done, err := operator.Resize(ctx, "topic", part.Generation{Parts: 3}, fewSettings)
		require.NoError(t, err)
		require.Equal(t, "0:1 2:3", done.Now.String())
		for _, place := range append(first, done.Now.Open().Names("topic")...) {
			require.Zero(t, paused(place), place)
		}
		for _, place := range first {
			closed, err := rdb.ZScore(ctx, script.NewKeys(prefix, place).Tombs, "").Result()
			require.NoError(t, err)
			require.Equal(t, math.Inf(1), closed, "nobody stores anything there later")
		}
	})
}

// A topic whose limits are too small for its partitions stays as it is.
func TestResizeRefusedLeavesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		c := newCaller(rdb, prefix)
		_, err := c.SetShare(ctx, Place{Keys: script.NewKeys(prefix, "topic"), Of: 1}, "3 0 0 0 0 0", false)
		require.NoError(t, err)
		_, err = c.Resize(ctx, "topic", part.Generation{Parts: 2}, fewSettings)
		require.NoError(t, err)
		before := redistest.Dump(t, rdb, prefix)
		_, err = c.Resize(ctx, "topic", part.Generation{Parts: 1}, fewSettings)
		require.ErrorIs(t, err, record.ErrShare)
		require.Equal(t, before, redistest.Dump(t, rdb, prefix))
	})
}

// loseMap is what a failover of the master of the home can do: the latest map is lost, and that the
// home was closed.
func loseMap(t *testing.T, rdb redis.UniversalClient, prefix string, before part.Map) {
	t.Helper()
	home := script.NewKeys(prefix, "topic")
	require.NoError(t, rdb.Del(t.Context(), home.Parts).Err())
	if before == nil {
		require.NoError(t, rdb.ZRem(t.Context(), home.Tombs, "").Err())
		return
	}
	require.NoError(t, rdb.HSet(t.Context(), home.Parts, "map", before.String(), "last", before.Open().Number).Err())
}

// After a failover that has lost the latest map, another call restores it if the partitions were in
// use, before a server does. Otherwise they are closed. Their names are never used again.
func TestResizeAfterALostMap(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, used := range []bool{true, false} {
			ctx, prefix := t.Context(), redistest.Prefix(t)
			resize := func(g part.Generation) Resized {
				t.Helper()
				done, err := newCaller(rdb, prefix).Resize(ctx, "topic", g, fewSettings)
				require.NoError(t, err)
				return done
			}
			client := newCaller(rdb, prefix)
			lost := resize(part.Generation{Parts: 3}).Now.Open()
			if used {
				require.NoError(t, client.Do(ctx, job{when: "+3600000"}.store(t, "topic", "a")))
			}
			loseMap(t, rdb, prefix, nil)
			now := resize(part.Generation{Parts: 2, ByKey: true}).Now
			want := "0:1 2:2k"
			if used {
				want = "0:1 1:3 2:2k"
			}
			require.Equal(t, want, now.String())
			for _, place := range lost.Names("topic") {
				require.NoError(t, rdb.ZScore(ctx, script.NewKeys(prefix, place).Tombs, "").Err(), "%s is closed", place)
			}
			o := job{when: "+3600000"}.store(t, "topic", "a")
			require.NoError(t, client.Do(ctx, o), "the client knows the old partitions")
			if used {
				require.EqualValues(t, script.LetterScheduled, o.Letter)
			} else {
				require.EqualValues(t, script.LetterStored, o.Letter)
			}
			require.NoError(t, newCaller(rdb, prefix).Do(ctx, &Op{Kind: Cancel, Topic: "topic", ID: "a"}))

			loseMap(t, rdb, prefix, now)
			require.Equal(t, want+" 3:2", resize(part.Generation{Parts: 2}).Now.String(), "nothing was lost")
		}
	})
}

// A call for as many partitions as those that were there before the lost ones makes new ones: those
// before are closed. If they are open, another attempt has only failed, and nothing is to be done.
func TestResizeToWhatWasThere(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, lost := range []bool{true, false} {
			ctx, prefix := t.Context(), redistest.Prefix(t)
			c, home := newCaller(rdb, prefix), script.NewKeys(prefix, "topic")
			before, err := c.Resize(ctx, "topic", part.Generation{Parts: 3}, fewSettings)
			require.NoError(t, err)
			want := "0:1 1:3"
			if lost {
				_, err = c.Resize(ctx, "topic", part.Generation{Parts: 5}, fewSettings)
				require.NoError(t, err)
				require.NoError(t, c.Do(ctx, job{when: "+3600000"}.store(t, "topic", "a")))
				loseMap(t, rdb, prefix, before.Now)
				want = "0:1 1:3 2:5 3:3"
			} else {
				_, err := c.Pause(ctx, home, "pause", "anna", 0, "why", fewSettings.Pauses)
				require.NoError(t, err)
				call, stop := context.WithCancel(ctx)
				_, err = resizeWith(call, rdb, prefix, part.Generation{Parts: 5}, "pause", stop)
				require.ErrorIs(t, err, context.Canceled)
			}
			after, err := newCaller(rdb, prefix).Resize(ctx, "topic", part.Generation{Parts: 3}, fewSettings)
			require.NoError(t, err)
			require.Equal(t, want, after.Now.String())
			require.NoError(t, newCaller(rdb, prefix).Do(ctx, job{when: "+3600000"}.store(t, "topic", "b")))
		}
	})
}

// Of two calls at a time, one after the other makes its partitions. Those that a call has prepared
// in vain are closed.
func TestResizeBesideAnother(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		home, operator := script.NewKeys(prefix, "topic"), newCaller(rdb, prefix)
		_, err := operator.Pause(ctx, home, "pause", "anna", 0, "why", fewSettings.Pauses)
		require.NoError(t, err)
		done, err := resizeWith(ctx, rdb, prefix, part.Generation{Parts: 3}, "pause", func() {
			other, err := operator.Resize(ctx, "topic", part.Generation{Parts: 2}, fewSettings)
			require.NoError(t, err)
			require.Equal(t, "0:1 2:2", other.Now.String())
		})
		require.NoError(t, err)
		require.Equal(t, "0:1 2:2 3:3", done.Now.String())
		require.NoError(t, operator.Do(ctx, job{when: "+3600000"}.store(t, "topic", "a")))
		for _, g := range []part.Generation{{Number: 1, Parts: 3}, {Number: 2, Parts: 2}} {
			for _, place := range g.Names("topic") {
				require.NoError(t, rdb.ZScore(ctx, script.NewKeys(prefix, place).Tombs, "").Err(), "%s is closed", place)
			}
		}
		for _, place := range done.Now.Open().Names("topic") {
			k := script.NewKeys(prefix, place)
			require.ErrorIs(t, rdb.ZScore(ctx, k.Tombs, "").Err(), redis.Nil, "%s is open", place)
			require.Contains(t, rdb.HGet(ctx, k.Meta, "pauses").Val(), "anna")
		}
	})
}

// A call whose partitions another one has closed, which has failed then, does not use them.
func TestResizeBesideAFailure(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		home, operator := script.NewKeys(prefix, "topic"), newCaller(rdb, prefix)
		_, err := operator.Pause(ctx, home, "pause", "anna", 0, "why", fewSettings.Pauses)
		require.NoError(t, err)
		done, err := resizeWith(ctx, rdb, prefix, part.Generation{Parts: 3}, "pause", func() {
			call, stop := context.WithCancel(ctx)
			_, err := resizeWith(call, rdb, prefix, part.Generation{Parts: 2}, "pause", stop)
			require.ErrorIs(t, err, context.Canceled)
		})
		require.NoError(t, err)
		require.Equal(t, "0:1 3:3", done.Now.String())
		o := job{when: "+3600000"}.store(t, "topic", "a")
		require.NoError(t, operator.Do(ctx, o))
		require.EqualValues(t, script.LetterStored, o.Letter)
	})
}

// The witnesses of a topic are in different parts of the slots.
func TestWitnessesAreApart(t *testing.T) {
	t.Parallel()
	for _, topic := range []string{"topic", "mail", "a longer name"} {
		for i, k := range witnessesOf("p", topic) {
			require.Equal(t, i, part.Range(k.Topic, witnesses))
			home, generation, index, ok := part.Split(k.Topic)
			require.Equal(t, []any{topic, 0, i, false}, []any{home, generation, index, ok}, "no generation has it")
		}
	}
}

// A plan asks the generations that have left the map as long as its receipts are kept.
func TestPastOfPlans(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		now := must(rdb.Time(ctx).Result()).UnixMilli()
		const day = 86_400_000
		past := fmt.Sprintf("1:2@%d 2:3k@%d 3:4@%d", now-29*day, now-7*day, now)
		require.NoError(t, rdb.HSet(ctx, script.NewKeys(prefix, "topic").Parts, "map", "4:5", "past", past).Err())
		m, err := newCaller(rdb, prefix).readPast(ctx, "topic")
		require.NoError(t, err)
		require.Equal(t, "2:3k 3:4 4:5", m.String())
	})
}
