package tests

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// The history keeps a hundred runs, and what it costs stays the same.
func TestScheduleHistoryIsBounded(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r queuetest.Recorder
		b.Serve("t", r.Then(func(context.Context, *delayq.Job) error {
			if len(r.All()) == 250 {
				return errors.New(strings.Repeat("long ", 1000))
			}
			return nil
		}), delayq.Concurrency(1))
		b.AddSchedule("s", delayq.Every(time.Second), delayq.OverlapAllow, delayq.Backoff(time.Hour, time.Hour))
		b.Pass(250 * time.Second)
		runs, err := b.Inspector.Runs(b.Context(), "t", "s", 100)
		require.NoError(b, err)
		require.Len(b, runs, 100)
		for i, run := range runs {
			require.Equal(b, b.SlotID("s", time.Duration(250-i)*time.Second), run.JobID)
			require.True(b, run.Slot.Equal(run.StartedAt))
		}
		require.Equal(b, delayq.OutcomeRetried, runs[0].Outcome)
		require.Len(b, runs[0].Error, 256)
		info := b.ScheduleInfo("s")
		require.EqualValues(b, 250, info.Attempts)
		require.EqualValues(b, 1, info.Failures)
		require.Equal(b, runs[0], *info.LastRun)
		few, err := b.Inspector.Runs(b.Context(), "t", "s", 3)
		require.NoError(b, err)
		require.Equal(b, runs[:3], few)
	})
}

// A run that is cancelled and one that expires are in the history too.
func TestScheduleHistoryOfOtherEnds(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		block := make(chan struct{})
		h := func(ctx context.Context, _ *delayq.Job) error {
			select {
			case <-ctx.Done():
			case <-block:
			}
			return ctx.Err()
		}
		b.Serve("t", h, delayq.Concurrency(1))
		b.AddSchedule("s", delayq.Every(10*time.Second), delayq.OverlapAllow, delayq.ExpireIn(15*time.Second), delayq.MaxRuns(3))
		b.Pass(10 * time.Second)
		state, err := b.Client.Dequeue(ctx, "t", b.SlotID("s", 10*time.Second))
		require.NoError(b, err)
		require.Equal(b, delayq.StateRunning, state)
		b.Pass(36 * time.Second) // the second one runs on, the third one finds no slot and expires
		close(block)
		b.Pass(20 * time.Second)
		runs, err := b.Inspector.Runs(ctx, "t", "s", 10)
		require.NoError(b, err)
		var outcomes []delayq.Outcome
		for _, run := range runs {
			outcomes = append(outcomes, run.Outcome)
		}
		require.Equal(b, []delayq.Outcome{"expired", "acked", "cancelled"}, outcomes)
	})
}

// What is 400 days older than the latest run is not told of any more.
func TestScheduleHistoryOfOldRuns(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.AddSchedule("s", delayq.Every(time.Hour))
		require.NoError(b, b.Client.PauseSchedule(b.Context(), "t", "s"))
		told := func() int {
			server := b.Serve("t", new(queuetest.Recorder).Then(nil))
			_, err := b.Client.Trigger(b.Context(), "t", "s")
			require.NoError(b, err)
			b.Pass(0)
			require.NoError(b, server.Stop())
			runs, err := b.Inspector.Runs(b.Context(), "t", "s", 100)
			require.NoError(b, err)
			return len(runs)
		}
		require.Equal(b, 1, told())
		time.Sleep(400*24*time.Hour - time.Second)
		require.Equal(b, 2, told())
		time.Sleep(2 * time.Second)
		require.Equal(b, 2, told())
		require.EqualValues(b, 3, b.ScheduleInfo("s").Attempts)
	})
}
