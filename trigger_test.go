package delayq_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// Any number of jobs can be triggered within a millisecond. Each has an ID of its own and the slot
// of that moment, and the history knows it.
func TestTriggerHasNoBound(t *testing.T) {
	inBubble(t, func(b *bubble) {
		ctx := b.Context()
		const jobs = 1500
		b.schedule("s", delayq.Every(time.Hour), delayq.Retry(0))
		b.pass(5 * time.Second)
		ids := map[string]bool{}
		for range jobs {
			id, err := b.client.Trigger(ctx, "t", "s")
			require.NoError(b, err)
			ids[id] = true
		}
		now := time.Now()
		first := fmt.Sprintf("s!%d", now.UnixMilli())
		require.Len(b, ids, jobs)
		require.True(b, ids[first])
		require.True(b, ids[fmt.Sprintf("%s.%d", first, jobs-1)])
		for id := range ids {
			job := b.get("t", id)
			require.Equal(b, "s", job.Schedule)
			require.True(b, job.Slot.Equal(now), "%s has the slot %v", id, job.Slot)
		}

		var r recorder
		server := b.serve("t", r.then(func(_ context.Context, job *delayq.Job) error {
			require.Equal(b, "s", job.Schedule)
			require.True(b, job.Slot.Equal(now))
			return nil
		}))
		b.pass(time.Second)
		require.Len(b, r.ids(), jobs)
		require.EqualValues(b, jobs, b.info("s").Attempts)
		runs, err := b.client.Runs(ctx, "t", "s", 100)
		require.NoError(b, err)
		for _, run := range runs {
			require.True(b, ids[run.JobID])
			require.True(b, run.Triggered)
			require.True(b, run.Slot.Equal(now))
		}

		require.NoError(b, server.stop()) // its handler takes no other slot

		// Another millisecond begins anew, and an ID that is taken is passed over: here that of a
		// job of the user.
		b.pass(time.Millisecond)
		taken := fmt.Sprintf("s!%d", time.Now().UnixMilli())
		b.enqueue("t", taken, delayq.ProcessIn(time.Hour))
		id, err := b.client.Trigger(ctx, "t", "s")
		require.NoError(b, err)
		require.Equal(b, taken+".1", id)
		// So is that of a job of a former schedule of this name.
		b.enqueue("t", taken+".2", delayq.ProcessIn(time.Hour))
		require.NoError(b, b.client.Unschedule(ctx, "t", "s"))
		b.schedule("s", delayq.Every(time.Hour))
		id, err = b.client.Trigger(ctx, "t", "s")
		require.NoError(b, err)
		require.Contains(b, []string{taken + ".1", taken + ".3"}, id) // .1 has been run, or has not
	})
}

// A job that Trigger makes for a moment from now is started then: it wakes the servers, that sleep
// till the tick.
func TestTriggeredJobWakesTheTimer(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var r recorder
		b.serve("t", r.then(nil))
		b.schedule("s", delayq.Every(time.Hour), delayq.ProcessIn(300*time.Millisecond))
		b.pass(10*time.Second + 100*time.Millisecond)
		triggered := b.at()
		_, err := b.client.Trigger(b.Context(), "t", "s")
		require.NoError(b, err)
		b.pass(299 * time.Millisecond)
		require.Empty(b, r.ids())
		b.pass(time.Millisecond)
		require.Len(b, r.ids(), 1)
		require.Equal(b, triggered+300*time.Millisecond, r.all()[0].started.Sub(b.began))
	})
}

// Unschedule leaves no key of the schedule, however long its history is.
func TestUnscheduleLeavesNothing(t *testing.T) {
	for _, runs := range []int{0, 1, 2, 99, 100, 101, 250} {
		t.Run(fmt.Sprint(runs), func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				var r recorder
				b.serve("t", r.then(nil))
				b.schedule("s", delayq.Every(time.Hour))
				for range runs {
					_, err := b.client.Trigger(b.Context(), "t", "s")
					require.NoError(b, err)
				}
				b.pass(time.Second)
				require.EqualValues(b, runs, b.info("s").Attempts)
				require.NoError(b, b.client.Unschedule(b.Context(), "t", "s"))
				for _, key := range []string{"schedules", "slots", "waiting", "fired", "runs"} {
					n, err := b.rdb.Exists(b.Context(), fmt.Sprintf("%s:{t}:%s", bubblePrefix, key)).Result()
					require.NoError(b, err)
					require.Zero(b, n, key)
				}
			})
		})
	}
}
