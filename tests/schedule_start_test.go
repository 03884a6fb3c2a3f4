package tests

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A fleet that starts together, restarts, and sets another version of its schedule: each version
// has one run at once, and the slots stay where they are.
func TestRunOnStart(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		start := func(payload string, opts ...delayq.ScheduleOption) {
			b.Helper()
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() {
					client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix))
					err := client.Schedule(b.Context(), "t", "s", delayq.Every(10*time.Minute), []byte(payload), append(opts, delayq.RunOnStart())...)
					require.NoError(b, err)
				})
			}
			all.Wait()
		}
		runs := func() (list []time.Duration) {
			for _, s := range rec.All() {
				list = append(list, s.Started.Sub(b.Began))
			}
			return list
		}
		const minute = time.Minute
		b.Pass(10*minute - time.Duration(b.Began.UnixMilli()%(10*minute).Milliseconds())*time.Millisecond)
		b.Pass(3 * minute)
		b.Began = time.Now().Add(-3 * minute) // a slot
		for range 3 {
			b.Serve("t", rec.Then(queuetest.Nothing))
		}
		start("one")
		b.Pass(30 * minute)
		require.Equal(b, []time.Duration{3 * minute, 10 * minute, 20 * minute, 30 * minute}, runs(), "once, and three slots")
		start("one") // a restart
		b.Pass(minute)
		require.Len(b, runs(), 4)
		start("two") // another version
		b.Pass(time.Second)
		require.Equal(b, 34*minute, runs()[4])
		require.EqualValues(b, 5, b.ScheduleInfo("s").Fired)
		start("three", delayq.IfAbsent())
		b.Pass(time.Second)
		require.Len(b, runs(), 5)

		require.NoError(b, b.Client.PauseSchedule(b.Context(), "t", "s"))
		start("three")
		b.Pass(time.Second)
		require.Len(b, runs(), 5, "it is paused")
	})
}

func TestRunOnStartOfMany(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		b.Serve("t", rec.Then(queuetest.Nothing))
		var list []delayq.NewSchedule
		for _, name := range []string{"a", "b"} {
			list = append(list, delayq.NewSchedule{
				Topic: "t", Name: name, Spec: delayq.Cron("0 0 1 1 *", "UTC"), Options: []delayq.ScheduleOption{delayq.RunOnStart(), delayq.MaxRuns(1)},
			})
		}
		list = append(list, delayq.NewSchedule{Topic: "t", Name: "c", Spec: delayq.Cron("0 0 1 1 *", "UTC")})
		for range 2 {
			results, err := b.Client.ScheduleBatch(b.Context(), list)
			require.NoError(b, err)
			for _, r := range results {
				require.NoError(b, r.Err)
			}
			b.Pass(time.Second)
		}
		require.Len(b, rec.All(), 2)
		require.Equal(b, delayq.ScheduleEnded, b.ScheduleInfo("a").State, "it counts towards MaxRuns")
	})
}

func TestRunOnStartIsRefused(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		err := b.Client.Schedule(b.Context(), "t", "s", delayq.Every(time.Minute), nil, delayq.RunOnStart(), delayq.StartAt(time.Now()))
		require.ErrorIs(b, err, delayq.ErrInvalid)
		require.ErrorContains(b, err, "RunOnStart: not with StartAt")
		b.AddSchedule("s", delayq.Every(time.Minute))
		err = b.Client.EditSchedule(b.Context(), "t", "s", func(d *delayq.ScheduleDefinition) error {
			d.Options = append(d.Options, delayq.RunOnStart())
			return nil
		})
		require.ErrorIs(b, err, delayq.ErrInvalid)
	})
}

// A version that is set in the millisecond of the first run of the one before has a run too.
func TestRunOnStartTwiceAtOnce(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		b.Serve("t", rec.Then(func(ctx context.Context, _ *delayq.Job) error {
			select { // it still runs when the next version starts
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			return nil
		}))
		for n := range 2 {
			b.AddSchedule("s", delayq.Every(time.Hour), delayq.Retry(n), delayq.OverlapAllow, delayq.RunOnStart())
			b.Pass(0)
		}
		b.Pass(time.Minute)
		require.Len(b, rec.All(), 2)
	})
}
