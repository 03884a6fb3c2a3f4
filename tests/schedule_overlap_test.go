package tests

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// What becomes of a slot whose predecessor is still going. The first run takes 25 s, the others
// none. (N4)
func TestScheduleOverlap(t *testing.T) {
	for _, test := range []struct {
		policy  delayq.OverlapPolicy
		starts  []time.Duration
		ids     []time.Duration
		skipped int64
	}{
		{delayq.OverlapAllow, seconds(10, 20, 30, 40), seconds(10, 20, 30, 40), 0},
		{delayq.OverlapSkip, seconds(10, 40), seconds(10, 40), 2},
		{delayq.OverlapQueueOne, seconds(10, 35, 40), seconds(10, 20, 40), 1},
		{delayq.OverlapCancelPrevious, seconds(10, 20, 30, 40), seconds(10, 20, 30, 40), 0},
	} {
		t.Run(test.policy.String(), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var r queuetest.Recorder
				var causes []error
				handler := r.Then(func(ctx context.Context, job *delayq.Job) error {
					if len(r.All()) > 1 {
						return nil
					}
					select {
					case <-time.After(25 * time.Second):
						return nil
					case <-ctx.Done():
						causes = append(causes, context.Cause(ctx))
						return ctx.Err()
					}
				})
				b.Serve("t", handler)
				b.Serve("t", handler)
				b.AddSchedule("s", delayq.Every(10*time.Second), test.policy)
				b.Pass(12 * time.Second)
				require.Equal(b, delayq.ScheduleRunning, b.ScheduleInfo("s").State)
				b.Pass(10 * time.Second)
				if test.policy == delayq.OverlapQueueOne {
					require.True(b, b.Began.Add(20*time.Second).Equal(b.ScheduleInfo("s").WaitingSlot))
					require.Zero(b, b.ScheduleInfo("s").NextSlot)
				}
				b.Pass(22 * time.Second)
				var ids []string
				for _, slot := range test.ids {
					ids = append(ids, b.SlotID("s", slot))
				}
				require.Equal(b, ids, r.IDs())
				require.Equal(b, test.starts, slotsOf(b, &r, "s"))
				info := b.ScheduleInfo("s")
				require.Equal(b, test.skipped, info.Skipped)
				require.EqualValues(b, len(ids), info.Fired)
				require.Zero(b, info.Missed)
				require.Equal(b, test.policy, info.OnOverlap)
				if test.policy == delayq.OverlapCancelPrevious {
					require.Len(b, causes, 1)
					require.ErrorIs(b, causes[0], delayq.ErrCancelled)
					runs, err := b.Inspector.Runs(b.Context(), "t", "s", 100)
					require.NoError(b, err)
					require.Equal(b, delayq.OutcomeCancelled, runs[len(runs)-1].Outcome)
				} else {
					require.Empty(b, causes)
				}
			})
		})
	}
}

// A job that backs off is still going; a dead one is not.
func TestScheduleOverlapOfFailedRuns(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r queuetest.Recorder
		b.Serve("t", r.Then(func(context.Context, *delayq.Job) error { return errors.New("no") }))
		b.AddSchedule("s", delayq.Every(10*time.Second), delayq.Retry(1), delayq.Backoff(12*time.Second, 12*time.Second))
		b.Pass(36 * time.Second)
		require.Equal(b, seconds(10, 30), slotsOf(b, &r, "s")) // at 20 s the first one backs off, at 22 to 25 s it dies
		info := b.ScheduleInfo("s")
		require.EqualValues(b, 1, info.Skipped)
		require.EqualValues(b, 3, info.Attempts)
		require.EqualValues(b, 3, info.Failures)
		require.True(b, info.LastUnfinished)
		require.Equal(b, delayq.ScheduleWaiting, info.State)
		runs, err := b.Inspector.Runs(b.Context(), "t", "s", 100)
		require.NoError(b, err)
		require.Len(b, runs, 3)
		require.Equal(b, []delayq.Outcome{"retried", "buried", "retried"}, []delayq.Outcome{runs[0].Outcome, runs[1].Outcome, runs[2].Outcome})
		require.Equal(b, []int{1, 2, 1}, []int{runs[0].Attempt, runs[1].Attempt, runs[2].Attempt})
		require.Equal(b, "no", runs[1].Error)
		require.Equal(b, b.SlotID("s", 10*time.Second), runs[1].JobID)
		require.True(b, b.Began.Add(10*time.Second).Equal(runs[1].Slot))
	})
}
