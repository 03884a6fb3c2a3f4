package delayq_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
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
			inBubble(t, func(b *bubble) {
				var r recorder
				var causes []error
				handler := r.then(func(ctx context.Context, job *delayq.Job) error {
					if len(r.all()) > 1 {
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
				b.serve("t", handler)
				b.serve("t", handler)
				b.schedule("s", delayq.Every(10*time.Second), test.policy)
				b.pass(12 * time.Second)
				require.Equal(b, delayq.ScheduleRunning, b.info("s").State)
				b.pass(10 * time.Second)
				if test.policy == delayq.OverlapQueueOne {
					require.True(b, b.began.Add(20*time.Second).Equal(b.info("s").WaitingSlot))
					require.Zero(b, b.info("s").NextSlot)
				}
				b.pass(22 * time.Second)
				var ids []string
				for _, slot := range test.ids {
					ids = append(ids, b.id("s", slot))
				}
				require.Equal(b, ids, r.ids())
				require.Equal(b, test.starts, b.slots(&r, "s"))
				info := b.info("s")
				require.Equal(b, test.skipped, info.Skipped)
				require.EqualValues(b, len(ids), info.Fired)
				require.Zero(b, info.Missed)
				require.Equal(b, test.policy, info.OnOverlap)
				if test.policy == delayq.OverlapCancelPrevious {
					require.Len(b, causes, 1)
					require.ErrorIs(b, causes[0], delayq.ErrCancelled)
					runs, err := b.client.Runs(b.Context(), "t", "s", 100)
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
	inBubble(t, func(b *bubble) {
		var r recorder
		b.serve("t", r.then(func(context.Context, *delayq.Job) error { return errors.New("no") }))
		b.schedule("s", delayq.Every(10*time.Second), delayq.Retry(1), delayq.Backoff(12*time.Second, 12*time.Second))
		b.pass(36 * time.Second)
		require.Equal(b, seconds(10, 30), b.slots(&r, "s")) // at 20 s the first one backs off, at 22 to 25 s it dies
		info := b.info("s")
		require.EqualValues(b, 1, info.Skipped)
		require.EqualValues(b, 3, info.Attempts)
		require.EqualValues(b, 3, info.Failures)
		require.True(b, info.LastUnfinished)
		require.Equal(b, delayq.ScheduleWaiting, info.State)
		runs, err := b.client.Runs(b.Context(), "t", "s", 100)
		require.NoError(b, err)
		require.Len(b, runs, 3)
		require.Equal(b, []delayq.Outcome{"retried", "buried", "retried"}, []delayq.Outcome{runs[0].Outcome, runs[1].Outcome, runs[2].Outcome})
		require.Equal(b, []int{1, 2, 1}, []int{runs[0].Attempt, runs[1].Attempt, runs[2].Attempt})
		require.Equal(b, "no", runs[1].Error)
		require.Equal(b, b.id("s", 10*time.Second), runs[1].JobID)
		require.True(b, b.began.Add(10*time.Second).Equal(runs[1].Slot))
	})
}

// The server of a run dies when it has told Redis of the end, and before it has looked whether a
// slot waits for that: the tick of another one finds it. So does a job that is cancelled while it
// waits. (E6)
func TestWaitingSlotOfADeadServer(t *testing.T) {
	inBubble(t, func(b *bubble) {
		block := make(chan struct{})
		defer close(block)
		b.serve("t", func(context.Context, *delayq.Job) error {
			<-block
			return nil
		}, delayq.Concurrency(1))
		b.enqueue("t", "blocks")
		b.schedule("s", delayq.Every(10*time.Second), delayq.OverlapQueueOne)
		hand := delayq.NewHand(b.T, b.rdb, bubblePrefix, "t") // the other server
		for _, end := range []func(){
			func() { require.Equal(b, "o", hand.Ack(hand.Take(1, time.Minute)...)) },
			func() { require.NoError(b, second(b.client.Dequeue(b.Context(), "t", b.info("s").LastJobID))) },
		} {
			for b.info("s").WaitingSlot.IsZero() {
				b.pass(time.Second)
			}
			waits := b.id("s", b.info("s").WaitingSlot.Sub(b.began))
			b.pass(300 * time.Millisecond)
			require.Empty(b, b.state("t", waits))
			end()
			b.pass(time.Second)
			require.Equal(b, delayq.StateReady, b.state("t", waits))
		}
	})
}
