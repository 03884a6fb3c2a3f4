package tests

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// batchLog records the batches of handlers.
type batchLog struct {
	mu      sync.Mutex
	batches [][]string // IDs
	at      []time.Time
	now     int // running batches
	most    int
}

// then returns a batch handler that records its call and calls f. If f is nil, it succeeds.
func (l *batchLog) then(f delayq.BatchHandlerFunc) delayq.BatchHandlerFunc {
	return func(ctx context.Context, jobs []*delayq.Job) error {
		ids := make([]string, len(jobs))
		for i, job := range jobs {
			ids[i] = job.ID
		}
		l.mu.Lock()
		l.batches, l.at = append(l.batches, ids), append(l.at, time.Now())
		l.now++
		l.most = max(l.most, l.now)
		l.mu.Unlock()
		defer func() {
			l.mu.Lock()
			l.now--
			l.mu.Unlock()
		}()
		if f == nil {
			return nil
		}
		return f(ctx, jobs)
	}
}

// sizes returns how many batches have each size.
func (l *batchLog) sizes() map[int]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := make(map[int]int)
	for _, ids := range l.batches {
		n[len(ids)]++
	}
	return n
}

// all returns the batches in the order of their starts, and when they started.
func (l *batchLog) all() (batches [][]string, at []time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.batches), slices.Clone(l.at)
}

// ids returns the jobs of all batches, in the order of their starts.
func (l *batchLog) ids() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Concat(l.batches...)
}

// busiest returns how many batches have run at a time.
func (l *batchLog) busiest() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most
}

// lasting returns a batch handler that takes d.
func lasting(d time.Duration) delayq.BatchHandlerFunc {
	return func(context.Context, []*delayq.Job) error {
		time.Sleep(d)
		return nil
	}
}

// serveBatches runs a server with one batch handler.
func serveBatches(b *queuetest.Bubble, f delayq.BatchHandlerFunc, size, workers int, opts ...delayq.ServerOption) *queuetest.Running {
	b.Helper()
	s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
		require.NoError(b, s.HandleBatch("a", f, delayq.BatchSize(size), delayq.Concurrency(workers)))
	}, opts...)
	synctest.Wait()
	return s
}

// runLog records what RunHook and EndedHook receive, beside the other hooks.
type runLog struct {
	queuetest.HookLog
	began, closed, ended []delayq.RunEvent // guarded by Mu
}

func (l *runLog) Run(_ context.Context, e delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
	l.add(&l.began, e)
	return nil, func(e delayq.RunEvent) { l.add(&l.closed, e) }
}

func (l *runLog) Ended(e delayq.RunEvent) { l.add(&l.ended, e) }

func (l *runLog) add(to *[]delayq.RunEvent, e delayq.RunEvent) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	*to = append(*to, e)
}

// outcomes returns the outcome of each run that has ended. None ended twice.
func (l *runLog) outcomes(t *testing.T) map[string]delayq.Outcome {
	t.Helper()
	l.Mu.Lock()
	defer l.Mu.Unlock()
	found := make(map[string]delayq.Outcome)
	for _, e := range l.ended {
		require.NotContains(t, found, e.ID)
		found[e.ID] = e.Outcome
	}
	require.Equal(t, len(l.began), len(l.closed), "each RunHook is closed")
	return found
}

// stock enqueues n jobs, whose IDs are in order.
func stock(b *queuetest.Bubble, n int, opts ...delayq.JobOption) {
	b.Helper()
	jobs := make([]delayq.NewJob, n)
	for i := range jobs {
		jobs[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprintf("%05d", i), Options: opts}
	}
	_, err := b.Client.EnqueueBatch(b.Context(), jobs)
	require.NoError(b, err)
}

// A backlog runs in full batches, as many at a time as there are workers, whether the handlers are
// long or short, and each job once. So do batches that need several takes.
func TestBatchesOfABacklogAreFull(t *testing.T) {
	for _, c := range []struct {
		jobs, size, workers int
		length              time.Duration
	}{
		{1000, 10, 4, time.Second},
		{1000, 10, 4, 5 * time.Millisecond},
		{1000, 10, 4, 100 * time.Microsecond},
		{1000, 10, 4, 0},
		{1000, 1000, 1, time.Second},
		{3000, 1000, 2, time.Second},
		{3000, 600, 1, time.Millisecond},
		{1920, 64, 10, time.Second},
		{1920, 64, 10, 0},
		{300, 1, 3, time.Second},
	} {
		for _, limited := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d by %d, %d workers, %v, limited %v", c.jobs, c.size, c.workers, c.length, limited), func(t *testing.T) {
				queuetest.InBubble(t, func(b *queuetest.Bubble) {
					var l batchLog
					var opts []delayq.JobOption
					if limited {
						opts = append(opts, delayq.Retry(3))
					}
					stock(b, c.jobs, opts...)
					serveBatches(b, l.then(lasting(c.length)), c.size, c.workers)
					b.Pass(2 * time.Minute)
					ids := l.ids()
					slices.Sort(ids)
					require.Len(b, ids, c.jobs, "starts")
					require.Len(b, slices.Compact(ids), c.jobs, "jobs")
					require.Equal(b, map[int]int{c.size: c.jobs / c.size}, l.sizes())
					_, at := l.all()
					most := l.busiest()
					if c.length == time.Second {
						require.Equal(b, min(c.workers, c.jobs/c.size), most, "at a time")
						require.Equal(b, time.Duration((c.jobs/c.size-1)/c.workers)*time.Second, at[len(at)-1].Sub(at[0]), "no worker was idle")
					}
					require.LessOrEqual(b, most, c.workers)
					require.EqualValues(b, c.jobs, b.Counter("a", delayq.CounterAcked))
					require.Zero(b, b.Counter("a", delayq.CounterReturned))
				})
			})
		}
	}
}

// A job that comes alone starts at once, also beside a batch that runs, and with as many jobs as
// are there.
func TestBatchDoesNotWait(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var l batchLog
		serveBatches(b, l.then(lasting(time.Second)), 100, 2)
		b.Pass(10 * time.Second)
		for i := range 2 {
			began := time.Now()
			b.Enqueue("a", fmt.Sprint("lone", i))
			synctest.Wait()
			_, at := l.all()
			require.Len(b, at, i+1)
			require.Equal(b, began, at[i])
		}
		b.Enqueue("a", "later1") // both workers are busy
		b.Enqueue("a", "later2")
		b.Pass(900 * time.Millisecond)
		require.Equal(b, map[int]int{1: 2}, l.sizes())
		b.Pass(200 * time.Millisecond)
		batches, at := l.all()
		require.Equal(b, [][]string{{"lone0"}, {"lone1"}, {"later1", "later2"}}, batches)
		require.Equal(b, at[0].Add(time.Second), at[2])
	})
}

// Jobs in hand do not wait long for others when Redis falls silent.
func TestBatchStartsWhenRedisIsSilent(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var l batchLog
		stock(b, 600)
		w := queuetest.NewWire(b.Redis)
		b.LoadScripts()
		var takes atomic.Int32
		hook := queuetest.OnScript(func(e delayq.ScriptEvent) {
			if e.Name == "take" && e.Err == nil {
				if takes.Add(1) == 1 {
					w.Freeze()
				}
			}
		})
		queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
			s.HandleBatch("a", l.then(nil), delayq.BatchSize(1000), delayq.Concurrency(1))
		}, delayq.Hooks(hook))
		b.Pass(200 * time.Millisecond)
		require.Equal(b, map[int]int{500: 1}, l.sizes())
		w.Thaw()
		b.Pass(time.Minute)
		require.Equal(b, map[int]int{500: 1, 100: 1}, l.sizes())
	})
}

// Each job has its own outcome, and an error is that of all others.
func TestBatchOutcomes(t *testing.T) {
	boom := errors.New("boom")
	own := func(t *testing.T, jobs []*delayq.Job) {
		require.Len(t, jobs, 8)
		require.NoError(t, jobs[0].Fail(errors.New("own")))
		require.NoError(t, jobs[1].Snooze(time.Minute))
		require.NoError(t, jobs[2].Permanent(errors.New("never")))
		require.NoError(t, jobs[3].Fail(nil))
		require.NoError(t, jobs[4].Fail(delayq.RetryIn(time.Hour, errors.New("later"))))
		require.NoError(t, jobs[5].Fail(delayq.Again([]byte("next"), delayq.ProcessIn(time.Hour))))
		require.NoError(t, jobs[6].Fail(boom))
		require.NoError(t, jobs[6].Permanent(errors.New("the last one counts")))
	}
	for name, c := range map[string]struct {
		end  func() error
		rest delayq.Outcome // of the job without an outcome of its own
		kind delayq.ErrorKind
	}{
		"nil":       {func() error { return nil }, delayq.OutcomeAcked, ""},
		"error":     {func() error { return boom }, delayq.OutcomeRetried, delayq.KindError},
		"permanent": {func() error { return delayq.Permanent(boom) }, delayq.OutcomeBuried, delayq.KindError},
		"snooze":    {func() error { return delayq.Snooze(time.Hour) }, delayq.OutcomeSnoozed, ""},
		"hold":      {func() error { return delayq.Hold(time.Hour) }, delayq.OutcomeHeld, ""},
		"panic":     {func() error { panic("no") }, delayq.OutcomeRetried, delayq.KindPanic},
		"goexit":    {func() error { runtime.Goexit(); return nil }, delayq.OutcomeRetried, delayq.KindGoexit},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var hooks runLog
				stock(b, 8)
				first := true
				serveBatches(b, func(_ context.Context, jobs []*delayq.Job) error {
					if !first {
						return nil
					}
					first = false
					own(b.T, jobs)
					return c.end()
				}, 10, 1, delayq.Hooks(&hooks))
				b.Pass(time.Second)
				require.Equal(b, map[string]delayq.Outcome{
					"00000": delayq.OutcomeRetried, "00001": delayq.OutcomeSnoozed, "00002": delayq.OutcomeBuried, "00003": delayq.OutcomeAcked,
					"00004": delayq.OutcomeRetried, "00005": delayq.OutcomeAgain, "00006": delayq.OutcomeBuried, "00007": c.rest,
				}, hooks.outcomes(b.T))
				require.Len(b, hooks.Of("Started"), 8)
				require.Len(b, hooks.began, 8)
				require.Equal(b, "own", b.Get("a", "00000").Errors[0].Message)
				require.Equal(b, "never", b.Get("a", "00002").Errors[0].Message)
				require.Equal(b, "the last one counts", b.Get("a", "00006").Errors[0].Message)
				require.Equal(b, "next", string(b.Get("a", "00005").Payload))
				require.Equal(b, 1, b.Get("a", "00001").Snoozes)
				if c.kind != "" {
					require.Equal(b, c.kind, b.Get("a", "00007").Errors[0].Kind)
				}
				if c.rest == delayq.OutcomeHeld {
					require.False(b, b.Stats("a").HeldUntil.IsZero())
				}
			})
		})
	}
}

// A call after the handler has returned has no effect. Neither has one on a job outside a batch.
func TestBatchOutcomeTooLate(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var kept []*delayq.Job
		stock(b, 3)
		serveBatches(b, func(_ context.Context, jobs []*delayq.Job) error {
			kept = append(kept, jobs...)
			return delayq.Snooze(time.Hour)
		}, 3, 1)
		b.Pass(time.Millisecond)
		require.Len(b, kept, 3)
		for _, err := range []error{kept[0].Fail(errors.New("x")), kept[1].Permanent(errors.New("x")), kept[2].Snooze(time.Second)} {
			require.ErrorIs(b, err, delayq.ErrInvalid)
			require.ErrorContains(b, err, "has returned")
		}
		b.Pass(time.Second)
		require.EqualValues(b, 3, b.Counter("a", delayq.CounterSnoozed))
		require.Zero(b, b.Counter("a", delayq.CounterRetried)+b.Counter("a", delayq.CounterBuried))

		errs := make(chan error, 5)
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("single", func(ctx context.Context, job *delayq.Job) error {
				errs <- job.Fail(errors.New("x"))
				errs <- job.Snooze(time.Second)
				errs <- job.Permanent(errors.New("x"))
				require.NoError(b, job.Err())
				require.Equal(b, context.Background(), job.Context())
				return nil
			})
		})
		b.Enqueue("single", "1")
		b.Pass(time.Second)
		for range 3 {
			err := <-errs
			require.ErrorIs(b, err, delayq.ErrInvalid)
			require.ErrorContains(b, err, `topic "single" job "1": `)
			require.ErrorContains(b, err, "not in a batch")
		}
		require.EqualValues(b, 1, b.Counter("single", delayq.CounterAcked))
		require.ErrorIs(b, (*delayq.Job)(nil).Fail(nil), delayq.ErrInvalid)
		require.NoError(b, (*delayq.Job)(nil).Err())
	})
}

// A member that is cancelled or replaced says so, and its outcome is dropped. The context goes on
// until the last one is lost.
func TestBatchMembersAreLost(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks runLog
		stock(b, 4)
		var ctx context.Context
		var jobs []*delayq.Job
		end := make(chan error)
		serveBatches(b, func(c context.Context, list []*delayq.Job) error {
			ctx, jobs = c, list
			return <-end
		}, 4, 1, delayq.Hooks(&hooks))
		b.Pass(time.Second)
		require.Len(b, jobs, 4)
		cancel := func(i int) {
			_, err := b.Client.Dequeue(b.Context(), "a", jobs[i].ID)
			require.NoError(b, err)
			synctest.Wait()
			require.ErrorIs(b, jobs[i].Err(), delayq.ErrCancelled)
			require.ErrorIs(b, context.Cause(jobs[i].Context()), delayq.ErrCancelled)
		}
		cancel(1)
		require.NoError(b, jobs[1].Permanent(errors.New("dropped")))
		_, err := b.Client.Enqueue(b.Context(), "a", jobs[2].ID, nil, delayq.Replace(), delayq.ProcessIn(time.Hour))
		require.NoError(b, err)
		synctest.Wait()
		require.ErrorIs(b, jobs[2].Err(), delayq.ErrReplaced)
		require.NoError(b, ctx.Err(), "others are left")
		require.NoError(b, jobs[0].Err())
		require.NoError(b, jobs[0].Context().Err())
		cancel(0)
		require.NoError(b, ctx.Err())
		cancel(3)
		require.ErrorIs(b, context.Cause(ctx), delayq.ErrCancelled)
		require.Empty(b, hooks.ended, "the handler goes on")
		end <- errors.New("dropped")
		b.Pass(time.Second)
		require.Len(b, hooks.Of("Cancelled"), 3)
		require.Len(b, hooks.Of("Replaced"), 1)
		require.Zero(b, b.Counter("a", delayq.CounterBuried)+b.Counter("a", delayq.CounterRetried))
		require.Equal(b, delayq.StateScheduled, b.State("a", jobs[2].ID))
	})
}

// Leases of a batch are extended job by job, and a job whose lease is lost does not end the others.
func TestBatchLeases(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks runLog
		var l batchLog
		stock(b, 3)
		var first atomic.Bool
		got, end := make(chan []*delayq.Job, 1), make(chan bool)
		serveBatches(b, l.then(func(_ context.Context, list []*delayq.Job) error {
			if !first.Swap(true) {
				got <- list
				<-end
			}
			return nil
		}), 3, 1, delayq.Lease(2*time.Second), delayq.Hooks(&hooks))
		jobs := <-got
		fence := jobs[0].Fence()
		b.Pass(time.Minute)
		require.Greater(b, jobs[0].Fence(), fence)
		// as if another server had it
		require.NoError(b, b.RDB.ZRem(b.Context(), strings.ReplaceAll(queuetest.PoolKey("a"), ":pool", ":leases"), jobs[1].ID).Err())
		b.Pass(2 * time.Second)
		require.ErrorIs(b, jobs[1].Err(), delayq.ErrLeaseLost)
		require.NoError(b, jobs[0].Err())
		close(end)
		b.Pass(time.Minute)
		require.Len(b, hooks.Of("LeaseLost"), 1)
		require.Len(b, hooks.Of("LeaseLost", jobs[1].ID), 1)
		batches, _ := l.all()
		require.Equal(b, [][]string{{"00000", "00001", "00002"}, {"00001"}}, batches, "the lost one is run again")
		require.EqualValues(b, 3, b.Counter("a", delayq.CounterAcked))
	})
}

// The deadline of a batch is the earliest of its members. An outcome given before counts as it is.
func TestBatchTimeout(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Enqueue("a", "long", delayq.Timeout(time.Hour))
		b.Enqueue("a", "none")
		b.Enqueue("a", "short", delayq.Timeout(3*time.Second))
		began, first := time.Now(), true
		serveBatches(b, func(ctx context.Context, jobs []*delayq.Job) error {
			if !first {
				return nil
			}
			first = false
			require.Len(b, jobs, 3)
			by, ok := ctx.Deadline()
			require.True(b, ok)
			require.Equal(b, began.Add(3*time.Second), by)
			require.NoError(b, jobs[0].Fail(errors.New("early")))
			<-jobs[1].Context().Done()
			require.ErrorIs(b, context.Cause(ctx), delayq.ErrTimeout)
			require.NoError(b, jobs[1].Err(), "the job still belongs to the batch")
			return ctx.Err()
		}, 3, 1)
		b.Pass(4 * time.Second)
		require.Equal(b, delayq.KindError, b.Get("a", "long").Errors[0].Kind)
		require.Equal(b, delayq.KindTimeout, b.Get("a", "none").Errors[0].Kind)
		require.Equal(b, delayq.KindTimeout, b.Get("a", "short").Errors[0].Kind)
	})
}

// A stop lets a batch finish. Once its Drain is over, jobs without an outcome go back. So do all
// jobs of a handler that does not return.
func TestBatchDrain(t *testing.T) {
	for name, c := range map[string]struct {
		length   time.Duration // of the handler, or until its context is done
		deaf     bool          // it ignores its context
		returned int64
	}{
		"in time":  {500 * time.Millisecond, false, 0},
		"too long": {time.Hour, false, 4},
		"deaf":     {5 * time.Second, true, 5},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var hooks runLog
				stock(b, 5)
				s := serveBatches(b, func(ctx context.Context, jobs []*delayq.Job) error {
					require.NoError(b, jobs[0].Permanent(errors.New("own")))
					if c.deaf {
						time.Sleep(c.length)
						return nil
					}
					select {
					case <-time.After(c.length):
						return nil
					case <-ctx.Done():
						require.ErrorIs(b, context.Cause(ctx), delayq.ErrShutdown)
						require.NoError(b, jobs[1].Err())
						return ctx.Err()
					}
				}, 5, 1, delayq.Drain(time.Second), delayq.Hooks(&hooks))
				b.Pass(10 * time.Millisecond)
				require.NoError(b, s.Stop())
				require.Equal(b, c.returned, b.Counter("a", delayq.CounterReturned))
				require.EqualValues(b, 5, b.Stats("a").Ready+b.Counter("a", delayq.CounterAcked)+b.Stats("a").Dead)
				require.Zero(b, b.Stats("a").Running)
				require.Len(b, hooks.outcomes(b.T), 5)
				b.Pass(10 * time.Second)
				if c.deaf {
					require.Len(b, hooks.Of("Late"), 5)
				}
			})
		})
	}
}

// A limit of running jobs counts jobs, so batches can be smaller than their size.
func TestBatchUnderALimit(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var l batchLog
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: 7}))
		stock(b, 70)
		serveBatches(b, l.then(lasting(time.Second)), 5, 4)
		for range 9 {
			b.Pass(100 * time.Millisecond)
			require.EqualValues(b, 7, b.Stats("a").Running)
		}
		b.Pass(time.Minute)
		require.Len(b, l.ids(), 70)
		require.Equal(b, map[int]int{5: 10, 2: 10}, l.sizes())
	})
}

// Jobs with limited retries are taken for the places of batches that can start, and no others.
func TestBatchTakesLimitedRetriesForPlaces(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var l batchLog
		stock(b, 500, delayq.Retry(1))
		end := make(chan bool)
		serveBatches(b, l.then(func(context.Context, []*delayq.Job) error {
			<-end
			return nil
		}), 10, 3)
		b.Pass(5 * time.Second)
		require.EqualValues(b, 30, b.Stats("a").Running)
		require.Equal(b, map[int]int{10: 3}, l.sizes())
		close(end)
		for b.Stats("a").Ready > 0 {
			b.Pass(time.Microsecond)
			require.LessOrEqual(b, b.Stats("a").Running, int64(60), "30 more, and outcomes on the way")
		}
	})
}

// A handler that replaces the job of its own batch goes on.
func TestBatchReplacesItsOwnJob(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		stock(b, 3)
		first := true
		serveBatches(b, func(ctx context.Context, jobs []*delayq.Job) error {
			if !first {
				return nil
			}
			first = false
			for i, c := range []context.Context{ctx, jobs[1].Context()} {
				_, err := b.Client.Enqueue(c, "a", jobs[i].ID, []byte("new"), delayq.Replace(), delayq.ProcessIn(time.Hour))
				require.NoError(b, err)
				time.Sleep(time.Second)
				require.NoError(b, ctx.Err())
				require.NoError(b, jobs[i].Context().Err())
			}
			_, err := b.Client.Dequeue(b.Context(), "a", jobs[2].ID)
			require.NoError(b, err)
			time.Sleep(time.Second)
			require.ErrorIs(b, jobs[2].Err(), delayq.ErrCancelled)
			require.NoError(b, ctx.Err(), "the own jobs count as kept")
			return nil
		}, 3, 1)
		b.Pass(10 * time.Second)
		require.EqualValues(b, 2, b.Stats("a").Scheduled)
		require.Zero(b, b.Counter("a", delayq.CounterAcked))
	})
}

// Context returns what a RunHook has made of the context of a job. With it, SetTraceParent is about
// that job, and with the context of the batch about all jobs.
func TestBatchContexts(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		stock(b, 3)
		serveBatches(b, func(ctx context.Context, jobs []*delayq.Job) error {
			require.Nil(b, ctx.Value(tagKey{}))
			require.NoError(b, delayq.SetTraceParent(ctx, "all"))
			require.NoError(b, delayq.SetTraceParent(jobs[1].Context(), "one"))
			for _, job := range jobs {
				require.Equal(b, "tag of "+job.ID, job.Context().Value(tagKey{}))
			}
			return delayq.Permanent(errors.New("x"))
		}, 3, 1, delayq.Hooks(tagger{}))
		b.Pass(time.Second)
		var traces []string
		for i := range 3 {
			traces = append(traces, b.Get("a", fmt.Sprintf("%05d", i)).Errors[0].TraceParent)
		}
		require.Equal(b, []string{"all", "one", "all"}, traces)
	})
}

type tagKey struct{}

type tagger struct{}

func (tagger) Run(ctx context.Context, e delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
	return context.WithValue(ctx, tagKey{}, "tag of "+e.ID), nil
}

// Servers and Stats say what the workers of a batch handler are, and Explain when they are busy.
func TestBatchInStats(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		stock(b, 33)
		s := serveBatches(b, lasting(time.Minute), 10, 3)
		b.Pass(10 * time.Second)
		stats := b.Stats("a")
		require.Equal(b, []int{1, 3, 30}, []int{stats.Servers, stats.Workers, stats.Capacity})
		require.EqualValues(b, 30, stats.Running)
		servers, err := b.Inspector.Servers(b.Context())
		require.NoError(b, err)
		status := servers[0].Topics["a"]
		require.Equal(b, []int{3, 3, 10}, []int{status.Workers, status.Running, status.BatchSize})
		health := s.Health().Topics[0]
		require.Equal(b, []int{3, 3, 30}, []int{health.Workers, health.Running, health.Held})
		explained := func() []delayq.ReasonCode {
			why, err := b.Inspector.Explain(b.Context(), "a", "00032")
			require.NoError(b, err)
			var codes []delayq.ReasonCode
			for _, r := range why.Reasons {
				codes = append(codes, r.Code)
			}
			return codes
		}
		require.Contains(b, explained(), delayq.ReasonAllBusy)
		for i := range 25 { // the batches that run are no longer full
			_, err := b.Client.Dequeue(b.Context(), "a", fmt.Sprintf("%05d", i))
			require.NoError(b, err)
		}
		b.Pass(10 * time.Second)
		require.Contains(b, explained(), delayq.ReasonAllBusy, "a part of a batch occupies its worker")
		b.Pass(2 * time.Minute)
	})
}

// Typed topics decode the payloads, and retry what they cannot decode.
func TestBatchOfATypedTopic(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		topic := delayq.NewTopic[int]("a", delayq.JSON)
		for i := range 3 {
			_, err := topic.Enqueue(b.Context(), b.Client, fmt.Sprint(i), i*i)
			require.NoError(b, err)
		}
		often := delayq.Backoff(time.Second, time.Second)
		b.Enqueue("a", "bad", often)
		got := map[string]int{}
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, topic.HandleBatch(s, func(_ context.Context, jobs []*delayq.Job, values []int) error {
				for i, job := range jobs {
					got[job.ID] = values[i]
				}
				return nil
			}))
		})
		b.Pass(time.Second)
		b.Enqueue("a", "worse", often) // alone, so that the function is not called
		b.Pass(time.Second)
		require.Equal(b, map[string]int{"0": 0, "1": 1, "2": 4}, got)
		require.Equal(b, delayq.StateScheduled, b.State("a", "bad"))
		require.Equal(b, delayq.StateScheduled, b.State("a", "worse"))
		b.Pass(time.Minute)
		require.Equal(b, 12, b.Get("a", "bad").Attempt)
		require.Equal(b, delayq.StateDead, b.State("a", "bad"))
		require.Equal(b, delayq.StateDead, b.State("a", "worse"))
		require.EqualValues(b, 3, b.Counter("a", delayq.CounterAcked))
	})
}

// Middleware of batches wraps batch handlers and no others, and the first one is the outermost.
func TestBatchMiddleware(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var mu sync.Mutex
		var calls []string
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, what)
		}
		around := func(name string) delayq.BatchMiddleware {
			return func(f delayq.BatchHandlerFunc) delayq.BatchHandlerFunc {
				return func(ctx context.Context, jobs []*delayq.Job) error {
					note(name)
					return f(ctx, jobs)
				}
			}
		}
		s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.UseBatch(around("outer"), around("inner"))
			s.Use(func(h delayq.Handler) delayq.Handler {
				return delayq.HandlerFunc(func(ctx context.Context, job *delayq.Job) error {
					note("single")
					return h.Handle(ctx, job)
				})
			})
			s.HandleBatch("a", func(context.Context, []*delayq.Job) error { note("a"); return nil })
			s.HandleBatch("p.*", func(context.Context, []*delayq.Job) error { note("p"); return nil })
			s.HandlerFunc("b", func(context.Context, *delayq.Job) error { note("b"); return nil })
		})
		b.Pass(time.Second)
		expect := func(topic string, want ...string) {
			b.Enqueue(topic, "1")
			b.Pass(10 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			require.Equal(b, want, calls)
			calls = nil
		}
		expect("a", "outer", "inner", "a")
		expect("b", "single", "b")
		expect("p.1", "outer", "inner", "p")
		require.NoError(b, s.HandleBatch("late", func(context.Context, []*delayq.Job) error { note("late"); return nil }))
		expect("late", "outer", "inner", "late")
	})
}

// Bad arguments are errors of HandleBatch and of Run, and set nothing.
func TestBatchInvalid(t *testing.T) {
	good := func(context.Context, []*delayq.Job) error { return nil }
	nowhere := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer nowhere.Close()
	for want, set := range map[string]func(*delayq.Server) error{
		"BatchSize(0): must be from 1 to 1000":    func(s *delayq.Server) error { return s.HandleBatch("a", good, delayq.BatchSize(0)) },
		"BatchSize(-1): must be from 1 to 1000":   func(s *delayq.Server) error { return s.HandleBatch("a", good, delayq.BatchSize(-1)) },
		"BatchSize(1001): must be from 1 to 1000": func(s *delayq.Server) error { return s.HandleBatch("a", good, delayq.BatchSize(1001)) },
		"BatchSize is for HandleBatch":            func(s *delayq.Server) error { return s.HandlerFunc("a", queuetest.Nothing, delayq.BatchSize(5)) },
		"BatchSize(1000) and Concurrency(101): at most 100000": func(s *delayq.Server) error {
			return s.HandleBatch("a", good, delayq.BatchSize(1000), delayq.Concurrency(101))
		},
		"BatchSize(100) and Concurrency(10000): at most 100000": func(s *delayq.Server) error { return s.HandleBatch("a", good, delayq.Concurrency(10_000)) },
		"nil handler": func(s *delayq.Server) error { return s.HandleBatch("a", nil) },
		`topic "": `:  func(s *delayq.Server) error { return s.HandleBatch("", good) },
		"handler of topic \"b\": delayq: invalid: handler already set": func(s *delayq.Server) error {
			s.HandlerFunc("b", queuetest.Nothing)
			return s.HandleBatch("b", good)
		},
		"handler of topic \"c\": delayq: invalid: handler already set": func(s *delayq.Server) error {
			s.HandleBatch("c", good)
			return s.HandlerFunc("c", queuetest.Nothing)
		},
		"nil handler ": func(s *delayq.Server) error { return delayq.NewTopic[int]("a").HandleBatch(s, nil) },
		"nil batch middleware": func(s *delayq.Server) error {
			s.HandleBatch("a", good)
			s.UseBatch(nil)
			return nil
		},
		"a batch middleware returned a nil handler": func(s *delayq.Server) error {
			s.UseBatch(func(delayq.BatchHandlerFunc) delayq.BatchHandlerFunc { return nil })
			return s.HandleBatch("a", good)
		},
	} {
		t.Run(want, func(t *testing.T) {
			s := delayq.NewServer(nowhere)
			want := strings.TrimSpace(want)
			if err := set(s); err != nil {
				require.ErrorIs(t, err, delayq.ErrInvalid)
				require.ErrorContains(t, err, want)
			}
			err := s.Run(t.Context())
			require.ErrorIs(t, err, delayq.ErrInvalid)
			require.ErrorContains(t, err, want)
		})
	}
	require.ErrorIs(t, (*delayq.Server)(nil).HandleBatch("a", good), delayq.ErrInvalid)
	require.ErrorIs(t, new(delayq.Server).HandleBatch("a", good), delayq.ErrInvalid)
	(*delayq.Server)(nil).UseBatch(nil)
}
