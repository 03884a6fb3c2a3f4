package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// Two servers with the same Lease run the same jobs over and over: they snooze, fail, are given
// back by servers that stop, and have their leases extended, while each part of a request or an
// answer can be long on its way. No run of a job has a fence that an earlier one had, or a lower
// one, and within a run it never falls: a database that remembers the highest refuses nobody who is
// right.
func TestFencesGrowOverAllRuns(t *testing.T) {
	for _, narrow := range []float64{0, 200_000} {
		t.Run(fmt.Sprint("narrow=", narrow), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				const jobs, lease = 12, 900 * time.Millisecond
				seed := rand.Uint64()
				b.Logf("seed %d", seed)
				r := rand.New(rand.NewPCG(seed, 0))
				var mu sync.Mutex
				highest := make(map[string]int64)
				runs, extensions := 0, 0
				chance := func(n int) int { // also called by what is not serialized otherwise
					mu.Lock()
					defer mu.Unlock()
					return r.IntN(n)
				}
				see := func(job *delayq.Job, last int64) int64 {
					fence := job.Fence()
					mu.Lock()
					defer mu.Unlock()
					switch {
					case last == 0 && fence <= highest[job.ID]:
						t.Errorf("job %s: a run has the fence %d after %d", job.ID, fence, highest[job.ID])
					case fence < last:
						t.Errorf("job %s: within a run the fence falls from %d to %d", job.ID, last, fence)
					case last > 0 && fence > last:
						extensions++
					}
					highest[job.ID] = max(highest[job.ID], fence)
					return fence
				}
				handler := func(ctx context.Context, job *delayq.Job) error {
					time.Sleep(time.Millisecond) // a clock of microseconds never stands still, that of a bubble does
					mu.Lock()
					runs++
					mu.Unlock()
					last := see(job, 0)
					for range chance(6) {
						select {
						case <-time.After(time.Duration(chance(200)) * time.Millisecond):
							last = see(job, last)
						case <-ctx.Done():
							return ctx.Err()
						}
					}
					switch chance(3) {
					case 0:
						return queuetest.ErrTest
					default:
						return delayq.Snooze(0)
					}
				}
				serve := func() *queuetest.Running {
					w := queuetest.NewWire(b.Redis)
					w.Narrow(narrow)
					w.Jitter(func() time.Duration {
						if chance(3) > 0 {
							return 0
						}
						return time.Duration(chance(150)) * time.Millisecond
					})
					return b.ServeOn(w, "a", handler, delayq.Lease(lease), delayq.Concurrency(jobs), delayq.Drain(0))
				}
				for i := range jobs {
					_, err := b.Client.Enqueue(b.Context(), "a", fmt.Sprint(i), make([]byte, 2_000*i),
						delayq.Backoff(time.Millisecond, 2*time.Millisecond))
					require.NoError(b, err)
				}
				serve()
				for range 20 {
					second := serve()
					b.Pass(2 * time.Second)
					require.NoError(b, second.Stop()) // what it runs is given back
				}
				mu.Lock()
				defer mu.Unlock()
				b.Logf("%d runs, %d extensions seen, %d leases ran out", runs, extensions, b.Counter("a", "reclaimed"))
				require.Greater(b, runs, 100)
				require.Greater(b, extensions, 20)
				require.Positive(b, b.Counter("a", "returned"))
			})
		})
	}
}

// An extension has no answer, and then Redis's clock is set back. The end that was asked for is now
// far away, and is not asked for again: a job must not wait for it if its server dies.
func TestExtensionAfterAStepBackOfRedis(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const lease = 30 * time.Second
		b.LoadScripts()
		var step atomic.Int64
		now := func() time.Time { return time.Now().Add(time.Duration(step.Load())) }
		end := make(chan struct{})
		defer close(end)
		go func() { // the clock of miniredis stands still once it is set
			for {
				b.Redis.SetTime(now())
				select {
				case <-end:
					return
				case <-time.After(time.Millisecond):
				}
			}
		}()
		w := queuetest.NewWire(b.Redis)
		finish := make(chan struct{})
		b.ServeOn(w, "a", func(context.Context, *delayq.Job) error {
			<-finish
			return nil
		}, delayq.Lease(lease))
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		w.Stall(queuetest.Digest("extend"))
		b.Pass(12 * time.Second)
		step.Store(-int64(time.Hour))
		b.Pass(4 * time.Second)
		w.Heal()
		b.Pass(8 * time.Second)
		score, err := b.RDB.ZScore(b.Context(), queuetest.Prefix+":{a}:leases", "1").Result()
		require.NoError(b, err)
		left := time.UnixMilli(int64(score)).Sub(now())
		require.LessOrEqual(b, left, lease)
		require.Positive(b, left)
		close(finish)
		b.Pass(time.Second)
		require.EqualValues(b, 1, b.Counter("a", "acked"))
		require.Zero(b, b.Counter("a", "reclaimed"))
	})
}
