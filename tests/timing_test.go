package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// ms is the first whole millisecond that is not before t, which is when a job due at t may start.
func ms(t time.Time) time.Time {
	if whole := t.Truncate(time.Millisecond); !whole.Equal(t) {
		return whole.Add(time.Millisecond)
	}
	return t
}

// In a bubble nothing takes time but waiting, so a job has to start at its due millisecond exactly,
// however long ago it was enqueued. (F6, F11)
func TestJobStartsAtItsDueMillisecond(t *testing.T) {
	for _, in := range []time.Duration{
		0, -time.Hour, time.Millisecond, time.Millisecond + time.Nanosecond, 1500 * time.Microsecond, 50 * time.Millisecond, 999 * time.Millisecond,
		time.Second, 1001 * time.Millisecond, 2500 * time.Millisecond, time.Hour,
	} {
		for _, absolute := range []bool{false, true} {
			if in == time.Hour && absolute {
				continue // an hour of fake time takes its time
			}
			t.Run(fmt.Sprintf("%v/absolute=%v", in, absolute), func(t *testing.T) {
				queuetest.InBubble(t, func(b *queuetest.Bubble) {
					var rec queuetest.Recorder
					b.Serve("a", rec.Then(nil))
					b.Pass(1300 * time.Millisecond) // in the middle of a tick
					due := delayq.ProcessIn(in)
					if absolute {
						due = delayq.ProcessAt(time.Now().Add(in))
					}
					want := ms(time.Now().Add(max(0, in)))
					job := b.Enqueue("a", "1", due)
					require.True(b, job.Due.Equal(want), "due %v instead of %v", job.Due, want)
					b.Pass(max(0, in) + 10*time.Second)
					starts := rec.All()
					require.Len(b, starts, 1)
					require.Equal(b, want.Sub(b.Began), starts[0].At.Sub(b.Began))
					require.True(b, starts[0].Started.Equal(want), "Started is %v", starts[0].Started)
					require.True(b, starts[0].Due.Equal(want), "Due is %v", starts[0].Due)
				})
			})
		}
	}
}

// A timer that sleeps until the earliest job must hear of an earlier one.
func TestEarlierJobWakesTheTimer(t *testing.T) {
	for name, make := range map[string]func(b *queuetest.Bubble, due delayq.DueOption){
		"enqueue": func(b *queuetest.Bubble, due delayq.DueOption) { b.Enqueue("a", "early", due) },
		"reschedule": func(b *queuetest.Bubble, due delayq.DueOption) {
			b.Enqueue("a", "early", delayq.ProcessIn(2*time.Hour))
			b.Pass(5 * time.Second)
			require.NoError(b, b.Client.Reschedule(b.Context(), "a", "early", due))
		},
		"replace": func(b *queuetest.Bubble, due delayq.DueOption) {
			b.Enqueue("a", "early", delayq.ProcessIn(2*time.Hour))
			b.Pass(5 * time.Second)
			b.Enqueue("a", "early", due, delayq.Replace())
		},
		"batch": func(b *queuetest.Bubble, due delayq.DueOption) {
			_, err := b.Client.EnqueueBatch(b.Context(), []delayq.NewJob{
				{Topic: "a", ID: "late", Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}},
				{Topic: "a", ID: "early", Options: []delayq.JobOption{due}},
			})
			require.NoError(b, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var rec queuetest.Recorder
				b.Serve("a", rec.Then(nil))
				b.Enqueue("a", "0", delayq.ProcessIn(time.Hour))
				b.Pass(3*time.Second + 17*time.Millisecond)
				for i := range 20 { // at different times after the last tick
					before := len(rec.All())
					at := 50*time.Millisecond + time.Duration(i)*7*time.Millisecond
					make(b, delayq.ProcessIn(at))
					want := b.At() + at
					b.Pass(time.Second + 43*time.Millisecond)
					starts := rec.All()
					require.Len(b, starts, before+1)
					require.Equal(b, want, starts[before].At.Sub(b.Began))
					_, err := b.Client.Dequeue(b.Context(), "a", "late")
					require.True(b, err == nil || errors.Is(err, delayq.ErrNotFound))
				}
			})
		})
	}
}

// What a server could not hear, because it had not subscribed yet or was subscribing again, it does
// not wait a tick for: a topic that was resumed goes on, and a job that came meanwhile starts to
// the millisecond.
func TestServerThatListensLooksForItself(t *testing.T) {
	for name, again := range map[string]bool{"at the start": false, "again": true} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.LoadScripts()
				require.NoError(b, b.Client.Pause(b.Context(), "a", delayq.Pause{}))
				b.Enqueue("a", "resumed")
				var rec queuetest.Recorder
				w := queuetest.NewWire(b.Redis)
				if !again {
					w.Deafen()
				}
				b.ServeOn(w, "a", rec.Then(nil))
				b.Pass(100 * time.Millisecond)
				if again {
					w.Deafen()
				}
				require.NoError(b, b.Client.Resume(b.Context(), "a", ""))
				due := b.Enqueue("a", "later", delayq.ProcessIn(500*time.Millisecond)).Due
				b.Pass(200 * time.Millisecond)
				require.Empty(b, rec.All())
				w.Heal()
				b.Pass(550 * time.Millisecond) // the next tick comes after 0.9 s
				require.Equal(b, []string{"resumed", "later"}, rec.IDs())
				require.Equal(b, 300*time.Millisecond, rec.Of("resumed")[0].At.Sub(b.Began))
				require.Equal(b, due.Sub(b.Began), rec.Of("later")[0].At.Sub(b.Began))
			})
		})
	}
}

// A job that is due now is started by its own enqueueing: with all timers stopped it still is.
// (F11)
func TestJobDueNowNeedsNoTick(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var rec queuetest.Recorder
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "a", rec.Then(nil))
		b.Pass(1500 * time.Millisecond)
		w.Stall(queuetest.Digest("promote"))
		for i := range 10 {
			b.Pass(333 * time.Millisecond)
			b.Enqueue("a", fmt.Sprint(i))
			at := b.At()
			synctest.Wait()
			require.Len(b, rec.All(), i+1)
			require.Equal(b, at, rec.All()[i].At.Sub(b.Began))
		}
	})
}

func TestOldestDueFirst(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var want []string
		for i := range 50 { // enqueued in another order than they fall due
			k := (i * 31) % 50
			b.Enqueue("a", fmt.Sprintf("%02d", k), delayq.ProcessIn(time.Duration(k+1)*20*time.Millisecond))
			want = append(want, fmt.Sprintf("%02d", i))
		}
		b.Pass(time.Minute)
		b.Enqueue("a", "now-1")
		b.Enqueue("a", "now-2")
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(func(context.Context, *delayq.Job) error {
			time.Sleep(10 * time.Millisecond)
			return nil
		}), delayq.Concurrency(1))
		b.Pass(time.Minute)
		starts := rec.IDs()
		// Those that were enqueued for now stood in ready before the others were promoted.
		require.ElementsMatch(b, append(slices.Clone(want), "now-1", "now-2"), starts)
		starts = slices.DeleteFunc(starts, func(id string) bool { return id == "now-1" || id == "now-2" })
		require.Equal(b, want, starts)
	})
}

// More jobs due at one instant than one call promotes, or takes. (B14)
func TestFifteenHundredDueAtOnce(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const jobs = 1500
		var list []delayq.NewJob
		due := time.Now().Add(10 * time.Second)
		for i := range jobs {
			list = append(list, delayq.NewJob{Topic: "a", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ProcessAt(due)}})
		}
		_, err := b.Client.EnqueueBatch(b.Context(), list)
		require.NoError(b, err)
		var rec queuetest.Recorder
		for range 3 { // servers that promote at the same time
			b.Serve("a", rec.Then(nil), delayq.Concurrency(64))
		}
		b.Pass(10*time.Second - time.Millisecond)
		require.Empty(b, rec.All())
		b.Pass(time.Millisecond)
		require.Len(b, rec.Times(), jobs)
		require.Len(b, rec.All(), jobs, "a job was started twice")
		for _, s := range rec.All() {
			require.True(b, s.At.Equal(due), "job %s at %v", s.ID, s.At)
		}
	})
}

// The clock of Redis is hours away from those of client and server, in either direction: what was
// asked for in durations is not touched by that, and what was asked for as an instant is that
// instant of Redis's clock. (E1, E2)
func TestWrongClocksChangeNothing(t *testing.T) {
	for _, ahead := range []time.Duration{-5 * time.Hour, 5 * time.Hour, 350 * 24 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				now := func() time.Time { return time.Now().Add(ahead) }
				b.Redis.SetTime(now())
				end := make(chan struct{})
				defer close(end)
				go func() { // the clock of miniredis stands still once it is set
					for {
						select {
						case <-end:
							return
						case <-time.After(time.Millisecond):
							b.Redis.SetTime(now())
						}
					}
				}()
				var rec queuetest.Recorder
				h := rec.Then(func(ctx context.Context, job *delayq.Job) error {
					switch {
					case job.ID == "long":
						select {
						case <-ctx.Done():
							return context.Cause(ctx)
						case <-time.After(4 * time.Second): // several leases
						}
					case job.ID == "fails" && job.Attempt == 1:
						return errors.New("once")
					}
					return nil
				})
				for range 2 { // neither takes the other's jobs
					b.Serve("a", h, delayq.Lease(time.Second))
				}
				b.Pass(2 * time.Second)
				began := b.At()
				b.Enqueue("a", "now")
				b.Enqueue("a", "long")
				b.Enqueue("a", "fails", delayq.Backoff(2*time.Second, 2*time.Second))
				b.Enqueue("a", "in", delayq.ProcessIn(3*time.Second))
				b.Enqueue("a", "at", delayq.ProcessAt(now().Add(3500*time.Millisecond)))
				b.Pass(6 * time.Second)

				at := func(id string) time.Duration {
					starts := rec.Of(id)
					require.Len(b, starts, 1, id)
					require.False(b, starts[0].Started.Before(starts[0].Due), "job %s is early by Redis's clock", id)
					return starts[0].At.Sub(b.Began) - began
				}
				// The clock of Redis moves in steps of a millisecond here, next to the timers.
				require.InDelta(b, 0, at("now"), float64(2*time.Millisecond))
				require.InDelta(b, 0, at("long"), float64(2*time.Millisecond))
				require.InDelta(b, 3*time.Second, at("in"), float64(2*time.Millisecond))
				require.InDelta(b, 3500*time.Millisecond, at("at"), float64(2*time.Millisecond))
				fails := rec.Of("fails")
				require.Len(b, fails, 2)
				require.GreaterOrEqual(b, fails[1].At.Sub(fails[0].At), 2*time.Second-time.Millisecond)
				require.Less(b, fails[1].At.Sub(fails[0].At), 2500*time.Millisecond)
				require.Zero(b, b.Counter("a", "reclaimed"))
				require.EqualValues(b, 5, b.Counter("a", "acked"))
			})
		})
	}
}

// What a handler puts back for a moment is on time like any other job. (M5)
func TestShortDelaysOfRetryAndSnoozeAreOnTime(t *testing.T) {
	for name, again := range map[string]func() error{
		"retry":  func() error { return errors.New("again") },
		"snooze": func() error { return delayq.Snooze(100 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var rec queuetest.Recorder
				b.Serve("a", rec.Then(func(context.Context, *delayq.Job) error {
					if len(rec.All()) <= 3 {
						return again()
					}
					return nil
				}))
				b.Pass(317 * time.Millisecond)
				b.Enqueue("a", "1", delayq.Backoff(100*time.Millisecond, 100*time.Millisecond))
				b.Pass(10 * time.Second)
				starts := rec.All()
				require.Len(b, starts, 4)
				for i, s := range starts {
					require.True(b, s.At.Equal(s.Due), "start %d was due at %v and came at %v", i, s.Due.Sub(b.Began), s.At.Sub(b.Began))
				}
			})
		})
	}
}

// An idle server asks Redis about once a second, and promotes nothing. (G11)
func TestIdleServerIsQuiet(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		var hooks queuetest.HookLog
		b.ServeOn(w, "a", func(context.Context, *delayq.Job) error { return nil }, delayq.Hooks(&hooks))
		b.Enqueue("a", "1", delayq.ProcessIn(time.Hour))
		b.Pass(10 * time.Second)
		before, promotes, watches := w.Requests(), hooks.Calls("promote"), hooks.Calls("watch")
		b.Pass(100 * time.Second)
		require.LessOrEqual(b, w.Requests()-before, 177)
		require.InDelta(b, 105, hooks.Calls("watch")-watches, 6) // ticks of 0.9 to 1 s
		require.Equal(b, promotes, hooks.Calls("promote"))
	})
}

// A crash counts as an attempt of every job that was taken, so a job with few of them is not taken
// before there is a slot for it.
func TestJobOfLimitedRetriesIsNotTakenAhead(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		release := make(chan struct{})
		defer close(release)
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			if job.ID == "slow" {
				<-release
			}
			return nil
		}, delayq.Concurrency(1))
		for i := range 200 {
			b.Enqueue("a", fmt.Sprint(i))
			synctest.Wait()
		}
		list := []delayq.NewJob{{Topic: "a", ID: "slow"}, {Topic: "a", ID: "unlimited"}, {Topic: "a", ID: "limited",
			Options: []delayq.JobOption{delayq.Retry(3)}}}
		_, err := b.Client.EnqueueBatch(b.Context(), list)
		require.NoError(b, err)
		synctest.Wait()
		require.Equal(b, delayq.StateRunning, b.State("a", "unlimited"), "jobs are taken ahead")
		require.Equal(b, delayq.StateReady, b.State("a", "limited"))
	})
}

// A server that holds a job for a slot that does not become free lets go of it.
func TestJobTakenAheadDoesNotWaitForASlowOne(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		release := make(chan struct{})
		defer close(release)
		h := rec.Then(func(_ context.Context, job *delayq.Job) error {
			if job.ID == "slow" {
				<-release
			}
			return nil
		})
		b.Serve("a", h, delayq.Concurrency(1))
		for i := range 200 { // very short ones, for which jobs are taken ahead
			b.Enqueue("a", fmt.Sprint(i))
			synctest.Wait()
		}
		_, err := b.Client.EnqueueBatch(b.Context(), []delayq.NewJob{{Topic: "a", ID: "slow"}, {Topic: "a", ID: "next"}})
		require.NoError(b, err)
		synctest.Wait()
		b.Serve("a", h, delayq.Concurrency(1))
		b.Pass(time.Second)
		require.Len(b, rec.Of("slow"), 1)
		require.Len(b, rec.Of("next"), 1, "it waits behind the slow one although a server is idle")
	})
}

// A whole call of jobs of which none is started leaves all slots free, and the next call comes at
// once.
func TestManyExpiredJobsHoldUpNothing(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const jobs = 1500
		var list []delayq.NewJob
		for i := range jobs {
			list = append(list, delayq.NewJob{Topic: "a", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ExpireIn(time.Second)}})
		}
		_, err := b.Client.EnqueueBatch(b.Context(), append(list, delayq.NewJob{Topic: "a", ID: "fresh"}))
		require.NoError(b, err)
		b.Pass(time.Minute)
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(nil), delayq.Concurrency(200))
		require.Equal(b, []string{"fresh"}, rec.IDs())
		require.Equal(b, time.Minute, b.At())
		b.Pass(time.Millisecond)
		require.EqualValues(b, jobs, b.Counter("a", "expired"))
	})
}

// A server that has nothing else to do asks once for a job: what it got is less than it asked for,
// so it waits again at once.
func TestLoneJobIsTakenWithOneCall(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		b.Serve("a", func(context.Context, *delayq.Job) error { return nil }, delayq.Hooks(&hooks))
		b.Pass(time.Second)
		before := hooks.Calls("take")
		for i := range 5 {
			b.Enqueue("a", fmt.Sprint(i))
			b.Pass(time.Second)
			require.Empty(b, b.State("a", fmt.Sprint(i)))
		}
		require.Equal(b, 5, hooks.Calls("take")-before)
		require.Equal(b, 5, hooks.Calls("ack"))
	})
}
