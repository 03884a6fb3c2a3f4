package places

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/script"
)

// A topic is read with its partitions or not at all. What is wrong with one topic is not in the way
// of others.
func TestReadsFailAlone(t *testing.T) {
	t.Parallel()
	ctx, r := t.Context(), embedded.New()
	t.Cleanup(r.Close)
	rdb := r.Client()
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	scripts := script.Caller{RDB: rdb}
	for _, topic := range []string{"whole", "parted", "damaged", "wrong", "part"} {
		k := script.NewKeys("p", topic)
		require.NoError(t, rdb.HSet(ctx, k.Stats, "enqueued", 1).Err())
		if topic != "whole" {
			require.NoError(t, rdb.HSet(ctx, k.Parts, "map", "0:1 1:2").Err())
		}
	}
	set := func(err error) { require.NoError(t, err) }
	set(rdb.HSet(ctx, script.NewKeys("p", "damaged").Parts, "map", "0:1 1:x").Err())
	set(rdb.Set(ctx, script.NewKeys("p", "wrong").Tombs, "text", 0).Err())
	m, err := ReadMap(ctx, scripts, script.NewKeys("p", "part"))
	require.NoError(t, err)
	set(rdb.Set(ctx, Partitions("p", "part", m)[1].Pool, "text", 0).Err())

	clock := redis.NewTimeCmd(ctx, "time")
	list := ReadTopics(ctx, scripts, "p", []string{"whole", "damaged", "parted", "wrong", "part"}, []any{"enqueued"}, clock)
	require.NoError(t, clock.Err())
	var got []string
	for _, r := range list {
		require.NoError(t, r.Err())
		failed := r.Error()
		for _, one := range r.Parts {
			if failed == nil {
				failed = one.Error()
			}
		}
		text := "read"
		if failed != nil {
			text = "failed"
		}
		got = append(got, fmt.Sprint(r.Keys.Topic, " ", text, " ", len(r.Parts), " ", r.Counters.Val()))
	}
	require.Equal(t, []string{
		"whole read 0 [1]", "damaged failed 0 [1]", "parted read 2 [1]", "wrong failed 2 [1]", "part failed 2 [1]",
	}, got)
	require.ErrorContains(t, list[1].Error(), "map of partitions is damaged")
	require.ErrorContains(t, list[3].Error(), "is a string and not a zset")
}
