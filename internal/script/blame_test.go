package script_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/script"
)

// A read that no node has answered makes the client of a Cluster ask for the nodes anew: go-redis
// does not, and a master that has died does not tell where its slots are now.
func TestReadsFindTheNodesAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"127.0.0.1:1"}, MaxRedirects: -1, MaxRetries: -1,
			Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") },
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				asked.Add(1)
				return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:1"}}}}, nil
			},
		})
		defer func() { require.NoError(t, rdb.Close()) }()
		c := script.Caller{RDB: rdb}
		require.NoError(t, rdb.ForEachMaster(t.Context(), func(context.Context, *redis.Client) error { return nil }))
		before := asked.Load()
		_, err := c.Exec(t.Context(), script.PartMap, script.NewKeys("p", "t"), "", 0)
		require.ErrorContains(t, err, "refused")
		time.Sleep(time.Second) // go-redis rests after that
		require.Greater(t, asked.Load(), before)
	})
}
