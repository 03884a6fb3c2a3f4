package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// storeMany stores ready jobs of a topic.
func storeMany(b *queuetest.Bubble, topic string, n int) {
	b.Helper()
	jobs := make([]delayq.NewJob, n)
	for i := range jobs {
		jobs[i] = delayq.NewJob{Topic: topic, ID: fmt.Sprint(i)}
	}
	_, err := b.Client.EnqueueBatch(b.Context(), jobs)
	require.NoError(b, err)
}

// Limits that are never reached cost no more takes than none: a take serves a hundred jobs or more.
// If they can be reached, a server takes no jobs that it has no worker for.
func TestTakesFarFromLimits(t *testing.T) {
	const jobs = 10_000
	for _, c := range []struct {
		limits delayq.Limits
		far    bool
	}{
		{delayq.Limits{}, true},
		{delayq.Limits{Running: 1_000_000, Rate: delayq.Per(1_000_000, time.Second)}, true},
		{delayq.Limits{Running: 10_000}, true},
		{delayq.Limits{Running: 100}, false},
		{delayq.Limits{RunningPerKey: 1000}, false},
	} {
		t.Run(c.limits.String(), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var c2 crowd
				var hooks queuetest.HookLog
				require.NoError(b, b.Client.SetLimits(b.Context(), "a", c.limits))
				storeMany(b, "a", jobs)
				// while a take is under way, everything else happens, whatever the scheduler does
				b.Serve("a", c2.handler(0), delayq.Concurrency(64),
					delayq.Hooks(&hooks, slow("take", time.Millisecond), slow("ack", time.Millisecond)))
				for range 600 {
					if b.Pass(100 * time.Millisecond); b.Stats("a").Ready+b.Stats("a").Running == 0 {
						break
					}
				}
				require.Len(b, c2.started(), jobs)
				if takes := hooks.Calls("take", "a"); c.far {
					require.Less(b, takes, jobs/100)
				} else {
					require.Greater(b, takes, jobs/100)
				}
			})
		})
	}
}

// A server whose handlers become slow gives back the jobs that it has taken ahead. Their places are
// used by another server that was refused them, and not a tick later.
func TestPlacesOfJobsTakenAheadAreUsed(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const most, quick = 600, 2000
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: most}))
		storeMany(b, "a", 5000)
		var c crowd
		var calls atomic.Int64
		slow, over := make(chan struct{}), make(chan struct{})
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			c.enter(job.ID)
			defer c.leave()
			if n := calls.Add(1); n == quick {
				close(slow)
				<-over
			} else if n > quick {
				<-over
			}
			time.Sleep(20 * time.Microsecond)
			return nil
		}, delayq.Concurrency(1))
		<-slow
		require.Greater(b, b.Stats("a").Running, int64(50), "jobs are taken ahead")
		began := time.Now()
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			c.enter(job.ID)
			defer c.leave()
			<-over
			return nil
		}, delayq.Concurrency(most+100))
		b.Pass(10 * time.Millisecond)
		require.LessOrEqual(b, c.now.Load(), int64(most-40), "the others hold places")
		b.Pass(40*time.Millisecond - time.Since(began))
		require.EqualValues(b, most, c.now.Load())
		require.EqualValues(b, most, c.most.Load())
		close(over)
		b.Pass(5 * time.Second)
	})
}

// What a server has taken ahead starts no later than 20 ms after a hold or a pause, and goes back
// when other limits are set.
func TestChangesWhileJobsAreTakenAhead(t *testing.T) {
	for name, change := range map[string]func(b *queuetest.Bubble) error{
		"hold":  func(b *queuetest.Bubble) error { return b.Client.Hold(b.Context(), "a", time.Minute, "") },
		"pause": func(b *queuetest.Bubble) error { return b.Client.Pause(b.Context(), "a", delayq.Pause{}) },
		"limits": func(b *queuetest.Bubble) error {
			return b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var c crowd
				require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: 10_000}))
				storeMany(b, "a", 10_000)
				b.Serve("a", c.handler(100*time.Microsecond), delayq.Concurrency(2))
				for b.Stats("a").Running < 20 {
					b.Pass(time.Millisecond)
				}
				require.NoError(b, change(b))
				b.Pass(25 * time.Millisecond)
				made := len(c.started())
				b.Pass(2 * time.Millisecond)
				if name == "limits" {
					require.LessOrEqual(b, b.Stats("a").Running, int64(1))
					return
				}
				require.Zero(b, b.Stats("a").Running)
				b.Pass(time.Second)
				require.Len(b, c.started(), made)
				require.EqualValues(b, 10_000-made, b.Stats("a").Ready)
			})
		})
	}
}

// A take is executed while limits are far away, and its reply arrives after the message that there
// are others. The server keeps none of the jobs that it has no worker for.
func TestReplyOfATakeAfterOtherLimits(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var c crowd
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: 10_000}))
		storeMany(b, "a", 10_000)
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "a", c.handler(100*time.Microsecond), delayq.Concurrency(2))
		for b.Stats("a").Running < 20 {
			b.Pass(time.Millisecond)
		}
		w.Delay(queuetest.Digest("take"))
		for c.now.Load() > 0 {
			b.Pass(time.Millisecond)
		}
		require.Greater(b, b.Stats("a").Running, int64(10), "the take is executed")
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: 1000}))
		b.Pass(time.Millisecond)
		w.Rush()
		b.Pass(500 * time.Microsecond)
		require.LessOrEqual(b, b.Stats("a").Running, int64(4))
	})
}

// When the link becomes long, the jobs of the takes under way are late for their starts and go
// back. Then none are taken ahead until handlers have run, so others start meanwhile.
func TestJobsStartWhenTheLinkBecomesLong(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var c crowd
		rate := delayq.Per(1_000_000, time.Second).Burst(1_000_000)
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Rate: rate}))
		storeMany(b, "a", 20_000)
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "a", c.handler(20*time.Microsecond), delayq.Concurrency(8))
		for len(c.started()) < 2000 {
			b.Pass(time.Millisecond)
		}
		w.Jitter(func() time.Duration { return 50 * time.Millisecond })
		b.Pass(100 * time.Millisecond)
		made := len(c.started())
		b.Pass(2 * time.Second)
		require.Greater(b, len(c.started()), made+50)
	})
}

// Handlers that are quick for a while and slow for a while, on servers that stop and start: never
// more starts are made than the rate allows, and never more jobs run than may.
func TestLimitsFarAndNearAtRandom(t *testing.T) {
	var returned, played atomic.Int64
	t.Cleanup(func() {
		if played.Load() > 4 { // in a game of 25, they never come near
			require.NotZero(t, returned.Load(), "the limits came near")
		}
	})
	for seed := range uint64(redistest.Size(6)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				const jitter = 400 * time.Microsecond
				p := rand.New(rand.NewPCG(seed, 35))
				rate := delayq.Per(20_000, time.Second)
				if p.IntN(2) == 0 {
					rate = rate.Strict()
				}
				most := 1500 + p.IntN(3000)
				require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: most, Rate: rate}))
				storeMany(b, "a", 10_000)
				var c crowd
				var mu sync.Mutex
				var slow time.Duration
				h := func(_ context.Context, job *delayq.Job) error {
					c.enter(fmt.Sprint(job.ID, job.Attempt))
					defer c.leave()
					mu.Lock()
					d := slow
					mu.Unlock()
					time.Sleep(d)
					return nil
				}
				for i := range 2 {
					serveOnLink(b, "a", seed+uint64(i), 50*time.Microsecond, jitter, h, delayq.Concurrency(1+p.IntN(20)))
				}
				for range 100 {
					b.Pass(time.Duration(p.IntN(20)) * time.Millisecond)
					mu.Lock()
					slow = []time.Duration{0, 20 * time.Microsecond, time.Millisecond, 70 * time.Millisecond}[p.IntN(4)]
					mu.Unlock()
				}
				mu.Lock()
				slow = 0
				mu.Unlock()
				b.Pass(5 * time.Second)
				synctest.Wait()
				all := c.started()
				require.Len(b, all, 10_000)
				require.LessOrEqual(b, c.most.Load(), int64(most))
				emit := time.Duration(float64(time.Second) / 20_000)
				for i, from := range all {
					for j := i + rate.MaxBurst(); j < min(len(all), i+rate.MaxBurst()+1000); j += 50 {
						require.GreaterOrEqual(b, all[j].Sub(from), time.Duration(j-i+1-rate.MaxBurst())*emit-2*jitter)
					}
				}
				played.Add(1)
				returned.Add(b.Counter("a", delayq.CounterReturned))
			})
		})
	}
}
