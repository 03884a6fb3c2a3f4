package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// What the clock makes startable starts when its time has come, and so does what prune, an expiry
// or another priority lets start.
func TestTimesWake(t *testing.T) {
	limits := func(w *wakeBench, l delayq.Limits) { require.NoError(w, w.Client.SetLimits(w.Context(), "a", l)) }
	halt := func(w *wakeBench) { // a job that an operator has buried is the first one of its key
		limits(w, delayq.Limits{Ordered: true, OnDead: delayq.HaltKey})
		w.Enqueue("a", "first", delayq.Key("k"), delayq.ProcessIn(time.Second))
		require.NoError(w, w.Client.Bury(w.Context(), "a", "first", ""))
		w.Pass(2 * time.Second)
		w.Enqueue("a", "next", delayq.Key("k"))
		w.Pass(1370 * time.Millisecond)
	}
	expiring := func(l delayq.Limits, key ...delayq.JobOption) func(w *wakeBench) time.Time {
		return func(w *wakeBench) time.Time {
			limits(w, l)
			require.NoError(w, w.Client.Pause(w.Context(), "a", delayq.Pause{}))
			w.Enqueue("a", "first", append(key, delayq.ExpireIn(time.Second))...)
			w.Enqueue("a", "next", key...)
			w.Pass(2370 * time.Millisecond)
			require.NoError(w, w.Client.Resume(w.Context(), "a", ""))
			return time.Now()
		}
	}
	// paced lets a job run, and returns when the rate allows the next start.
	paced := func(l delayq.Limits) func(w *wakeBench) time.Time {
		return func(w *wakeBench) time.Time {
			limits(w, l)
			w.Enqueue("a", "first", delayq.Key("k"))
			w.Pass(1370 * time.Millisecond)
			w.mu.Lock()
			next := w.at[0].Add(7300 * time.Millisecond)
			w.mu.Unlock()
			w.forget()
			w.Enqueue("a", "next", delayq.Key("k"))
			return next
		}
	}
	const period = 7300 * time.Millisecond
	key := delayq.Key("k")
	for name, change := range map[string]func(w *wakeBench) time.Time{
		"rate of the topic":      paced(delayq.Limits{Rate: delayq.Per(1, period)}),
		"rate of a key":          paced(delayq.Limits{RatePerKey: delayq.Per(1, period)}),
		"expiry, place of topic": expiring(delayq.Limits{Running: 1}),
		"expiry, place of key":   expiring(delayq.Limits{RunningPerKey: 1}, key),
		"expiry, order":          expiring(delayq.Limits{Ordered: true}, key),
		"timed end of a pause": func(w *wakeBench) time.Time {
			return timed(w, w.Client.Pause(w.Context(), "a", delayq.Pause{For: period}))
		},
		"timed end of a hold":     func(w *wakeBench) time.Time { return timed(w, w.Client.Hold(w.Context(), "a", period, "")) },
		"timed end of a key hold": func(w *wakeBench) time.Time { return timed(w, w.Client.HoldKey(w.Context(), "a", "k", period)) },
		"prune of a dead blocker": func(w *wakeBench) time.Time {
			halt(w)
			w.Pass(55 * time.Second)
			for w.State("a", "first") != "" {
				require.Less(w, w.At(), 2*time.Minute)
				w.Pass(2 * time.Millisecond)
			}
			return time.Now()
		},
		"priority before a dead blocker": func(w *wakeBench) time.Time {
			halt(w)
			require.NoError(w, w.Client.SetPriority(w.Context(), "a", "next", time.Hour))
			return time.Now()
		},
		"priority behind that of a dead blocker": func(w *wakeBench) time.Time {
			halt(w)
			require.NoError(w, w.Client.SetPriority(w.Context(), "a", "first", -time.Hour))
			return time.Now()
		},
	} {
		eachWaiter(t, name, func(w *wakeBench) {
			w.serve()
			w.serve()
			w.Pass(1370 * time.Millisecond)
			at := change(w)
			w.Pass(time.Until(at) + 800*time.Millisecond)
			w.wantAt(at, "next")
			close(w.end)
			w.Pass(time.Second)
		})
	}
}

// timed enqueues a job that waits for the end of a hold, and returns when that is.
func timed(w *wakeBench, err error) time.Time {
	require.NoError(w, err)
	end := time.Now().Add(7300 * time.Millisecond)
	w.Pass(1370 * time.Millisecond)
	w.Enqueue("a", "next", delayq.Key("k"))
	return end
}

// Jobs that are gathered start at the end of that, if no others come.
func TestEndOfGatheringWakes(t *testing.T) {
	for _, byKey := range []bool{false, true} {
		eachWaiter(t, fmt.Sprint("by key ", byKey), func(w *wakeBench) {
			g := &gatherer{b: w.Bubble}
			for range 2 {
				queuetest.ServeMany(w.T, w.RDB, queuetest.Prefix, func(s *delayq.Server) {
					window := delayq.GatherWindow{Size: 10, Wait: 3700 * time.Millisecond, ByKey: byKey}
					require.NoError(w, s.HandleBatch("a", g.handle, delayq.Gather(window)))
					for i := range w.topics - 1 {
						require.NoError(w, s.HandlerFunc(fmt.Sprint("other", i), queuetest.Nothing))
					}
				})
			}
			w.Pass(1370 * time.Millisecond)
			began := w.At()
			enqueueSome(w.Bubble, "job", 3, delayq.Key("k"))
			w.Pass(5 * time.Second)
			got := g.batches()
			require.Len(w, got, 1)
			require.Len(w, got[0].ids, 3)
			require.InDelta(w, began+3700*time.Millisecond, got[0].at, float64(few))
		})
	}
}

// A handler that is set while the server runs starts the jobs that wait for it.
func TestHandlerThatIsSetLaterStartsJobs(t *testing.T) {
	for _, job := range []struct {
		name string
		opts []delayq.JobOption
	}{{"plain", nil}, {"with a key", []delayq.JobOption{delayq.Key("k")}}} {
		eachWaiter(t, job.name, func(w *wakeBench) {
			s, _ := w.serve()
			w.Enqueue("late", "next", job.opts...)
			w.Pass(1370 * time.Millisecond)
			require.NoError(w, s.HandlerFunc("late", func(ctx context.Context, job *delayq.Job) error {
				return w.handle(ctx, job, nil)
			}))
			set := time.Now()
			w.Pass(800 * time.Millisecond)
			w.wantAt(set, "next")
		})
	}
}

// A slot of a schedule that waits for a job is fired when that job ends without a server: when it
// is cancelled or buried, whether it runs or not.
func TestSlotDoesNotWaitForAJobThatIsGone(t *testing.T) {
	cancel := func(w *wakeBench, id string) {
		_, err := w.Client.Dequeue(w.Context(), "a", id)
		require.NoError(w, err)
	}
	bury := func(w *wakeBench, id string) { require.NoError(w, w.Client.Bury(w.Context(), "a", id, "")) }
	for name, c := range map[string]struct {
		key    bool // the job cannot run because its key is paused
		failed bool // it backs off
		end    func(w *wakeBench, id string)
	}{
		"cancel of a job that waits":     {key: true, end: cancel},
		"cancel of a job that backs off": {failed: true, end: cancel},
		"cancel of a job that runs":      {end: cancel},
		"bury of a job that waits":       {key: true, end: bury},
		"bury of a job that backs off":   {failed: true, end: bury},
	} {
		eachWaiter(t, name, func(w *wakeBench) {
			w.serve()
			w.serve()
			opts := []delayq.ScheduleOption{delayq.OverlapQueueOne, delayq.Backoff(time.Hour, time.Hour)}
			if c.key {
				require.NoError(w, w.Client.PauseKey(w.Context(), "a", "k"))
				opts = append(opts, delayq.Key("k"))
			}
			require.NoError(w, w.Client.Schedule(w.Context(), "a", "s", delayq.Every(time.Minute), nil, opts...))
			first, second := w.SlotID("s", time.Minute), w.SlotID("s", 2*time.Minute)
			w.Pass(time.Until(w.Began.Add(70 * time.Second)))
			if c.failed {
				w.end <- errors.New("no")
			}
			w.Pass(time.Until(w.Began.Add(121370 * time.Millisecond)))
			require.Empty(w, w.State("a", second), "it waits")
			w.forget()
			c.end(w, first)
			w.Pass(atOnce)
			if c.key {
				require.Equal(w, delayq.StateReady, w.State("a", second))
			} else {
				w.wantAt(time.Now(), second)
			}
			close(w.end)
		})
	}
}

// A server that cannot start the job for which a pop has woken it leaves it to others: when another
// topic of its pool uses its worker, and when it stops while a rate makes it wait.
func TestPopsThatStartNoJobAreHandedBack(t *testing.T) {
	t.Run("no worker", func(t *testing.T) { queuetest.InBubble(t, popWithoutWorker) })
	t.Run("stop", func(t *testing.T) { queuetest.InBubble(t, popBeforeStop) })
}

func popWithoutWorker(b *queuetest.Bubble) {
	var c crowd
	serve := func(busy delayq.HandlerFunc) *queuetest.Running {
		return queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandlerFunc("a", c.handler(0), delayq.InPool("p")))
			require.NoError(b, s.HandlerFunc("b", busy, delayq.InPool("p")))
		}, delayq.Pool("p", 1))
	}
	end := make(chan struct{})
	serve(func(context.Context, *delayq.Job) error {
		<-end
		return nil
	})
	b.Pass(100 * time.Millisecond)
	b.Enqueue("b", "long")
	b.Pass(1500 * time.Millisecond)
	b.Enqueue("a", "next")
	b.Pass(atOnce)
	require.Zero(b, b.RDB.LLen(b.Context(), queuetest.Prefix+":{a}:handoff").Val())
	require.EqualValues(b, 1, b.RDB.LLen(b.Context(), queuetest.Prefix+":{a}:ready").Val())
	serve(queuetest.Nothing)
	b.Pass(1370 * time.Millisecond)
	for i := range 10 {
		b.Enqueue("a", fmt.Sprint(i))
		enqueued := time.Now()
		b.Pass(100 * time.Millisecond)
		starts := c.started()
		require.WithinDuration(b, enqueued, starts[len(starts)-1], atOnce)
	}
	close(end)
}

func popBeforeStop(b *queuetest.Bubble) {
	require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Rate: delayq.Per(1, time.Hour)}))
	s := b.Serve("a", queuetest.Nothing)
	b.Enqueue("a", "first")
	b.Pass(1500 * time.Millisecond)
	b.Enqueue("a", "next")
	b.Pass(atOnce)
	require.NoError(b, s.Stop())
	require.Zero(b, b.RDB.LLen(b.Context(), queuetest.Prefix+":{a}:handoff").Val())
	require.EqualValues(b, 1, b.RDB.LLen(b.Context(), queuetest.Prefix+":{a}:ready").Val())
}

// An ID that a server has popped is not forgotten in handoff when its take uses up its only worker
// for a job that has a key: another server starts that job at once.
func TestPoppedJobBehindAKey(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		for range 2 {
			b.Serve("t", rec.Then(func(context.Context, *delayq.Job) error { time.Sleep(time.Hour); return nil }), delayq.Concurrency(1), delayq.Drain(2*time.Hour))
		}
		b.Pass(10*time.Second + 370*time.Millisecond)
		_, err := b.Client.EnqueueBatch(b.Context(), []delayq.NewJob{
			{Topic: "t", ID: "keyed", Options: []delayq.JobOption{delayq.Key("k")}}, {Topic: "t", ID: "plain"},
		})
		require.NoError(b, err)
		b.Pass(atOnce)
		require.ElementsMatch(b, []string{"keyed", "plain"}, rec.IDs())
	})
}

// A job that becomes due in less than a tick starts at that time, whatever has given it its due
// time.
func TestJobsThatAreDueSoonWake(t *testing.T) {
	const soon = 40 * time.Millisecond // a tick of the servers seldom comes before
	due := func(id string) (string, time.Time) { return id, time.Now().Add(soon) }
	later := func(w *wakeBench, opts ...delayq.JobOption) {
		w.Enqueue("a", "next", append(opts, delayq.ProcessIn(time.Hour))...)
		w.Pass(1370 * time.Millisecond)
	}
	ends := func(w *wakeBench, err error) (string, time.Time) {
		w.Enqueue("a", "first")
		w.Pass(1370 * time.Millisecond)
		w.forget()
		w.end <- err
		return due("first")
	}
	schedule := func(w *wakeBench, opts ...delayq.ScheduleOption) {
		require.NoError(w, w.Client.Schedule(w.Context(), "a", "s", delayq.Every(time.Hour), nil, opts...))
	}
	slot := func(at time.Time) (string, time.Time) { return fmt.Sprintf("s@%d", at.UnixMilli()), at }
	for name, store := range map[string]func(w *wakeBench) (id string, at time.Time){
		"enqueue": func(w *wakeBench) (string, time.Time) {
			w.Enqueue("a", "next", delayq.ProcessIn(soon))
			return due("next")
		},
		"enqueue of a key": func(w *wakeBench) (string, time.Time) {
			w.Enqueue("a", "next", delayq.ProcessIn(soon), delayq.Key("k"))
			return due("next")
		},
		"batch": func(w *wakeBench) (string, time.Time) {
			_, err := w.Client.EnqueueBatch(w.Context(), []delayq.NewJob{
				{Topic: "a", ID: "far", Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}},
				{Topic: "a", ID: "next", Options: []delayq.JobOption{delayq.ProcessIn(soon)}},
			})
			require.NoError(w, err)
			return due("next")
		},
		"replace": func(w *wakeBench) (string, time.Time) {
			later(w)
			w.Enqueue("a", "next", delayq.Replace(), delayq.ProcessIn(soon))
			return due("next")
		},
		"reschedule": func(w *wakeBench) (string, time.Time) {
			later(w)
			require.NoError(w, w.Client.Reschedule(w.Context(), "a", "next", delayq.ProcessIn(soon)))
			return due("next")
		},
		"reschedule of a key": func(w *wakeBench) (string, time.Time) {
			later(w, delayq.Key("k"))
			require.NoError(w, w.Client.Reschedule(w.Context(), "a", "next", delayq.ProcessIn(soon)))
			return due("next")
		},
		"snooze": func(w *wakeBench) (string, time.Time) { return ends(w, delayq.Snooze(soon)) },
		"retry":  func(w *wakeBench) (string, time.Time) { return ends(w, delayq.RetryIn(soon, errors.New("no"))) },
		"again":  func(w *wakeBench) (string, time.Time) { return ends(w, delayq.Again(nil, delayq.ProcessIn(soon))) },
		"trigger": func(w *wakeBench) (string, time.Time) {
			schedule(w, delayq.ProcessIn(soon))
			w.Pass(1370 * time.Millisecond)
			id, err := w.Client.Trigger(w.Context(), "a", "s")
			require.NoError(w, err)
			return due(id)
		},
		"schedule": func(w *wakeBench) (string, time.Time) {
			at := time.Now().Add(soon)
			schedule(w, delayq.StartAt(at))
			return slot(at)
		},
		"schedule with another start": func(w *wakeBench) (string, time.Time) {
			schedule(w)
			w.Pass(1370 * time.Millisecond)
			at := time.Now().Add(soon)
			schedule(w, delayq.StartAt(at))
			return slot(at)
		},
		"schedule that goes on": func(w *wakeBench) (string, time.Time) {
			at := time.Now().Add(5 * time.Second)
			schedule(w, delayq.StartAt(at))
			require.NoError(w, w.Client.PauseSchedule(w.Context(), "a", "s"))
			w.Pass(time.Until(at) - soon)
			require.NoError(w, w.Client.ResumeSchedule(w.Context(), "a", "s"))
			return slot(at)
		},
	} {
		eachWaiter(t, name, func(w *wakeBench) {
			w.serve()
			w.serve()
			w.Pass(1370 * time.Millisecond)
			id, at := store(w)
			w.Pass(time.Until(at) + 400*time.Millisecond)
			w.wantAt(at, id)
			close(w.end)
			w.Pass(time.Second)
		})
	}
}
