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
)

// narrowRate is what the narrow links of these tests carry, in bytes a second.
const narrowRate = 100_000

// storeLarge stores jobs of so many bytes.
func storeLarge(b *queuetest.Bubble, topic string, n, bytes int, opts ...delayq.JobOption) {
	b.Helper()
	var jobs []delayq.NewJob
	for i := range n {
		jobs = append(jobs, delayq.NewJob{Topic: topic, ID: fmt.Sprint(i), Payload: make([]byte, bytes), Options: opts})
	}
	_, err := b.Client.EnqueueBatch(b.Context(), jobs)
	require.NoError(b, err)
}

// A backlog of which a take brings more than the link carries while the answer is waited for. All
// of it runs, once, no lease runs out, and what else the server does is done in time meanwhile.
func TestBacklogBeyondTheLink(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const jobs, bytes = 300, 20_000
		storeLarge(b, "large", jobs, bytes)
		w := queuetest.NewWire(b.Redis)
		var rec, small queuetest.Recorder
		var log queuetest.Logbook
		w.Narrow(narrowRate)
		queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("large", rec.Then(nil))
			s.HandlerFunc("small", small.Then(nil))
		}, log.To())
		const least = jobs * bytes / narrowRate // seconds
		for i := range 2 * least {
			b.Enqueue("small", fmt.Sprint(i), delayq.ProcessIn(500*time.Millisecond))
			b.Pass(time.Second)
			if len(rec.All()) == jobs {
				break
			}
		}
		b.Logf("%d bytes for %d in %v, %d dials", w.Bytes(), jobs*bytes, b.At(), w.Dials())
		require.Len(b, rec.All(), jobs)
		require.LessOrEqual(b, b.At().Seconds(), least/0.8)
		require.Less(b, w.Bytes(), jobs*bytes*5/4)
		for _, s := range rec.All() {
			require.Equal(b, 1, s.Attempt, s.ID)
		}
		require.Zero(b, b.Counter("large", "reclaimed"))
		for _, s := range small.All() {
			require.Less(b, s.Started.Sub(s.Due), 300*time.Millisecond, "job %s of another topic is late", s.ID)
		}
		require.Empty(b, log.With(`msg="redis away"`))
		require.LessOrEqual(b, w.Dials(), 16, "connections that are well are kept")
	})
}

// Jobs of limited retries whose answers do not come through at once are not buried without a run.
// (A4)
func TestJobsOfASlowAnswerAreNotBuried(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const jobs = 50
		storeLarge(b, "a", jobs, 20_000, delayq.Retry(0))
		w := queuetest.NewWire(b.Redis)
		w.Narrow(narrowRate)
		var rec queuetest.Recorder
		b.ServeOn(w, "a", rec.Then(nil), delayq.Concurrency(jobs), delayq.Lease(6*time.Second))
		for b.At() < time.Minute && len(rec.All()) < jobs {
			b.Pass(time.Second)
		}
		b.Pass(time.Second)
		require.Len(b, rec.All(), jobs)
		require.EqualValues(b, jobs, b.Counter("a", "acked"))
		require.Zero(b, b.Counter("a", "reclaimed"))
		require.Zero(b, b.Counter("a", "buried"))
	})
}

// A payload for which a call's usual time is too short gets more. One that takes longer than most
// of a lease is put behind the others, and said in the log; no attempt is counted.
func TestPayloadBeyondTheTimeoutOfACall(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const lease = 9 * time.Second // so 6 s at most for a take
		for id, seconds := range map[string]float64{"1 slow": 4.5, "2 hopeless": 7, "3 small": 0.01} {
			_, err := b.Client.Enqueue(b.Context(), "a", id, make([]byte, int(seconds*narrowRate)), delayq.Retry(0),
				delayq.ProcessIn(time.Duration(id[0]-'0')*time.Millisecond))
			require.NoError(b, err)
		}
		b.Pass(10 * time.Millisecond)
		w := queuetest.NewWire(b.Redis)
		w.Narrow(narrowRate)
		var rec queuetest.Recorder
		var log queuetest.Logbook
		b.ServeOn(w, "a", rec.Then(nil), delayq.Concurrency(1), delayq.Lease(lease), log.To())
		b.Pass(50 * time.Second)
		require.Equal(b, []string{"1 slow", "3 small"}, rec.IDs())
		require.NotEmpty(b, log.With("level=ERROR", `msg="job does not arrive"`, `job="2 hopeless"`))
		require.Empty(b, log.With(`msg="redis away"`))
		require.Zero(b, b.Counter("a", "reclaimed"))
		require.Equal(b, 1, b.Get("a", "2 hopeless").Attempt)

		w.Narrow(2 * narrowRate)
		b.Pass(30 * time.Second)
		require.Equal(b, []string{"1 slow", "3 small", "2 hopeless"}, rec.IDs())
	})
}

// A server stops while a large answer is on its way: the stop does not wait for it, and the jobs
// are where they were.
func TestStopDuringASlowAnswer(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		storeLarge(b, "a", 40, 20_000)
		w := queuetest.NewWire(b.Redis)
		w.Narrow(narrowRate)
		var rec queuetest.Recorder
		var log queuetest.Logbook
		s := b.ServeOn(w, "a", rec.Then(nil), delayq.Concurrency(40), delayq.Drain(20*time.Second), log.To())
		b.Pass(4 * time.Second)
		at := b.At()
		require.NoError(b, s.Stop())
		require.LessOrEqual(b, b.At()-at, 3*time.Second)
		require.Empty(b, rec.All())
		info := b.Stats("a")
		require.Zero(b, info.Running)
		require.EqualValues(b, 40, info.Ready)
		w.Heal()
		b.Serve("a", rec.Then(nil), delayq.Concurrency(1))
		b.Pass(time.Second)
		var ids []string
		for i := range 40 {
			ids = append(ids, fmt.Sprint(i))
		}
		require.Equal(b, ids, rec.IDs(), "in their order")
		require.Empty(b, log.With("handlers abandoned"))
	})
}

// Redis is silent when an idle server is stopped. The stop is over soon, and no handler is blamed,
// because there is none. No take is either: on a connection without an answer to its greeting no
// request is written, so no job can have been taken.
func TestStopWhileRedisIsSilent(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		var log queuetest.Logbook
		s := b.ServeOn(w, "a", queuetest.Nothing, delayq.Drain(20*time.Second), log.To())
		b.Pass(time.Second)
		w.Freeze()
		b.Pass(9 * time.Second)
		at := b.At()
		require.NoError(b, s.Stop())
		require.LessOrEqual(b, b.At()-at, 3500*time.Millisecond)
		require.Len(b, log.With("level=ERROR", `msg="redis away"`), 1)
		require.Empty(b, log.With("handlers abandoned"))
		require.Empty(b, log.With("msg=\"take"))
		w.Heal()
	})
}

// Redis carries out a take, does not answer it and falls silent. The stop is over soon, and the log
// says that the job runs when its lease is over, which it does.
func TestStopWhileATakeHasNoAnswer(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const lease = 30 * time.Second
		b.LoadScripts()
		w := queuetest.NewWire(b.Redis)
		var log queuetest.Logbook
		s := b.ServeOn(w, "a", queuetest.Nothing, delayq.Drain(20*time.Second), delayq.Lease(lease), log.To())
		b.Pass(time.Second)
		w.Lose(queuetest.Digest("take"))
		b.Enqueue("a", "1")
		taken := b.At()
		synctest.Wait()
		require.Equal(b, 1, w.Losses())
		w.Freeze()
		b.Pass(9 * time.Second)
		at := b.At()
		require.NoError(b, s.Stop())
		require.LessOrEqual(b, b.At()-at, 3500*time.Millisecond)
		require.Len(b, log.With("level=WARN", `msg="take unanswered"`, "jobs that were taken run again when their leases expire"), 1)
		require.Empty(b, log.With("handlers abandoned"))
		require.Equal(b, delayq.StateRunning, b.State("a", "1"))

		var rec queuetest.Recorder
		b.Serve("a", rec.Then(nil), delayq.Lease(lease))
		b.Pass(taken + lease - time.Millisecond - b.At())
		require.Empty(b, rec.All())
		b.Pass(2 * time.Second)
		require.Equal(b, []string{"1"}, rec.IDs())
		w.Heal()
	})
}

// The same with a handler that ends in time: it is waited for, and the take is not blamed on it.
func TestStopWaitsForHandlersApartFromTakes(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		var log queuetest.Logbook
		ended := false
		s := b.ServeOn(w, "a", func(context.Context, *delayq.Job) error {
			time.Sleep(15 * time.Second)
			ended = true
			return nil
		}, delayq.Drain(20*time.Second), delayq.Lease(time.Minute), log.To())
		b.Enqueue("a", "1")
		synctest.Wait()
		w.Freeze()
		b.Pass(9 * time.Second)
		at := b.At()
		require.NoError(b, s.Stop())
		require.True(b, ended)
		require.LessOrEqual(b, b.At()-at, 20*time.Second+500*time.Millisecond)
		require.Empty(b, log.With("handlers abandoned"))
		w.Heal()
	})
}
