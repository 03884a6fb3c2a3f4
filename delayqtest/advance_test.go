package delayqtest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// A diary is a record of what handlers did, in order.
type diary struct {
	q     *delayqtest.TestQueue
	start time.Time

	mu    sync.Mutex
	lines []string
}

func newDiary(q *delayqtest.TestQueue) *diary { return &diary{q: q, start: q.Now()} }

// note writes down a run with the time by the clock of the queue.
func (d *diary) note(job *delayq.Job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf("%v %s.%d", d.q.Now().Sub(d.start), job.ID, job.Attempt))
}

func (d *diary) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	lines := d.lines
	d.lines = nil
	return lines
}

func enqueue(t *testing.T, q *delayqtest.TestQueue, topic, id string, in time.Duration, opts ...delayq.JobOption) {
	t.Helper()
	_, err := q.Client.Enqueue(t.Context(), topic, id, nil, append(opts, delayq.ProcessIn(in))...)
	require.NoError(t, err)
}

// handle returns a setup with one handler for several topics.
func handle(f delayq.HandlerFunc, topics ...string) func(*delayq.Server) {
	return func(s *delayq.Server) {
		for _, topic := range topics {
			s.HandlerFunc(topic, f)
		}
	}
}

func TestAdvanceRunsWhatIsDueAtItsDueTime(t *testing.T) {
	q := delayqtest.Start(t)
	d := newDiary(q)
	q.Serve(handle(func(_ context.Context, job *delayq.Job) error {
		d.note(job)
		if !q.Now().Equal(job.Due) || job.Lateness() < 0 || job.Lateness() > time.Second {
			t.Errorf("%s: due %v, started %v, clock %v", job.ID, job.Due, job.StartedAt, q.Now())
		}
		return nil
	}, "mail"))
	enqueue(t, q, "mail", "third", 24*time.Hour)
	enqueue(t, q, "mail", "first", time.Millisecond)
	enqueue(t, q, "mail", "late", 24*time.Hour+time.Millisecond)
	enqueue(t, q, "mail", "second", 23*time.Hour)

	q.Advance(24 * time.Hour)
	require.Equal(t, []string{"1ms first.1", "23h0m0s second.1", "24h0m0s third.1"}, d.take())
	require.Equal(t, d.start.Add(24*time.Hour), q.Now())
	at, err := q.Redis.Time(t.Context()).Result()
	require.NoError(t, err)
	require.True(t, at.Equal(q.Now()), "%v, %v", at, q.Now())

	enqueue(t, q, "mail", "now", 0)
	q.Advance(0)
	require.Equal(t, []string{"24h0m0s now.1"}, d.take())
	q.Advance(time.Microsecond) // counts as a millisecond
	require.Equal(t, []string{"24h0m0.001s late.1"}, d.take())
	q.AssertNone("mail")
}

func TestAdvanceRunsRetriesAndSnoozes(t *testing.T) {
	q := delayqtest.Start(t)
	d := newDiary(q)
	fails := errors.New("no")
	q.Serve(handle(func(_ context.Context, job *delayq.Job) error {
		d.note(job)
		switch {
		case job.ID == "retried" && job.Attempt < 4:
			return fails
		case job.ID == "snoozed" && q.Now().Sub(d.start) < 3*time.Hour:
			return delayq.Snooze(time.Hour)
		case job.ID == "again" && len(d.lines)%2 == 1:
			return delayq.Snooze(0)
		case job.ID == "hopeless":
			return fails
		}
		return nil
	}, "mail"))
	exact := delayq.Backoff(time.Millisecond, time.Millisecond) // too short for a random part
	enqueue(t, q, "mail", "retried", time.Minute, exact)
	q.Advance(time.Hour)
	require.Equal(t, []string{"1m0s retried.1", "1m0.001s retried.2", "1m0.002s retried.3", "1m0.003s retried.4"}, d.take())

	d.start = q.Now()
	enqueue(t, q, "mail", "snoozed", time.Hour)
	q.Advance(150 * time.Minute)
	require.Equal(t, []string{"1h0m0s snoozed.1", "2h0m0s snoozed.1"}, d.take())
	q.AssertScheduled("mail", "snoozed", d.start.Add(3*time.Hour))
	q.Advance(30 * time.Minute)
	require.Equal(t, []string{"3h0m0s snoozed.1"}, d.take())

	enqueue(t, q, "mail", "again", 0)
	q.Advance(0)
	require.Equal(t, []string{"3h0m0s again.1", "3h0m0s again.1"}, d.take())

	enqueue(t, q, "mail", "hopeless", 0, exact, delayq.Retry(1))
	q.Advance(time.Second)
	require.Len(t, d.take(), 2)
	q.AssertState("mail", "hopeless", delayq.StateDead)

	enqueue(t, q, "mail", "hopeless", 0, delayq.Replace()) // unlimited retries, the default backoff
	q.Advance(24 * time.Hour)
	require.Greater(t, len(d.take()), 25)
}

// A job that continues itself runs at each of its due times, even immediately, and Advance returns
// when the hooks have been called.
func TestAdvanceRunsWhatCarriesOn(t *testing.T) {
	q := delayqtest.Start(t)
	d := newDiary(q)
	var h carriedOn
	q.Serve(handle(func(_ context.Context, job *delayq.Job) error {
		d.note(job)
		switch string(job.Payload) {
		case "":
			return delayq.Again([]byte("at once"))
		case "at once":
			return delayq.Again([]byte("hourly"), delayq.ProcessIn(time.Hour))
		}
		return delayq.Again(job.Payload, delayq.ProcessIn(time.Hour))
	}, "mail"), delayq.Hooks(&h))
	enqueue(t, q, "mail", "digest", time.Minute)
	q.Advance(time.Minute)
	require.Equal(t, []string{"1m0s digest.1", "1m0s digest.1"}, d.take())
	q.AssertScheduled("mail", "digest", d.start.Add(time.Hour+time.Minute))
	require.EqualValues(t, 2, h.again.Load())
	for i := range int64(3) {
		q.Advance(time.Hour)
		require.Equal(t, []string{fmt.Sprintf("%dh1m0s digest.1", i+1)}, d.take())
		require.Equal(t, i+3, h.again.Load())
	}
}

type carriedOn struct{ again atomic.Int64 }

func (h *carriedOn) Again(delayq.RunEvent) { count(&h.again) }

func TestAdvanceRunsWhatHandlersEnqueue(t *testing.T) {
	q := delayqtest.Start(t)
	d := newDiary(q)
	q.Serve(handle(func(ctx context.Context, job *delayq.Job) error {
		d.note(job)
		days := 0
		_, err := fmt.Sscanf(job.ID, "day %d", &days)
		if err == nil {
			_, err = q.Client.Enqueue(ctx, job.Topic, fmt.Sprintf("day %d", days+1), nil, delayq.ProcessIn(24*time.Hour))
		}
		return err
	}, "daily"))
	enqueue(t, q, "daily", "day 0", 0)
	q.Advance(71 * time.Hour)
	require.Equal(t, []string{"0s day 0.1", "24h0m0s day 1.1", "48h0m0s day 2.1"}, d.take())
	q.AssertScheduled("daily", "day 3", d.start.Add(72*time.Hour))
}

// Advance must not miss a job that is enqueued to another topic at the same instant, in whatever
// order it inspects the topics.
func TestAdvanceFollowsJobsFromTopicToTopic(t *testing.T) {
	q := delayqtest.Start(t)
	const hops = 30
	topics := []string{"c", "a", "d", "b"}
	var runs atomic.Int64
	setup := handle(func(ctx context.Context, job *delayq.Job) error {
		n := runs.Add(1)
		if n%hops == 0 {
			return nil
		}
		_, err := q.Client.Enqueue(ctx, topics[n%4], fmt.Sprint("job ", n), nil)
		return err
	}, topics...)
	q.Serve(setup)
	q.Serve(setup)
	for i := range int64(5) {
		enqueue(t, q, "a", fmt.Sprint("round ", i), time.Hour)
		q.Advance(time.Hour)
		require.EqualValues(t, (i+1)*hops, runs.Load())
	}
}

func TestAdvanceLeavesWhatNobodyHandles(t *testing.T) {
	q := delayqtest.Start(t)
	d := newDiary(q)
	enqueue(t, q, "lonely", "a", time.Hour)
	q.Advance(2 * time.Hour) // no server at all
	stop := q.Serve(handle(func(context.Context, *delayq.Job) error { return nil }, "other"))
	q.Advance(2 * time.Hour)
	q.AssertScheduled("lonely", "a", d.start.Add(time.Hour))
	stop()

	q.Serve(handle(func(_ context.Context, job *delayq.Job) error { d.note(job); return nil }, "lonely"))
	q.Advance(0)
	require.Equal(t, []string{"4h0m0s a.1"}, d.take())
}

func TestAdvanceAcrossPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that its real time is fake too
		q := delayqtest.Start(t)
		d := newDiary(q)
		q.Serve(handle(func(_ context.Context, job *delayq.Job) error { d.note(job); return nil }, "mail"))
		ctx := t.Context()
		require.NoError(t, q.Client.Pause(ctx, "mail", delayq.Pause{For: 2 * time.Hour}))
		enqueue(t, q, "mail", "a", time.Hour)
		enqueue(t, q, "mail", "b", 3*time.Hour)
		q.Advance(90 * time.Minute)
		require.Empty(t, d.take())
		q.AssertState("mail", "a", delayq.StateReady)
		begin := time.Now()
		q.Advance(90 * time.Minute)
		require.Equal(t, []string{"2h0m0s a.1", "3h0m0s b.1"}, d.take())
		require.Less(t, time.Since(begin), 500*time.Millisecond, "the end of the pause was only noticed by the tick")

		require.NoError(t, q.Client.Pause(ctx, "mail", delayq.Pause{}))
		enqueue(t, q, "mail", "c", time.Hour)
		q.Advance(100 * time.Hour)
		require.Empty(t, d.take())
		require.NoError(t, q.Client.Resume(ctx, "mail", ""))
		q.Advance(0)
		require.Equal(t, []string{"103h0m0s c.1"}, d.take())
	})
}

// Hooks are called after Redis knows the outcome, so an Advance that looked only at Redis would
// sometimes return too early.
func TestAdvanceReturnsAfterTheHooks(t *testing.T) {
	q := delayqtest.Start(t)
	var h hooks
	q.Serve(handle(func(ctx context.Context, job *delayq.Job) error {
		switch {
		case job.ID == "bad":
			return delayq.Permanent(errors.New("no"))
		case job.ID == "slow" && job.Attempt == 1:
			return errors.New("no")
		case job.ID == "cancelled":
			_, err := q.Client.Dequeue(ctx, job.Topic, job.ID)
			<-ctx.Done()
			return err
		}
		return nil
	}, "mail"), delayq.Hooks(&h))
	for i := range int64(20) {
		enqueue(t, q, "mail", "good", 0)
		enqueue(t, q, "mail", "bad", 0, delayq.Replace())
		enqueue(t, q, "mail", "slow", 0, delayq.ExpireIn(time.Second), delayq.Backoff(time.Minute, time.Minute))
		enqueue(t, q, "mail", "cancelled", 0)
		q.Advance(0)
		require.Equal(t, [...]int64{i + 1, i + 1, i + 1, i + 1, i}, h.counts())
		q.Advance(time.Hour)
		require.Equal(t, [...]int64{i + 1, i + 1, i + 1, i + 1, i + 1}, h.counts())
	}
}

type hooks struct{ done, retried, buried, cancelled, expired atomic.Int64 }

func (h *hooks) Done(delayq.RunEvent)      { count(&h.done) }
func (h *hooks) Retried(delayq.RunEvent)   { count(&h.retried) }
func (h *hooks) Buried(delayq.RunEvent)    { count(&h.buried) }
func (h *hooks) Cancelled(delayq.RunEvent) { count(&h.cancelled) }
func (h *hooks) Expired(delayq.RunEvent)   { count(&h.expired) }

// count is slow, as a hook can be.
func count(n *atomic.Int64) {
	<-time.After(time.Millisecond)
	n.Add(1)
}

func (h *hooks) counts() [5]int64 {
	return [...]int64{h.done.Load(), h.retried.Load(), h.buried.Load(), h.cancelled.Load(), h.expired.Load()}
}

func TestAdvanceWaitsForRunningHandlers(t *testing.T) {
	q := delayqtest.Start(t)
	started, release := make(chan struct{}), make(chan struct{})
	var ended atomic.Bool
	q.Serve(handle(func(ctx context.Context, job *delayq.Job) error {
		if job.ID == "slow" {
			close(started)
			<-release
			ended.Store(true)
		} else if !ended.Load() {
			t.Error("the time has jumped while a handler ran")
		}
		return nil
	}, "mail"))
	enqueue(t, q, "mail", "slow", 0)
	enqueue(t, q, "mail", "later", time.Hour)
	<-started

	q.Limit = 50 * time.Millisecond
	before := q.Now()
	err := q.Queue.Advance(t.Context(), 2*time.Hour)
	require.ErrorContains(t, err, ` running ("slow" running attempt 1); if handlers`)
	require.ErrorContains(t, err, "after 50ms of real time")
	require.Equal(t, before, q.Now())

	// A job that was cancelled while it ran is deleted in Redis, but its handler continues.
	_, err = q.Client.Dequeue(t.Context(), "mail", "slow")
	require.NoError(t, err)
	err = q.Queue.Advance(t.Context(), 2*time.Hour)
	require.ErrorContains(t, err, "1 handlers of cancelled or replaced jobs")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, q.Queue.Advance(ctx, time.Hour), context.Canceled)

	close(release)
	q.Limit = 10 * time.Second
	q.Advance(2 * time.Hour)
	q.AssertNone("mail")
}

func TestAdvanceRefuses(t *testing.T) {
	q := delayqtest.Start(t)
	ctx := t.Context()
	require.ErrorIs(t, q.Queue.Advance(ctx, -1), delayq.ErrInvalid)
	require.ErrorIs(t, q.Queue.Advance(ctx, 101*365*24*time.Hour), delayq.ErrInvalid)

	inside := make(chan error, 1)
	q.Serve(handle(func(ctx context.Context, _ *delayq.Job) error {
		inside <- q.Queue.Advance(ctx, time.Hour)
		return nil
	}, "mail"))
	enqueue(t, q, "mail", "a", time.Second)
	q.Advance(time.Second)
	require.ErrorContains(t, <-inside, "another Advance is in progress")

	own := delayq.NewServer(q.Redis)
	own.HandlerFunc("own", func(context.Context, *delayq.Job) error { return nil })
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, own.Run(running)) })
	require.Eventually(t, func() bool {
		all, err := q.Inspector.Servers(ctx)
		return err == nil && len(all) == 2
	}, 10*time.Second, time.Millisecond)
	require.ErrorContains(t, q.Queue.Advance(ctx, time.Hour), `not started by Serve, for the topics ["own"]`)
	stop()
	wg.Wait()
	q.Advance(time.Hour)

	q.Miniredis.SetError("LOADING for a test")
	require.ErrorContains(t, q.Queue.Advance(ctx, time.Hour), "LOADING for a test")
	q.Miniredis.SetError("")
}

// If the counters of Redis are lost or changed by others, the hooks delay an Advance only briefly.
func TestAdvanceForgivesHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that its real time is fake too
		q := delayqtest.Start(t)
		own := delayq.NewServer(q.Redis)
		done := make(chan struct{})
		own.HandlerFunc("mail", func(context.Context, *delayq.Job) error { close(done); return nil })
		running, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { require.NoError(t, own.Run(running)) })
		enqueue(t, q, "mail", "a", 0)
		<-done
		stop()
		wg.Wait()

		q.Serve(handle(func(context.Context, *delayq.Job) error { return nil }, "mail"))
		q.Advance(time.Hour)
		begin := time.Now()
		q.Advance(time.Hour)
		require.Less(t, time.Since(begin), 500*time.Millisecond)
	})
}
