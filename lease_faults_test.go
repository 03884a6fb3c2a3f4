package delayq_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// A handler learns that the lease is over when it is, and not when some call has given up that
// nobody answers. (B15)
func TestLostLeaseIsNoticedInTime(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const lease = time.Second
		w := newWire(b.redis)
		var took time.Duration
		b.serveOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			at := b.at()
			w.freeze()
			<-ctx.Done()
			took = b.at() - at
			require.ErrorIs(b, context.Cause(ctx), delayq.ErrLeaseLost)
			return nil
		}, delayq.Lease(lease))
		b.enqueue("a", "1")
		b.pass(20 * time.Second)
		require.NotZero(b, took)
		require.LessOrEqual(b, took, lease+lease/3)
	})
}

// The owner of a lease cannot settle the job that took its place in the same millisecond.
func TestTwoLeasesOfOneMillisecondHaveDifferentFences(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		w := newWire(b.redis)
		w.stall("subscribe") // the nudge is lost
		finish := make(chan struct{})
		var first, second int64
		b.serveOn(w, "a", func(_ context.Context, job *delayq.Job) error {
			first = job.Fence()
			<-finish
			return nil
		}, delayq.Concurrency(1))
		b.enqueue("a", "1")
		synctest.Wait()
		b.serve("a", func(ctx context.Context, job *delayq.Job) error {
			second = job.Fence()
			<-ctx.Done()
			return ctx.Err()
		}, delayq.Concurrency(1))
		b.pass(100 * time.Microsecond)
		_, err := b.client.Enqueue(b.Context(), "a", "1", []byte("new"), delayq.Replace())
		require.NoError(b, err)
		synctest.Wait()
		close(finish) // the old payload's handler ends well
		synctest.Wait()
		require.Equal(b, delayq.StateRunning, b.state("a", "1"), "the old worker has acked the new job, whose handler still runs")
		require.Greater(b, second, first)
	})
}

// The answer of a take that comes with a later try is about a lease that has begun with that one.
// (E4)
func TestRepeatedTakeDoesNotOverrateItsLease(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		const lease = 9 * time.Second
		w := newWire(b.redis)
		var started, lost time.Duration
		b.serveOn(w, "a", func(ctx context.Context, job *delayq.Job) error {
			w.cut()
			started = b.at()
			require.Equal(b, lease, time.UnixMicro(job.Fence()).Sub(b.began)-started)
			<-ctx.Done()
			lost = b.at()
			return nil
		}, delayq.Lease(lease))
		w.die(script("take"), false)
		b.enqueue("a", "1")
		at := b.at()
		b.pass(2 * time.Second)
		w.mend()
		b.pass(time.Minute)
		require.GreaterOrEqual(b, started-at, 2*time.Second)
		require.LessOrEqual(b, lost-started, lease+1300*time.Millisecond)
	})
}

// A call about one topic that hangs, as with a node of a cluster that is frozen, costs no other
// topic its leases.
func TestSlowExtensionOfOneTopicLosesNoLeaseOfAnother(t *testing.T) {
	inBubble(t, func(b *bubble) {
		w := newWire(b.redis)
		b.loadScripts()
		var rec recorder
		h := rec.then(func(ctx context.Context, job *delayq.Job) error {
			select {
			case <-time.After(time.Minute):
			case <-ctx.Done():
			}
			return context.Cause(ctx)
		})
		serveMany(b.T, w.client(b.T), bubblePrefix, func(s *delayq.Server) {
			for i := range 4 {
				s.HandlerFunc(fmt.Sprint("dead-", i), h)
			}
			s.HandlerFunc("alive", h)
		}, delayq.Lease(12*time.Second))
		synctest.Wait()
		for i := range 4 {
			b.enqueue(fmt.Sprint("dead-", i), "1")
		}
		b.enqueue("alive", "2")
		synctest.Wait()
		w.stall("{dead-") // as of a node of a cluster that is frozen
		b.pass(59 * time.Second)
		require.Len(b, rec.of("2"), 1)
		b.pass(10 * time.Second)
		require.Zero(b, b.counter("alive", "reclaimed"))
		require.EqualValues(b, 1, b.counter("alive", "acked"))
	})
}

// A server that has not heard that its job was replaced, and that another one runs the new job,
// extends its lease in vain.
func TestExtensionOfALostLeaseIsRefused(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const lease = 6 * time.Second
		w := newWire(b.redis)
		w.stall("subscribe")
		var at time.Duration
		b.serveOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			require.ErrorIs(b, context.Cause(ctx), delayq.ErrLeaseLost)
			at = b.at()
			return nil
		}, delayq.Lease(lease), delayq.Concurrency(1))
		b.enqueue("a", "1")
		b.pass(100 * time.Millisecond)
		var rec recorder
		b.serve("a", rec.then(func(ctx context.Context, _ *delayq.Job) error {
			select {
			case <-time.After(10 * lease):
			case <-ctx.Done():
			}
			return context.Cause(ctx)
		}), delayq.Lease(lease))
		b.pass(time.Second)
		_, err := b.client.Enqueue(b.Context(), "a", "1", []byte("new"), delayq.Replace())
		require.NoError(b, err)
		b.pass(lease)
		require.Equal(b, lease/3, at, "with the first extension")
		b.pass(10 * lease)
		require.Len(b, rec.all(), 1)
		require.Equal(b, "new", rec.all()[0].payload)
		require.EqualValues(b, 1, b.counter("a", "acked"))
		require.Zero(b, b.counter("a", "reclaimed"))
	})
}

// A server dies between the end of its wait, which has moved the ID aside, and its take. Nothing
// else happens in the topic: the tick brings the job back.
func TestJobBetweenWaitAndTakeIsNotLost(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		w := newWire(b.redis)
		victim := b.serveOn(w, "a", nothing, delayq.Drain(0))
		b.pass(100 * time.Millisecond)
		w.die(script("take"), true)
		b.enqueue("a", "1")
		synctest.Wait()
		require.False(b, w.alive())
		require.NoError(b, victim.stop())
		var rec recorder
		b.serve("a", rec.then(nil))
		b.pass(1100 * time.Millisecond)
		require.Len(b, rec.all(), 1)
		require.Equal(b, 1, rec.all()[0].attempt)
	})
}

// A cancel that is faster than the answer of the take that it is about. (D6)
func TestCancelThatOvertakesATakeIsHeard(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		var rec recorder
		var hooks told
		w := newWire(b.redis)
		b.serveOn(w, "a", rec.then(nil), delayq.Hooks(&hooks))
		b.pass(time.Second)
		w.delay(script("take"))
		b.enqueue("a", "1")
		synctest.Wait()
		state, err := b.client.Dequeue(b.Context(), "a", "1")
		require.NoError(b, err)
		require.Equal(b, delayq.StateRunning, state)
		b.pass(100 * time.Millisecond)
		w.rush()
		b.pass(time.Second)
		require.Empty(b, rec.all())
		require.Equal(b, map[string]int{"Cancelled": 1}, hooks.kinds("1"))
		b.enqueue("a", "2")
		synctest.Wait()
		require.Len(b, rec.of("2"), 1)
	})
}
