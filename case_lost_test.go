package delayq_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// The tests in the files case_*_test.go show that what has gone wrong in other queues does not go
// wrong here. The letters and numbers are those of the table in faults/README.md.

// Nobody looks after the topic for more than a year: the job is kept, runs once when a server
// comes, and the server is told how late it is. (A11, A12, A13)
func TestJobWaitsForAServerWithoutEnd(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const idle = 400 * 24 * time.Hour
		b.enqueue("a", "1", delayq.ProcessIn(10*time.Second))
		b.pass(idle)
		var rec recorder
		var hooks told
		b.serve("a", rec.then(nil), delayq.Hooks(&hooks))
		b.pass(time.Second)
		require.Len(b, rec.all(), 1)
		require.Equal(b, "of 1", rec.all()[0].payload)
		require.Equal(b, 1, rec.all()[0].attempt)
		require.Equal(b, idle-10*time.Second, hooks.of("Started")[0].Lateness())
		require.Empty(b, b.state("a", "1"))
	})
}

// Nothing that a job needs expires by itself, whatever has become of the job. (A13)
func TestWaitingJobsHaveNoExpiry(t *testing.T) {
	eachLife(t, func(t *testing.T, f *fixture, state delayq.State, _ delayq.Held) {
		keys, err := redistest.Census(t.Context(), f.rdb, f.prefix+":*")
		require.NoError(t, err)
		if state != "" {
			require.Contains(t, keys, f.hand.Key("pool"))
		}
		for key := range keys {
			if name := strings.TrimPrefix(key, f.hand.Key("")); strings.HasPrefix(name, "receipt:") || strings.HasPrefix(name, "taken:") {
				continue
			}
			require.Equal(t, time.Duration(-1), f.rdb.TTL(t.Context(), key).Val(), key)
		}
	})
}

// The one who enqueued is gone and nothing else happens in the topic for an hour: servers need no
// traffic to find what is due. (A12)
func TestIdleServerFindsWhatIsDue(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		b.serve("a", rec.then(nil))
		producer := newWire(b.redis)
		_, err := delayq.NewClient(producer.client(b.T), delayq.Prefix(bubblePrefix)).Enqueue(b.Context(), "a", "1", nil, delayq.ProcessIn(time.Hour))
		require.NoError(b, err)
		producer.cut()
		b.pass(time.Hour - time.Millisecond)
		require.Empty(b, rec.all())
		b.pass(time.Millisecond)
		require.Len(b, rec.all(), 1)
	})
}

// Servers end, in good order and not, between the enqueueing and the due time. (A20)
func TestServerRestartBeforeTheDueTime(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		for round := range 20 {
			w := newWire(b.redis)
			first := b.serveOn(w, "a", rec.then(nil), delayq.Drain(0))
			id := fmt.Sprint(round)
			b.enqueue("a", id, delayq.ProcessIn(10*time.Second))
			due := b.at() + 10*time.Second
			b.pass(time.Duration(rand.IntN(5000)) * time.Millisecond)
			if round%2 == 1 {
				w.cut()
			}
			require.NoError(b, first.stop())
			b.pass(time.Duration(rand.IntN(3000)) * time.Millisecond)
			second := b.serve("a", rec.then(nil))
			b.pass(due - b.at())
			require.Len(b, rec.of(id), 1, "round %d", round)
			require.Equal(b, due, rec.of(id)[0].at.Sub(b.began), "round %d", round)
			require.NoError(b, second.stop())
		}
		require.Len(b, rec.all(), 20)
	})
}

// Nothing tells jobs apart but their IDs: of jobs with the same payload each runs, with every byte.
// (A21)
func TestEqualPayloadsAreDifferentJobs(t *testing.T) {
	inBubble(t, func(b *bubble) {
		payload := make([]byte, 64<<10)
		for i := range payload {
			payload[i] = byte(rand.Uint32())
		}
		var rec recorder
		b.serve("a", rec.then(nil))
		for i := range 10 {
			_, err := b.client.Enqueue(b.Context(), "a", fmt.Sprint(i), payload, delayq.ProcessIn(time.Duration(i%2)*time.Second))
			require.NoError(b, err)
		}
		b.pass(2 * time.Second)
		require.Len(b, rec.times(), 10)
		require.Len(b, rec.all(), 10)
		for _, s := range rec.all() {
			require.Equal(b, sha256.Sum256(payload), sha256.Sum256([]byte(s.payload)))
		}
	})
}

// Redis is away for a minute. What falls due after that is on time, what fell due meanwhile runs at
// once, nothing runs twice, and the server is a whole one again. (A9, A10, C12, C14, C15)
func TestOutageDelaysOnlyWhatFallsDueInIt(t *testing.T) {
	for _, kind := range []string{"cut", "freeze"} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				var rec recorder
				w := newWire(b.redis)
				s := b.serveOn(w, "a", rec.then(nil), delayq.Lease(30*time.Second))
				for id, in := range map[string]time.Duration{"before": 2 * time.Second, "during": 30 * time.Second, "after": 75 * time.Second} {
					b.enqueue("a", id, delayq.ProcessIn(in))
				}
				b.pass(5 * time.Second)
				if kind == "cut" {
					w.cut()
				} else {
					w.freeze()
				}
				b.pass(time.Minute)
				w.thaw()
				w.mend()
				b.pass(5 * time.Second)
				require.Len(b, rec.of("during"), 1, "within five seconds")
				b.pass(time.Minute)
				require.Len(b, rec.all(), 3)
				require.Equal(b, 2*time.Second, rec.of("before")[0].at.Sub(b.began))
				require.Equal(b, 75*time.Second, rec.of("after")[0].at.Sub(b.began))
				servers, err := b.client.Servers(b.Context())
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
	inBubble(t, func(b *bubble) {
		var rec recorder
		var log logbook
		w := newWire(b.redis)
		b.serveOn(w, "a", rec.then(nil), log.to(), delayq.Lease(5*time.Second))
		for i := range redistest.Size(200) {
			length := 100*time.Millisecond + time.Duration(rand.Int64N(int64(20*time.Second)))
			kind := []string{"cut", "freeze", "reset"}[rand.IntN(3)]
			switch kind {
			case "cut":
				w.cut()
			case "freeze":
				w.freeze()
			case "reset":
				w.cut()
				w.mend()
			}
			b.pass(length)
			w.thaw()
			w.mend()
			b.enqueue("a", fmt.Sprint(i))
			b.pass(10 * time.Second)
			require.NotEmpty(b, rec.of(fmt.Sprint(i)), "after a %s of %v", kind, length)
		}
		require.Equal(b, len(log.with(`msg="redis away"`)), len(log.with(`msg="redis back"`)), "what went is back")
	})
}

// A thousand jobs for later stand before the one that is due. (C11, F12)
func TestDueJobIsFoundAmongLaterOnes(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		b.serve("a", rec.then(nil))
		jobs := make([]delayq.NewJob, 1000)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ProcessIn(1000*time.Hour - time.Duration(i)*time.Hour/2)}}
		}
		_, err := b.client.EnqueueBatch(b.Context(), jobs)
		require.NoError(b, err)
		b.enqueue("a", "due", delayq.ProcessIn(1234*time.Millisecond))
		b.pass(1234 * time.Millisecond)
		require.Equal(b, []string{"due"}, rec.ids())
	})
}

// A record that cannot be read, under a lease that ran out, keeps no other lapsed job from being
// run again, in its topic or another one, and its bytes are kept. (C2, I3)
func TestPoisonedLeaseStopsNoOther(t *testing.T) {
	inBubble(t, func(b *bubble) {
		ctx := b.Context()
		for _, topic := range []string{"a", "b"} {
			hand := delayq.NewHand(b.T, b.rdb, bubblePrefix, topic)
			b.enqueue(topic, "poison")
			b.enqueue(topic, "crashed")
			require.Len(b, hand.Take(2, time.Second), 2) // by a server that died
		}
		const garbage = "\xc1\xffno record at all"
		require.NoError(b, b.rdb.HSet(ctx, poolKey("a"), "poison", garbage).Err())
		var rec recorder
		serveMany(b.T, b.rdb, bubblePrefix, func(s *delayq.Server) {
			s.HandlerFunc("a", rec.then(nil))
			s.HandlerFunc("b", rec.then(nil))
		})
		b.pass(time.Second + time.Millisecond)
		require.Equal(b, map[string]int{"crashed": 2, "poison": 1}, rec.times())
		for _, s := range rec.all() {
			require.Equal(b, 2, s.attempt)
		}
		info := b.get("a", "poison")
		require.Equal(b, delayq.StateDead, info.State)
		require.Equal(b, garbage, string(info.Raw))
		require.Empty(b, b.state("b", "poison"))
	})
}

// The record and the lease of a running job are deleted by hand. Its ack finds nothing: that is in
// the log, and the server goes on. (B17)
func TestJobDeletedUnderneathIsLogged(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		var log logbook
		finish := make(chan struct{})
		b.serve("a", rec.then(func(_ context.Context, job *delayq.Job) error {
			if job.ID == "deleted" {
				<-finish
			}
			return nil
		}), log.to(), delayq.Concurrency(1))
		b.enqueue("a", "deleted")
		synctest.Wait()
		_, err := b.rdb.Pipelined(b.Context(), func(p redis.Pipeliner) error {
			p.HDel(b.Context(), poolKey("a"), "deleted")
			p.ZRem(b.Context(), bubblePrefix+":{a}:leases", "deleted")
			return nil
		})
		require.NoError(b, err)
		close(finish)
		b.pass(time.Second)
		require.NotEmpty(b, log.with("job=deleted"), "silent")
		b.enqueue("a", "next")
		synctest.Wait()
		require.Equal(b, []string{"deleted", "next"}, rec.ids())
		require.Empty(b, b.state("a", "next"))
	})
}
