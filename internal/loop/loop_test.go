package loop

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// loopBench runs loops in a bubble.
type loopBench struct {
	*testing.T
	Group
	ctx   context.Context
	end   context.CancelFunc
	group sync.WaitGroup
	pool  *Pool
	began time.Time
}

func inLoops(t *testing.T, limit int, test func(b *loopBench)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &loopBench{T: t, began: time.Now()}
		b.Group.Log = slog.New(slog.DiscardHandler)
		b.ctx, b.end = context.WithCancel(context.Background())
		b.pool = b.NewPool(limit)
		test(b)
		b.end()
		b.group.Wait()
		b.pool.Close()
		b.pool.Running.Wait()
	})
}

// loop adds a loop that ends with the bench.
func (b *loopBench) loop(step func() Next) *Loop {
	return b.Add(b.ctx, b.pool, "loop", func() Next {
		if b.ctx.Err() != nil {
			return Over
		}
		return step()
	}, &b.group)
}

func (b *loopBench) at() time.Duration { return time.Since(b.began) }

// pass lets time pass, and then waits until nothing is running.
func (b *loopBench) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// goroutines returns the number of the pool's goroutines.
func (b *loopBench) goroutines() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pool.count
}

// A loop steps when it is woken, and when its rest is over, whichever comes first.
func TestLoopRests(t *testing.T) {
	inLoops(t, 2, func(b *loopBench) {
		var steps []time.Duration
		l := b.loop(func() Next {
			steps = append(steps, b.at())
			return RestFor(10 * time.Second)
		})
		synctest.Wait()
		require.Empty(t, steps, "nobody has woken it")
		l.Wake()
		b.pass(3 * time.Second)
		l.Wake()
		b.pass(11 * time.Second)
		l.RestUntil(b.began.Add(20 * time.Second))
		b.pass(10 * time.Second)
		synctest.Wait()
		require.Equal(t, []time.Duration{0, 3 * time.Second, 13 * time.Second, 20 * time.Second}, steps)
		require.True(t, l.Rests())
	})
}

// The end of a rest that moves during the step that chooses it is not lost.
func TestLoopRestMovesDuringItsStep(t *testing.T) {
	inLoops(t, 2, func(b *loopBench) {
		until := b.began.Add(time.Minute)
		var steps []time.Duration
		var l *Loop
		l = b.loop(func() Next {
			steps = append(steps, b.at())
			rest := time.Until(until)
			if len(steps) == 1 {
				until = b.began.Add(time.Second)
				l.RestUntil(until)
			}
			if rest <= 0 {
				return Woken
			}
			return RestFor(rest)
		})
		l.Wake()
		b.pass(10 * time.Second)
		require.Equal(t, []time.Duration{0, 0, time.Second}, steps)
	})
}

// A wake-up does not shorten a pause, and is not lost. The end of the context does end it.
func TestLoopPauses(t *testing.T) {
	inLoops(t, 2, func(b *loopBench) {
		var steps []time.Duration
		l := b.loop(func() Next {
			if steps = append(steps, b.at()); len(steps) == 2 {
				return Woken
			}
			return PauseFor(10 * time.Second)
		})
		l.Wake()
		b.pass(time.Second)
		l.Wake()
		b.pass(time.Minute)
		require.Equal(t, []time.Duration{0, 10 * time.Second}, steps)
		l.Wake()
		synctest.Wait()
		b.end()
		b.group.Wait()
		require.Equal(t, 61*time.Second, b.at(), "the pause has ended at once")
	})
}

// A loop that is woken during its step steps again: once, however often it was woken. Steps of one
// loop do not overlap.
func TestLoopWokenDuringItsStep(t *testing.T) {
	inLoops(t, 4, func(b *loopBench) {
		var running, steps atomic.Int64
		var l *Loop
		l = b.loop(func() Next {
			require.EqualValues(t, 1, running.Add(1))
			defer running.Add(-1)
			if steps.Add(1) == 1 {
				for range 5 {
					l.Wake()
				}
			}
			time.Sleep(time.Second)
			return Woken
		})
		l.Wake()
		b.pass(time.Minute)
		require.EqualValues(t, 2, steps.Load())
	})
}

// No wake-up is lost, however many loops share however few goroutines.
func TestLoopWakeUpsAreNotLost(t *testing.T) {
	t.Parallel()
	b := &loopBench{T: t}
	b.Group.Log = slog.New(slog.DiscardHandler)
	b.ctx, b.end = context.WithCancel(t.Context())
	b.pool = b.NewPool(3)
	const loops, rounds = 20, 2000
	var done sync.WaitGroup
	for range loops {
		var wanted, seen atomic.Int64
		caught := make(chan struct{}, 1)
		l := b.loop(func() Next {
			seen.Store(wanted.Load())
			select {
			case caught <- struct{}{}:
			default:
			}
			return RestFor(time.Hour)
		})
		done.Add(1)
		go func() {
			defer done.Done()
			for i := range int64(rounds) {
				wanted.Store(i + 1)
				l.Wake()
				for seen.Load() != i+1 {
					<-caught
				}
			}
		}()
	}
	done.Wait()
	b.end()
	b.group.Wait()
	b.pool.Close()
	b.pool.Running.Wait()
}

// A pool has no more goroutines than its limit, starts them when they are needed, and steps loops
// in the order in which they were woken.
func TestLoopPoolIsBounded(t *testing.T) {
	inLoops(t, 3, func(b *loopBench) {
		var mu sync.Mutex
		var order []int
		running, most := 0, 0
		list := make([]*Loop, 10)
		for i := range list {
			list[i] = b.loop(func() Next {
				mu.Lock()
				order = append(order, i)
				running++
				most = max(most, running)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				running--
				mu.Unlock()
				return Woken
			})
		}
		list[0].Wake()
		b.pass(2 * time.Second)
		require.Equal(t, 1, b.goroutines())
		for _, l := range list[1:] {
			l.Wake()
		}
		b.pass(time.Minute)
		require.Equal(t, 3, most)
		require.Equal(t, 3, b.goroutines())
		require.True(t, slices.IsSortedFunc(order, func(a, b int) int { return a/4 - b/4 }), "%v", order)
	})
}

// While a step calls code of the user, another goroutine steps the other loops. Afterwards the pool
// has no more goroutines than before, even if that code ended its goroutine.
func TestLoopOutside(t *testing.T) {
	inLoops(t, 1, func(b *loopBench) {
		steps := 0
		other := b.loop(func() Next {
			steps++
			return RestFor(time.Second)
		})
		var l *Loop
		l = b.loop(func() Next {
			l.Outside(func() {
				time.Sleep(10*time.Second + time.Millisecond)
				if b.at() < 20*time.Second {
					runtime.Goexit()
				}
			})
			return Woken
		})
		l.Wake()
		other.Wake()
		b.pass(time.Minute)
		require.Equal(t, 61, steps)
		require.Equal(t, 1, b.goroutines())
		require.Equal(t, 1, b.pool.limit)
	})
}

// A loop whose step panics or ends its goroutine goes on after a pause, and holds up no other. Once
// its context is done, it is over.
func TestLoopOutlivesCrashes(t *testing.T) {
	inLoops(t, 1, func(b *loopBench) {
		var bad, good int
		l := b.Add(b.ctx, b.pool, "bad", func() Next {
			if bad++; bad%2 == 0 {
				runtime.Goexit()
			}
			panic("bad")
		}, &b.group)
		l.Wake()
		other := b.loop(func() Next {
			good++
			return RestFor(time.Second)
		})
		other.Wake()
		b.pass(10*time.Second + 500*time.Millisecond)
		require.Equal(t, 11, good)
		require.Greater(t, bad, 5)
		require.LessOrEqual(t, bad, 20)
	})
}
