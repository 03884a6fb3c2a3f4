package script

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/link"
)

// Blame adds the name of the key to an error of Redis about the type of a key, because Redis does
// not name it. Only then it costs a call for each key. If Redis is away, a client of a Cluster asks
// for its nodes anew.
func (c Caller) Blame(ctx context.Context, err error, keys ...any) error {
	if cluster, is := c.RDB.(*redis.ClusterClient); is && err != nil && ctx.Err() == nil && Away(err) {
		link.Reload(cluster)
	}
	if err == nil || !Answered(err) || Code(err) != CodeWrongType {
		return err
	}
	for _, key := range keys {
		name, _ := key.(string)
		cmd := redis.NewStatusCmd(ctx, "type", name)
		if c.RDB.Process(ctx, cmd) != nil {
			return err // the right is missing or Redis is away: return the error as it is
		}
		if is, should := cmd.Val(), TypeOf(name); is != should && is != "none" {
			return fmt.Errorf("key %q is a %s and not a %s: %w", name, is, should, err)
		}
	}
	return err
}

// WrongKeys lists keys of the wrong type that a script has skipped, as an error of Redis.
type WrongKeys []string

func (w WrongKeys) Error() string { return fmt.Sprintf("%s %q", CodeWrongType, []string(w)) }

// RedisError marks WrongKeys as an error of Redis, for Answered.
func (w WrongKeys) RedisError() {}
