package tests

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A keyCrowd counts the handlers of each key that run at the same time.
type keyCrowd struct {
	mu        sync.Mutex
	now, most map[string]int
	starts    map[string][]time.Time
}

// handler returns a handler that takes d.
func (c *keyCrowd) handler(d time.Duration) delayq.HandlerFunc {
	c.now, c.most, c.starts = map[string]int{}, map[string]int{}, map[string][]time.Time{}
	return func(ctx context.Context, job *delayq.Job) error {
		c.mu.Lock()
		c.now[job.Key]++
		c.most[job.Key] = max(c.most[job.Key], c.now[job.Key])
		c.starts[job.Key] = append(c.starts[job.Key], time.Now())
		c.mu.Unlock()
		defer func() {
			c.mu.Lock()
			c.now[job.Key]--
			c.mu.Unlock()
		}()
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
		return ctx.Err()
	}
}

// started returns the number of all starts.
func (c *keyCrowd) started() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, list := range c.starts {
		n += len(list)
	}
	return n
}

// enqueueKeys stores jobs for each of some keys.
func enqueueKeys(b *queuetest.Bubble, keys, jobs int) {
	for i := range jobs {
		for k := range keys {
			b.Enqueue("a", fmt.Sprintf("%d-%d", k, i), delayq.Key(fmt.Sprint("key", k)))
		}
	}
}

// No more jobs of a key run at a time than its limit says, on all servers together, and no place
// stays empty: a freed one is used at once, not a tick later.
func TestLimitOfRunningJobsPerKey(t *testing.T) {
	for _, topics := range []int{1, 10} { // servers that pop, and servers that are rung
		t.Run(fmt.Sprintf("%d topics", topics), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				const keys, jobs, limit, length = 4, 60, 2, 10 * time.Millisecond
				var c keyCrowd
				handler := c.handler(length)
				require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{RunningPerKey: limit}))
				require.NoError(b, b.Client.SetKeyLimits(b.Context(), "a", "key0", delayq.KeyLimits{Running: 3}))
				for range 3 {
					queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
						s.HandlerFunc("a", handler, delayq.Concurrency(5))
						for i := range topics - 1 {
							s.HandlerFunc(fmt.Sprint("other", i), queuetest.Nothing)
						}
					})
				}
				b.Pass(5 * time.Second)
				began := time.Now()
				enqueueKeys(b, keys, jobs)
				for b.Stats("a").Ready+b.Stats("a").Running > 0 {
					b.Pass(10 * time.Millisecond)
				}
				require.Equal(b, map[string]int{"key0": 3, "key1": limit, "key2": limit, "key3": limit}, c.most)
				require.Less(b, time.Since(began), jobs/limit*length*3/2, "places were empty")
				require.Equal(b, keys*jobs, c.started())
				require.EqualValues(b, 0, b.RDB.Exists(b.Context(), queuetest.Prefix+":{a}:holders").Val(), "nothing is left")
			})
		})
	}
}

// A job that is cancelled or replaced frees the place of its key at once, and one whose server is
// frozen when its lease is over.
func TestPlaceOfAKeyIsFreed(t *testing.T) {
	for name, free := range map[string]struct {
		do     func(b *queuetest.Bubble, w *queuetest.Wire)
		within time.Duration
	}{
		"cancelled": {func(b *queuetest.Bubble, _ *queuetest.Wire) {
			found, err := b.Client.Dequeue(b.Context(), "a", "held")
			require.NoError(b, err)
			require.Equal(b, delayq.StateRunning, found)
		}, 10 * time.Millisecond},
		"replaced": {func(b *queuetest.Bubble, _ *queuetest.Wire) {
			b.Enqueue("a", "held", delayq.Key("k"), delayq.Replace(), delayq.ProcessIn(time.Hour))
		}, 10 * time.Millisecond},
		"frozen": {func(_ *queuetest.Bubble, w *queuetest.Wire) { w.Freeze() }, 12 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{RunningPerKey: 1}))
				w := queuetest.NewWire(b.Redis)
				var rec queuetest.Recorder
				record := rec.Then(nil)
				b.ServeOn(w, "a", func(ctx context.Context, job *delayq.Job) error {
					if job.ID != "held" {
						return record(ctx, job)
					}
					<-ctx.Done()
					return ctx.Err()
				}, delayq.Lease(10*time.Second), delayq.Concurrency(1))
				b.Enqueue("a", "held", delayq.Key("k"))
				b.Pass(time.Second)
				b.Serve("a", record, delayq.Lease(10*time.Second))
				b.Enqueue("a", "next", delayq.Key("k"))
				b.Pass(time.Second)
				require.Empty(b, rec.IDs())
				free.do(b, w)
				b.Pass(free.within)
				require.Contains(b, rec.IDs(), "next")
			})
		})
	}
}

// Each key gets as many starts as its rate allows, at the very times, and the others are not held
// up by it.
func TestRateOfEachKey(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const keys, jobs = 3, 20
		var c keyCrowd
		handler := c.handler(time.Millisecond)
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{RatePerKey: delayq.Per(10, time.Second).Burst(1)}))
		require.NoError(b, b.Client.SetKeyLimits(b.Context(), "a", "key0", delayq.KeyLimits{Rate: delayq.Per(2, time.Second).Burst(1)}))
		for range 2 {
			b.Serve("a", handler, delayq.Concurrency(5))
		}
		b.Pass(5 * time.Second)
		enqueueKeys(b, keys, jobs)
		b.Pass(12 * time.Second)
		require.Len(b, c.starts, keys)
		for _, key := range slices.Sorted(maps.Keys(c.starts)) {
			gap := 100 * time.Millisecond
			if key == "key0" {
				gap = 500 * time.Millisecond
			}
			list := c.starts[key]
			require.Len(b, list, jobs, key)
			for i := range list[1:] {
				require.GreaterOrEqual(b, list[i+1].Sub(list[i]), gap, "%s: start %d", key, i)
				require.Less(b, list[i+1].Sub(list[i]), gap+3*time.Millisecond, "%s: start %d", key, i)
			}
		}
	})
}

// A server that stops frees the places of its keys, and another one uses them at once.
func TestStoppedServerFreesPlacesOfKeys(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{RunningPerKey: 1}))
		var c keyCrowd
		first := b.Serve("a", c.handler(time.Second), delayq.Concurrency(1))
		b.Enqueue("a", "long", delayq.Key("k"))
		b.Pass(10 * time.Millisecond)
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(nil))
		b.Enqueue("a", "next", delayq.Key("k"))
		b.Pass(10 * time.Millisecond)
		first.End()
		b.Pass(500 * time.Millisecond)
		require.Empty(b, rec.IDs())
		b.Pass(500 * time.Millisecond)
		require.Equal(b, []string{"next"}, rec.IDs())
	})
}
