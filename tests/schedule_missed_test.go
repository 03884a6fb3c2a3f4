package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// Nobody was up for 95 s, and a slot is every 10 s: nine were missed, and the latest is only 5 s
// late. (N3)
func TestScheduleMissed(t *testing.T) {
	for _, test := range []struct {
		policy  delayq.MissedPolicy
		overlap delayq.OverlapPolicy
		away    time.Duration
		slots   []time.Duration // of the jobs that come at once
		missed  int64
	}{
		{delayq.MissedRunOnce, delayq.OverlapSkip, 95 * time.Second, seconds(90), 8},
		{delayq.MissedRunOnce, delayq.OverlapAllow, 95 * time.Second, seconds(90), 8},
		{delayq.MissedSkip, delayq.OverlapSkip, 95 * time.Second, seconds(90), 8},
		{delayq.MissedCatchUp(3), delayq.OverlapAllow, 95 * time.Second, seconds(60, 70, 80, 90), 5},
		{delayq.MissedCatchUp(3), delayq.OverlapSkip, 95 * time.Second, seconds(60, 70, 80, 90), 5},
		{delayq.MissedCatchUp(3), delayq.OverlapQueueOne, 95 * time.Second, seconds(60, 70, 80, 90), 5},
		{delayq.MissedCatchUp(3), delayq.OverlapCancelPrevious, 95 * time.Second, seconds(90), 8},
		{delayq.MissedCatchUp(1000), delayq.OverlapAllow, 95 * time.Second, seconds(10, 20, 30, 40, 50, 60, 70, 80, 90), 0},
		{delayq.MissedRunOnce, delayq.OverlapSkip, 5 * time.Second, nil, 0},
		{delayq.MissedSkip, delayq.OverlapSkip, 15 * time.Second, seconds(10), 0},
	} {
		t.Run(fmt.Sprint(test.policy, test.overlap, test.away), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.AddSchedule("s", delayq.Every(10*time.Second), test.policy, test.overlap)
				time.Sleep(test.away)
				var r queuetest.Recorder
				b.Serve("t", r.Then(nil), delayq.Concurrency(1))
				b.Pass(0)
				var ids []string
				for _, slot := range test.slots {
					ids = append(ids, b.SlotID("s", slot))
				}
				require.Equal(b, ids, r.IDs())
				info := b.ScheduleInfo("s")
				require.Equal(b, test.missed, info.Missed)
				require.Zero(b, info.Skipped)
				require.EqualValues(b, len(ids), info.Fired)
				require.Equal(b, test.policy, info.OnMissed)
				b.Pass(10 * time.Second) // and then on as always
				require.Equal(b, len(ids)+1, len(r.IDs()))
				require.Equal(b, test.missed, b.ScheduleInfo("s").Missed)
			})
		})
	}
}

// A daily slot that is an hour late is missed, one that is half a minute late is not. (N3)
func TestScheduleMissedByTime(t *testing.T) {
	for late, want := range map[time.Duration]map[delayq.MissedPolicy]int{
		30 * time.Second: {delayq.MissedSkip: 1, delayq.MissedRunOnce: 1, delayq.MissedCatchUp(1): 1},
		time.Hour:        {delayq.MissedSkip: 0, delayq.MissedRunOnce: 1, delayq.MissedCatchUp(1): 1},
		25 * time.Hour:   {delayq.MissedSkip: 0, delayq.MissedRunOnce: 1, delayq.MissedCatchUp(1): 1},
	} {
		for policy, jobs := range want {
			t.Run(fmt.Sprint(policy, late), func(t *testing.T) {
				queuetest.InBubble(t, func(b *queuetest.Bubble) {
					b.AddSchedule("s", delayq.Cron("@daily", "UTC"), policy)
					time.Sleep(24*time.Hour + late)
					var r queuetest.Recorder
					b.Serve("t", r.Then(nil))
					b.Pass(0)
					require.Len(b, r.IDs(), jobs)
					info := b.ScheduleInfo("s")
					slots := int64((24*time.Hour + late) / (24 * time.Hour))
					require.Equal(b, slots-int64(jobs), info.Missed)
				})
			})
		}
	}
}

// Catching up one after the other waits for each run, wherever it runs, and comes to its end also
// if a run takes longer than the interval. What falls due meanwhile is up to the overlap policy. A
// slot is every 10 s, and nobody was up for 45 s.
func TestScheduleCatchUpInTurn(t *testing.T) {
	for _, test := range []struct {
		overlap delayq.OverlapPolicy
		run     time.Duration
		slots   []time.Duration
		starts  []time.Duration
		skipped int64
	}{
		{delayq.OverlapSkip, 4 * time.Second, seconds(10, 20, 30, 40, 70), seconds(45, 49, 53, 57, 70), 2},
		{delayq.OverlapQueueOne, 4 * time.Second, seconds(10, 20, 30, 40, 50, 70), seconds(45, 49, 53, 57, 61, 70), 1},
		{delayq.OverlapSkip, 12 * time.Second, seconds(10, 20, 30, 40, 100), seconds(45, 57, 69, 81, 100), 5},
		{delayq.OverlapQueueOne, 12 * time.Second, seconds(10, 20, 30, 40, 50, 100), seconds(45, 57, 69, 81, 93, 105), 4},
	} {
		t.Run(fmt.Sprint(test.overlap, test.run), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.AddSchedule("s", delayq.Every(10*time.Second), test.overlap, delayq.MissedCatchUp(4), delayq.MaxRuns(len(test.slots)))
				time.Sleep(45 * time.Second)
				var r queuetest.Recorder
				handler := r.Then(func(context.Context, *delayq.Job) error {
					time.Sleep(test.run)
					return nil
				})
				b.Serve("t", handler)
				b.Serve("t", handler)
				b.Pass(2 * time.Second)
				require.True(b, b.Began.Add(20*time.Second).Equal(b.ScheduleInfo("s").WaitingSlot))
				b.Pass(test.starts[len(test.starts)-1] + test.run - 47*time.Second)
				var ids []string
				for _, slot := range test.slots {
					ids = append(ids, b.SlotID("s", slot))
				}
				require.Equal(b, ids, r.IDs())
				require.Equal(b, test.starts, slotsOf(b, &r, "s"))
				info := b.ScheduleInfo("s")
				require.Zero(b, info.Missed)
				require.Equal(b, test.skipped, info.Skipped)
				require.Equal(b, delayq.ScheduleEnded, info.State)
			})
		})
	}
}

// Whatever was missed is one line of the log for each topic: at once, and then one a minute. (F10)
func TestScheduleMissedIsLoggedOnce(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const schedules = 260
		for i := range schedules {
			b.AddSchedule(fmt.Sprint("s", i), delayq.Every(time.Hour), delayq.EndAt(b.Began.Add(150*time.Minute)))
		}
		time.Sleep(150 * time.Minute)
		var log queuetest.Logbook
		stop := b.Serve("t", new(queuetest.Recorder).Then(nil), log.To()).Stop
		b.Pass(0)
		require.Len(b, log.With("slots missed"), 1)
		require.Len(b, log.With("slots missed", `schedule="260 schedules"`, "count=260"), 1)

		for i := range 3 { // a minute's slots missed by clocks that jump, 10 s after each other
			b.AddSchedule(fmt.Sprint("jump", i), delayq.Every(time.Minute), delayq.EndAt(time.Now().Add(10*time.Hour)))
		}
		for i := range 4 {
			b.Redis.SetTime(time.Now().Add(time.Duration(i+1) * 10 * time.Minute))
			b.Pass(10 * time.Second)
		}
		require.Len(b, log.With("slots missed"), 1)
		b.Pass(21 * time.Second)
		require.Len(b, log.With("slots missed"), 2)
		require.Len(b, log.With("slots missed", `schedule="3 schedules"`, "count="), 1)
		require.NoError(b, stop())
		require.Len(b, log.With("slots missed"), 2, "nothing is left")
	})
}

// The last slots of a topic that has nothing more to do are logged as well.
func TestScheduleMissedIsLoggedWhenTheTopicGoesIdle(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.AddSchedule("first", delayq.Every(time.Hour), delayq.MissedSkip, delayq.EndAt(b.Began.Add(time.Hour)))
		b.AddSchedule("last", delayq.Every(time.Hour), delayq.MissedSkip, delayq.StartAt(b.Began.Add(2*time.Hour)), delayq.EndAt(b.Began.Add(2*time.Hour)))
		b.Pass(2*time.Hour - 20*time.Second)
		var log queuetest.Logbook
		b.Serve("t", new(queuetest.Recorder).Then(nil), log.To())
		b.Pass(time.Second)
		require.Len(b, log.With("slots missed", "schedule=first"), 1)
		b.Redis.SetTime(time.Now().Add(10 * time.Minute))
		b.Pass(2 * time.Minute)
		require.Len(b, log.With("slots missed", "schedule=last"), 1)
	})
}
