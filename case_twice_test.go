package delayq_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// The lease runs from the take on, not from when a server first knows of the job: a delay of many
// leases makes one run. (B1)
func TestLeaseBeginsWithTheTake(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		for range 3 {
			b.serve("a", rec.then(nil), delayq.Lease(2*time.Second))
		}
		b.enqueue("a", "1", delayq.ProcessIn(30*time.Second))
		b.pass(2 * time.Minute)
		require.Len(b, rec.all(), 1)
		require.Equal(b, 30*time.Second, rec.all()[0].at.Sub(b.began))
		require.Zero(b, b.counter("a", "reclaimed"))
	})
}

// A handler ends well and Redis is away for eight seconds, so that one ack after the other fails.
// The lease is longer: the job has run once, and nothing is left of it, though another server is
// there to take it. (B5, B6)
func TestAckDuringAnOutageIsMadeGood(t *testing.T) {
	for _, kind := range []string{"cut", "freeze"} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				const lease = 12 * time.Second
				var rec recorder
				w := newWire(b.redis)
				before := 0
				b.serveOn(w, "a", rec.then(func(context.Context, *delayq.Job) error {
					before = w.requests() + w.dials()
					if kind == "cut" {
						w.cut()
					} else {
						w.freeze()
					}
					return nil
				}), delayq.Lease(lease))
				b.enqueue("a", "1", delayq.Retry(0))
				synctest.Wait()
				b.serve("a", rec.then(nil), delayq.Lease(lease))
				b.pass(8 * time.Second)
				require.Equal(b, delayq.StateRunning, b.state("a", "1"))
				if kind == "cut" {
					require.GreaterOrEqual(b, w.requests()+w.dials()-before, 3, "tries")
				}
				w.thaw()
				w.mend()
				b.pass(3 * lease)
				require.Len(b, rec.all(), 1)
				require.Equal(b, 1, rec.all()[0].attempt)
				require.Empty(b, b.state("a", "1"))
				require.EqualValues(b, 1, b.counter("a", "acked"))
				require.Zero(b, b.counter("a", "reclaimed"))
			})
		})
	}
}

// A server is about to look for lapsed leases, and its call is held up while the job, whose lease
// is over by then, is acknowledged. When the call arrives it finds nothing to do: what it does is
// decided when it is done. (B8)
func TestRescueThatComesLateLeavesAFinishedJobAlone(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		const lease = 3 * time.Second
		var rec recorder
		owner, rescuer := newWire(b.redis), newWire(b.redis)
		owner.stall(script("promote"))
		b.serveOn(owner, "a", rec.then(func(context.Context, *delayq.Job) error {
			owner.stall(script("ack"))
			return nil
		}), delayq.Lease(lease))
		b.enqueue("a", "1")
		synctest.Wait()
		b.serveOn(rescuer, "a", rec.then(nil), delayq.Lease(lease))
		rescuer.stall(script("promote"))
		b.pass(lease + time.Second)
		require.Less(b, b.get("a", "1").LeaseEnd, time.Now(), "the lease is not over")
		owner.set(func() { owner.stalled = []string{script("promote")} })
		b.pass(callTime)
		require.Empty(b, b.state("a", "1"), "acknowledged after the end of the lease, which nobody else had got")
		rescuer.heal()
		b.pass(3 * lease)
		require.Len(b, rec.all(), 1)
		require.EqualValues(b, 1, b.counter("a", "acked"))
		require.Zero(b, b.counter("a", "reclaimed"))
	})
}

// callTime is longer than a call of a server hangs, with the pause after it.
const callTime = 5 * time.Second

// Twenty thousand jobs of a millisecond each, with three servers that look for lapsed leases all
// the time: none is ever taken for one that crashed. (B11)
func TestShortJobsAreNeverRescued(t *testing.T) {
	inBubble(t, func(b *bubble) {
		jobs := redistest.Size(20_000)
		list := make([]delayq.NewJob, jobs)
		for i := range list {
			list[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.Retry(0)}}
		}
		_, err := b.client.EnqueueBatch(b.Context(), list)
		require.NoError(b, err)
		var rec recorder
		for range 3 {
			b.serve("a", rec.then(func(context.Context, *delayq.Job) error {
				time.Sleep(time.Millisecond)
				return nil
			}), delayq.Tick(10*time.Millisecond), delayq.Lease(100*time.Millisecond), delayq.Concurrency(20))
			b.pass(3 * time.Millisecond)
		}
		b.pass(time.Second)
		require.EqualValues(b, jobs, b.counter("a", "acked"))
		require.Len(b, rec.times(), jobs)
		require.Len(b, rec.all(), jobs)
		for _, counter := range []delayq.Counter{"reclaimed", "retried", "buried"} {
			require.Zero(b, b.counter("a", counter), counter)
		}
	})
}

// Three servers find the same ten thousand jobs due: each stands in ready once. The topic is
// paused, so they stay there. (B14)
func TestManyMoversMoveEachJobOnce(t *testing.T) {
	inBubble(t, func(b *bubble) {
		jobs := redistest.Size(10_000)
		list := make([]delayq.NewJob, jobs)
		for i := range list {
			list[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ProcessIn(time.Second)}}
		}
		_, err := b.client.EnqueueBatch(b.Context(), list)
		require.NoError(b, err)
		require.NoError(b, b.client.Pause(b.Context(), "a", delayq.Pause{}))
		for range 3 {
			b.serve("a", nothing)
		}
		b.pass(2 * time.Second)
		ready, err := b.rdb.LRange(b.Context(), bubblePrefix+":{a}:ready", 0, -1).Result()
		require.NoError(b, err)
		require.Len(b, ready, jobs)
		distinct := make(map[string]bool)
		for _, id := range ready {
			distinct[id] = true
		}
		require.Len(b, distinct, jobs)
		info, err := b.client.Inspect(b.Context(), "a")
		require.NoError(b, err)
		require.Zero(b, info.Scheduled)
	})
}

// Of jobs whose leases ran out half are finished or cancelled before the rescue and half after it.
// No rescue brings back one that is gone, and what runs again has its payload. (D8, B8)
func TestRescueRevivesNothingThatIsGone(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		rounds, each := redistest.Size(25), 400
		for round := range rounds {
			list := make([]delayq.NewJob, each)
			for i := range list {
				id := fmt.Sprint(round, "-", i)
				list[i] = delayq.NewJob{Topic: "topic", ID: id, Payload: []byte("payload of " + id)}
			}
			_, err := f.client.EnqueueBatch(t.Context(), list)
			require.NoError(t, err)
			held := f.hand.Take(each, 0) // the leases have run out at once
			require.Len(t, held, each)
			part := func(n int) []delayq.Held { return held[n*each/4 : (n+1)*each/4] }
			end := func(acked, cancelled []delayq.Held, letter byte) {
				letters := f.hand.Ack(acked...)
				for i := range letters {
					require.Equal(t, letter, letters[i])
				}
				for _, one := range cancelled {
					_, err := f.client.Dequeue(t.Context(), "topic", one.ID)
					require.NoError(t, err)
				}
			}
			end(part(0), part(1), 'o')
			_, reclaimed := f.hand.Promote()
			require.Equal(t, each/2, reclaimed)
			end(part(2), part(3), 'l')
			again := f.hand.Take(each, time.Minute)
			require.Len(t, again, each/4, "those whose ack came too late")
			for _, one := range again {
				require.Contains(t, one.Record, "payload of "+one.ID)
				require.Equal(t, "o", f.hand.Ack(one))
			}
		}
		for key := range f.dump() {
			require.Equal(t, f.hand.Key("stats"), key, "left over")
		}
	})
}
