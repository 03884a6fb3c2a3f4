package delayq_test

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
				inBubble(t, func(b *bubble) {
					var rec recorder
					b.serve("a", rec.then(nil))
					b.pass(1300 * time.Millisecond) // in the middle of a tick
					due := delayq.ProcessIn(in)
					if absolute {
						due = delayq.ProcessAt(time.Now().Add(in))
					}
					want := ms(time.Now().Add(max(0, in)))
					job := b.enqueue("a", "1", due)
					require.True(b, job.Due.Equal(want), "due %v instead of %v", job.Due, want)
					b.pass(max(0, in) + 10*time.Second)
					starts := rec.all()
					require.Len(b, starts, 1)
					require.Equal(b, want.Sub(b.began), starts[0].at.Sub(b.began))
					require.True(b, starts[0].started.Equal(want), "Started is %v", starts[0].started)
					require.True(b, starts[0].due.Equal(want), "Due is %v", starts[0].due)
				})
			})
		}
	}
}

// A timer that sleeps until the earliest job must hear of an earlier one.
func TestEarlierJobWakesTheTimer(t *testing.T) {
	for name, make := range map[string]func(b *bubble, due delayq.DueOption){
		"enqueue": func(b *bubble, due delayq.DueOption) { b.enqueue("a", "early", due) },
		"reschedule": func(b *bubble, due delayq.DueOption) {
			b.enqueue("a", "early", delayq.ProcessIn(2*time.Hour))
			b.pass(5 * time.Second)
			require.NoError(b, b.client.Reschedule(b.Context(), "a", "early", due))
		},
		"replace": func(b *bubble, due delayq.DueOption) {
			b.enqueue("a", "early", delayq.ProcessIn(2*time.Hour))
			b.pass(5 * time.Second)
			b.enqueue("a", "early", due, delayq.Replace())
		},
		"batch": func(b *bubble, due delayq.DueOption) {
			_, err := b.client.EnqueueBatch(b.Context(), []delayq.NewJob{
				{Topic: "a", ID: "late", Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}},
				{Topic: "a", ID: "early", Options: []delayq.JobOption{due}},
			})
			require.NoError(b, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				var rec recorder
				b.serve("a", rec.then(nil))
				b.enqueue("a", "0", delayq.ProcessIn(time.Hour))
				b.pass(3*time.Second + 17*time.Millisecond)
				for i := range 20 { // at different times after the last tick
					before := len(rec.all())
					at := 50*time.Millisecond + time.Duration(i)*7*time.Millisecond
					make(b, delayq.ProcessIn(at))
					want := b.at() + at
					b.pass(time.Second + 43*time.Millisecond)
					starts := rec.all()
					require.Len(b, starts, before+1)
					require.Equal(b, want, starts[before].at.Sub(b.began))
					_, err := b.client.Dequeue(b.Context(), "a", "late")
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
			inBubble(t, func(b *bubble) {
				b.loadScripts()
				require.NoError(b, b.client.Pause(b.Context(), "a", delayq.Pause{}))
				b.enqueue("a", "resumed")
				var rec recorder
				w := newWire(b.redis)
				if !again {
					w.deafen()
				}
				b.serveOn(w, "a", rec.then(nil))
				b.pass(100 * time.Millisecond)
				if again {
					w.deafen()
				}
				require.NoError(b, b.client.Resume(b.Context(), "a", ""))
				due := b.enqueue("a", "later", delayq.ProcessIn(500*time.Millisecond)).Due
				b.pass(200 * time.Millisecond)
				require.Empty(b, rec.all())
				w.heal()
				b.pass(550 * time.Millisecond) // the next tick comes after 0.9 s
				require.Equal(b, []string{"resumed", "later"}, rec.ids())
				require.Equal(b, 300*time.Millisecond, rec.of("resumed")[0].at.Sub(b.began))
				require.Equal(b, due.Sub(b.began), rec.of("later")[0].at.Sub(b.began))
			})
		})
	}
}

// A job that is due now is started by its own enqueueing: with all timers stopped it still is.
// (F11)
func TestJobDueNowNeedsNoTick(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		var rec recorder
		w := newWire(b.redis)
		b.serveOn(w, "a", rec.then(nil))
		b.pass(1500 * time.Millisecond)
		w.stall(script("promote"))
		for i := range 10 {
			b.pass(333 * time.Millisecond)
			b.enqueue("a", fmt.Sprint(i))
			at := b.at()
			synctest.Wait()
			require.Len(b, rec.all(), i+1)
			require.Equal(b, at, rec.all()[i].at.Sub(b.began))
		}
	})
}

func TestOldestDueFirst(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var want []string
		for i := range 50 { // enqueued in another order than they fall due
			k := (i * 31) % 50
			b.enqueue("a", fmt.Sprintf("%02d", k), delayq.ProcessIn(time.Duration(k+1)*20*time.Millisecond))
			want = append(want, fmt.Sprintf("%02d", i))
		}
		b.pass(time.Minute)
		b.enqueue("a", "now-1")
		b.enqueue("a", "now-2")
		var rec recorder
		b.serve("a", rec.then(func(context.Context, *delayq.Job) error {
			time.Sleep(10 * time.Millisecond)
			return nil
		}), delayq.Concurrency(1))
		b.pass(time.Minute)
		starts := rec.ids()
		// Those that were enqueued for now stood in ready before the others were promoted.
		require.ElementsMatch(b, append(slices.Clone(want), "now-1", "now-2"), starts)
		starts = slices.DeleteFunc(starts, func(id string) bool { return id == "now-1" || id == "now-2" })
		require.Equal(b, want, starts)
	})
}

// More jobs due at one instant than one call promotes, or takes. (B14)
func TestFifteenHundredDueAtOnce(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const jobs = 1500
		var list []delayq.NewJob
		due := time.Now().Add(10 * time.Second)
		for i := range jobs {
			list = append(list, delayq.NewJob{Topic: "a", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ProcessAt(due)}})
		}
		_, err := b.client.EnqueueBatch(b.Context(), list)
		require.NoError(b, err)
		var rec recorder
		for range 3 { // servers that promote at the same time
			b.serve("a", rec.then(nil), delayq.Concurrency(64))
		}
		b.pass(10*time.Second - time.Millisecond)
		require.Empty(b, rec.all())
		b.pass(time.Millisecond)
		require.Len(b, rec.times(), jobs)
		require.Len(b, rec.all(), jobs, "a job was started twice")
		for _, s := range rec.all() {
			require.True(b, s.at.Equal(due), "job %s at %v", s.id, s.at)
		}
	})
}

// The clock of Redis is hours away from those of client and server, in either direction: what was
// asked for in durations is not touched by that, and what was asked for as an instant is that
// instant of Redis's clock. (E1, E2)
func TestWrongClocksChangeNothing(t *testing.T) {
	for _, ahead := range []time.Duration{-5 * time.Hour, 5 * time.Hour, 350 * 24 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				now := func() time.Time { return time.Now().Add(ahead) }
				b.redis.SetTime(now())
				end := make(chan struct{})
				defer close(end)
				go func() { // the clock of miniredis stands still once it is set
					for {
						select {
						case <-end:
							return
						case <-time.After(time.Millisecond):
							b.redis.SetTime(now())
						}
					}
				}()
				var rec recorder
				h := rec.then(func(ctx context.Context, job *delayq.Job) error {
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
					b.serve("a", h, delayq.Lease(time.Second))
				}
				b.pass(2 * time.Second)
				began := b.at()
				b.enqueue("a", "now")
				b.enqueue("a", "long")
				b.enqueue("a", "fails", delayq.Backoff(2*time.Second, 2*time.Second))
				b.enqueue("a", "in", delayq.ProcessIn(3*time.Second))
				b.enqueue("a", "at", delayq.ProcessAt(now().Add(3500*time.Millisecond)))
				b.pass(6 * time.Second)

				at := func(id string) time.Duration {
					starts := rec.of(id)
					require.Len(b, starts, 1, id)
					require.False(b, starts[0].started.Before(starts[0].due), "job %s is early by Redis's clock", id)
					return starts[0].at.Sub(b.began) - began
				}
				// The clock of Redis moves in steps of a millisecond here, next to the timers.
				require.InDelta(b, 0, at("now"), float64(2*time.Millisecond))
				require.InDelta(b, 0, at("long"), float64(2*time.Millisecond))
				require.InDelta(b, 3*time.Second, at("in"), float64(2*time.Millisecond))
				require.InDelta(b, 3500*time.Millisecond, at("at"), float64(2*time.Millisecond))
				fails := rec.of("fails")
				require.Len(b, fails, 2)
				require.GreaterOrEqual(b, fails[1].at.Sub(fails[0].at), 2*time.Second-time.Millisecond)
				require.Less(b, fails[1].at.Sub(fails[0].at), 2500*time.Millisecond)
				require.Zero(b, b.counter("a", "reclaimed"))
				require.EqualValues(b, 5, b.counter("a", "acked"))
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
			inBubble(t, func(b *bubble) {
				var rec recorder
				b.serve("a", rec.then(func(context.Context, *delayq.Job) error {
					if len(rec.all()) <= 3 {
						return again()
					}
					return nil
				}))
				b.pass(317 * time.Millisecond)
				b.enqueue("a", "1", delayq.Backoff(100*time.Millisecond, 100*time.Millisecond))
				b.pass(10 * time.Second)
				starts := rec.all()
				require.Len(b, starts, 4)
				for i, s := range starts {
					require.True(b, s.at.Equal(s.due), "start %d was due at %v and came at %v", i, s.due.Sub(b.began), s.at.Sub(b.began))
				}
			})
		})
	}
}

// An idle server asks Redis about once a second, and promotes nothing. (G11)
func TestIdleServerIsQuiet(t *testing.T) {
	inBubble(t, func(b *bubble) {
		w := newWire(b.redis)
		var hooks told
		b.serveOn(w, "a", func(context.Context, *delayq.Job) error { return nil }, delayq.Hooks(&hooks))
		b.enqueue("a", "1", delayq.ProcessIn(time.Hour))
		b.pass(10 * time.Second)
		before, promotes, watches := w.requests(), hooks.calls("promote"), hooks.calls("idle")
		b.pass(100 * time.Second)
		require.LessOrEqual(b, w.requests()-before, 175)
		require.InDelta(b, 105, hooks.calls("idle")-watches, 6) // ticks of 0.9 to 1 s
		require.Equal(b, promotes, hooks.calls("promote"))
	})
}

// A crash counts as an attempt of every job that was taken, so a job with few of them is not taken
// before there is a slot for it.
func TestJobOfLimitedRetriesIsNotTakenAhead(t *testing.T) {
	inBubble(t, func(b *bubble) {
		release := make(chan struct{})
		defer close(release)
		b.serve("a", func(_ context.Context, job *delayq.Job) error {
			if job.ID == "slow" {
				<-release
			}
			return nil
		}, delayq.Concurrency(1))
		for i := range 200 {
			b.enqueue("a", fmt.Sprint(i))
			synctest.Wait()
		}
		list := []delayq.NewJob{{Topic: "a", ID: "slow"}, {Topic: "a", ID: "unlimited"}, {Topic: "a", ID: "limited",
			Options: []delayq.JobOption{delayq.Retry(3)}}}
		_, err := b.client.EnqueueBatch(b.Context(), list)
		require.NoError(b, err)
		synctest.Wait()
		require.Equal(b, delayq.StateRunning, b.state("a", "unlimited"), "jobs are taken ahead")
		require.Equal(b, delayq.StateReady, b.state("a", "limited"))
	})
}

// A server that holds a job for a slot that does not become free lets go of it.
func TestJobTakenAheadDoesNotWaitForASlowOne(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		release := make(chan struct{})
		defer close(release)
		h := rec.then(func(_ context.Context, job *delayq.Job) error {
			if job.ID == "slow" {
				<-release
			}
			return nil
		})
		b.serve("a", h, delayq.Concurrency(1))
		for i := range 200 { // very short ones, for which jobs are taken ahead
			b.enqueue("a", fmt.Sprint(i))
			synctest.Wait()
		}
		_, err := b.client.EnqueueBatch(b.Context(), []delayq.NewJob{{Topic: "a", ID: "slow"}, {Topic: "a", ID: "next"}})
		require.NoError(b, err)
		synctest.Wait()
		b.serve("a", h, delayq.Concurrency(1))
		b.pass(time.Second)
		require.Len(b, rec.of("slow"), 1)
		require.Len(b, rec.of("next"), 1, "it waits behind the slow one although a server is idle")
	})
}

// A whole call of jobs of which none is started leaves all slots free, and the next call comes at
// once.
func TestManyExpiredJobsHoldUpNothing(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const jobs = 1500
		var list []delayq.NewJob
		for i := range jobs {
			list = append(list, delayq.NewJob{Topic: "a", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ExpireIn(time.Second)}})
		}
		_, err := b.client.EnqueueBatch(b.Context(), append(list, delayq.NewJob{Topic: "a", ID: "fresh"}))
		require.NoError(b, err)
		b.pass(time.Minute)
		var rec recorder
		b.serve("a", rec.then(nil), delayq.Concurrency(200))
		require.Equal(b, []string{"fresh"}, rec.ids())
		require.Equal(b, time.Minute, b.at())
		b.pass(time.Millisecond)
		require.EqualValues(b, jobs, b.counter("a", "expired"))
	})
}

// A server that has nothing else to do asks once for a job: what it got is less than it asked for,
// so it waits again at once.
func TestLoneJobIsTakenWithOneCall(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var hooks told
		b.serve("a", func(context.Context, *delayq.Job) error { return nil }, delayq.Hooks(&hooks))
		b.pass(time.Second)
		before := hooks.calls("take")
		for i := range 5 {
			b.enqueue("a", fmt.Sprint(i))
			b.pass(time.Second)
			require.Empty(b, b.state("a", fmt.Sprint(i)))
		}
		require.Equal(b, 5, hooks.calls("take")-before)
		require.Equal(b, 5, hooks.calls("ack"))
	})
}
