package queuetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// ACLStage makes a topic with a job in each state and a schedule, a server and a pause, and nothing
// else.
func ACLStage(t *testing.T, admin redis.UniversalClient, prefix, topic string) *hand.Hand {
	t.Helper()
	ctx := t.Context()
	wipe := func(ctx context.Context, node *redis.Client) error { // a Redis of the test's own
		err := node.Do(ctx, "ACL", "LOG", "RESET").Err()
		if err != nil && strings.Contains(err.Error(), "unknown command") { // the embedded Redis has no users
			err = nil
		}
		return errors.Join(node.FlushAll(ctx).Err(), err)
	}
	if cluster, ok := admin.(*redis.ClusterClient); ok {
		require.NoError(t, cluster.ForEachMaster(ctx, wipe))
	} else {
		require.NoError(t, wipe(ctx, admin.(*redis.Client)))
	}
	h := hand.New(t, admin, prefix, topic)
	c := delayq.NewClient(h.RDB, delayq.Prefix(h.Prefix()))
	for _, id := range []string{"done", "dead", "running"} {
		_, err := c.Enqueue(ctx, topic, id, nil, delayq.Retention(time.Hour))
		require.NoError(t, err)
	}
	held := h.Take(3, time.Hour)
	require.Equal(t, "o", h.Ack(held[0]))
	require.Equal(t, "o", h.Bury(held[1]))
	h.Put("+3600000", "scheduled", "nowhere")
	require.NoError(t, admin.ZRem(ctx, h.Keys.Bucket, "nowhere").Err()) // for Check to find
	h.Put("+0", "ready")
	require.NoError(t, c.Schedule(ctx, topic, "s", delayq.Every(time.Hour), nil))
	require.NoError(t, c.Pause(ctx, topic, delayq.Pause{By: "ops"}))
	_, err := h.Try(script.Heartbeat, []any{script.ServersKey(prefix)}, "server", "{}")
	require.NoError(t, err)
	require.NoError(t, admin.HSet(ctx, h.Keys.Hours, 472222%720, "472222 acked 3").Err()) // 1,700,000,000 s after 1970
	return h
}

// ACLClient is a client of one of the users of the ACL file.
func ACLClient(t *testing.T, rs *redistest.Server, role string) *redis.Client {
	t.Helper()
	opt := rs.Options()
	opt.Username, opt.Password, opt.DisableIdentity = "delayq-"+role, "change-me-"+role, true
	rdb := redis.NewClient(opt)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}
