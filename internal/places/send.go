package places

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/script"
)

// Send sends commands in one round trip to each node. The client of a Cluster that is not an
// inspector's has no pipelines: there each command has a connection of its own, to a master.
func Send(ctx context.Context, scripts script.Caller, cmds []redis.Cmder) {
	cluster, is := alone(scripts)
	if !is {
		scripts.Send(ctx, nil, cmds)
		return
	}
	var group sync.WaitGroup
	for _, cmd := range cmds {
		contain.Launch(&group, func() {
			if err := process(ctx, cluster, cmd); err != nil {
				cmd.SetErr(err)
			}
		}, func(c *contain.Crash) { cmd.SetErr(fmt.Errorf("%w: %w", script.ErrCut, c)) })
	}
	group.Wait()
}

// Do executes calls of scripts, and other commands with them.
func Do(ctx context.Context, scripts script.Caller, calls []*script.Call, others ...redis.Cmder) {
	if _, is := alone(scripts); is {
		Send(ctx, scripts, others)
		others = nil
	}
	scripts.DoWith(ctx, calls, others...)
}

// alone reports whether each command is sent by itself.
func alone(scripts script.Caller) (cluster *redis.ClusterClient, is bool) {
	cluster, is = scripts.RDB.(*redis.ClusterClient)
	return cluster, is && scripts.Only == nil
}

// process sends a command to a master, even if the client may read from replicas.
func process(ctx context.Context, cluster *redis.ClusterClient, cmd redis.Cmder) error {
	if key, named := cmd.Args()[1].(string); named && cluster.Options().ReadOnly {
		node, err := cluster.MasterForKey(ctx, key)
		if err != nil {
			return err
		}
		return node.Process(ctx, cmd)
	}
	return cluster.Process(ctx, cmd)
}
