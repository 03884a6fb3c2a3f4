package delayq

import (
	"context"
	"fmt"
	"log/slog"
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
		for _, one := range s.engine.Topics.Get("b").Loops.All() {
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Empty(t, s.Health().Late)
			thaw := one.Freeze()
			time.Sleep(3 * time.Second)
			synctest.Wait()
			require.Empty(t, s.Health().Late, "it may just take long")
			time.Sleep(time.Millisecond)
			h := s.Health()
			require.Equal(t, []LateLoop{{one.Name, "b", 3*time.Second + time.Millisecond}}, h.Late)
			thaw()
			synctest.Wait()
			require.Empty(t, s.Health().Late)
		}
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
