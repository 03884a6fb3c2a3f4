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
	require.NoError(t, s.Handle(like, 0))
	s.Begin(slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	return s
}
