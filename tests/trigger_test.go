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

// Any number of jobs can be triggered within a millisecond. Each has an ID of its own and the slot
// of that moment, and the history knows it.
func TestTriggerHasNoBound(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		const jobs = 1500
		b.AddSchedule("s", delayq.Every(time.Hour), delayq.Retry(0))
		b.Pass(5 * time.Second)
		ids := map[string]bool{}
		for range jobs {
			id, err := b.Client.Trigger(ctx, "t", "s")
			require.NoError(b, err)
			ids[id] = true
		}
		now := time.Now()
		first := fmt.Sprintf("s!%d", now.UnixMilli())
		require.Len(b, ids, jobs)
		require.True(b, ids[first])
		require.True(b, ids[fmt.Sprintf("%s.%d", first, jobs-1)])
		for id := range ids {
			job := b.Get("t", id)
			require.Equal(b, "s", job.Schedule)
			require.True(b, job.Slot.Equal(now), "%s has the slot %v", id, job.Slot)
		}

		var r queuetest.Recorder
		server := b.Serve("t", r.Then(func(_ context.Context, job *delayq.Job) error {
			require.Equal(b, "s", job.Schedule)
			require.True(b, job.Slot.Equal(now))
			return nil
		}))
		b.Pass(time.Second)
		require.Len(b, r.IDs(), jobs)
		require.EqualValues(b, jobs, b.ScheduleInfo("s").Attempts)
		runs, err := b.Inspector.Runs(ctx, "t", "s", 100)
		require.NoError(b, err)
		for _, run := range runs {
			require.True(b, ids[run.JobID])
			require.True(b, run.Triggered)
			require.True(b, run.Slot.Equal(now))
		}

		require.NoError(b, server.Stop()) // its handler takes no other slot

		// Another millisecond begins anew, and an ID that is taken is passed over: here that of a
		// job of the user.
		b.Pass(time.Millisecond)
		taken := fmt.Sprintf("s!%d", time.Now().UnixMilli())
		b.Enqueue("t", taken, delayq.ProcessIn(time.Hour))
		id, err := b.Client.Trigger(ctx, "t", "s")
		require.NoError(b, err)
		require.Equal(b, taken+".1", id)
		// So is that of a job of a former schedule of this name.
		b.Enqueue("t", taken+".2", delayq.ProcessIn(time.Hour))
		require.NoError(b, b.Client.Unschedule(ctx, "t", "s"))
		b.AddSchedule("s", delayq.Every(time.Hour))
		id, err = b.Client.Trigger(ctx, "t", "s")
		require.NoError(b, err)
		require.Contains(b, []string{taken + ".1", taken + ".3"}, id) // .1 has been run, or has not
	})
}

// A job that Trigger makes for a moment from now is started then: it wakes the servers, that sleep
// till the tick.
func TestTriggeredJobWakesTheTimer(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r queuetest.Recorder
		b.Serve("t", r.Then(nil))
		b.AddSchedule("s", delayq.Every(time.Hour), delayq.ProcessIn(300*time.Millisecond))
		b.Pass(10*time.Second + 100*time.Millisecond)
		triggered := b.At()
		_, err := b.Client.Trigger(b.Context(), "t", "s")
		require.NoError(b, err)
		b.Pass(299 * time.Millisecond)
		require.Empty(b, r.IDs())
		b.Pass(time.Millisecond)
		require.Len(b, r.IDs(), 1)
		require.Equal(b, triggered+300*time.Millisecond, r.All()[0].Started.Sub(b.Began))
	})
}

// Unschedule leaves no key of the schedule, however long its history is.
func TestUnscheduleLeavesNothing(t *testing.T) {
	for _, runs := range []int{0, 1, 2, 99, 100, 101, 250} {
		t.Run(fmt.Sprint(runs), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var r queuetest.Recorder
				b.Serve("t", r.Then(nil))
				b.AddSchedule("s", delayq.Every(time.Hour))
				for range runs {
					_, err := b.Client.Trigger(b.Context(), "t", "s")
					require.NoError(b, err)
				}
				b.Pass(time.Second)
				require.EqualValues(b, runs, b.ScheduleInfo("s").Attempts)
				require.NoError(b, b.Client.Unschedule(b.Context(), "t", "s"))
				for _, key := range []string{"schedules", "slots", "waiting", "fired", "runs"} {
					n, err := b.RDB.Exists(b.Context(), fmt.Sprintf("%s:{t}:%s", queuetest.Prefix, key)).Result()
					require.NoError(b, err)
					require.Zero(b, n, key)
				}
			})
		})
	}
}
