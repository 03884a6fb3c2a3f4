package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// slots is the number of slots of a Redis Cluster.
const slots = 16384

// Cluster is a Redis Cluster on its own servers.
type Cluster struct {
	// Nodes are first the masters, in the order of their slots, then the replicas: those of the
	// first master, of the second, and so on. A failover changes the roles, but not this order.
	Nodes []*Server

	dir     string
	ownsDir bool
}

// StartCluster starts a cluster that ends with the test. It has that many masters, and that many
// replicas for each.
//
// It waits until all nodes see the whole cluster as working. A node counts as failed after two
// seconds. Calls Need.
func StartCluster(t testing.TB, masters, replicas int) *Cluster {
	t.Helper()
	Need(t)
	c, err := StartClusterE(t.TempDir(), masters, replicas)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes {
		n.until(t)
	}
	return c
}

// StartClusterE is StartCluster without a test. The caller calls Close.
//
// The nodes work in directories in dir and leave them there. If dir is empty, Close removes them.
func StartClusterE(dir string, masters, replicas int) (_ *Cluster, err error) {
	c := &Cluster{dir: dir}
	if dir == "" {
		c.ownsDir = true
		if c.dir, err = ownDir(); err != nil {
			return nil, err
		}
	}
	if err = c.up(masters, replicas); err != nil {
		return nil, errors.Join(fmt.Errorf("start a cluster: %w", err), c.Close())
	}
	return c, nil
}

func (c *Cluster) up(masters, replicas int) error {
	total := masters * (1 + replicas)
	for i := range total {
		dir := filepath.Join(c.dir, strconv.Itoa(i))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		n, err := StartE(dir,
			"--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-announce-ip", "127.0.0.1")
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, n)
	}

	ids := make([]string, total)
	err := c.each(func(ctx context.Context, i int, rdb *redis.Client) (err error) {
		// Different epochs from the start, or the nodes must first agree on them.
		if err = rdb.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			return err
		}
		if i < masters {
			if err = rdb.ClusterAddSlotsRange(ctx, i*slots/masters, (i+1)*slots/masters-1).Err(); err != nil {
				return err
			}
		}
		for _, other := range c.Nodes[:i] {
			if err = rdb.ClusterMeet(ctx, "127.0.0.1", strconv.Itoa(other.port)).Err(); err != nil {
				return err
			}
		}
		ids[i], err = rdb.Do(ctx, "CLUSTER", "MYID").Text()
		return err
	})
	if err != nil {
		return err
	}
	err = c.settle(func(ctx context.Context, _ int, rdb *redis.Client) error {
		return met(ctx, rdb, total)
	})
	if err != nil {
		return err
	}
	err = c.each(func(ctx context.Context, i int, rdb *redis.Client) error {
		if i < masters {
			return nil
		}
		return rdb.ClusterReplicate(ctx, ids[(i-masters)/replicas]).Err()
	})
	if err != nil {
		return err
	}
	return c.settle(func(ctx context.Context, i int, rdb *redis.Client) error {
		if i >= masters {
			if err := c.Nodes[i].inStep(); err != nil {
				return err
			}
		}
		return complete(ctx, rdb, masters, replicas)
	})
}

// met returns nil if a node has met all nodes.
func met(ctx context.Context, rdb *redis.Client, total int) error {
	nodes, err := rdb.ClusterNodes(ctx).Result()
	if err == nil && (strings.Count(nodes, "\n") != total || strings.Contains(nodes, "handshake")) {
		err = fmt.Errorf("a node has not met all others: %q", nodes)
	}
	return err
}

// complete returns nil if a node sees all slots served, by a master and that many replicas each.
func complete(ctx context.Context, rdb *redis.Client, masters, replicas int) error {
	info, err := rdb.ClusterInfo(ctx).Result()
	if err != nil {
		return err
	}
	if field(info, "cluster_state") != "ok" {
		return fmt.Errorf("the cluster is not up: %q", info)
	}
	//lint:ignore SA1019 CLUSTER SHARDS came with Redis 7.0, and 6.2 is to be tested too
	ranges, err := rdb.ClusterSlots(ctx).Result()
	if err != nil {
		return err
	}
	served := 0
	for _, r := range ranges {
		if len(r.Nodes) == 1+replicas {
			served += r.End - r.Start + 1
		}
	}
	if len(ranges) != masters || served != slots {
		return fmt.Errorf("not all slots are served: %v", ranges)
	}
	return nil
}

// each asks all nodes, one after the other.
func (c *Cluster) each(question func(ctx context.Context, i int, rdb *redis.Client) error) error {
	for i, n := range c.Nodes {
		err := n.ask(func(ctx context.Context, rdb *redis.Client) error { return question(ctx, i, rdb) })
		if err != nil {
			return fmt.Errorf("node %s: %w", n.Addr(), err)
		}
	}
	return nil
}

// settle asks all nodes until question returns nil for each.
func (c *Cluster) settle(question func(ctx context.Context, i int, rdb *redis.Client) error) error {
	return poll(startLimit, func() error { return c.each(question) })
}

// Addrs returns the addresses of all nodes, in their order.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Addr())
	}
	return addrs
}

// Options returns new options for a client of this cluster.
func (c *Cluster) Options() *redis.ClusterOptions {
	return &redis.ClusterOptions{
		Addrs:                    c.Addrs(),
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Client returns a new client that is closed at the end of the test.
//
// It has the defaults of go-redis. With them it does not look for a new master when the old one
// refuses connections. It learns of a failover by a redirection, by ReloadState or after a minute.
func (c *Cluster) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	rdb := redis.NewClusterClient(c.Options())
	t.Cleanup(func() { _ = rdb.Close() })
	if c.Nodes[0].aclFile != "" {
		InRoles(t, rdb)
	}
	return rdb
}

// Close kills all nodes, and removes the directory if the cluster created it.
func (c *Cluster) Close() error {
	var errs []error
	for _, n := range c.Nodes {
		errs = append(errs, n.Close())
	}
	if c.ownsDir {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}
