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
	"github.com/delayq/delayq/internal/redistest"
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

// The connections of a server do not grow with its topics, and it gives back most of those that it
// has needed.
func TestConnectionsDoNotGrowWithTopics(t *testing.T) {
	for topics, most := range map[int]int{1: 6, 20: 10, 200: 16, 1000: 24} {
		t.Run(fmt.Sprint(topics), func(t *testing.T) {
			if topics > redistest.Size(1000) && topics > 200 {
				t.Skip("a thousand topics take a while: DELAYQ_FULL=1 has them")
			}
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				w := queuetest.NewWire(b.Redis)
				queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
					for i := range topics {
						require.NoError(b, s.HandlerFunc(fmt.Sprint(i), queuetest.Nothing))
					}
				})
				b.Pass(30 * time.Second)
				require.LessOrEqual(b, w.Open(), most)
				for i := range 4 * topics {
					b.Enqueue(fmt.Sprint(i%topics), fmt.Sprint(i))
				}
				b.Pass(time.Second)
				require.LessOrEqual(b, w.MostOpen(), 2*most)
				b.Pass(30 * time.Second)
				require.LessOrEqual(b, w.Open(), most*3/2) // how many are in use at once is chance
			})
		})
	}
}
