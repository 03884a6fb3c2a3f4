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

// narrowRate is what the narrow links of these tests carry, in bytes a second.
const narrowRate = 100_000

// storeLarge stores jobs of so many bytes.
func (b *bubble) storeLarge(topic string, n, bytes int, opts ...delayq.JobOption) {
	b.Helper()
	var jobs []delayq.NewJob
	for i := range n {
		jobs = append(jobs, delayq.NewJob{Topic: topic, ID: fmt.Sprint(i), Payload: make([]byte, bytes), Options: opts})
	}
	_, err := b.client.EnqueueBatch(b.Context(), jobs)
	require.NoError(b, err)
}

// A backlog of which a take brings more than the link carries while the answer is waited for. All
// of it runs, once, no lease runs out, and what else the server does is done in time meanwhile.
func TestBacklogBeyondTheLink(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const jobs, bytes = 300, 20_000
		b.storeLarge("large", jobs, bytes)
		w := newWire(b.redis)
		var rec, small recorder
		var log logbook
		w.narrow(narrowRate)
		serveMany(b.T, w.client(b.T), bubblePrefix, func(s *delayq.Server) {
			s.HandlerFunc("large", rec.then(nil))
			s.HandlerFunc("small", small.then(nil))
		}, log.to())
		const least = jobs * bytes / narrowRate // seconds
		for i := range 2 * least {
			b.enqueue("small", fmt.Sprint(i), delayq.ProcessIn(500*time.Millisecond))
			b.pass(time.Second)
			if len(rec.all()) == jobs {
				break
			}
		}
		b.Logf("%d bytes for %d in %v, %d dials", w.bytes(), jobs*bytes, b.at(), w.dials())
		require.Len(b, rec.all(), jobs)
		require.LessOrEqual(b, b.at().Seconds(), least/0.8)
		require.Less(b, w.bytes(), jobs*bytes*5/4)
		for _, s := range rec.all() {
			require.Equal(b, 1, s.attempt, s.id)
		}
		require.Zero(b, b.counter("large", "reclaimed"))
		for _, s := range small.all() {
			require.Less(b, s.started.Sub(s.due), 300*time.Millisecond, "job %s of another topic is late", s.id)
		}
		require.Empty(b, log.with(`msg="redis away"`))
		require.LessOrEqual(b, w.dials(), 16, "connections that are well are kept")
	})
}

// Jobs of limited retries whose answers do not come through at once are not buried without a run.
// (A4)
func TestJobsOfASlowAnswerAreNotBuried(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const jobs = 50
		b.storeLarge("a", jobs, 20_000, delayq.Retry(0))
		w := newWire(b.redis)
		w.narrow(narrowRate)
		var rec recorder
		b.serveOn(w, "a", rec.then(nil), delayq.Concurrency(jobs), delayq.Lease(6*time.Second))
		for b.at() < time.Minute && len(rec.all()) < jobs {
			b.pass(time.Second)
		}
		b.pass(time.Second)
		require.Len(b, rec.all(), jobs)
		require.EqualValues(b, jobs, b.counter("a", "acked"))
		require.Zero(b, b.counter("a", "reclaimed"))
		require.Zero(b, b.counter("a", "buried"))
	})
}

// A payload for which a call's usual time is too short gets more. One that takes longer than most
// of a lease is put behind the others, and said in the log; no attempt is counted.
func TestPayloadBeyondTheTimeoutOfACall(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const lease = 9 * time.Second // so 6 s at most for a take
		for id, seconds := range map[string]float64{"1 slow": 4.5, "2 hopeless": 7, "3 small": 0.01} {
			_, err := b.client.Enqueue(b.Context(), "a", id, make([]byte, int(seconds*narrowRate)), delayq.Retry(0),
				delayq.ProcessIn(time.Duration(id[0]-'0')*time.Millisecond))
			require.NoError(b, err)
		}
		b.pass(10 * time.Millisecond)
		w := newWire(b.redis)
		w.narrow(narrowRate)
		var rec recorder
		var log logbook
		b.serveOn(w, "a", rec.then(nil), delayq.Concurrency(1), delayq.Lease(lease), log.to())
		b.pass(50 * time.Second)
		require.Equal(b, []string{"1 slow", "3 small"}, rec.ids())
		require.NotEmpty(b, log.with("level=ERROR", `msg="job does not arrive"`, `job="2 hopeless"`))
		require.Empty(b, log.with(`msg="redis away"`))
		require.Zero(b, b.counter("a", "reclaimed"))
		require.Equal(b, 1, b.get("a", "2 hopeless").Attempt)

		w.narrow(2 * narrowRate)
		b.pass(30 * time.Second)
		require.Equal(b, []string{"1 slow", "3 small", "2 hopeless"}, rec.ids())
	})
}

// A server stops while a large answer is on its way: the stop does not wait for it, and the jobs
// are where they were.
func TestStopDuringASlowAnswer(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.storeLarge("a", 40, 20_000)
		w := newWire(b.redis)
		w.narrow(narrowRate)
		var rec recorder
		var log logbook
		s := b.serveOn(w, "a", rec.then(nil), delayq.Concurrency(40), delayq.Drain(20*time.Second), log.to())
		b.pass(4 * time.Second)
		at := b.at()
		require.NoError(b, s.stop())
		require.LessOrEqual(b, b.at()-at, 3*time.Second)
		require.Empty(b, rec.all())
		info, err := b.client.Inspect(b.Context(), "a")
		require.NoError(b, err)
		require.Zero(b, info.Running)
		require.EqualValues(b, 40, info.Ready)
		w.heal()
		b.serve("a", rec.then(nil), delayq.Concurrency(1))
		b.pass(time.Second)
		var ids []string
		for i := range 40 {
			ids = append(ids, fmt.Sprint(i))
		}
		require.Equal(b, ids, rec.ids(), "in their order")
		require.Empty(b, log.with("handlers abandoned"))
	})
}

// Redis is silent when an idle server is stopped. The stop is over soon, and no handler is blamed,
// because there is none. No take is either: on a connection without an answer to its greeting no
// request is written, so no job can have been taken.
func TestStopWhileRedisIsSilent(t *testing.T) {
	inBubble(t, func(b *bubble) {
		w := newWire(b.redis)
		var log logbook
		s := b.serveOn(w, "a", nothing, delayq.Drain(20*time.Second), log.to())
		b.pass(time.Second)
		w.freeze()
		b.pass(9 * time.Second)
		at := b.at()
		require.NoError(b, s.stop())
		require.LessOrEqual(b, b.at()-at, 3500*time.Millisecond)
		require.Len(b, log.with("level=ERROR", `msg="redis away"`), 1)
		require.Empty(b, log.with("handlers abandoned"))
		require.Empty(b, log.with("msg=\"take"))
		w.heal()
	})
}

// Redis carries out a take, does not answer it and falls silent. The stop is over soon, and the log
// says that the job runs when its lease is over, which it does.
func TestStopWhileATakeHasNoAnswer(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const lease = 30 * time.Second
		b.loadScripts()
		w := newWire(b.redis)
		var log logbook
		s := b.serveOn(w, "a", nothing, delayq.Drain(20*time.Second), delayq.Lease(lease), log.to())
		b.pass(time.Second)
		w.lose(script("take"))
		b.enqueue("a", "1")
		taken := b.at()
		synctest.Wait()
		require.Equal(b, 1, w.losses())
		w.freeze()
		b.pass(9 * time.Second)
		at := b.at()
		require.NoError(b, s.stop())
		require.LessOrEqual(b, b.at()-at, 3500*time.Millisecond)
		require.Len(b, log.with("level=WARN", `msg="take unanswered"`, "jobs that were taken run again when their leases expire"), 1)
		require.Empty(b, log.with("handlers abandoned"))
		require.Equal(b, delayq.StateRunning, b.state("a", "1"))

		var rec recorder
		b.serve("a", rec.then(nil), delayq.Lease(lease))
		b.pass(taken + lease - time.Millisecond - b.at())
		require.Empty(b, rec.all())
		b.pass(2 * time.Second)
		require.Equal(b, []string{"1"}, rec.ids())
		w.heal()
	})
}

// The same with a handler that ends in time: it is waited for, and the take is not blamed on it.
func TestStopWaitsForHandlersApartFromTakes(t *testing.T) {
	inBubble(t, func(b *bubble) {
		w := newWire(b.redis)
		var log logbook
		ended := false
		s := b.serveOn(w, "a", func(context.Context, *delayq.Job) error {
			time.Sleep(15 * time.Second)
			ended = true
			return nil
		}, delayq.Drain(20*time.Second), delayq.Lease(time.Minute), log.to())
		b.enqueue("a", "1")
		synctest.Wait()
		w.freeze()
		b.pass(9 * time.Second)
		at := b.at()
		require.NoError(b, s.stop())
		require.True(b, ended)
		require.LessOrEqual(b, b.at()-at, 20*time.Second+500*time.Millisecond)
		require.Empty(b, log.with("handlers abandoned"))
		w.heal()
	})
}
