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

// A cancel comes while the server has lost the control channel. It looks at its leases as soon as
// it listens again, however long they are.
func TestCancelDuringAReconnectIsNoticedAfterIt(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		var cause error
		var at time.Duration
		b.ServeOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			cause, at = context.Cause(ctx), b.At()
			return nil
		}, delayq.Lease(24*time.Hour))
		b.Pass(11 * time.Second) // not in step with the extensions
		b.Enqueue("a", "1")
		synctest.Wait()
		w.Deafen()
		synctest.Wait()
		state, err := b.Client.Dequeue(b.Context(), "a", "1")
		require.NoError(b, err)
		require.Equal(b, delayq.StateRunning, state)
		b.Pass(500 * time.Millisecond)
		require.NoError(b, cause, "it hears after all")
		w.Heal()
		since := b.At()
		b.Pass(30 * time.Second)
		require.ErrorIs(b, cause, delayq.ErrCancelled)
		require.LessOrEqual(b, at-since, 4*time.Second)
	})
}

// Without a control channel a cancel is noticed within ten seconds, however long the leases are.
func TestLeasesAreLookedAtEveryTenSeconds(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		w.Stall(queuetest.Subscribe)
		var cause error
		var at time.Duration
		b.ServeOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			cause, at = context.Cause(ctx), b.At()
			return nil
		}, delayq.Lease(24*time.Hour))
		b.Enqueue("a", "1")
		b.Pass(21 * time.Second)
		_, err := b.Client.Dequeue(b.Context(), "a", "1")
		require.NoError(b, err)
		since := b.At()
		b.Pass(time.Minute)
		require.ErrorIs(b, cause, delayq.ErrCancelled)
		require.LessOrEqual(b, at-since, 10*time.Second)
	})
}

// A server of many topics that have nothing to do keeps one connection for each, which waits, and
// few others.
func TestIdleTopicsGiveConnectionsBack(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const topics = 130
		w := queuetest.NewWire(b.Redis)
		queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
			for i := range topics {
				s.HandlerFunc(fmt.Sprint(i), queuetest.Nothing)
			}
		})
		b.Pass(30 * time.Second)
		require.GreaterOrEqual(b, w.Open(), topics)
		require.LessOrEqual(b, w.Open(), topics+2*topics/4+5)
	})
}
