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

// Dump returns the content of each key of a prefix, except receipts and the two sets of names. It
// is a map, a slice of redis.Z, a slice of strings or a string.
func Dump(t testing.TB, rdb redis.UniversalClient, prefix string) map[string]any {
	t.Helper()
	ctx := context.Background()
	census, err := Census(ctx, rdb, prefix+":*")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]any, len(census))
	for key, kind := range census {
		if key == prefix+":topics" || key == prefix+":servers" || strings.Contains(key, "}:receipt:") || strings.Contains(key, "}:taken:") {
			continue
		}
		switch kind {
		case "hash":
			all[key], err = rdb.HGetAll(ctx, key).Result()
		case "zset":
			all[key], err = rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
		case "list":
			all[key], err = rdb.LRange(ctx, key, 0, -1).Result()
		default:
			all[key], err = rdb.Get(ctx, key).Result()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}
