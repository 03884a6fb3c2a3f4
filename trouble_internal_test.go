package delayq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/redistest"
)

// A server on a Cluster remembers its connections to all nodes, and closes them when it stops.
func TestConnectionsToAClusterAreRemembered(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	require.Nil(t, rdb.Options().Dialer)
	s := NewServer(rdb, Prefix(redistest.Prefix(t)))
	s.HandlerFunc("a", func(context.Context, *Job) error { return nil })
	require.NoError(t, s.begin())
	defer s.close()
	calls, ok := s.calls.(*redis.ClusterClient)
	require.True(t, ok)
	require.NoError(t, calls.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.Ping(ctx).Err()
	}))
	require.GreaterOrEqual(t, len(s.dials[0].Open()), 3)
	s.close()
	require.Empty(t, s.dials[0].Open())
}

// What became of a call that was answered too late is unknown.
func TestSlowAnswerIsUncertain(t *testing.T) {
	t.Parallel()
	var p link.Pulse
	began := time.Now()
	require.NoError(t, p.Feel("q:{a}:ready", began, nil))
	slow := p.Feel("q:{a}:pool", began, context.DeadlineExceeded)
	require.True(t, link.Slowly(slow))
	require.False(t, certain(slow))
}

// The first cause of an outage is the one that is logged, and not the closing of connections that
// it led to.
func TestFirstCauseOfAnOutage(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	lines := func(parts ...string) (n int) {
		for line := range strings.Lines(log.String()) {
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
				n++
			}
		}
		return n
	}
	cause, closed := errors.New("does not work"), fmt.Errorf("read tcp: %w", net.ErrClosed)
	o := &outage{log: slog.New(slog.NewTextHandler(&log, nil)), lost: func(error) {}}
	o.failed("take", cause)
	o.failed("promote", closed)
	o.answered("take")
	o.answered("promote")
	require.Equal(t, 1, lines("redis back"))
	o.failed("extend", closed) // what was closed then is met only now
	require.Equal(t, 2, lines("redis away"))
	require.Equal(t, 2, lines("redis away", cause.Error()))
	o.answered("extend")

	// The line is there before connections are closed.
	o = &outage{log: slog.New(slog.NewTextHandler(&log, nil)), lost: func(error) { require.Equal(t, 3, lines("redis away")) }}
	o.failed("take", cause)
}
