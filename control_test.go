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

// A cancel comes while the server has lost the control channel. It looks at its leases as soon as
// it listens again, however long they are.
func TestCancelDuringAReconnectIsNoticedAfterIt(t *testing.T) {
	inBubble(t, func(b *bubble) {
		w := newWire(b.redis)
		var cause error
		var at time.Duration
		b.serveOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			cause, at = context.Cause(ctx), b.at()
			return nil
		}, delayq.Lease(24*time.Hour))
		b.pass(11 * time.Second) // not in step with the extensions
		b.enqueue("a", "1")
		synctest.Wait()
		w.deafen()
		synctest.Wait()
		state, err := b.client.Dequeue(b.Context(), "a", "1")
		require.NoError(b, err)
		require.Equal(b, delayq.StateRunning, state)
		b.pass(500 * time.Millisecond)
		require.NoError(b, cause, "it hears after all")
		w.heal()
		since := b.at()
		b.pass(30 * time.Second)
		require.ErrorIs(b, cause, delayq.ErrCancelled)
		require.LessOrEqual(b, at-since, 4*time.Second)
	})
}

// Without a control channel a cancel is noticed within ten seconds, however long the leases are.
func TestLeasesAreLookedAtEveryTenSeconds(t *testing.T) {
	inBubble(t, func(b *bubble) {
		w := newWire(b.redis)
		w.stall(subscribe)
		var cause error
		var at time.Duration
		b.serveOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			cause, at = context.Cause(ctx), b.at()
			return nil
		}, delayq.Lease(24*time.Hour))
		b.enqueue("a", "1")
		b.pass(21 * time.Second)
		_, err := b.client.Dequeue(b.Context(), "a", "1")
		require.NoError(b, err)
		since := b.at()
		b.pass(time.Minute)
		require.ErrorIs(b, cause, delayq.ErrCancelled)
		require.LessOrEqual(b, at-since, 10*time.Second)
	})
}

// A server of many topics that have nothing to do keeps one connection for each, which waits, and
// few others.
func TestIdleTopicsGiveConnectionsBack(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const topics = 130
		w := newWire(b.redis)
		serveMany(b.T, w.client(b.T), bubblePrefix, func(s *delayq.Server) {
			for i := range topics {
				s.HandlerFunc(fmt.Sprint(i), nothing)
			}
		})
		b.pass(30 * time.Second)
		require.GreaterOrEqual(b, w.open(), topics)
		require.LessOrEqual(b, w.open(), topics+2*topics/4+5)
	})
}
