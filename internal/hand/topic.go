package hand

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
)

// Put enqueues jobs that are all due at the same time, as the script reads it.
func (h *Hand) Put(when string, ids ...string) {
	h.T.Helper()
	for chunk := range slices.Chunk(ids, 1000) {
		jobs := make([][2]string, len(chunk))
		for i, id := range chunk {
			jobs[i] = [2]string{id, when}
		}
		r, err := h.TryEnqueue(false, jobs...)
		require.NoError(h.T, err)
		require.Empty(h.T, r.Text(2), "all are stored")
	}
}

// List returns the IDs in a list.
func (h *Hand) List(key string) []string {
	h.T.Helper()
	ids, err := h.RDB.LRange(context.Background(), key, 0, -1).Result()
	require.NoError(h.T, err)
	return ids
}

// Push appends IDs to a list.
func (h *Hand) Push(key string, ids ...string) {
	h.T.Helper()
	for chunk := range slices.Chunk(ids, 1000) {
		values := make([]any, len(chunk))
		for i, id := range chunk {
			values[i] = id
		}
		require.NoError(h.T, h.RDB.RPush(context.Background(), key, values...).Err())
	}
}

// Deface puts a key of a wrong type in the place of one of the topic's, and tells how to undo it.
func (h *Hand) Deface(name string) (mend func()) {
	h.T.Helper()
	ctx := context.Background()
	key, kept := h.Key(name), h.Key("kept")
	exists := h.RDB.Exists(ctx, key).Val() == 1
	if exists {
		require.NoError(h.T, h.RDB.Rename(ctx, key, kept).Err())
	}
	require.NoError(h.T, h.RDB.Set(ctx, key, "a slip", 0).Err())
	return func() {
		require.NoError(h.T, h.RDB.Del(ctx, key).Err())
		if exists {
			require.NoError(h.T, h.RDB.Rename(ctx, kept, key).Err())
		}
	}
}

// Hasten makes all due times, lease ends and ends of holds come earlier: what the passing of time
// does, without the waiting.
func (h *Hand) Hasten(d time.Duration) {
	h.T.Helper()
	ctx := context.Background()
	most := map[string]string{h.Keys.Bucket: "+inf", h.Keys.Leases: "+inf", h.Keys.Held: strconv.Itoa(KeyPaused)}
	for key, most := range most {
		all, err := h.RDB.ZRangeByScoreWithScores(ctx, key, &redis.ZRangeBy{Min: "-inf", Max: "(" + most}).Result()
		require.NoError(h.T, err)
		for _, z := range all {
			require.NoError(h.T, h.RDB.ZIncrBy(ctx, key, -float64(d.Milliseconds()), z.Member.(string)).Err())
		}
	}
}

// Traces lists the keys of the topic in which an ID stands.
func (h *Hand) Traces(id string) (keys []string) {
	h.T.Helper()
	for key, content := range redistest.Dump(h.T, h.RDB, h.Prefix()) {
		name, ours := strings.CutPrefix(key, h.Keys.Root)
		found := false
		switch c := content.(type) {
		case map[string]string:
			_, found = c[id]
		case []redis.Z:
			found = slices.ContainsFunc(c, func(z redis.Z) bool { return z.Member == id })
		case []string:
			found = slices.Contains(c, id)
		}
		if found && ours {
			keys = append(keys, name)
		}
	}
	slices.Sort(keys)
	return keys
}
