package delayqtest_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// Whatever makes a job wait, Advance moves the clock to the instant at which the job can start. The
// handler notes each run, and then does what the test says.
func TestAdvanceKnowsWhatJobsWaitFor(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		topic  string // default: a
		opts   []delayq.HandlerOption
		server []delayq.ServerOption
		do     func(*delayq.Job) error
		setUp  func(t *testing.T, q *delayqtest.TestQueue)
		rest   func(t *testing.T, q *delayqtest.TestQueue) // after an hour
		want   []string                                    // the runs of an hour
		later  []string                                    // the runs after rest
	}{
		"rate of a topic": {
			setUp: limited(delayq.Limits{Rate: delayq.Per(1, 10*time.Minute)}, "1", "2", "3"),
			want:  []string{"0s 1.1", "10m0s 2.1", "20m0s 3.1"},
		},
		"rate of a key": {
			setUp: limited(delayq.Limits{RatePerKey: delayq.Per(1, 10*time.Minute)}, "1 x", "2 x", "3 y"),
			want:  []string{"0s 1.1", "0s 3.1", "10m0s 2.1"},
		},
		"hold of a topic": {
			do:    once(delayq.Hold(5 * time.Minute)),
			setUp: limited(delayq.Limits{Running: 1}, "1", "2"),
			want:  []string{"0s 1.1", "5m0s 1.1", "5m0s 2.1"},
		},
		"hold by a client": {
			setUp: func(t *testing.T, q *delayqtest.TestQueue) {
				require.NoError(t, q.Client.Hold(t.Context(), "a", 7*time.Minute, "the API is away"))
				enqueue(t, q, "a", "1", 0)
			},
			want: []string{"7m0s 1.1"},
		},
		"hold of a key": {
			setUp: func(t *testing.T, q *delayqtest.TestQueue) {
				require.NoError(t, q.Client.HoldKey(t.Context(), "a", "x", 7*time.Minute))
				enqueue(t, q, "a", "1", 0, delayq.Key("x"))
				enqueue(t, q, "a", "2", 0, delayq.Key("y"))
			},
			want: []string{"0s 2.1", "7m0s 1.1"},
		},
		"pause of a key": {
			setUp: func(t *testing.T, q *delayqtest.TestQueue) {
				require.NoError(t, q.Client.PauseKey(t.Context(), "a", "x"))
				enqueue(t, q, "a", "1", 0, delayq.Key("x"))
			},
			rest: func(t *testing.T, q *delayqtest.TestQueue) {
				require.NoError(t, q.Client.ResumeKey(t.Context(), "a", "x"))
			},
			later: []string{"1h0m0s 1.1"},
		},
		"pause of a topic": {
			setUp: func(t *testing.T, q *delayqtest.TestQueue) {
				require.NoError(t, q.Client.Pause(t.Context(), "a", delayq.Pause{By: "ops", For: 20 * time.Minute}))
				enqueue(t, q, "a", "1", 0)
			},
			want: []string{"20m0s 1.1"},
		},
		"order behind a retry": {
			do:    once(delayq.RetryIn(time.Minute, refused)),
			setUp: limited(delayq.Limits{Ordered: true}, "1 x", "2 x", "3 y"),
			want:  []string{"0s 1.1", "0s 3.1", "1m0s 1.2", "1m0s 2.1"},
		},
		"a key that a dead job halts": {
			do:    once(delayq.Permanent(refused)),
			setUp: limited(delayq.Limits{Ordered: true, OnDead: delayq.HaltKey}, "1 x", "2 x"),
			want:  []string{"0s 1.1"},
			rest: func(t *testing.T, q *delayqtest.TestQueue) {
				_, err := q.Client.Dequeue(t.Context(), "a", "1")
				require.NoError(t, err)
			},
			later: []string{"1h0m0s 2.1"},
		},
		"a batch that is gathered": {
			opts:  []delayq.HandlerOption{delayq.Gather(delayq.GatherWindow{Size: 10, Wait: 3 * time.Minute})},
			setUp: limited(delayq.Limits{}, "1", "2"),
			want:  []string{"3m0s 1.1", "3m0s 2.1"},
		},
		"batches that are gathered by key": {
			opts:  []delayq.HandlerOption{delayq.Gather(delayq.GatherWindow{Size: 2, Wait: 3 * time.Minute, ByKey: true})},
			setUp: limited(delayq.Limits{}, "1 x", "2 y", "3 y"),
			want:  []string{"0s 2.1", "0s 3.1", "3m0s 1.1"},
		},
		"a topic of a pattern": {
			topic: "tenant.*",
			setUp: func(t *testing.T, q *delayqtest.TestQueue) {
				enqueue(t, q, "tenant.1", "1", 0)
				enqueue(t, q, "tenant.2", "2", time.Minute)
			},
			want: []string{"0s 1.1", "1m0s 2.1"},
		},
		"a topic of a pool": {
			opts:   []delayq.HandlerOption{delayq.InPool("small")},
			server: []delayq.ServerOption{delayq.Pool("small", 1)},
			setUp:  limited(delayq.Limits{}, "1", "2"),
			want:   []string{"0s 1.1", "0s 2.1"},
		},
		"a snoozed job": {
			do:    once(delayq.Snooze(10 * time.Minute)),
			setUp: limited(delayq.Limits{}, "1"),
			want:  []string{"0s 1.1", "10m0s 1.1"},
		},
		"a cron schedule": {
			setUp: func(t *testing.T, q *delayqtest.TestQueue) {
				require.NoError(t, q.Client.Schedule(t.Context(), "a", "s", delayq.Every(25*time.Minute), nil, delayq.StartAt(q.Now().Add(25*time.Minute))))
			},
			want: []string{"25m0s slot.1", "50m0s slot.1"},
		},
		"a done job that is kept": {
			setUp: func(t *testing.T, q *delayqtest.TestQueue) {
				enqueue(t, q, "a", "1", 0, delayq.Retention(30*time.Minute))
			},
			want: []string{"0s 1.1"},
			rest: func(t *testing.T, q *delayqtest.TestQueue) {
				_, err := q.Client.Get(t.Context(), "a", "1")
				require.ErrorIs(t, err, delayq.ErrNotFound)
			},
		},
		"a job that expires while it is held": {
			setUp: func(t *testing.T, q *delayqtest.TestQueue) {
				require.NoError(t, q.Client.Hold(t.Context(), "a", 7*time.Minute, "why"))
				enqueue(t, q, "a", "1", 0, delayq.ExpireIn(time.Minute))
				enqueue(t, q, "a", "2", 0)
			},
			want: []string{"7m0s 2.1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := delayqtest.Start(t)
			d := newDiary(q)
			handler := func(_ context.Context, job *delayq.Job) error {
				if job.Schedule != "" {
					job.ID = "slot"
				}
				d.note(job)
				if c.do != nil {
					return c.do(job)
				}
				return nil
			}
			topic := c.topic
			if topic == "" {
				topic = "a"
			}
			q.Serve(func(s *delayq.Server) {
				if strings.Contains(name, "gathered") {
					s.HandleBatch(topic, func(_ context.Context, jobs []*delayq.Job) error {
						for _, job := range jobs {
							d.note(job)
						}
						return nil
					}, c.opts...)
					return
				}
				s.HandlerFunc(topic, handler, c.opts...)
			}, c.server...)
			c.setUp(t, q)
			q.Advance(time.Hour)
			require.ElementsMatch(t, c.want, d.take())
			require.Equal(t, time.Hour, q.Now().Sub(d.start))
			if c.rest != nil {
				c.rest(t, q)
				q.Advance(0)
				require.Equal(t, c.later, d.take())
			}
		})
	}
}

// once returns a handler that returns err for the first run of job 1.
func once(err error) func(*delayq.Job) error {
	var ran atomic.Bool
	return func(job *delayq.Job) error {
		if job.ID == "1" && !ran.Swap(true) {
			return err
		}
		return nil
	}
}

// limited returns a function that limits the topic a and enqueues jobs: an ID, or an ID and a key.
func limited(limits delayq.Limits, jobs ...string) func(t *testing.T, q *delayqtest.TestQueue) {
	return func(t *testing.T, q *delayqtest.TestQueue) {
		require.NoError(t, q.Client.SetLimits(t.Context(), "a", limits))
		for _, job := range jobs {
			id, key, keyed := strings.Cut(job, " ")
			var opts []delayq.JobOption
			if keyed {
				opts = append(opts, delayq.Key(key))
			}
			enqueue(t, q, "a", id, 0, opts...)
		}
	}
}

// What Advance has left behind is named with what it waits for.
func TestAssertNoneSaysWhatJobsWaitFor(t *testing.T) {
	f := new(fakeT)
	q := delayqtest.Start(f)
	q.Serve(handle(func(context.Context, *delayq.Job) error { return nil }, "a"))
	require.NoError(t, q.Client.PauseKey(t.Context(), "a", "x"))
	_, err := q.Client.Enqueue(t.Context(), "a", "1", nil, delayq.Key("x"))
	require.NoError(t, err)
	q.Advance(time.Hour)
	require.Regexp(t, `there are 1: "1" ready \(.*key.*paused`, f.try(func() { q.AssertNone("a") }))
	f.end()
}
