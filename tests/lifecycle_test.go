package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// Ten times fifty servers are started and stopped at all moments of their lives, side by side and
// with jobs at hand. Each Run returns, nothing is left running, no job is lost or run twice. (K5)
func TestStartsAndStopsSideBySide(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		var next atomic.Int64
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				for range 50 {
					s := delayq.NewServer(b.RDB, queuetest.Quiet(queuetest.Prefix)...)
					s.HandlerFunc("a", rec.Then(func(ctx context.Context, _ *delayq.Job) error {
						select {
						case <-time.After(time.Duration(rand.IntN(5)) * time.Millisecond):
							return nil
						case <-ctx.Done():
							return ctx.Err()
						}
					}))
					ctx, stop := context.WithCancel(b.Context())
					var two sync.WaitGroup
					two.Go(func() {
						if err := s.Run(ctx); err != nil {
							b.Errorf("Run: %v", err)
						}
					})
					for range rand.IntN(4) {
						if _, err := b.Client.Enqueue(b.Context(), "a", fmt.Sprint(next.Add(1)), nil); err != nil {
							b.Errorf("enqueue: %v", err)
						}
					}
					time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond)
					two.Go(stop)
					two.Go(stop)
					two.Wait()
				}
			})
		}
		all.Wait()
		b.Serve("a", rec.Then(nil))
		b.Pass(5 * time.Second)
		require.EqualValues(b, next.Load(), len(rec.Times()))
		require.EqualValues(b, next.Load(), len(rec.All()))
		require.EqualValues(b, next.Load(), b.Counter("a", "acked"))
		require.Zero(b, b.Counter("a", "reclaimed"))
	})
}

// The application closes its go-redis client: calls say so, and what they asked for has not
// happened. The library has nothing of its own to close, and closes nothing of the application's.
// (K7)
func TestCallsAfterCloseSaySo(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		opts := *rdb.(*redis.Client).Options()
		closed := redis.NewClient(&opts)
		redistest.InRoles(t, closed)
		client := delayq.NewClient(closed, delayq.Prefix(redistest.Prefix(t)))
		_, err := client.Enqueue(t.Context(), "topic", "x", nil)
		require.NoError(t, err)
		require.NoError(t, redistest.Close(closed))
		for call, err := range everyCall(t.Context(), client, "topic", "x") {
			require.ErrorIs(t, err, redis.ErrClosed, call)
			require.NotErrorIs(t, err, delayq.ErrUnknownOutcome, call)
		}
	})
}
