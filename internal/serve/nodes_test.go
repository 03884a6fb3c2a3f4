package serve

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/run"
)

// A server on a Cluster remembers its connections to all nodes, and closes them when it stops.
func TestConnectionsToAClusterAreRemembered(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	require.Nil(t, rdb.Options().Dialer)
	s := serverOf(t, rdb, redistest.Prefix(t))
	calls, ok := s.Calls.(*redis.ClusterClient)
	require.True(t, ok)
	require.NoError(t, calls.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.Ping(ctx).Err()
	}))
	require.GreaterOrEqual(t, len(s.dials[0].Open()), 3)
	s.Close()
	require.Empty(t, s.dials[0].Open())
}

// serverOf returns a server on rdb that has begun, with the topic "topic" and none of its loops.
func serverOf(t testing.TB, rdb redis.UniversalClient, prefix string) *Server {
	t.Helper()
	s := New(rdb, Config{
		ID: "me", Prefix: prefix, Lease: 30 * time.Second, Tick: time.Second, Concurrency: 1, History: true, Judge: lenient{}, Observer: told(nil),
	})
	like := TopicConfig{Topic: "topic", Task: handler(func(context.Context, *run.Run) error { return nil })}
	like.Defaults.Retry = -1
	require.NoError(t, s.Handle(0, Offer{TopicConfig: like}))
	s.Begin(slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	return s
}

// While a cluster's client asks Redis for its nodes, nobody else waits for a mutex of the server.
func TestNoMutexIsHeldWhileRedisIsAsked(t *testing.T) {
	asked, answer := make(chan struct{}, 100), make(chan struct{})
	rdb := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(ctx context.Context) ([]redis.ClusterSlot, error) {
		asked <- struct{}{}
		select {
		case <-answer:
		case <-ctx.Done():
		}
		return nil, context.Canceled
	}})
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	s := serverOf(t, rdb, "p")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.mu.Lock()
	s.phase.lifetime = &lifetime{fetch: ctx, work: ctx}
	s.mu.Unlock()
	calls := map[string]func(){
		"a topic is handled":      func() { s.ClientFor("late") },
		"topics move":             func() { s.moveTopics(ctx) },
		"a pattern finds a topic": func() { s.addFound(TopicConfig{Topic: "topic"}) },
	}
	for name, call := range calls {
		done := make(chan struct{})
		go func() {
			defer close(done)
			call()
		}()
		<-asked
		free := s.mu.TryLock()
		if free {
			s.mu.Unlock()
		}
		answer <- struct{}{}
		for waits := true; waits; {
			select {
			case <-asked: // it asks once more
				answer <- struct{}{}
			case <-done:
				waits = false
			}
		}
		require.True(t, free, name)
	}
	cancel()
	require.Nil(t, s.ClientFor("late"))
}
