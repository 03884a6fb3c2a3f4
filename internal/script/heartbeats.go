package script

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// HeartbeatsPage is about how many heartbeats one call of a scan reads.
const HeartbeatsPage = 100

// Heartbeats reads the heartbeats of all servers of a prefix, by the IDs of the servers. It uses
// HSCAN because operators often forbid HGETALL.
func Heartbeats(ctx context.Context, rdb redis.Cmdable, prefix string) (map[string]string, error) {
	return RestOfHeartbeats(ctx, rdb, prefix, rdb.HScan(ctx, ServersKey(prefix), 0, "", HeartbeatsPage))
}

// RestOfHeartbeats is Heartbeats with the first call of its scan.
func RestOfHeartbeats(ctx context.Context, rdb redis.Cmdable, prefix string, page *redis.ScanCmd) (map[string]string, error) {
	found := make(map[string]string)
	for {
		pairs, next, err := page.Result()
		if err != nil {
			return nil, fmt.Errorf("servers of %q: %w", prefix, err)
		}
		for i := 0; i+1 < len(pairs); i += 2 {
			found[pairs[i]] = pairs[i+1]
		}
		if next == 0 {
			return found, nil
		}
		page = rdb.HScan(ctx, ServersKey(prefix), next, "", HeartbeatsPage)
	}
}
