package commit

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/script"
)

// A replicaWaiter sends a command followed by a WAIT on the same connection, because WAIT covers
// only the writes of its own connection.
type replicaWaiter struct {
	wire      *Wire
	key       string // selects the node of a cluster
	confirmed int64
	err       error // of WAIT
}

// Process sends cmd, then WAIT if cmd is a script.
func (w *replicaWaiter) Process(ctx context.Context, cmd redis.Cmder) error {
	if name := cmd.Name(); name != "evalsha" && name != "eval" {
		return w.wire.Redis.Process(ctx, cmd) // it writes nothing
	}
	const redirects = 3
	for try := 0; ; try++ {
		node, err := w.node(ctx)
		if err != nil {
			return err
		}
		pipe := node.Pipeline()
		if err := pipe.Process(ctx, cmd); err != nil {
			return err
		}
		wait := pipe.Do(ctx, "WAIT", w.wire.Replicas, w.wire.Wait.Milliseconds())
		// Exec returns the error of the first command that failed; each error is read from its own
		// command below. An error that Redis returns to a new connection is in no command.
		if _, err := pipe.Exec(ctx); cmd.Err() == nil && wait.Err() == nil && err != nil {
			return err
		}
		w.confirmed, w.err = wait.Int64()
		if _, moved := redis.IsMovedError(cmd.Err()); moved && try < redirects {
			if cluster, ok := w.wire.Redis.(*redis.ClusterClient); ok {
				cluster.ReloadState(ctx)
				continue
			}
		}
		return cmd.Err()
	}
}

// node returns the client of the one node that holds the topic.
func (w *replicaWaiter) node(ctx context.Context) (redis.UniversalClient, error) {
	if cluster, ok := w.wire.Redis.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, w.key)
	}
	return w.wire.Redis, nil
}

// store executes a script and waits on the same connection until enough replicas have the
// writes. It returns an error if they do not confirm them in time.
func (c *Wire) store(ctx context.Context, call *script.Call) (unconfirmed error) {
	w := &replicaWaiter{wire: c, key: call.FirstKey()}
	script.Caller{RDB: w, Hooks: c.Scripts.Hooks}.Do(ctx, call)
	if call.Err != nil || w.confirmed >= int64(c.Replicas) {
		return nil
	}
	unconfirmed = fmt.Errorf("%d of %d within %v", w.confirmed, c.Replicas, c.Wait)
	if w.err != nil {
		unconfirmed = fmt.Errorf("%w: WAIT: %w", unconfirmed, w.err)
	}
	return unconfirmed
}
