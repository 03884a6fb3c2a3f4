package delayq

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/schedule"
)

// hold makes a slot of each of n schedules wait, with nobody's job going. Their names are the given
// one and a number.
func (b *fireBench) hold(name string, n int) {
	b.Helper()
	ctx, p := b.Context(), b.rdb.Pipeline()
	for _, key := range []string{b.keys.schedules, b.keys.fired, b.keys.runs} {
		like := must(b.rdb.HGet(ctx, key, "s").Result())
		for i := range n {
			p.HSet(ctx, key, fmt.Sprint(name, i), like)
		}
	}
	for i := range n {
		p.ZAdd(ctx, b.keys.waiting, redis.Z{Score: float64(b.slot), Member: fmt.Sprint(name, i)})
	}
	require.NoError(b, second(p.Exec(ctx)))
}

// busy makes the last jobs of schedules going.
func (b *fireBench) busy(name string, from, to int) {
	b.Helper()
	for i := from; i < to; i++ {
		name := fmt.Sprint(name, i)
		state := fmt.Sprintf(`{"nonce":%q,"job":%q,"fired":1,"since":0,"skipped":0,"missed":0}`, b.nonce(), name+"@1")
		require.NoError(b, b.rdb.HSet(b.Context(), b.keys.fired, name, state).Err())
		require.NoError(b, b.rdb.HSet(b.Context(), b.keys.pool, name+"@1", "record").Err())
	}
}

func (b *fireBench) nonce() string {
	raw := must(b.rdb.HGet(b.Context(), b.keys.schedules, "s").Result())
	return must(decodeDefinition(raw)).Nonce
}

func second[T any](_ T, err error) error { return err }

// When runs end, only their own schedules are looked at; all others that wait are looked at in
// turn, some in each tick. (G7)
func TestReleaseLooksAtWhatHasEnded(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ctx := b.Context()
		const all = 1500
		b.hold("q", all)
		require.NoError(b, b.rdb.ZRem(ctx, b.keys.slots, "s").Err())
		ts := b.server()
		ts.firer.looked = time.Now().Add(time.Hour) // no tick
		ts.outcomes.endedSchedules = []string{"q7", "q9", "nobody", "s"}
		ts.firer.remember(ts.outcomes.takeEnded())
		p, err := ts.promote(ctx, false)
		require.NoError(b, err)
		require.Equal(b, []int{0, all}, []int{p.due, p.waiting})
		require.True(b, ts.firer.fire(ctx, p.due, p.waiting))
		require.ElementsMatch(b, []string{fmt.Sprint("q7@", b.slot), fmt.Sprint("q9@", b.slot)}, b.jobs())
		require.False(b, ts.firer.fire(ctx, p.due, p.waiting))
		require.Empty(b, ts.firer.ended)
		require.True(b, ts.firer.waits.Load())

		for _, want := range []int{1002, all} { // a thousand in a tick
			ts.firer.looked = time.Time{}
			require.True(b, ts.firer.fire(ctx, 0, all))
			require.Len(b, b.jobs(), want)
		}
		p, err = ts.promote(ctx, false)
		require.NoError(b, err)
		require.Zero(b, p.waiting)
		ts.outcomes.endedSchedules = []string{"q7"}
		ts.firer.remember(ts.outcomes.takeEnded())
		require.False(b, ts.firer.fire(ctx, 0, 0))
		require.Empty(b, ts.firer.ended)
	}, OverlapQueueOne)
}

// The look at the tick comes round to all that wait, also if most of them go on waiting.
func TestReleaseComesRound(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		const all = 2200
		b.hold("q", all)
		ids := map[string]any{}
		for i := range all {
			ids[fmt.Sprintf("q%d@1", i)] = "record"
		}
		require.NoError(b, b.rdb.HSet(b.Context(), b.keys.pool, ids).Err())
		b.busy("q", all-1, all) // one state is enough: all others have no job, and so none that is going
		ts := b.server()
		free := func() int { return len(b.jobs()) - all }
		for range 3 {
			ts.firer.looked = time.Time{}
			ts.firer.fire(b.Context(), 0, all)
		}
		require.Equal(b, all-1, free())
		require.NoError(b, b.rdb.HDel(b.Context(), b.keys.pool, fmt.Sprintf("q%d@1", all-1)).Err())
		ts.firer.looked = time.Time{}
		require.True(b, ts.firer.fire(b.Context(), 0, 1))
		require.Equal(b, all-1, free(), "one has gone, one has come")
	}, OverlapQueueOne)
}

// Schedules with a long gap do not make those late whose slot is on time: the latest slot comes
// first, and a server works out a bounded number of slots before it looks again. (F10)
func TestFireIsNotHeldUpByGaps(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ctx := b.Context()
		const gaps, page = 40, (pageSlots + schedule.MissedCount - 1) / schedule.MissedCount
		for i := range gaps {
			name := fmt.Sprint("gap", i)
			require.NoError(b, b.client.Schedule(ctx, "topic", name, Cron("* * * * * *", "UTC"), nil, MaxRuns(1)))
			require.NoError(b, b.rdb.ZAdd(ctx, b.keys.slots, redis.Z{Score: float64(b.slot - 1000), Member: name}).Err())
		}
		ts := b.server()
		p, err := ts.promote(ctx, false)
		require.NoError(b, err)
		require.Equal(b, gaps+1, p.due)
		require.True(b, ts.firer.fire(ctx, p.due, 0))
		require.Contains(b, b.jobs(), b.id)
		require.Len(b, b.jobs(), page+1)
		b.due() // another one falls due meanwhile
		require.NoError(b, b.rdb.HDel(ctx, b.keys.pool, b.id).Err())
		require.True(b, ts.firer.fire(ctx, p.due, 0))
		require.Contains(b, b.jobs(), b.id)
		require.Len(b, b.jobs(), 2*page+1)
		for looks := 2; p.due > 0; looks++ {
			ts.firer.fire(ctx, p.due, 0)
			p, err = ts.promote(ctx, false)
			require.NoError(b, err)
			require.LessOrEqual(b, looks, gaps/(page-1)+2)
		}
		require.Len(b, b.jobs(), gaps+1)
	})
}

// Several runs of a schedule that end together ask for one look at it, for a call that names it
// twice would fire its slot twice.
func TestReleaseNamesAScheduleOnce(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ctx := b.Context()
		b.hold("q", 1)
		require.NoError(b, b.rdb.ZRem(ctx, b.keys.slots, "s").Err())
		ts := b.server()
		ts.firer.looked = time.Now().Add(time.Hour) // no tick
		for range 2 {
			ts.outcomes.endedSchedules = []string{"q0", "s", "q0", "q0"}
			ts.firer.remember(ts.outcomes.takeEnded())
		}
		require.Equal(b, []string{"q0", "s"}, ts.firer.ended)
		p, err := ts.promote(ctx, false)
		require.NoError(b, err)
		require.True(b, ts.firer.fire(ctx, p.due, p.waiting))
		info, err := b.client.Inspect(ctx, "topic")
		require.NoError(b, err)
		require.EqualValues(b, 1, info.Counters["fired"])
		require.EqualValues(b, 1, info.Ready)
	})
}

// The history is a book and no more: without it, too, a job that waits goes with its schedule.
func TestUnscheduleWithoutAHistory(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ctx := b.Context()
		ts := b.server()
		p, err := ts.promote(ctx, false)
		require.NoError(b, err)
		require.True(b, ts.firer.fire(ctx, p.due, p.waiting))
		require.Equal(b, []string{b.id}, b.jobs())
		require.NoError(b, b.rdb.Del(ctx, b.keys.runs).Err())
		require.NoError(b, b.client.Unschedule(ctx, "topic", "s"))
		require.Empty(b, b.jobs())
	})
}
