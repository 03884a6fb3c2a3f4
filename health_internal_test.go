package delayq

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/redistest"
)

// runs runs a server with handlers until the end of the test.
func runs(t *testing.T, rdb redis.UniversalClient, topics ...string) *Server {
	t.Helper()
	s := NewServer(rdb, Logger(slog.New(slog.DiscardHandler)))
	for _, topic := range topics {
		require.NoError(t, s.HandlerFunc(topic, func(context.Context, *Job) error { return nil }))
	}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		end()
		require.NoError(t, <-done)
	})
	<-s.Ready()
	return s
}

// Each loop of a topic is late three ticks after it has stopped, and no longer once it goes on. The
// others are not.
func TestFrozenLoopsAreLate(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		s := runs(t, rdb, "a", "b")
		for _, one := range s.topics.get("b").loops.all() {
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Empty(t, s.Health().Late)
			hold := make(chan struct{})
			s.loops.mu.Lock()
			step := one.step
			one.step = sync.OnceValue(func() next { <-hold; return stepAgain })
			s.loops.mu.Unlock()
			one.rouse()
			time.Sleep(3 * time.Second)
			synctest.Wait()
			require.Empty(t, s.Health().Late, "it may just take long")
			time.Sleep(time.Millisecond)
			h := s.Health()
			require.Equal(t, []LateLoop{{one.name, "b", 3*time.Second + time.Millisecond}}, h.Late)
			s.loops.mu.Lock()
			one.step = step
			s.loops.mu.Unlock()
			close(hold)
			synctest.Wait()
			require.Empty(t, s.Health().Late)
		}
	})
}

// Loops that wait for the goroutines of a pool are late if and only if the loops that have them
// are.
func TestQueuedLoopsAreLateWithTheirPool(t *testing.T) {
	inLoops(t, 2, func(b *loopBench) {
		var topics []*topicServer
		calls, cancel := context.WithTimeout(b.ctx, time.Minute)
		defer cancel()
		hold := make(chan struct{})
		for i := range 3 {
			t := &topicServer{keys: newKeys("p", fmt.Sprint(i))}
			idle := b.loop(func() next { return stepWoken })
			g := new(sign)
			l := b.add(signed(b.ctx, g), b.pool, "promote", func() next {
				if b.ctx.Err() != nil {
					return stepOver
				}
				if i == 0 {
					g.call(calls)
				}
				<-hold
				return stepWoken
			}, &b.group)
			t.loops = topicLoops{l, idle, idle, idle, idle, idle}
			topics = append(topics, t)
			l.wake()
		}
		late := func() (names []string) {
			_, late := b.turning(topics, 3*time.Second)
			for _, l := range late {
				names = append(names, l.Topic)
			}
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

// BenchmarkHealth is the cost of a probe of livez.
func BenchmarkHealth(b *testing.B) {
	r := embedded.New()
	defer r.Close()
	rdb := r.Client()
	defer rdb.Close()
	s := NewServer(rdb, Logger(slog.New(slog.DiscardHandler)))
	for i := range 1000 {
		require.NoError(b, s.HandlerFunc(fmt.Sprint("t", i), func(context.Context, *Job) error { return nil }))
	}
	ctx, end := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Ready()
	time.Sleep(2 * time.Second)
	for b.Loop() {
		_ = s.Health()
	}
	end()
	<-done
}
