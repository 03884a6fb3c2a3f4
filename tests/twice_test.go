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

// The lease runs from the take on, not from when a server first knows of the job: a delay of many
// leases makes one run. (B1)
func TestLeaseBeginsWithTheTake(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		for range 3 {
			b.Serve("a", rec.Then(nil), delayq.Lease(2*time.Second))
		}
		b.Enqueue("a", "1", delayq.ProcessIn(30*time.Second))
		b.Pass(2 * time.Minute)
		require.Len(b, rec.All(), 1)
		require.InDelta(b, 30, rec.All()[0].At.Sub(b.Began).Seconds(), 1) // other tests say how late
		require.Zero(b, b.Counter("a", "reclaimed"))
	})
}

// A handler ends well and Redis is away for eight seconds, so that one ack after the other fails.
// The lease is longer: the job has run once, and nothing is left of it, though another server is
// there to take it. (B5, B6)
func TestAckDuringAnOutageIsMadeGood(t *testing.T) {
	for _, kind := range []string{"cut", "freeze"} {
		t.Run(kind, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				const lease = 12 * time.Second
				var rec queuetest.Recorder
				w := queuetest.NewWire(b.Redis)
				before := 0
				b.ServeOn(w, "a", rec.Then(func(context.Context, *delayq.Job) error {
					before = w.Requests() + w.Dials()
					if kind == "cut" {
						w.Cut()
					} else {
						w.Freeze()
					}
					return nil
				}), delayq.Lease(lease))
				b.Enqueue("a", "1", delayq.Retry(0))
				synctest.Wait()
				b.Serve("a", rec.Then(nil), delayq.Lease(lease))
				b.Pass(8 * time.Second)
				require.Equal(b, delayq.StateRunning, b.State("a", "1"))
				if kind == "cut" {
					require.GreaterOrEqual(b, w.Requests()+w.Dials()-before, 3, "tries")
				}
				w.Thaw()
				w.Mend()
				b.Pass(3 * lease)
				require.Len(b, rec.All(), 1)
				require.Equal(b, 1, rec.All()[0].Attempt)
				require.Empty(b, b.State("a", "1"))
				require.EqualValues(b, 1, b.Counter("a", "acked"))
				require.Zero(b, b.Counter("a", "reclaimed"))
			})
		})
	}
}

// A server is about to look for lapsed leases, and its call is held up while the job, whose lease
// is over by then, is acknowledged. When the call arrives it finds nothing to do: what it does is
// decided when it is done. (B8)
func TestRescueThatComesLateLeavesAFinishedJobAlone(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		const lease = 3 * time.Second
		var rec queuetest.Recorder
		owner, rescuer := queuetest.NewWire(b.Redis), queuetest.NewWire(b.Redis)
		owner.Stall(queuetest.Digest("promote"))
		b.ServeOn(owner, "a", rec.Then(func(context.Context, *delayq.Job) error {
			owner.Stall(queuetest.Digest("ack"))
			return nil
		}), delayq.Lease(lease))
		b.Enqueue("a", "1")
		synctest.Wait()
		b.ServeOn(rescuer, "a", rec.Then(nil), delayq.Lease(lease))
		rescuer.Stall(queuetest.Digest("promote"))
		b.Pass(lease + time.Second)
		require.Less(b, b.Get("a", "1").LeaseEnd, time.Now(), "the lease is not over")
		owner.Set(func() { owner.Stalled = []string{queuetest.Digest("promote")} })
		b.Pass(callTime)
		require.Empty(b, b.State("a", "1"), "acknowledged after the end of the lease, which nobody else had got")
		rescuer.Heal()
		b.Pass(3 * lease)
		require.Len(b, rec.All(), 1)
		require.EqualValues(b, 1, b.Counter("a", "acked"))
		require.Zero(b, b.Counter("a", "reclaimed"))
	})
}

// callTime is longer than a call of a server hangs, with the pause after it.
const callTime = 5 * time.Second

// Twenty thousand jobs of a millisecond each, with three servers that look for lapsed leases all
// the time: none is ever taken for one that crashed. (B11)
func TestShortJobsAreNeverRescued(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		jobs := redistest.Size(20_000)
		list := make([]delayq.NewJob, jobs)
		for i := range list {
			list[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.Retry(0)}}
		}
		_, err := b.Client.EnqueueBatch(b.Context(), list)
		require.NoError(b, err)
		var rec queuetest.Recorder
		for range 3 {
			b.Serve("a", rec.Then(func(context.Context, *delayq.Job) error {
				time.Sleep(time.Millisecond)
				return nil
			}), delayq.Tick(10*time.Millisecond), delayq.Lease(100*time.Millisecond), delayq.Concurrency(20))
			b.Pass(3 * time.Millisecond)
		}
		b.Pass(time.Second)
		require.EqualValues(b, jobs, b.Counter("a", "acked"))
		require.Len(b, rec.Times(), jobs)
		require.Len(b, rec.All(), jobs)
		for _, counter := range []delayq.Counter{"reclaimed", "retried", "buried"} {
			require.Zero(b, b.Counter("a", counter), counter)
		}
	})
}

// Three servers find the same ten thousand jobs due: each stands in ready once. The topic is
// paused, so they stay there. (B14)
func TestManyMoversMoveEachJobOnce(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		jobs := redistest.Size(10_000)
		list := make([]delayq.NewJob, jobs)
		for i := range list {
			list[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ProcessIn(time.Second)}}
		}
		_, err := b.Client.EnqueueBatch(b.Context(), list)
		require.NoError(b, err)
		require.NoError(b, b.Client.Pause(b.Context(), "a", delayq.Pause{}))
		for range 3 {
			b.Serve("a", queuetest.Nothing)
		}
		b.Pass(2 * time.Second)
		ready, err := b.RDB.LRange(b.Context(), queuetest.Prefix+":{a}:ready", 0, -1).Result()
		require.NoError(b, err)
		require.Len(b, ready, jobs)
		distinct := make(map[string]bool)
		for _, id := range ready {
			distinct[id] = true
		}
		require.Len(b, distinct, jobs)
		info := b.Stats("a")
		require.Zero(b, info.Scheduled)
	})
}
