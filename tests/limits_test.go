package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A crowd counts the handlers that run at the same time.
type crowd struct {
	now, most atomic.Int64
	starts    sync.Map // ID → time
}

func (c *crowd) enter(id string) {
	c.starts.Store(id, time.Now())
	n := c.now.Add(1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
}

func (c *crowd) leave() { c.now.Add(-1) }

// started returns the times of all starts, in their order.
func (c *crowd) started() (list []time.Time) {
	c.starts.Range(func(_, at any) bool {
		list = append(list, at.(time.Time))
		return true
	})
	slices.SortFunc(list, time.Time.Compare)
	return list
}

// handler returns a handler that takes d.
func (c *crowd) handler(d time.Duration) delayq.HandlerFunc {
	return func(_ context.Context, job *delayq.Job) error {
		c.enter(job.ID)
		defer c.leave()
		time.Sleep(d)
		return nil
	}
}

// No more jobs run at a time than the limit says, on all servers together, and no place stays
// empty. A freed place is used at once, not a tick later.
func TestLimitOfRunningJobs(t *testing.T) {
	for _, topics := range []int{1, 10} { // servers that pop, and servers that are rung
		t.Run(fmt.Sprintf("%d topics", topics), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				const jobs, limit, length = 300, 3, 10 * time.Millisecond
				var c crowd
				require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: limit}))
				var hooks queuetest.HookLog
				for range 3 {
					queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
						s.HandlerFunc("a", c.handler(length), delayq.Concurrency(5))
						for i := range topics - 1 {
							s.HandlerFunc(fmt.Sprint("other", i), queuetest.Nothing)
						}
					}, delayq.Hooks(&hooks))
				}
				b.Pass(5 * time.Second)
				began := time.Now()
				for i := range jobs {
					b.Enqueue("a", fmt.Sprint(i))
				}
				for b.Stats("a").Ready+b.Stats("a").Running > 0 {
					b.Pass(10 * time.Millisecond)
				}
				require.EqualValues(b, limit, c.most.Load())
				took := time.Since(began)
				require.Less(b, took, jobs/limit*length*3/2, "places were empty")
				require.Len(b, c.started(), jobs)
				require.Less(b, hooks.Calls("take", "a"), 3*jobs, "takes in vain")
			})
		})
	}
}

// A limit can be raised, lowered and removed while jobs run. Jobs that were taken ahead go back.
func TestLimitChanges(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var c crowd
		b.Serve("a", c.handler(100*time.Millisecond), delayq.Concurrency(8))
		for i := range 400 {
			b.Enqueue("a", fmt.Sprint(i))
		}
		b.Pass(300 * time.Millisecond)
		require.EqualValues(b, 8, c.now.Load())
		set := func(running int) {
			require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: running}))
			require.Equal(b, running, b.Stats("a").Limits.Running)
			b.Pass(150 * time.Millisecond)
		}
		for _, running := range []int{2, 5, 1, 8, 20, 3} {
			set(running)
			require.EqualValues(b, min(running, 8), c.now.Load(), running)
			require.EqualValues(b, min(running, 8), b.Stats("a").Running, running)
		}
		set(0)
		require.EqualValues(b, 8, c.now.Load())
		require.Equal(b, "none", b.Stats("a").Limits.String())
	})
}

// Jobs that a server took ahead before a limit was set go back to ready, in their order.
func TestLimitReturnsJobsTakenAhead(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		block := make(chan struct{})
		s := b.Serve("a", rec.Then(func(_ context.Context, job *delayq.Job) error {
			if job.ID >= "0200" {
				<-block
			}
			return nil
		}), delayq.Concurrency(1))
		for i := range 600 {
			b.Enqueue("a", fmt.Sprintf("%04d", i))
		}
		b.Pass(5 * time.Millisecond)
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: 1}))
		b.Pass(2 * time.Second)
		require.EqualValues(b, 1, b.Stats("a").Running)
		close(block)
		b.Pass(2 * time.Second)
		require.Len(b, rec.IDs(), 600)
		require.True(b, slices.IsSorted(rec.IDs()))
		require.NoError(b, s.Stop())
	})
}

// The place of a cancelled job is used by another server within a round trip, once its handler has
// returned. The place of a server that stops is, too.
func TestLimitPlaceFreedElsewhere(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		started := make(map[string]time.Time)
		var mu sync.Mutex
		over := make(chan struct{})
		h := func(stubborn bool) delayq.HandlerFunc {
			return func(ctx context.Context, job *delayq.Job) error {
				mu.Lock()
				started[job.ID] = time.Now()
				mu.Unlock()
				switch {
				case job.ID == "stays" && stubborn:
					<-over
				case job.ID == "drains":
					time.Sleep(10*time.Second + 370*time.Millisecond)
				}
				return nil
			}
		}
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: 1}))
		first := b.Serve("a", h(true), delayq.Concurrency(5), delayq.Drain(time.Minute))
		b.Enqueue("a", "stays")
		b.Pass(time.Second)
		b.Serve("a", h(false), delayq.Concurrency(5))
		b.Enqueue("a", "next")
		b.Pass(5*time.Second + 300*time.Millisecond)
		require.NotContains(b, started, "next")
		_, err := b.Client.Dequeue(b.Context(), "a", "stays")
		require.NoError(b, err)
		b.Pass(3 * time.Second)
		require.NotContains(b, started, "next")
		freed := time.Now()
		close(over)
		b.Pass(time.Second)
		require.WithinDuration(b, freed, started["next"], 5*time.Millisecond)

		third := b.Serve("b", h(false), delayq.Concurrency(5), delayq.Drain(time.Minute))
		require.NoError(b, b.Client.SetLimits(b.Context(), "b", delayq.Limits{Running: 1}))
		b.Enqueue("b", "drains")
		b.Pass(time.Second)
		b.Serve("b", h(false), delayq.Concurrency(5))
		b.Enqueue("b", "after")
		b.Pass(time.Second)
		stopping := make(chan error)
		go func() { stopping <- third.Stop() }()
		b.Pass(20 * time.Second)
		require.NoError(b, <-stopping)
		require.WithinDuration(b, started["drains"].Add(10*time.Second+370*time.Millisecond), started["after"], 5*time.Millisecond)
		go func() { stopping <- first.Stop() }()
		b.Pass(2 * time.Minute)
		<-stopping
	})
}

// The place of a server that dies is free when its lease is over.
func TestLimitOfACrashedServer(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: 1}))
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			return ctx.Err()
		}, delayq.Lease(10*time.Second))
		b.Enqueue("a", "held")
		b.Pass(time.Second)
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(nil), delayq.Lease(10*time.Second))
		b.Enqueue("a", "next")
		b.Pass(time.Second)
		w.Freeze()
		b.Pass(5 * time.Second)
		require.Empty(b, rec.IDs())
		b.Pass(8 * time.Second)
		require.Contains(b, rec.IDs(), "next")
	})
}

// A place that is free because a lease is over is used at once, whichever server finds that out: by
// the one with an idle worker, and not a tick later.
func TestPlaceOfALapsedLeaseIsUsedAtOnce(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const lease = 10 * time.Second
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: 2}))
		wait := func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			return ctx.Err()
		}
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "a", wait, delayq.Lease(lease), delayq.Concurrency(1))
		b.Enqueue("a", "held")
		b.Pass(time.Second)
		b.Serve("a", wait, delayq.Lease(lease), delayq.Concurrency(1)) // busy, and a server like any other
		b.Enqueue("a", "busy")
		b.Pass(time.Second)
		var c crowd
		b.Serve("a", c.handler(0), delayq.Lease(lease))
		b.Pass(370 * time.Millisecond) // its ticks are not at the ends of leases
		b.Enqueue("a", "next")
		b.Pass(time.Second)
		require.Empty(b, c.started())
		w.Freeze()
		end := b.RDB.ZScore(b.Context(), queuetest.Prefix+":{a}:leases", "held").Val()
		b.Pass(2 * lease)
		require.Len(b, c.started(), 2)
		require.WithinDuration(b, time.UnixMicro(int64(end*1000)), c.started()[0], 5*time.Millisecond)
	})
}

// The loss of the reply to a take costs a limited topic the repeat and nothing else, on servers
// that pop and on servers that are rung.
func TestLimitAfterALostReply(t *testing.T) {
	for _, topics := range []int{1, 10} {
		for _, l := range []delayq.Limits{{Running: 2}, {Rate: delayq.Per(20, time.Second)}} {
			t.Run(fmt.Sprintf("%d topics, %v", topics, l), func(t *testing.T) {
				queuetest.InBubble(t, func(b *queuetest.Bubble) {
					const jobs = 20
					var c crowd
					require.NoError(b, b.Client.SetLimits(b.Context(), "a", l))
					w := queuetest.NewWire(b.Redis)
					queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
						s.HandlerFunc("a", c.handler(10*time.Millisecond), delayq.Concurrency(8))
						for i := range topics - 1 {
							s.HandlerFunc(fmt.Sprint("other", i), queuetest.Nothing)
						}
					})
					b.Pass(5 * time.Second)
					w.Lose(queuetest.Digest("take"))
					for i := range jobs {
						b.Enqueue("a", fmt.Sprint(i))
					}
					b.Pass(10 * time.Second)
					all := c.started()
					require.Len(b, all, jobs)
					require.Equal(b, 1, w.Losses())
					for i := 1; i < jobs; i++ {
						require.Less(b, all[i].Sub(all[i-1]), 100*time.Millisecond, "start %d", i)
					}
				})
			})
		}
	}
}

// Within every period there are no more starts than the rate and its burst allow, by Redis's clock,
// and over a long time there are as many. A strict rate is a bound of every period.
func TestRateOfStarts(t *testing.T) {
	for _, c := range []struct {
		rate    delayq.Rate
		servers int
		most    int // starts in any period
		jobs    int
	}{
		{delayq.Per(50, time.Second), 3, 55, 300},
		{delayq.Per(50, time.Second).Burst(50), 2, 100, 300},
		{delayq.Per(50, time.Second).Burst(1), 2, 51, 300},
		{delayq.Per(50, time.Second).Strict(), 3, 50, 300},
		{delayq.Per(50, time.Second).Burst(25).Strict(), 2, 50, 300},
		{delayq.Per(1, 100*time.Millisecond), 3, 2, 100},
		{delayq.Per(1, 100*time.Millisecond).Strict(), 3, 1, 100},
		{delayq.Per(2, time.Second).Strict(), 1, 2, 20},
		{delayq.Per(100, time.Minute).Burst(1), 1, 101, 150},
	} {
		t.Run(fmt.Sprintf("%v on %d", c.rate, c.servers), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var starts crowd
				var hooks queuetest.HookLog
				require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Rate: c.rate}))
				for range c.servers {
					b.Serve("a", starts.handler(time.Millisecond), delayq.Concurrency(20), delayq.Hooks(&hooks))
				}
				b.Pass(10 * time.Second)
				for i := range c.jobs {
					b.Enqueue("a", fmt.Sprint(i))
				}
				for b.Stats("a").Ready+b.Stats("a").Running > 0 {
					b.Pass(100 * time.Millisecond)
				}
				all := starts.started()
				require.Len(b, all, c.jobs)
				for i, at := range all {
					// Takes are counted in Redis, 1 ms or less before the starts.
					window := at.Add(c.rate.Period() - 2*time.Millisecond)
					n, _ := slices.BinarySearchFunc(all, window, time.Time.Compare)
					require.LessOrEqual(b, n-i, c.most, "starts from %v on", at)
				}
				mean := float64(len(all)-1-c.rate.MaxBurst()) / all[len(all)-1].Sub(all[0]).Seconds()
				want := float64(c.rate.Starts()) / c.rate.Period().Seconds()
				if c.rate.IsStrict() && c.rate.Starts() > 1 {
					want *= float64(c.rate.Starts()-c.rate.MaxBurst()) / float64(c.rate.Starts())
				}
				require.InEpsilon(b, want, mean, 0.1, "mean rate")
				require.Less(b, hooks.Calls("take", "a"), 4*c.jobs+100, "takes in vain")
			})
		})
	}
}

// Three servers with more than enough to do start 3,000 jobs in a minute at 50 a second, give or
// take those of the burst. It makes no difference that one of them stops in between, and that
// another one loses the reply of a take.
func TestThreeServersStartAsManyJobsAsTheRateSays(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var c crowd
		rate := delayq.Per(50, time.Second)
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Rate: rate}))
		for i := range 1200 {
			b.Enqueue("a", fmt.Sprint(i))
		}
		b.Pass(time.Second)
		first := b.Serve("a", c.handler(10*time.Millisecond), delayq.Concurrency(8))
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "a", c.handler(10*time.Millisecond), delayq.Concurrency(8))
		b.Serve("a", c.handler(10*time.Millisecond), delayq.Concurrency(8))
		b.Pass(10 * time.Second)
		w.Lose(queuetest.Digest("take"))
		require.NoError(b, first.Stop())
		b.Pass(11 * time.Second)
		require.Equal(b, 1, w.Losses())
		all := c.started()
		n, _ := slices.BinarySearchFunc(all, all[0].Add(20*time.Second), time.Time.Compare)
		require.InDelta(b, 1000, n, float64(rate.MaxBurst()))
		b.Pass(10 * time.Second)
		require.Len(b, c.started(), 1200)
	})
}

// An idle limited topic is not asked more often than another one, and a job for now starts at once.
func TestLimitedTopicAtRest(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var c crowd
		var hooks queuetest.HookLog
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: 2, Rate: delayq.Per(10, time.Second)}))
		b.Serve("a", c.handler(0), delayq.Hooks(&hooks))
		b.Pass(time.Minute)
		require.Less(b, hooks.Calls("take"), 20)
		for i := range 5 {
			b.Pass(3 * time.Second)
			at := time.Now()
			b.Enqueue("a", fmt.Sprint(i))
			b.Pass(time.Second)
			started, _ := c.starts.Load(fmt.Sprint(i))
			require.WithinDuration(b, at, started.(time.Time), 5*time.Millisecond)
		}
	})
}

// Redis's clock goes back by an hour: starts are held up for no longer than the burst takes.
func TestRateAfterTheClockWasSetBack(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var c crowd
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Rate: delayq.Per(10, time.Second).Burst(5)}))
		future := float64(time.Now().Add(time.Hour).UnixMicro())
		require.NoError(b, b.RDB.HSet(b.Context(), queuetest.Prefix+":{a}:meta", "tat", fmt.Sprintf("%.0f", future)).Err())
		b.Serve("a", c.handler(0))
		b.Enqueue("a", "x")
		b.Pass(time.Second)
		require.Len(b, c.started(), 1)
	})
}

// A handler that returns Hold makes the topic wait on all servers. The job is at the head again,
// and its attempt is not used up. Several holds do not shorten each other.
func TestHold(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var mu sync.Mutex
		var starts []string
		began := time.Now()
		const ran = 100 * time.Millisecond
		holds := map[string]time.Duration{"0": 10 * time.Second, "1": 3 * time.Second, "2": 20 * time.Second, "3": 5 * time.Second}
		h := func(_ context.Context, job *delayq.Job) error {
			mu.Lock()
			starts = append(starts, fmt.Sprintf("%s/%d at %v", job.ID, job.Attempt, time.Since(began).Round(time.Second)))
			d, has := holds[job.ID]
			delete(holds, job.ID)
			mu.Unlock()
			if has {
				time.Sleep(ran) // all of them have started by then
				if job.ID == "3" {
					return fmt.Errorf("api: %w", delayq.Hold(time.Until(time.Now().Add(d))))
				}
				return fmt.Errorf("api says 429: %w", delayq.Hold(d))
			}
			return nil
		}
		var hooks queuetest.HookLog
		for range 2 {
			b.Serve("a", h, delayq.Concurrency(2), delayq.Hooks(&hooks))
		}
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: 4}))
		b.Pass(time.Second - b.At()%time.Second)
		began = time.Now()
		for i := range 6 {
			b.Enqueue("a", fmt.Sprint(i))
		}
		b.Pass(time.Second)
		stats := b.Stats("a")
		require.WithinDuration(b, began.Add(ran+20*time.Second), stats.HeldUntil, 5*time.Millisecond)
		require.Equal(b, "job 2", stats.HeldBy)
		require.Contains(b, stats.HeldReason, "api says 429")
		require.EqualValues(b, 4, stats.Counters[delayq.CounterHeld])
		e, err := b.Inspector.Explain(b.Context(), "a", "0")
		require.NoError(b, err)
		require.Equal(b, delayq.ReasonTopicHeld, e.Reasons[0].Code)
		require.Contains(b, e.Verdict, `the topic is held by "job 2" until`)
		require.EqualValues(b, 0, b.Get("a", "2").Job.Attempt-1)
		b.Pass(25 * time.Second)
		slices.Sort(starts)
		require.Equal(b, []string{
			"0/1 at 0s", "0/1 at 20s", "1/1 at 0s", "1/1 at 20s", "2/1 at 0s", "2/1 at 20s", "3/1 at 0s", "3/1 at 20s", "4/1 at 20s", "5/1 at 20s",
		}, starts)
		require.Len(b, hooks.Of("Held"), 4)
		require.WithinDuration(b, began.Add(ran+20*time.Second), hooks.Of("Held", "2")[0].NextDue, 10*time.Millisecond)
		require.Zero(b, b.Stats("a").HeldUntil)
	})
}

// Ten handlers that return Hold at the same moment make the topic wait for as long as the longest
// one says, and those that return HoldKey their key. No attempt is used up.
func TestTenHoldsAtOnce(t *testing.T) {
	for name, hold := range map[string]func(time.Duration) error{"topic": delayq.Hold, "key": delayq.HoldKey} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var mu sync.Mutex
				var all sync.WaitGroup
				all.Add(10)
				starts := map[string][]time.Time{}
				h := func(_ context.Context, job *delayq.Job) error {
					mu.Lock()
					starts[job.ID] = append(starts[job.ID], time.Now())
					n := len(starts[job.ID])
					mu.Unlock()
					if job.Attempt != 1 {
						t.Errorf("%s is at attempt %d", job.ID, job.Attempt)
					}
					if n > 1 || job.ID == "later" {
						return nil
					}
					all.Done()
					all.Wait()
					d, _ := strconv.Atoi(job.ID)
					return hold(time.Duration(3+7*d%10) * time.Second) // from 3 to 12 s, in no order
				}
				for range 2 {
					b.Serve("a", h, delayq.Concurrency(5))
				}
				b.Pass(time.Second)
				began := time.Now()
				for i := range 10 {
					b.Enqueue("a", fmt.Sprint(i), delayq.Key("k"))
				}
				b.Pass(time.Second)
				b.Enqueue("a", "later", delayq.Key("k"))
				b.Pass(10*time.Second + 900*time.Millisecond)
				count := func() int {
					mu.Lock()
					defer mu.Unlock()
					return len(starts)
				}
				require.Equal(b, 10, count(), "held")
				b.Pass(time.Second)
				require.Equal(b, 11, count())
				mu.Lock()
				defer mu.Unlock()
				for id, at := range starts {
					require.Len(b, at, map[bool]int{true: 1, false: 2}[id == "later"], id)
					require.WithinDuration(b, began.Add(12*time.Second), at[len(at)-1], 200*time.Millisecond, id)
				}
				require.EqualValues(b, 10, b.Stats("a").Counters[delayq.CounterHeld])
			})
		})
	}
}

// A program holds a topic, and ends the hold. Pauses and holds do not touch each other.
func TestClientHold(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := delayq.WithActor(b.Context(), "api-client")
		var c crowd
		b.Serve("a", c.handler(0))
		require.NoError(b, b.Client.Hold(ctx, "a", time.Minute, "429"))
		require.NoError(b, b.Client.Hold(ctx, "a", time.Second, "shorter"))
		b.Enqueue("a", "x")
		b.Pass(10 * time.Second)
		require.Empty(b, c.started())
		stats := b.Stats("a")
		require.Equal(b, []string{"api-client", "429"}, []string{stats.HeldBy, stats.HeldReason})
		require.NoError(b, b.Client.Resume(ctx, "a", "api-client"))
		require.NoError(b, b.Client.ResumeAll(ctx, "a"))
		b.Pass(3 * time.Second)
		require.Empty(b, c.started())
		require.NoError(b, b.Client.EndHold(ctx, "a"))
		at := time.Now()
		b.Pass(time.Second)
		require.Len(b, c.started(), 1)
		require.WithinDuration(b, at, c.started()[0], 5*time.Millisecond)

		require.NoError(b, b.Client.Pause(ctx, "a", delayq.Pause{By: "ann"}))
		require.NoError(b, b.Client.Hold(ctx, "a", time.Second, ""))
		b.Enqueue("a", "y")
		b.Pass(10 * time.Second)
		require.Len(b, c.started(), 1)
		require.True(b, b.Stats("a").Paused)
		require.NoError(b, b.Client.Resume(ctx, "a", "ann"))
		b.Pass(time.Second)
		require.Len(b, c.started(), 2)
		acts, err := b.Inspector.Audit(ctx, 10)
		require.NoError(b, err)
		var texts []string
		for _, act := range acts {
			texts = append(texts, act.Actor+": "+act.Action+" "+act.Filter)
		}
		require.Contains(b, texts, `api-client: hold for 1m0s, reason "429"`)
		require.Contains(b, texts, "api-client: end hold ")
	})
}

// The limits of a handler apply only to a topic for which nobody has set any, not even none.
func TestDefaultLimits(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		for _, c := range []struct {
			topic string
			set   *delayq.Limits
			want  delayq.Limits
		}{
			{"new", nil, delayq.Limits{Running: 7, Rate: delayq.Per(3, time.Second)}},
			{"set", &delayq.Limits{Running: 2}, delayq.Limits{Running: 2}},
			{"removed", &delayq.Limits{}, delayq.Limits{}},
		} {
			if c.set != nil {
				require.NoError(b, b.Client.SetLimits(b.Context(), c.topic, *c.set))
			}
			for range 2 {
				b.Serve(c.topic, queuetest.Nothing).Stop()
				s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
					s.HandlerFunc(c.topic, queuetest.Nothing, delayq.DefaultLimits(delayq.Limits{Running: 7, Rate: delayq.Per(3, time.Second)}))
				})
				b.Pass(time.Second)
				require.Equal(b, c.want, b.Stats(c.topic).Limits, c.topic)
				require.NoError(b, s.Stop())
			}
		}
	})
}

// Explain says that a limit holds a job up, with the numbers.
func TestExplainLimits(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		block := make(chan struct{})
		b.Serve("a", func(context.Context, *delayq.Job) error { <-block; return nil }, delayq.Concurrency(5))
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: 2, Rate: delayq.Per(2, time.Minute).Burst(2)}))
		for i := range 4 {
			b.Enqueue("a", fmt.Sprint(i))
		}
		b.Pass(6 * time.Second)
		why := func(id string) (codes []delayq.ReasonCode, verdict string) {
			e, err := b.Inspector.Explain(b.Context(), "a", id)
			require.NoError(b, err)
			for _, r := range e.Reasons {
				codes = append(codes, r.Code)
			}
			return codes, e.Verdict
		}
		codes, verdict := why("3")
		require.Equal(b, []delayq.ReasonCode{delayq.ReasonTopicLimit, delayq.ReasonTopicRate, delayq.ReasonBehind}, codes)
		require.Equal(b, "Ready, but not running: 2 jobs are running, and the limit of the topic is 2.", verdict)
		close(block)
		b.Pass(time.Second)
		codes, verdict = why("3")
		require.Equal(b, []delayq.ReasonCode{delayq.ReasonTopicRate, delayq.ReasonBehind}, codes)
		require.Contains(b, verdict, "the rate of the topic (2 per 1m0s, burst 2) allows the next start at ")
		require.WithinDuration(b, b.Began.Add(30*time.Second), b.Stats("a").NextStart, time.Second)
		b.Pass(time.Minute)
	})
}

// Explain says which limit of a key a job waits for.
func TestExplainLimitsOfKeys(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		block := make(chan struct{})
		b.Serve("a", func(context.Context, *delayq.Job) error { <-block; return nil }, delayq.Concurrency(5))
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{RunningPerKey: 2, RatePerKey: delayq.Per(4, time.Minute).Burst(3)}))
		require.NoError(b, b.Client.SetKeyLimits(b.Context(), "a", "k", delayq.KeyLimits{Running: 1}))
		for i := range 4 {
			b.Enqueue("a", fmt.Sprint("k", i), delayq.Key("k"))
		}
		for i := range 8 {
			b.Enqueue("a", fmt.Sprint("l", i), delayq.Key("l"))
		}
		b.Pass(6 * time.Second)
		why := func(id string) (codes []delayq.ReasonCode, verdict string) {
			e, err := b.Inspector.Explain(b.Context(), "a", id)
			require.NoError(b, err)
			for _, r := range e.Reasons {
				codes = append(codes, r.Code)
			}
			return codes, e.Verdict
		}
		codes, verdict := why("k3")
		require.Equal(b, delayq.ReasonKeyLimit, codes[0])
		require.Equal(b, "Ready, but not running: 1 job of its key is running, and the limit of the key is 1.", verdict)
		_, verdict = why("l7")
		require.Equal(b, "Ready, but not running: 2 jobs of its key are running, and the limit of the key is 2.", verdict)
		key, err := b.Inspector.Key(b.Context(), "a", "k")
		require.NoError(b, err)
		require.EqualValues(b, 1, key.Running)
		require.Equal(b, delayq.KeyLimits{Running: 1}, key.Limits)
		require.False(b, key.LimitedUntil.IsZero())
		close(block)
		b.Pass(time.Second)
		codes, verdict = why("l7")
		require.Equal(b, delayq.ReasonKeyRate, codes[0])
		require.Contains(b, verdict, "the rate of its key (4 per 1m0s, burst 3) allows the next start at ")
		b.Pass(5 * time.Minute)
		require.EqualValues(b, 12, b.Counter("a", "acked"))
		key, err = b.Inspector.Key(b.Context(), "a", "k")
		require.NoError(b, err)
		require.Zero(b, key.LimitedUntil)
		require.Zero(b, key.Running)
	})
}

// Bad limits and holds are refused, and write nothing.
func TestLimitsAreValidated(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		for want, l := range map[string]delayq.Limits{
			"Limits.Running(-1): must be from 0 to 1000000":                              {Running: -1},
			"Limits.Running(1000001): must be":                                           {Running: 1_000_001},
			"Per(0, 1s): starts must be from 1 to 1000000":                               {Rate: delayq.Per(0, time.Second)},
			"Per(-3, 1s): starts must":                                                   {Rate: delayq.Per(-3, time.Second)},
			"Per(10, 0s): the period must be from 1µs for each start":                    {Rate: delayq.Per(10, 0)},
			"Per(10, -1s): the period must":                                              {Rate: delayq.Per(10, -time.Second)},
			"Per(1000000, 100ms): the period must":                                       {Rate: delayq.Per(1_000_000, 100*time.Millisecond)},
			"Per(1, 9000h0m0s): the period must be from 1µs for each start to 8784h0m0s": {Rate: delayq.Per(1, 9000*time.Hour)},
			"Per(10, 1s).Burst(0): must be from 1 to 10":                                 {Rate: delayq.Per(10, time.Second).Burst(0)},
			"Per(10, 1s).Burst(11): must be from 1 to 10":                                {Rate: delayq.Per(10, time.Second).Burst(11)},
			"Per(10, 1s).Burst(10).Strict(): a strict rate needs a burst of at most 9":   {Rate: delayq.Per(10, time.Second).Burst(10).Strict()},
		} {
			err := b.Client.SetLimits(b.Context(), "a", l)
			require.ErrorIs(b, err, delayq.ErrInvalid)
			require.ErrorContains(b, err, `set limits topic "a": `)
			require.ErrorContains(b, err, want)
			s := delayq.NewServer(b.RDB)
			require.ErrorContains(b, s.HandlerFunc("a", queuetest.Nothing, delayq.DefaultLimits(l)), want)
		}
		for want, d := range map[string]time.Duration{"d(0s): must be from 1ms": 0, "d(-1s): must be": -time.Second, "d(30ns): at least 1ms": 30} {
			require.ErrorContains(b, b.Client.Hold(b.Context(), "a", d, ""), want)
		}
		require.ErrorContains(b, b.Client.Hold(b.Context(), "a", time.Second, string(make([]byte, 1025))), "reason of 1025 bytes")
		require.Empty(b, b.Redis.Keys())
	})
}

// What AsHold says of an error, and what takes precedence.
func TestAsHold(t *testing.T) {
	t.Parallel()
	d, ok := delayq.AsHold(fmt.Errorf("x: %w", delayq.Hold(time.Hour)))
	require.True(t, ok)
	require.Equal(t, time.Hour, d)
	for _, err := range []error{
		nil, queuetest.ErrTest, errors.Join(delayq.Hold(1), delayq.Permanent(queuetest.ErrTest)),
		errors.Join(delayq.Hold(1), delayq.Snooze(1)), errors.Join(delayq.Hold(1), delayq.Again(nil)),
	} {
		_, ok := delayq.AsHold(err)
		require.False(t, ok, "%v", err)
	}
}

// Random limits on servers with random handlers: the model is the bound itself.
func TestLimitsAtRandom(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				p, of := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2)) // of: the handlers'
				var mu sync.Mutex
				var c crowd
				limit := int64(1 + p.IntN(6))
				require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: int(limit)}))
				h := func(ctx context.Context, job *delayq.Job) error {
					c.enter(fmt.Sprint(job.ID, job.Attempt, job.Snoozes))
					defer c.leave()
					mu.Lock()
					d, what := time.Duration(of.IntN(50))*time.Millisecond, of.IntN(12)
					mu.Unlock()
					time.Sleep(d)
					switch what {
					case 0:
						return queuetest.ErrTest
					case 1:
						return delayq.Snooze(20 * time.Millisecond)
					case 2:
						return delayq.Hold(30 * time.Millisecond)
					case 3:
						return delayq.Permanent(queuetest.ErrTest)
					}
					return nil
				}
				for range 3 {
					b.Serve("a", h, delayq.Concurrency(1+p.IntN(8)))
				}
				for i := range 200 {
					b.Enqueue("a", fmt.Sprint(i), delayq.Backoff(10*time.Millisecond, 50*time.Millisecond))
					if p.IntN(4) == 0 {
						b.Pass(time.Duration(p.IntN(30)) * time.Millisecond)
					}
				}
				for range 600 {
					b.Pass(200 * time.Millisecond)
					synctest.Wait()
					if s := b.Stats("a"); s.Ready+s.Running+s.Scheduled == 0 {
						break
					}
				}
				s := b.Stats("a")
				require.Zero(b, s.Ready+s.Running+s.Scheduled)
				require.LessOrEqual(b, c.most.Load(), limit)
			})
		})
	}
}
