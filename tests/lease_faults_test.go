package tests

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A handler learns that the lease is over when it is, and not when some call has given up that
// nobody answers. (B15)
func TestLostLeaseIsNoticedInTime(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const lease = time.Second
		w := queuetest.NewWire(b.Redis)
		var took time.Duration
		b.ServeOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			at := b.At()
			w.Freeze()
			<-ctx.Done()
			took = b.At() - at
			require.ErrorIs(b, context.Cause(ctx), delayq.ErrLeaseLost)
			return nil
		}, delayq.Lease(lease))
		b.Enqueue("a", "1")
		b.Pass(20 * time.Second)
		require.NotZero(b, took)
		// Its extension is given up after a third of the lease, and repeated after a twelfth.
		require.LessOrEqual(b, took, lease+lease/3+lease/12)
	})
}

// The owner of a lease cannot settle the job that took its place in the same millisecond.
func TestTwoLeasesOfOneMillisecondHaveDifferentFences(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		w := queuetest.NewWire(b.Redis)
		w.Stall("subscribe") // the nudge is lost
		finish := make(chan struct{})
		var first, second int64
		b.ServeOn(w, "a", func(_ context.Context, job *delayq.Job) error {
			first = job.Fence()
			<-finish
			return nil
		}, delayq.Concurrency(1))
		b.Enqueue("a", "1")
		synctest.Wait()
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			second = job.Fence()
			<-ctx.Done()
			return ctx.Err()
		}, delayq.Concurrency(1))
		b.Pass(100 * time.Microsecond)
		_, err := b.Client.Enqueue(b.Context(), "a", "1", []byte("new"), delayq.Replace())
		require.NoError(b, err)
		synctest.Wait()
		close(finish) // the old payload's handler ends well
		synctest.Wait()
		require.Equal(b, delayq.StateRunning, b.State("a", "1"), "the old worker has acked the new job, whose handler still runs")
		require.Greater(b, second, first)
	})
}

// The answer of a take that comes with a later try is about a lease that has begun with that one.
// (E4)
func TestRepeatedTakeDoesNotOverrateItsLease(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		const lease = 9 * time.Second
		w := queuetest.NewWire(b.Redis)
		var started, lost time.Duration
		b.ServeOn(w, "a", func(ctx context.Context, job *delayq.Job) error {
			w.Cut()
			started = b.At()
			require.Equal(b, lease, time.UnixMicro(job.Fence()).Sub(b.Began)-started)
			<-ctx.Done()
			lost = b.At()
			return nil
		}, delayq.Lease(lease))
		w.Die(queuetest.Digest("take"), false)
		b.Enqueue("a", "1")
		at := b.At()
		b.Pass(2 * time.Second)
		w.Mend()
		b.Pass(time.Minute)
		require.GreaterOrEqual(b, started-at, 2*time.Second)
		require.LessOrEqual(b, lost-started, lease+1300*time.Millisecond)
	})
}

// A call about one topic that hangs, as with a node of a cluster that is frozen, costs no other
// topic its leases.
func TestSlowExtensionOfOneTopicLosesNoLeaseOfAnother(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		b.LoadScripts()
		var rec queuetest.Recorder
		h := rec.Then(func(ctx context.Context, job *delayq.Job) error {
			select {
			case <-time.After(time.Minute):
			case <-ctx.Done():
			}
			return context.Cause(ctx)
		})
		queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
			for i := range 4 {
				s.HandlerFunc(fmt.Sprint("dead-", i), h)
			}
			s.HandlerFunc("alive", h)
		}, delayq.Lease(12*time.Second))
		synctest.Wait()
		for i := range 4 {
			b.Enqueue(fmt.Sprint("dead-", i), "1")
		}
		b.Enqueue("alive", "2")
		synctest.Wait()
		w.Stall("{dead-") // as of a node of a cluster that is frozen
		b.Pass(59 * time.Second)
		require.Len(b, rec.Of("2"), 1)
		b.Pass(10 * time.Second)
		require.Zero(b, b.Counter("alive", "reclaimed"))
		require.EqualValues(b, 1, b.Counter("alive", "acked"))
	})
}

// A server that has not heard that its job was replaced, and that another one runs the new job,
// extends its lease in vain.
func TestExtensionOfALostLeaseIsRefused(t *testing.T) {
	queuetest.NeedsPop(t)
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const lease = 6 * time.Second
		w := queuetest.NewWire(b.Redis)
		w.Stall("subscribe")
		var at time.Duration
		b.ServeOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			require.ErrorIs(b, context.Cause(ctx), delayq.ErrLeaseLost)
			at = b.At()
			return nil
		}, delayq.Lease(lease), delayq.Concurrency(1))
		b.Enqueue("a", "1")
		b.Pass(100 * time.Millisecond)
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(func(ctx context.Context, _ *delayq.Job) error {
			select {
			case <-time.After(10 * lease):
			case <-ctx.Done():
			}
			return context.Cause(ctx)
		}), delayq.Lease(lease))
		b.Pass(time.Second)
		_, err := b.Client.Enqueue(b.Context(), "a", "1", []byte("new"), delayq.Replace())
		require.NoError(b, err)
		b.Pass(lease)
		require.Equal(b, lease/3, at, "with the first extension")
		b.Pass(10 * lease)
		require.Len(b, rec.All(), 1)
		require.Equal(b, "new", rec.All()[0].Payload)
		require.EqualValues(b, 1, b.Counter("a", "acked"))
		require.Zero(b, b.Counter("a", "reclaimed"))
	})
}

// A server dies between the end of its wait, which has moved the ID aside, and its take. Nothing
// else happens in the topic: the tick brings the job back.
func TestJobBetweenWaitAndTakeIsNotLost(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		w := queuetest.NewWire(b.Redis)
		victim := b.ServeOn(w, "a", queuetest.Nothing, delayq.Drain(0))
		b.Pass(100 * time.Millisecond)
		w.Die(queuetest.Digest("take"), true)
		b.Enqueue("a", "1")
		synctest.Wait()
		require.False(b, w.Alive())
		require.NoError(b, victim.Stop())
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(nil))
		b.Pass(1100 * time.Millisecond)
		require.Len(b, rec.All(), 1)
		require.Equal(b, 1, rec.All()[0].Attempt)
	})
}

// A cancel that is faster than the answer of the take that it is about. (D6)
func TestCancelThatOvertakesATakeIsHeard(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var rec queuetest.Recorder
		var hooks queuetest.HookLog
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "a", rec.Then(nil), delayq.Hooks(&hooks))
		b.Pass(time.Second)
		w.Delay(queuetest.Digest("take"))
		b.Enqueue("a", "1")
		synctest.Wait()
		state, err := b.Client.Dequeue(b.Context(), "a", "1")
		require.NoError(b, err)
		require.Equal(b, delayq.StateRunning, state)
		b.Pass(100 * time.Millisecond)
		w.Rush()
		b.Pass(time.Second)
		require.Empty(b, rec.All())
		require.Equal(b, map[string]int{"Cancelled": 1}, hooks.Kinds("1"))
		b.Enqueue("a", "2")
		synctest.Wait()
		require.Len(b, rec.Of("2"), 1)
	})
}
