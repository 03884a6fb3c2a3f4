package redistest

import (
	"context"
	"crypto/rand"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// notPlain matches characters with a meaning in hash tags, patterns or key schemes; a prefix must
// not have them.
var notPlain = regexp.MustCompile(`[^A-Za-z0-9_]+`)

// Prefix returns a key prefix that no other call returns: the name of the test and a random part.
//
// It consists of ASCII letters, digits, "_" and "-", so that it can be part of a pattern.
func Prefix(t testing.TB) string {
	name := notPlain.ReplaceAllString(t.Name(), "_")
	return name[:min(len(name), 40)] + "-" + strings.ToLower(rand.Text()[:10])
}

// Census returns the keys that match a pattern, each with its type, from all masters of a cluster.
//
// It scans the whole keyspace. A key that is created or deleted during the scan may be missing or
// not.
func Census(ctx context.Context, rdb redis.UniversalClient, pattern string) (map[string]string, error) {
	var mu sync.Mutex
	keys := map[string]string{}
	count := func(ctx context.Context, node redis.UniversalClient) error {
		for cursor := uint64(0); ; {
			page, next, err := node.Scan(ctx, cursor, pattern, 1000).Result()
			if err != nil {
				return err
			}
			types, err := node.Pipelined(ctx, func(p redis.Pipeliner) error {
				for _, key := range page {
					p.Type(ctx, key)
				}
				return nil
			})
			if err != nil {
				return err
			}
			mu.Lock()
			for i, key := range page {
				if kind := types[i].(*redis.StatusCmd).Val(); kind != "none" {
					keys[key] = kind
				}
			}
			mu.Unlock()
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	}
	var err error
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return count(ctx, node) })
	} else {
		err = count(ctx, rdb)
	}
	if err != nil {
		return nil, fmt.Errorf("census of %q: %w", pattern, err)
	}
	return keys, nil
}
