package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// Rates with room for one start at a time, where a start that is missed is not made up for: of the
// starts that a rate allows in twenty seconds, at least 97 of 100 are made while jobs and workers
// wait, and never one more than it allows. No two ways to Redis and back take the same time.
func TestRatesAreMet(t *testing.T) {
	short, long := 100*time.Microsecond, 10*time.Millisecond
	for _, c := range []struct {
		persec, servers int
		handler, link   time.Duration
	}{
		{4, 1, 0, short}, {4, 3, 300 * time.Millisecond, short}, {10, 1, 10 * time.Millisecond, short}, {10, 3, 0, short},
		{10, 1, 300 * time.Millisecond, short}, {20, 1, 300 * time.Millisecond, short}, {20, 3, 10 * time.Millisecond, short},
		{20, 1, 0, short}, {10, 3, 10 * time.Millisecond, long}, {20, 1, 300 * time.Millisecond, long},
	} {
		t.Run(fmt.Sprintf("%d a second on %d, handlers of %v, a link of %v", c.persec, c.servers, c.handler, c.link), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				const period, jitter = 10, 400 * time.Microsecond
				var starts crowd
				rate := delayq.Per(c.persec, time.Second).Burst(1)
				require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Rate: rate}))
				jobs := make([]delayq.NewJob, 2*c.persec*period)
				for i := range jobs {
					jobs[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i)}
				}
				_, err := b.Client.EnqueueBatch(b.Context(), jobs)
				require.NoError(b, err)
				for i := range c.servers {
					serveOnLink(b, "a", uint64(i), c.link, jitter, starts.handler(c.handler))
				}
				b.Pass(2 * time.Second)
				began := time.Now()
				b.Pass(period * time.Second)
				all := starts.started()
				requireWithin(b, all, time.Second/time.Duration(c.persec), 2*jitter)
				made := len(all) - slices.IndexFunc(all, began.Before)
				require.GreaterOrEqual(b, 100*made, 97*c.persec*period, "starts: %d", made)
			})
		})
	}
}

// Fast rates, with room for one start, for some and for many: at least 97 of 100 are made by one to
// three servers while jobs and workers wait, and never one more than the rate allows.
func TestFastRatesAreMet(t *testing.T) {
	const persec = 1000
	for _, c := range []struct {
		rate    delayq.Rate
		servers int
		workers delayq.ConcurrencyOption
		takes   int // fewer than these in a second
	}{
		{delayq.Per(100, time.Second).Burst(1), 1, 30, 0}, {delayq.Per(100, time.Second).Burst(1), 3, 30, 0},
		{delayq.Per(persec, time.Second).Burst(1), 1, 30, 130}, {delayq.Per(persec, time.Second).Burst(1), 2, 30, 260},
		{delayq.Per(persec, time.Second).Burst(1).Strict(), 3, 30, 390},
		{delayq.Per(persec, time.Second).Burst(7), 2, 30, 260}, {delayq.Per(persec, time.Second).Burst(7).Strict(), 1, 30, 130},
		{delayq.Per(persec, time.Second).Burst(40), 3, 30, 260}, {delayq.Per(persec, time.Second), 1, 30, 110},
		{delayq.Per(persec, time.Second).Strict(), 3, 30, 110}, {delayq.Per(persec, time.Second), 1, 10, 110},
	} {
		t.Run(fmt.Sprintf("%v on %d of %d", c.rate, c.servers, c.workers), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				const link, jitter = 100 * time.Microsecond, 400 * time.Microsecond
				var starts crowd
				var hooks queuetest.HookLog
				require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Rate: c.rate}))
				jobs := make([]delayq.NewJob, 2*c.rate.Starts())
				for i := range jobs {
					jobs[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i)}
				}
				_, err := b.Client.EnqueueBatch(b.Context(), jobs)
				require.NoError(b, err)
				for i := range c.servers {
					serveOnLink(b, "a", uint64(i), link, jitter, starts.handler(0), c.workers, delayq.Hooks(&hooks))
				}
				b.Pass(500 * time.Millisecond)
				began, takes := time.Now(), hooks.Calls("take", "a")
				b.Pass(time.Second)
				takes = hooks.Calls("take", "a") - takes
				all := starts.started()
				mean := c.rate.Starts()
				if c.rate.IsStrict() {
					mean -= c.rate.MaxBurst()
				}
				emit := time.Second / time.Duration(mean)
				requireWithin(b, all, emit, time.Duration(c.rate.MaxBurst()-1)*emit+2*jitter)
				made := len(all) - slices.IndexFunc(all, began.Before)
				require.GreaterOrEqual(b, 100*made, 97*mean, "starts: %d", made)
				if mean > 500 {
					require.Less(b, takes, c.takes, "they are taken together")
				}
			})
		})
	}
}

// The second take loop of a server, which takes while the keys of a topic have many more jobs, is
// told no time at which it does not come. Otherwise the other loop is told ever later ones.
func TestFastRatesOfTopicsWithKeysAreMet(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var starts crowd
		rate := delayq.Per(1000, time.Second)
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Rate: rate}))
		jobs := make([]delayq.NewJob, 2000)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.Key(fmt.Sprint("key-", i%20))}}
		}
		_, err := b.Client.EnqueueBatch(b.Context(), jobs)
		require.NoError(b, err)
		for i := range 2 {
			serveOnLink(b, "a", uint64(i), 100*time.Microsecond, 400*time.Microsecond, starts.handler(0), delayq.Concurrency(300))
		}
		b.Pass(500 * time.Millisecond)
		began := time.Now()
		b.Pass(time.Second)
		all := starts.started()
		require.GreaterOrEqual(b, len(all)-slices.IndexFunc(all, began.Before), 970)
	})
}

// serveOnLink runs a server whose requests and answers take from least to least and more.
func serveOnLink(b *queuetest.Bubble, topic string, seed uint64, least, more time.Duration, h delayq.HandlerFunc, opts ...delayq.ServerOption) {
	var mu sync.Mutex
	p := rand.New(rand.NewPCG(seed, 29))
	w := queuetest.NewWire(b.Redis)
	w.Jitter(func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return least + time.Duration(p.Int64N(int64(more)))
	})
	b.ServeOn(w, topic, h, append([]delayq.ServerOption{delayq.Concurrency(30)}, opts...)...)
}

// requireWithin requires that starts are not closer than the rate allows. Redis counts them, and
// each is seen here later by up to blur more than another one.
func requireWithin(b *queuetest.Bubble, starts []time.Time, emit, blur time.Duration) {
	b.Helper()
	for i := range starts {
		for j := i + 1; j < len(starts) && j < i+250; j++ {
			if least := time.Duration(j-i)*emit - blur; starts[j].Sub(starts[i]) < least {
				require.GreaterOrEqual(b, starts[j].Sub(starts[i]), least, "starts %d to %d", i, j)
			}
		}
	}
}

// A rate that whole microseconds express only roughly is refused, with the rates next to it.
func TestFastRatesAreMetOrRefused(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		for _, r := range []delayq.Rate{
			delayq.Per(29_000, time.Second), delayq.Per(500_000, time.Second), delayq.Per(1_000_000, time.Second), delayq.Per(250_000, time.Second).Burst(1),
			delayq.Per(1_000_000, 3*time.Second), delayq.Per(1, time.Microsecond), delayq.Per(300_000, time.Second).Burst(50_000).Strict(),
		} {
			require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Rate: r}), r)
		}
		for want, r := range map[string]delayq.Rate{
			"Per(700000, 1s): a start must take a whole number of µs, within 3 %: that is 500000 or 1000000 starts": delayq.Per(700_000, time.Second),
			"Per(300000, 1s): a start must take a whole number of µs, within 3 %: that is 250000 or 333333 starts":  delayq.Per(300_000, time.Second),
			"that is 250000 or 333333 starts, not counting the burst":                                               delayq.Per(300_000, time.Second).Burst(1).Strict(),
		} {
			for _, l := range []delayq.Limits{{Rate: r}, {RatePerKey: r}} {
				err := b.Client.SetLimits(b.Context(), "b", l)
				require.ErrorIs(b, err, delayq.ErrInvalid)
				require.ErrorContains(b, err, want)
			}
			require.ErrorContains(b, b.Client.SetKeyLimits(b.Context(), "b", "k", delayq.KeyLimits{Rate: r}), want)
		}
		require.Zero(b, b.Stats("b").Limits)
	})
}

// A rate of a key is met to the microsecond, whatever the length of a start: of the starts that it
// allows in half a second, at least 97 of 100 are made while jobs and workers wait, and never one
// more than it allows. Calls take no time.
func TestRatesOfKeysAreMet(t *testing.T) {
	for _, c := range []struct {
		rate    delayq.Rate
		servers int
	}{
		{delayq.Per(300, time.Second).Burst(1), 1}, {delayq.Per(300, time.Second).Burst(1), 2},
		{delayq.Per(700, time.Second).Burst(1), 1}, {delayq.Per(1000, time.Second).Burst(3).Strict(), 1},
	} {
		t.Run(fmt.Sprintf("%v on %d", c.rate, c.servers), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{RatePerKey: c.rate}))
				persec, burst := c.rate.Starts(), c.rate.MaxBurst()
				if c.rate.IsStrict() {
					persec -= burst
				}
				jobs := make([]delayq.NewJob, c.rate.Starts())
				for i := range jobs {
					jobs[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.Key("k")}}
				}
				_, err := b.Client.EnqueueBatch(b.Context(), jobs)
				require.NoError(b, err)
				var starts crowd
				for range c.servers {
					b.Serve("a", starts.handler(0), delayq.Concurrency(30))
				}
				b.Pass(100 * time.Millisecond)
				began := time.Now()
				b.Pass(time.Second / 4)
				all := starts.started()
				emit := (time.Second / time.Duration(persec)).Truncate(time.Microsecond)
				for i, at := range all {
					for j := max(0, i-50); j <= i-burst; j++ {
						require.GreaterOrEqual(b, at.Sub(all[j]), time.Duration(i+1-burst-j)*emit, "starts %d to %d", j, i)
					}
				}
				made := len(all) - slices.IndexFunc(all, began.Before)
				require.GreaterOrEqual(b, 400*made, 97*persec, "starts: %d", made)
			})
		})
	}
}

// Jobs that a server has taken for starts of the next milliseconds start one after the other. Until
// then they are running for everybody else. One that is cancelled does not start, a pause stops
// none of them, and a server that stops gives them back in their order, with their attempts.
func TestJobsWaitForTheirStarts(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec, later queuetest.Recorder
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Rate: delayq.Per(1000, time.Second).Burst(1)}))
		server := b.Serve("a", rec.Then(nil), delayq.Concurrency(12))
		b.Pass(time.Second)
		jobs := make([]delayq.NewJob, 20)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i)}
		}
		_, err := b.Client.EnqueueBatch(b.Context(), jobs)
		require.NoError(b, err)
		b.Pass(2*time.Millisecond + 500*time.Microsecond)
		require.Equal(b, []string{"0", "1", "2"}, rec.IDs())
		for i, s := range rec.All() {
			require.Equal(b, time.Duration(i)*time.Millisecond, s.At.Sub(rec.All()[0].At))
		}
		require.EqualValues(b, 9, b.Stats("a").Running, "as many as there are workers")
		require.Equal(b, delayq.StateRunning, b.State("a", "11"))
		require.Equal(b, delayq.StateReady, b.State("a", "12"))
		_, err = b.Client.Dequeue(b.Context(), "a", "4")
		require.NoError(b, err)
		require.NoError(b, b.Client.Pause(b.Context(), "a", delayq.Pause{}))
		b.Pass(4 * time.Millisecond)
		require.Equal(b, []string{"0", "1", "2", "3", "5", "6"}, rec.IDs())
		require.NoError(b, server.Stop())
		require.Len(b, rec.All(), 6)
		require.EqualValues(b, 13, b.Stats("a").Ready)
		require.NoError(b, b.Client.Resume(b.Context(), "a", ""))
		b.Serve("a", later.Then(nil), delayq.Concurrency(30))
		b.Pass(time.Second)
		for i, s := range later.All() {
			require.Equal(b, fmt.Sprint(7+i), s.ID)
			require.Equal(b, 1, s.Attempt)
		}
		require.Len(b, later.All(), 13)
	})
}

// Servers of v0.1.0 see a topic as held while jobs wait for their starts. No call of this release
// does, and a hold that would end before the last start ends just after it.
func TestJobsThatWaitForTheirStartsHoldNothing(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Rate: delayq.Per(1000, time.Second).Burst(1)}))
		b.Serve("a", rec.Then(nil), delayq.Concurrency(12))
		b.Pass(time.Second)
		jobs := make([]delayq.NewJob, 40)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i)}
		}
		_, err := b.Client.EnqueueBatch(b.Context(), jobs)
		require.NoError(b, err)
		b.Pass(2 * time.Millisecond)
		hold := func() string { return b.RDB.HGet(b.Context(), queuetest.Prefix+":{a}:meta", "hold").Val() }
		before := hold()
		require.Equal(b, fmt.Sprint(time.Now().UnixMilli()+9), before, "the last of 12 starts")
		require.Zero(b, b.Stats("a").HeldUntil)
		require.Equal(b, time.Now().Add(10*time.Millisecond).UnixMicro(), b.Stats("a").NextStart.UnixMicro())
		why, err := b.Inspector.Explain(b.Context(), "a", "30")
		require.NoError(b, err)
		for _, r := range why.Reasons {
			require.NotEqual(b, delayq.ReasonTopicHeld, r.Code)
		}
		require.NoError(b, b.Client.EndHold(b.Context(), "a"))
		require.Equal(b, before, hold())
		require.NoError(b, b.Client.Hold(b.Context(), "a", 5*time.Millisecond, "why"))
		require.Equal(b, time.Now().Add(10*time.Millisecond).UnixMilli(), b.Stats("a").HeldUntil.UnixMilli())
		require.Equal(b, "why", b.Stats("a").HeldReason)
		b.Pass(10*time.Millisecond - time.Microsecond)
		require.Len(b, rec.All(), 12)
		b.Pass(time.Second)
		require.Len(b, rec.All(), 40)
	})
}

// The starts of a batch, and of a worker that other topics need, are taken when they are due.
func TestBatchesAndPoolsTakeNoLaterStarts(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		limits := delayq.DefaultLimits(delayq.Limits{Rate: delayq.Per(1000, time.Second).Burst(1)})
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandlerFunc("pool", queuetest.Nothing, limits, delayq.InPool("p")))
			require.NoError(b, s.HandleBatch("batch", func(context.Context, []*delayq.Job) error { return nil }, limits))
		}, delayq.Pool("p", 30))
		b.Pass(time.Second)
		for _, topic := range []string{"pool", "batch"} {
			jobs := make([]delayq.NewJob, 20)
			for i := range jobs {
				jobs[i] = delayq.NewJob{Topic: topic, ID: fmt.Sprint(i)}
			}
			_, err := b.Client.EnqueueBatch(b.Context(), jobs)
			require.NoError(b, err)
			for range 20 {
				b.Pass(time.Millisecond)
				require.LessOrEqual(b, b.Stats(topic).Running, int64(1))
			}
			require.Zero(b, b.Stats(topic).Ready)
		}
	})
}
