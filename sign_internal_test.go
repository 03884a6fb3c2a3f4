package delayq

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Loops that wait for the goroutines of a pool are late if and only if the loops that have them
// are.
func TestQueuedLoopsAreLateWithTheirPool(t *testing.T) {
	inLoops(t, 2, func(b *loopBench) {
		var lists [][]*loop
		calls, cancel := context.WithTimeout(b.ctx, time.Minute)
		defer cancel()
		hold := make(chan struct{})
		for i := range 3 {
			g := new(sign)
			l := b.add(signed(b.ctx, g), b.pool, fmt.Sprint(i), func() next {
				if b.ctx.Err() != nil {
					return stepOver
				}
				if i == 0 {
					g.call(calls)
				}
				<-hold
				return stepWoken
			}, &b.group)
			lists = append(lists, []*loop{l})
			l.wake()
		}
		late := func() (names []string) {
			due := make(map[string]int64)
			for _, turns := range b.turning(lists) {
				for _, one := range turns {
					if now := nanos(); one.due != never && now-one.due > int64(3*time.Second) {
						due[one.name] = one.due
						names = append(names, one.name)
					}
				}
			}
			slices.SortFunc(names, func(a, b string) int {
				return cmp.Or(cmp.Compare(due[a], due[b]), cmp.Compare(a, b)) // the latest first
			})
			return names
		}
		b.pass(3 * time.Second)
		require.Empty(b, late())
		b.pass(time.Second)
		require.Equal(b, []string{"1"}, late(), "0 calls Redis, and 2 waits for its goroutine")
		b.pass(59 * time.Second)
		require.Equal(b, []string{"1"}, late())
		b.pass(time.Second)
		require.Equal(b, []string{"1", "0", "2"}, late())
		close(hold)
		synctest.Wait()
		require.Empty(b, late())
	})
}

// The sign of a loop costs a few stores for each turn and call, and nothing for a job.
func TestSignsDoNotAllocate(t *testing.T) {
	g := new(sign)
	ctx, cancel := context.WithTimeout(signed(context.Background(), g), time.Minute)
	defer cancel()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		g.turn()
		signOf(ctx).call(ctx)
		signOf(ctx).called()
	}))
	// The hook makes one context for each call to Redis.
	hook := signHook{}.ProcessHook(func(context.Context, redis.Cmder) error { return nil })
	cmd := redis.NewCmd(ctx, "x")
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _ = hook(ctx, cmd) }), 1.0)
}

// The parts of a loop that waits for several goroutines count instead of the loop.
func TestSignsOfParts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := new(sign)
		g.turn()
		began := g.due()
		parts := g.split(2)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		parts[0].call(ctx)
		require.Equal(t, began, g.due(), "the other one has not begun")
		time.Sleep(time.Second)
		parts[1].wait()
		require.Equal(t, began+int64(time.Hour), g.due())
		parts[0].called()
		require.Equal(t, began+int64(time.Second), g.due())
		g.join()
		require.Equal(t, began+int64(time.Second), g.due())
		var none *sign
		none.turn()
		none.rest(1)
		none.wait()
		none.call(ctx)
		none.called()
		none.split(1)
		none.join()
	})
}
