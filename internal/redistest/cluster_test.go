package redistest

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// slotOf returns the slot of a key without a hash tag: CRC-16/XMODEM modulo 16384.
func slotOf(key string) int {
	crc := uint16(0)
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slots
}

func TestSharedClusterAnswersOnAllSlots(t *testing.T) {
	c := SharedCluster(t)
	require.Same(t, c, SharedCluster(t))
	require.Len(t, c.Addrs(), 3)
	rdb := c.Client(t)
	ctx := t.Context()
	prefix := Prefix(t)

	bySlot := map[int]string{}
	for i := 0; len(bySlot) < slots; i++ {
		key := fmt.Sprint(prefix, i)
		bySlot[slotOf(key)] = key
	}
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, key := range bySlot {
			p.Set(ctx, key, "v", time.Minute)
		}
		return nil
	})
	require.NoError(t, err)

	keys, err := Census(ctx, rdb, prefix+"*")
	require.NoError(t, err)
	require.Len(t, keys, slots)
	for _, n := range c.Nodes {
		require.NotZero(t, n.Client(t).DBSize(ctx).Val())
	}
}

func TestClusterFailsOver(t *testing.T) {
	c := StartCluster(t, 3, 1)
	require.Len(t, c.Nodes, 6)
	rdb := c.Client(t)
	ctx := t.Context()
	key := "order" // on the last master
	require.Greater(t, slotOf(key), 2*slots/3)
	require.NoError(t, rdb.Set(ctx, key, "before", 0).Err())
	require.NoError(t, rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		return node.Wait(ctx, 1, 5*time.Second).Err()
	}))

	require.NoError(t, c.Nodes[2].Kill())
	require.NoError(t, poll(startLimit, func() error {
		rdb.ReloadState(ctx)
		return rdb.Set(ctx, key, "after", 0).Err()
	}))
	info, err := c.Nodes[5].Client(t).Info(ctx, "replication").Result()
	require.NoError(t, err)
	require.Equal(t, "master", field(info, "role"))

	require.NoError(t, c.Nodes[2].Restart())
	require.NoError(t, poll(startLimit, c.Nodes[2].inStep))
}

func TestReplicaFollows(t *testing.T) {
	master := Start(t)
	replica := Replica(t, master)
	ctx := t.Context()
	rdb := master.Client(t)
	require.NoError(t, rdb.Set(ctx, "k", "v", 0).Err())
	require.EqualValues(t, 1, rdb.Wait(ctx, 1, 5*time.Second).Val())
	require.Equal(t, "v", replica.Client(t).Get(ctx, "k").Val())

	require.NoError(t, replica.Restart())
	require.NoError(t, poll(startLimit, func() error { // it can be in step and load what it got
		v, err := replica.Client(t).Get(ctx, "k").Result()
		if err == nil && v != "v" {
			err = fmt.Errorf("the replica has %q", v)
		}
		return err
	}))
	require.NoError(t, replica.inStep())
}

func TestSentinelsFailOver(t *testing.T) {
	master := Start(t)
	replica := Replica(t, master)
	sentinels := Sentinels(t, master, 3)
	require.Len(t, sentinels, 3)

	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: sentinels})
	t.Cleanup(func() { _ = rdb.Close() })
	ctx := t.Context()
	require.NoError(t, rdb.Set(ctx, "k", "before", 0).Err())
	require.EqualValues(t, 1, rdb.Wait(ctx, 1, 5*time.Second).Val())

	require.NoError(t, master.Kill())
	require.NoError(t, poll(startLimit, func() error { return rdb.Set(ctx, "k", "after", 0).Err() }))
	require.Equal(t, "after", replica.Client(t).Get(ctx, "k").Val())

	// The old master restarts as a master. Sentinels that know the new one make it a replica of
	// that.
	for _, addr := range sentinels {
		sentinel := redis.NewSentinelClient(&redis.Options{Addr: addr})
		require.NoError(t, poll(startLimit, func() error {
			now, err := sentinel.GetMasterAddrByName(ctx, MasterName).Result()
			if err == nil && net.JoinHostPort(now[0], now[1]) != replica.Addr() {
				err = fmt.Errorf("sentinel %s still has %v", addr, now)
			}
			return err
		}))
		require.NoError(t, sentinel.Close())
	}
	require.NoError(t, master.Restart())
	require.NoError(t, poll(startLimit, master.inStep))
}
