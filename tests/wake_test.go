package tests

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// These tests are the table of docs/protocol.md, "What makes a job startable": each row with each
// kind of waiter. The clock is fake and calls take no time, so whoever is told of a change starts
// the job at the very instant, and whoever is not waits for a tick.
const atOnce = 3 * time.Millisecond

// waiters are the ways in which servers wait for jobs.
var waiters = map[string]int{"BLMOVE": 1, "rings": 6} // topics

// A wakeBench has two servers of the topic a, and notes when jobs start.
type wakeBench struct {
	*queuetest.Bubble
	topics int
	wire   *queuetest.Wire    // of the server that runs the job "first"
	first  *queuetest.Running // that server
	end    chan error         // what the handler of that job returns

	mu     sync.Mutex
	starts []string
	at     []time.Time
	by     []*queuetest.Wire // of the servers of these starts
}

func (w *wakeBench) handle(ctx context.Context, job *delayq.Job, by *queuetest.Wire) error {
	w.mu.Lock()
	w.starts, w.at, w.by = append(w.starts, job.ID), append(w.at, time.Now()), append(w.by, by)
	w.mu.Unlock()
	if job.ID != "first" && job.ID != w.SlotID("s", time.Minute) {
		return nil
	}
	select {
	case err := <-w.end:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *wakeBench) serve() (*queuetest.Running, *queuetest.Wire) {
	wire := queuetest.NewWire(w.Redis)
	return queuetest.ServeMany(w.T, wire.Client(w.T), queuetest.Prefix, func(s *delayq.Server) {
		handle := func(ctx context.Context, job *delayq.Job) error { return w.handle(ctx, job, wire) }
		require.NoError(w, s.HandlerFunc("a", handle, delayq.Concurrency(5)))
		for i := range w.topics - 1 {
			require.NoError(w, s.HandlerFunc(fmt.Sprint("other", i), queuetest.Nothing))
		}
	}, delayq.Drain(0), delayq.Lease(10*time.Second), delayq.DeadLimit(100, time.Minute)), wire
}

// runs notes which of two servers runs the job "first". The embedded Redis gives a job to any of
// those that block, and not to the one that has blocked for the longest time.
func (w *wakeBench) runs(a, b *queuetest.Running, wireA, wireB *queuetest.Wire) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Equal(w, []string{"first"}, w.starts)
	if w.first, w.wire = a, wireA; w.by[0] == wireB {
		w.first, w.wire = b, wireB
	}
}

// wantAt requires that the next start is one of these jobs, at a time.
func (w *wakeBench) wantAt(at time.Time, ids ...string) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	require.NotEmpty(w, w.starts, "none of %v has started", ids)
	require.Contains(w, ids, w.starts[0])
	require.WithinDuration(w, at, w.at[0], atOnce)
}

func (w *wakeBench) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.starts, w.at, w.by = nil, nil, nil
}

func eachWaiter(t *testing.T, name string, test func(w *wakeBench)) {
	for waiter, topics := range waiters {
		t.Run(name+", "+waiter, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				test(&wakeBench{Bubble: b, topics: topics, end: make(chan error)})
			})
		})
	}
}

// Whatever ends a run wakes whoever can start the job that waits for its place: in the topic, in
// its key, or in the order of the key. One server runs the job and waits for others. The other one
// was refused.
func TestEndsOfRunsWake(t *testing.T) {
	tell := func(err error) func(w *wakeBench) time.Time {
		return func(w *wakeBench) time.Time {
			w.end <- err
			return time.Now()
		}
	}
	ends := map[string]struct {
		end   func(w *wakeBench) time.Time // returns when the place is free
		again bool                         // with an order, the same job is the next one
	}{
		"return": {tell(nil), false},
		"error":  {tell(errors.New("no")), true},
		"bury":   {tell(delayq.Permanent(errors.New("no"))), false},
		"snooze": {tell(delayq.Snooze(time.Hour)), false},
		"cancel": {func(w *wakeBench) time.Time {
			_, err := w.Client.Dequeue(w.Context(), "a", "first")
			require.NoError(w, err)
			return time.Now()
		}, false},
		"replace": {func(w *wakeBench) time.Time {
			opts := []delayq.JobOption{delayq.Replace(), delayq.ProcessIn(time.Hour)}
			if info := w.Get("a", "first"); info.Key != "" {
				opts = append(opts, delayq.Key(info.Key))
			}
			w.Enqueue("a", "first", opts...)
			return time.Now()
		}, false},
		"lost lease": {func(w *wakeBench) time.Time {
			w.wire.Freeze()
			end := w.RDB.ZScore(w.Context(), queuetest.Prefix+":{a}:leases", "first").Val()
			return time.UnixMicro(int64(end * 1000))
		}, true},
		"give back": {func(w *wakeBench) time.Time {
			require.NoError(w, w.first.Stop())
			return time.Now()
		}, true},
	}
	places := map[string]delayq.Limits{
		"topic": {Running: 1}, "key": {RunningPerKey: 1}, "order": {Ordered: true},
	}
	for name, e := range ends {
		for place, limits := range places {
			eachWaiter(t, name+", place of "+place, func(w *wakeBench) {
				require.NoError(w, w.Client.SetLimits(w.Context(), "a", limits))
				a, wireA := w.serve()
				w.Pass(100 * time.Millisecond)
				b, wireB := w.serve()
				w.Pass(1400 * time.Millisecond)
				var key []delayq.JobOption
				if place != "topic" {
					key = append(key, delayq.Key("k"))
				}
				w.Enqueue("a", "first", append(key, delayq.Retry(3))...)
				w.Pass(1600 * time.Millisecond) // beyond a tick: both wait
				w.runs(a, b, wireA, wireB)
				w.Enqueue("a", "next", key...)
				w.Pass(70 * time.Millisecond) // no tick of the first one finds the job
				w.forget()
				free := e.end(w)
				w.Pass(time.Until(free) + 900*time.Millisecond)
				switch {
				case name == "lost lease" || name == "give back":
					w.wantAt(free, "first", "next")
				case e.again && limits.Ordered:
					due := w.Get("a", "first").Due
					w.Pass(time.Until(due) + 900*time.Millisecond)
					w.wantAt(due, "first")
				default:
					w.wantAt(free, "next")
				}
				close(w.end)
				w.Pass(time.Minute)
				require.Contains(w, w.starts, "next")
			})
		}
	}
}

// The end of a run fires the slot that waits for it, whichever server has found the slot due.
func TestEndOfARunFiresTheSlotThatWaits(t *testing.T) {
	eachWaiter(t, "slot", func(w *wakeBench) {
		w.serve()
		w.serve()
		require.NoError(w, w.Client.Schedule(w.Context(), "a", "s", delayq.Every(time.Minute), nil, delayq.OverlapQueueOne))
		w.Pass(time.Until(w.Began.Add(2 * time.Minute)))
		w.forget()
		w.end <- nil
		ended := time.Now()
		w.Pass(500 * time.Millisecond)
		w.wantAt(ended, w.SlotID("s", 2*time.Minute))
	})
}

// Whatever else makes a job startable wakes a server that can start it.
func TestChangesWake(t *testing.T) {
	limits := func(w *wakeBench, l delayq.Limits) { require.NoError(w, w.Client.SetLimits(w.Context(), "a", l)) }
	busy := func(w *wakeBench) { // a job runs
		w.Enqueue("a", "first", delayq.Key("k"))
		w.Pass(1370 * time.Millisecond)
	}
	halted := func(w *wakeBench) { // a job of the key waits for one that is dead
		limits(w, delayq.Limits{Ordered: true, OnDead: delayq.HaltKey})
		busy(w)
		w.end <- delayq.Permanent(errors.New("no"))
		w.Pass(1370 * time.Millisecond)
		w.Enqueue("a", "next", delayq.Key("k"))
	}
	failing := func(w *wakeBench) { // a job of the key waits for one that is backing off
		limits(w, delayq.Limits{Ordered: true})
		w.Enqueue("a", "first", delayq.Key("k"), delayq.Backoff(time.Hour, time.Hour))
		w.Pass(1370 * time.Millisecond)
		w.end <- errors.New("no")
		w.Pass(1370 * time.Millisecond)
		w.Enqueue("a", "next", delayq.Key("k"))
	}
	for name, c := range map[string]struct {
		before, change func(w *wakeBench)
	}{
		"new limits": {
			func(w *wakeBench) { limits(w, delayq.Limits{Running: 1}); busy(w); w.Enqueue("a", "next") },
			func(w *wakeBench) { limits(w, delayq.Limits{Running: 2}) },
		},
		"faster rate": {
			func(w *wakeBench) {
				limits(w, delayq.Limits{Rate: delayq.Per(1, time.Hour)})
				busy(w)
				w.Enqueue("a", "next")
			},
			func(w *wakeBench) { limits(w, delayq.Limits{}) },
		},
		"new limits of keys": {
			func(w *wakeBench) {
				limits(w, delayq.Limits{RunningPerKey: 1})
				busy(w)
				w.Enqueue("a", "next", delayq.Key("k"))
			},
			func(w *wakeBench) { limits(w, delayq.Limits{RunningPerKey: 2}) },
		},
		"new limits of a key": {
			func(w *wakeBench) {
				limits(w, delayq.Limits{RunningPerKey: 1})
				busy(w)
				w.Enqueue("a", "next", delayq.Key("k"))
			},
			func(w *wakeBench) {
				require.NoError(w, w.Client.SetKeyLimits(w.Context(), "a", "k", delayq.KeyLimits{Running: 2}))
			},
		},
		"resume": {
			func(w *wakeBench) {
				require.NoError(w, w.Client.Pause(w.Context(), "a", delayq.Pause{By: "me"}))
				w.Enqueue("a", "next")
			},
			func(w *wakeBench) { require.NoError(w, w.Client.Resume(w.Context(), "a", "me")) },
		},
		"end of a hold": {
			func(w *wakeBench) {
				require.NoError(w, w.Client.Hold(w.Context(), "a", time.Hour, ""))
				w.Enqueue("a", "next")
			},
			func(w *wakeBench) { require.NoError(w, w.Client.EndHold(w.Context(), "a")) },
		},
		"end of the pause of a key": {
			func(w *wakeBench) {
				require.NoError(w, w.Client.PauseKey(w.Context(), "a", "k"))
				w.Enqueue("a", "next", delayq.Key("k"))
			},
			func(w *wakeBench) { require.NoError(w, w.Client.ResumeKey(w.Context(), "a", "k")) },
		},
		"revive of a blocker": {
			halted,
			func(w *wakeBench) {
				go func() { w.end <- nil }()
				require.NoError(w, w.Client.Revive(w.Context(), "a", "first"))
				w.Pass(0)
				w.mu.Lock()
				w.starts, w.at = w.starts[1:], w.at[1:]
				w.mu.Unlock()
			},
		},
		"cancel of a dead blocker": {
			halted,
			func(w *wakeBench) {
				_, err := w.Client.Dequeue(w.Context(), "a", "first")
				require.NoError(w, err)
			},
		},
		"bury of a blocker": {
			failing,
			func(w *wakeBench) { require.NoError(w, w.Client.Bury(w.Context(), "a", "first", "")) },
		},
		"reschedule of a blocker": {
			failing,
			func(w *wakeBench) {
				require.NoError(w, w.Client.Reschedule(w.Context(), "a", "first", delayq.ProcessIn(2*time.Hour)))
			},
		},
		"replace of a blocker": {
			failing,
			func(w *wakeBench) {
				w.Enqueue("a", "first", delayq.Key("k"), delayq.Replace(), delayq.ProcessIn(2*time.Hour))
			},
		},
		"removal of the schedule of a blocker": {
			func(w *wakeBench) {
				limits(w, delayq.Limits{Ordered: true})
				w.Pass(time.Until(w.Began.Add(50 * time.Second)))
				require.NoError(w, w.Client.Schedule(w.Context(), "a", "s", delayq.Every(time.Minute), nil,
					delayq.Key("k"), delayq.Backoff(time.Hour, time.Hour), delayq.MaxRuns(1)))
				w.Pass(12370 * time.Millisecond)
				w.end <- errors.New("no")
				w.Pass(1370 * time.Millisecond)
				w.Enqueue("a", "next", delayq.Key("k"))
			},
			func(w *wakeBench) { require.NoError(w, w.Client.Unschedule(w.Context(), "a", "s")) },
		},
	} {
		eachWaiter(t, name, func(w *wakeBench) {
			w.serve()
			w.serve()
			w.Pass(1370 * time.Millisecond)
			c.before(w)
			w.Pass(1370 * time.Millisecond)
			w.forget()
			c.change(w)
			changed := time.Now()
			w.Pass(800 * time.Millisecond)
			w.wantAt(changed, "next")
			close(w.end)
			w.Pass(time.Second)
		})
	}
}

// A topic that is removed and handled again takes its first job at once, however many takes the
// server has made for it before.
func TestTopicThatIsHandledAgainTakesAtOnce(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandlerFunc("a", rec.Then(nil)))
			require.NoError(b, s.HandlerFunc("other", queuetest.Nothing))
		})
		for i := range 10 {
			b.Enqueue("a", fmt.Sprint(i))
			b.Pass(100 * time.Millisecond)
		}
		for i := range 3 {
			require.NoError(b, s.Remove(b.Context(), "a"))
			require.NoError(b, s.HandlerFunc("a", rec.Then(nil)))
			id := fmt.Sprint("again ", i)
			b.Enqueue("a", id)
			b.Pass(100 * time.Millisecond)
			require.Len(b, rec.Of(id), 1)
		}
	})
}
