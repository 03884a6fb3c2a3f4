package delayqtest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

func TestNewJob(t *testing.T) {
	t.Parallel()
	payload := []byte("hello")
	fresh := delayq.NewJob{Topic: "mail", ID: "welcome-7", Payload: payload, Options: []delayq.JobOption{
		delayq.Retry(2), delayq.Header("lang", "en"), delayq.ProcessIn(time.Hour), delayq.Key("tenant-7"),
	}}
	before := time.Now().Truncate(time.Millisecond)
	job := delayqtest.NewJob(t, fresh)
	require.Equal(t, "mail welcome-7", job.Topic+" "+job.ID)
	require.Equal(t, "hello", string(job.Payload))
	require.Equal(t, map[string]string{"lang": "en"}, job.Headers)
	require.Equal(t, "tenant-7", job.Key)
	require.Equal(t, []int{1, 2, 2, 0}, []int{job.Attempt, job.Retries, job.RetriesLeft(), job.Snoozes})
	require.WithinRange(t, job.EnqueuedAt, before, time.Now())
	require.Equal(t, time.Hour, job.Due.Sub(job.EnqueuedAt))
	require.Zero(t, job.Lateness())
	require.Len(t, job.Nonce(), 8)
	require.Equal(t, job.StartedAt.Add(30*time.Second).UnixMicro(), job.Fence())
	job.Payload[0] = 'x'
	require.Equal(t, "hello", string(payload), "a payload of its own")

	next := delayqtest.NextRun(job)
	require.Equal(t, job.Nonce(), next.Nonce())
	require.Greater(t, next.Fence(), job.Fence())
	require.Equal(t, []int{1, 2}, []int{job.Attempt, next.Attempt})
	require.True(t, next.StartedAt.After(job.StartedAt))
	require.False(t, next.LastAttempt())
	require.True(t, delayqtest.NextRun(next).LastAttempt())
	next.Headers["lang"] = "de"
	require.Equal(t, "en", job.Headers["lang"])

	other := delayqtest.NewJob(t, fresh)
	require.NotEqual(t, job.Nonce(), other.Nonce(), "another enqueueing of the same ID")
	plain := delayqtest.NewJob(t, delayq.NewJob{Topic: "mail"})
	require.NotEmpty(t, plain.ID)
	require.Nil(t, plain.Headers)
	require.Equal(t, delayq.Unlimited, plain.Retries)
	require.True(t, plain.Due.Equal(plain.EnqueuedAt))
}

// NewJob returns the same job as a server passes to a handler, except the nonce, the times and the
// fence.
func TestNewJobIsLikeThatOfAServer(t *testing.T) {
	t.Parallel()
	q := delayqtest.Start(t)
	fresh := delayq.NewJob{Topic: "mail", ID: "welcome-7", Payload: []byte("hello"), Options: []delayq.JobOption{
		delayq.Retry(2), delayq.Header("lang", "en"), delayq.ProcessIn(time.Hour),
	}}
	got := make(chan delayq.Job, 1)
	q.Serve(func(server *delayq.Server) {
		server.HandlerFunc("mail", func(_ context.Context, job *delayq.Job) error {
			got <- *job
			return nil
		})
	})
	_, err := q.Client.EnqueueBatch(t.Context(), []delayq.NewJob{fresh})
	require.NoError(t, err)
	q.Advance(time.Hour)
	served, made := <-got, *delayqtest.NewJob(t, fresh)
	require.Len(t, served.Nonce(), len(made.Nonce()))
	require.Equal(t, made.RetriesLeft(), served.RetriesLeft())
	require.Equal(t, made.Due.Sub(made.EnqueuedAt), served.Due.Sub(served.EnqueuedAt))
	require.InDelta(t, 30e6, served.Fence()-served.StartedAt.UnixMicro(), 1e6, "the default lease")
	fields := func(job delayq.Job) []any {
		return []any{job.Topic, job.ID, job.Payload, job.Headers, job.Attempt, job.Retries, job.Snoozes, job.Schedule, job.Slot}
	}
	require.Equal(t, fields(served), fields(made))
}

func TestNewJobThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, fresh := range []delayq.NewJob{
		{}, {Topic: "a{b"}, {Topic: "mail", ID: string(make([]byte, 1025))}, {Topic: "mail", Options: []delayq.JobOption{delayq.Retry(-5)}},
		{Topic: "mail", Options: []delayq.JobOption{nil}},
	} {
		f := new(fakeT)
		said := f.try(func() { delayqtest.NewJob(f, fresh) })
		require.Contains(t, said, "fatal: delayqtest: new job: delayq: invalid: ")
	}
}

// RunBatch returns the outcome of each job, and the jobs cannot have another one afterwards.
func TestRunBatch(t *testing.T) {
	t.Parallel()
	var jobs []*delayq.Job
	for range 3 {
		jobs = append(jobs, delayqtest.NewJob(t, delayq.NewJob{Topic: "mail"}))
	}
	boom, own := errors.New("boom"), errors.New("own")
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "value")
	run := func(result error) []error {
		return delayqtest.RunBatch(ctx, func(ctx context.Context, got []*delayq.Job) error {
			require.Equal(t, jobs, got)
			require.Equal(t, ctx, got[0].Context())
			require.NoError(t, got[0].Err())
			require.NoError(t, got[0].Fail(own))
			require.NoError(t, got[1].Snooze(time.Minute))
			return result
		}, jobs...)
	}
	for _, result := range []error{nil, boom} {
		errs := run(result)
		require.Len(t, errs, 3)
		require.Equal(t, own, errs[0])
		d, ok := delayq.AsSnooze(errs[1])
		require.True(t, ok)
		require.Equal(t, time.Minute, d)
		require.Equal(t, result, errs[2])
		require.ErrorIs(t, jobs[2].Fail(own), delayq.ErrInvalid)
	}
	require.PanicsWithValue(t, "no", func() {
		delayqtest.RunBatch(ctx, func(context.Context, []*delayq.Job) error { panic("no") }, jobs...)
	})
	require.ErrorIs(t, jobs[0].Fail(own), delayq.ErrInvalid)
	require.ErrorContains(t, delayqtest.NextRun(jobs[0]).Fail(own), "not in a batch")
	for _, errs := range [][]error{
		delayqtest.RunBatch(ctx, nil, jobs[0]),
		delayqtest.RunBatch(ctx, func(context.Context, []*delayq.Job) error { return nil }, nil, jobs[0])[:1],
	} {
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], delayq.ErrInvalid)
	}
}

// Advance runs batches, and moves on when all their jobs have ended.
func TestAdvanceRunsBatches(t *testing.T) {
	t.Parallel()
	q := delayqtest.Start(t)
	var mu sync.Mutex
	sizes := map[time.Duration]int{}
	began := q.Now()
	q.Serve(func(s *delayq.Server) {
		require.NoError(t, s.HandleBatch("mail", func(_ context.Context, jobs []*delayq.Job) error {
			mu.Lock()
			defer mu.Unlock()
			sizes[q.Now().Sub(began)] += len(jobs)
			if jobs[0].Attempt == 1 {
				return jobs[0].Fail(delayq.RetryIn(time.Hour, errors.New("once")))
			}
			return nil
		}, delayq.BatchSize(10), delayq.Concurrency(1)))
	})
	for i := range 25 {
		_, err := q.Client.Enqueue(t.Context(), "mail", fmt.Sprint(i), nil, delayq.ProcessIn(time.Minute))
		require.NoError(t, err)
	}
	q.Advance(2 * time.Hour)
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, sizes, 2)
	require.Equal(t, 25, sizes[time.Minute])
	require.LessOrEqual(t, sizes[time.Hour+time.Minute], 25)
	require.NotZero(t, sizes[time.Hour+time.Minute])
	q.AssertNone("mail")
}

// Steps of a job without a queue are made once, and the next run goes on with them.
func TestStepsOfANewJob(t *testing.T) {
	t.Parallel()
	ran, broken := map[string]int{}, true
	handle := func(ctx context.Context, job *delayq.Job) error {
		for _, name := range []string{"pay", "mail", "pay"} {
			got, err := delayq.Step(ctx, job, name, func(_ context.Context, key string) (string, error) {
				require.Len(t, key, 32)
				if ran[name]++; name == "mail" && broken {
					return "", errors.New("down")
				}
				return name + "ed", nil
			})
			if err != nil {
				return err
			}
			require.Equal(t, name+"ed", got)
		}
		return job.Progress(2, 2, "done")
	}
	job := delayqtest.NewJob(t, delayq.NewJob{Topic: "order"})
	require.EqualError(t, handle(t.Context(), job), "down")
	broken = false
	require.NoError(t, handle(t.Context(), delayqtest.NextRun(job)))
	require.Equal(t, map[string]int{"pay": 1, "mail": 2}, ran)
	require.NoError(t, handle(t.Context(), delayqtest.NewJob(t, delayq.NewJob{Topic: "order"})))
	require.Equal(t, map[string]int{"pay": 2, "mail": 3}, ran)
}
