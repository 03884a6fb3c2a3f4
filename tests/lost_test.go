package tests

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// Nobody looks after the topic for more than a year: the job is kept, runs once when a server
// comes, and the server is told how late it is. (A11, A12, A13)
func TestJobWaitsForAServerWithoutEnd(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const idle = 400 * 24 * time.Hour
		b.Enqueue("a", "1", delayq.ProcessIn(10*time.Second))
		b.Pass(idle)
		var rec queuetest.Recorder
		var hooks queuetest.HookLog
		b.Serve("a", rec.Then(nil), delayq.Hooks(&hooks))
		b.Pass(time.Second)
		require.Len(b, rec.All(), 1)
		require.Equal(b, "of 1", rec.All()[0].Payload)
		require.Equal(b, 1, rec.All()[0].Attempt)
		require.Equal(b, idle-10*time.Second, hooks.Of("Started")[0].Lateness())
		require.Empty(b, b.State("a", "1"))
	})
}

// The one who enqueued is gone and nothing else happens in the topic for long: servers need no
// traffic to find what is due. (A12)
func TestIdleServerFindsWhatIsDue(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(nil))
		producer := queuetest.NewWire(b.Redis)
		_, err := delayq.NewClient(producer.Client(b.T), delayq.Prefix(queuetest.Prefix)).Enqueue(b.Context(), "a", "1", nil, delayq.ProcessIn(20*time.Minute))
		require.NoError(b, err)
		producer.Cut()
		b.Pass(20*time.Minute - time.Millisecond)
		require.Empty(b, rec.All())
		b.Pass(time.Millisecond)
		require.Len(b, rec.All(), 1)
	})
}

// Servers end, in good order and not, between the enqueueing and the due time. (A20)
func TestServerRestartBeforeTheDueTime(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		for round := range 20 {
			w := queuetest.NewWire(b.Redis)
			first := b.ServeOn(w, "a", rec.Then(nil), delayq.Drain(0))
			id := fmt.Sprint(round)
			b.Enqueue("a", id, delayq.ProcessIn(10*time.Second))
			due := b.At() + 10*time.Second
			b.Pass(time.Duration(rand.IntN(5000)) * time.Millisecond)
			if round%2 == 1 {
				w.Cut()
			}
			require.NoError(b, first.Stop())
			b.Pass(time.Duration(rand.IntN(3000)) * time.Millisecond)
			second := b.Serve("a", rec.Then(nil))
			b.Pass(due - b.At())
			require.Len(b, rec.Of(id), 1, "round %d", round)
			require.Equal(b, due, rec.Of(id)[0].At.Sub(b.Began), "round %d", round)
			require.NoError(b, second.Stop())
		}
		require.Len(b, rec.All(), 20)
	})
}

// Nothing tells jobs apart but their IDs: of jobs with the same payload each runs, with every byte.
// (A21)
func TestEqualPayloadsAreDifferentJobs(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		payload := make([]byte, 64<<10)
		for i := range payload {
			payload[i] = byte(rand.Uint32())
		}
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(nil))
		for i := range 10 {
			_, err := b.Client.Enqueue(b.Context(), "a", fmt.Sprint(i), payload, delayq.ProcessIn(time.Duration(i%2)*time.Second))
			require.NoError(b, err)
		}
		b.Pass(2 * time.Second)
		require.Len(b, rec.Times(), 10)
		require.Len(b, rec.All(), 10)
		for _, s := range rec.All() {
			require.Equal(b, sha256.Sum256(payload), sha256.Sum256([]byte(s.Payload)))
		}
	})
}

// Redis is away for a minute. What falls due after that is on time, what fell due meanwhile runs at
// once, nothing runs twice, and the server is a whole one again. (A9, A10, C12, C14, C15)
func TestOutageDelaysOnlyWhatFallsDueInIt(t *testing.T) {
	for _, kind := range []string{"cut", "freeze"} {
		t.Run(kind, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var rec queuetest.Recorder
				w := queuetest.NewWire(b.Redis)
				s := b.ServeOn(w, "a", rec.Then(nil), delayq.Lease(30*time.Second))
				for id, in := range map[string]time.Duration{"before": 2 * time.Second, "during": 30 * time.Second, "after": 75 * time.Second} {
					b.Enqueue("a", id, delayq.ProcessIn(in))
				}
				b.Pass(5 * time.Second)
				if kind == "cut" {
					w.Cut()
				} else {
					w.Freeze()
				}
				b.Pass(time.Minute)
				w.Thaw()
				w.Mend()
				b.Pass(5 * time.Second)
				require.Len(b, rec.Of("during"), 1, "within five seconds")
				b.Pass(time.Minute)
				require.Len(b, rec.All(), 3)
				require.Equal(b, 2*time.Second, rec.Of("before")[0].At.Sub(b.Began))
				require.Equal(b, 75*time.Second, rec.Of("after")[0].At.Sub(b.Began))
				servers, err := b.Inspector.Servers(b.Context())
				require.NoError(b, err)
				require.Len(b, servers, 1)
				require.Equal(b, s.ID(), servers[0].ID)
			})
		})
	}
}

// Whatever comes between a server and Redis, two hundred times, for a moment or for twenty seconds:
// afterwards it works, within ten seconds. (C13, C15)
func TestTwoHundredOutages(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		var log queuetest.Logbook
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "a", rec.Then(nil), log.To(), delayq.Lease(5*time.Second))
		for i := range redistest.Size(200) {
			length := 100*time.Millisecond + time.Duration(rand.Int64N(int64(20*time.Second)))
			kind := []string{"cut", "freeze", "reset"}[rand.IntN(3)]
			switch kind {
			case "cut":
				w.Cut()
			case "freeze":
				w.Freeze()
			case "reset":
				w.Cut()
				w.Mend()
			}
			b.Pass(length)
			w.Thaw()
			w.Mend()
			b.Enqueue("a", fmt.Sprint(i))
			b.Pass(10 * time.Second)
			require.NotEmpty(b, rec.Of(fmt.Sprint(i)), "after a %s of %v", kind, length)
		}
		require.Equal(b, len(log.With(`msg="redis away"`)), len(log.With(`msg="redis back"`)), "what went is back")
	})
}

// A thousand jobs for later stand before the one that is due. (C11, F12)
func TestDueJobIsFoundAmongLaterOnes(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(nil))
		jobs := make([]delayq.NewJob, 1000)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ProcessIn(1000*time.Hour - time.Duration(i)*time.Hour/2)}}
		}
		_, err := b.Client.EnqueueBatch(b.Context(), jobs)
		require.NoError(b, err)
		b.Enqueue("a", "due", delayq.ProcessIn(1234*time.Millisecond))
		b.Pass(1234 * time.Millisecond)
		require.Equal(b, []string{"due"}, rec.IDs())
	})
}

// The record and the lease of a running job are deleted by hand. Its ack finds nothing: that is in
// the log, and the server goes on. (B17)
func TestJobDeletedUnderneathIsLogged(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		var log queuetest.Logbook
		finish := make(chan struct{})
		b.Serve("a", rec.Then(func(_ context.Context, job *delayq.Job) error {
			if job.ID == "deleted" {
				<-finish
			}
			return nil
		}), log.To(), delayq.Concurrency(1))
		b.Enqueue("a", "deleted")
		synctest.Wait()
		_, err := b.RDB.Pipelined(b.Context(), func(p redis.Pipeliner) error {
			p.HDel(b.Context(), queuetest.PoolKey("a"), "deleted")
			p.ZRem(b.Context(), queuetest.Prefix+":{a}:leases", "deleted")
			return nil
		})
		require.NoError(b, err)
		close(finish)
		b.Pass(time.Second)
		require.NotEmpty(b, log.With("job=deleted"), "silent")
		b.Enqueue("a", "next")
		synctest.Wait()
		require.Equal(b, []string{"deleted", "next"}, rec.IDs())
		require.Empty(b, b.State("a", "next"))
	})
}
