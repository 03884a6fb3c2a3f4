package delayq_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// The history keeps a hundred runs, and what it costs stays the same.
func TestScheduleHistoryIsBounded(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var r recorder
		b.serve("t", r.then(func(context.Context, *delayq.Job) error {
			if len(r.all()) == 250 {
				return errors.New(strings.Repeat("long ", 1000))
			}
			return nil
		}), delayq.Concurrency(1))
		b.schedule("s", delayq.Every(time.Second), delayq.OverlapAllow, delayq.Backoff(time.Hour, time.Hour))
		b.pass(250 * time.Second)
		runs, err := b.client.Runs(b.Context(), "t", "s", 100)
		require.NoError(b, err)
		require.Len(b, runs, 100)
		for i, run := range runs {
			require.Equal(b, b.id("s", time.Duration(250-i)*time.Second), run.JobID)
			require.True(b, run.Slot.Equal(run.StartedAt))
		}
		require.Equal(b, delayq.OutcomeRetried, runs[0].Outcome)
		require.Len(b, runs[0].Error, 256)
		info := b.info("s")
		require.EqualValues(b, 250, info.Attempts)
		require.EqualValues(b, 1, info.Failures)
		require.Equal(b, runs[0], *info.LastRun)
		few, err := b.client.Runs(b.Context(), "t", "s", 3)
		require.NoError(b, err)
		require.Equal(b, runs[:3], few)
	})
}

// A run that is cancelled and one that expires are in the history too.
func TestScheduleHistoryOfOtherEnds(t *testing.T) {
	inBubble(t, func(b *bubble) {
		ctx := b.Context()
		block := make(chan struct{})
		h := func(ctx context.Context, _ *delayq.Job) error {
			select {
			case <-ctx.Done():
			case <-block:
			}
			return ctx.Err()
		}
		b.serve("t", h, delayq.Concurrency(1))
		b.schedule("s", delayq.Every(10*time.Second), delayq.OverlapAllow, delayq.ExpireIn(15*time.Second), delayq.MaxRuns(3))
		b.pass(10 * time.Second)
		state, err := b.client.Dequeue(ctx, "t", b.id("s", 10*time.Second))
		require.NoError(b, err)
		require.Equal(b, delayq.StateRunning, state)
		b.pass(36 * time.Second) // the second one runs on, the third one finds no slot and expires
		close(block)
		b.pass(20 * time.Second)
		runs, err := b.client.Runs(ctx, "t", "s", 10)
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
	inBubble(t, func(b *bubble) {
		b.schedule("s", delayq.Every(time.Hour))
		require.NoError(b, b.client.PauseSchedule(b.Context(), "t", "s"))
		told := func() int {
			server := b.serve("t", new(recorder).then(nil))
			_, err := b.client.Trigger(b.Context(), "t", "s")
			require.NoError(b, err)
			b.pass(0)
			require.NoError(b, server.stop())
			runs, err := b.client.Runs(b.Context(), "t", "s", 100)
			require.NoError(b, err)
			return len(runs)
		}
		require.Equal(b, 1, told())
		time.Sleep(400*24*time.Hour - time.Second)
		require.Equal(b, 2, told())
		time.Sleep(2 * time.Second)
		require.Equal(b, 2, told())
		require.EqualValues(b, 3, b.info("s").Attempts)
	})
}
