package loop

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
		var lists [][]*Loop
		calls, cancel := context.WithTimeout(b.ctx, time.Minute)
		defer cancel()
		hold := make(chan struct{})
		for i := range 3 {
			g := new(Sign)
			l := b.Add(Signed(b.ctx, g), b.pool, fmt.Sprint(i), func() Next {
				if b.ctx.Err() != nil {
					return Over
				}
				if i == 0 {
					g.Call(calls)
				}
				<-hold
				return Woken
			}, &b.group)
			lists = append(lists, []*Loop{l})
			l.Wake()
		}
		late := func() (names []string) {
			due := make(map[string]int64)
			for _, turns := range b.Turns(lists) {
				for _, one := range turns {
					if now := Nanos(); one.Due != Never && now-one.Due > int64(3*time.Second) {
						due[one.Name] = one.Due
						names = append(names, one.Name)
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
	g := new(Sign)
	ctx, cancel := context.WithTimeout(Signed(context.Background(), g), time.Minute)
	defer cancel()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		g.Turn()
		SignOf(ctx).Call(ctx)
		SignOf(ctx).Called()
	}))
	// The hook makes one context for each call to Redis.
	hook := SignHook{}.ProcessHook(func(context.Context, redis.Cmder) error { return nil })
	cmd := redis.NewCmd(ctx, "x")
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _ = hook(ctx, cmd) }), 1.0)
}

// The parts of a loop that waits for several goroutines count instead of the loop.
func TestSignsOfParts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := new(Sign)
		g.Turn()
		began := g.due()
		parts := g.Split(2)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		parts[0].Call(ctx)
		require.Equal(t, began, g.due(), "the other one has not begun")
		time.Sleep(time.Second)
		parts[1].Wait()
		require.Equal(t, began+int64(time.Hour), g.due())
		parts[0].Called()
		require.Equal(t, began+int64(time.Second), g.due())
		g.Join()
		require.Equal(t, began+int64(time.Second), g.due())
		var none *Sign
		none.Turn()
		none.Rest(1)
		none.Wait()
		none.Call(ctx)
		none.Called()
		none.Split(1)
		none.Join()
	})
}
