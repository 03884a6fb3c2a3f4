package commit

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A client keeps the state of about a thousand topics, however many it uses, and leaves no receipts
// but one in each.
func TestGroupsForgetTopics(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ownClient(t)
		var adds countAdds
		o := *rdb.(*redis.Client).Options()
		own := redis.NewClient(&o)
		defer func() { require.NoError(t, own.Close()) }()
		own.AddHook(&adds)
		c := newCaller(own, redistest.Prefix(t))
		require.Equal(t, 1000, c.most)
		const topics, rounds = 60, 3
		c.most = 50
		for round := range rounds {
			for i := range topics {
				require.NoError(t, c.do(t.Context(), job{}.store(t, fmt.Sprint("topic", i), fmt.Sprint(round))))
				require.LessOrEqual(t, len(c.groups), c.most)
			}
		}
		receipts, err := rdb.Keys(t.Context(), c.Prefix+":*:receipt:*").Result()
		require.NoError(t, err)
		require.Len(t, receipts, topics)
		require.EqualValues(t, 2*topics, adds, "a topic is added before and after its first job, and not again")
		require.EqualValues(t, topics, rdb.SCard(t.Context(), script.TopicsKey(c.Prefix)).Val())
		ready := rdb.LLen(t.Context(), script.NewKeys(c.Prefix, "topic7").Ready).Val()
		require.EqualValues(t, rounds, ready, "none of the calls was taken for an old one")
	})
}

// What is in use is not forgotten, and a name of a series that was given up is not used again.
func TestGroupsInUseAreKept(t *testing.T) {
	t.Parallel()
	rdb := redistest.Unused(t)
	c := newCaller(rdb, "delayq")
	first := c.For("first", Enqueue)
	series := first.series.Get()
	series.Seq = firstNumber + 41
	for i := range 5 * mostGroups {
		c.For(fmt.Sprint("topic", i), Enqueue).Release()
	}
	require.Same(t, first, c.groups[groupKey{topic: "first"}])
	require.LessOrEqual(t, len(c.groups), mostGroups)
	first.series.Put(series, nil)
	first.Release()
	for i := 0; c.groups[groupKey{topic: "first"}] != nil; i++ {
		c.For(fmt.Sprint("other", i), Enqueue).Release()
	}
	again := c.For("first", Enqueue).series.Get()
	require.Equal(t, series.ID, again.ID)
	require.EqualValues(t, firstNumber+41, again.Seq)

	c.For("first", Enqueue).series.Put(again, context.DeadlineExceeded)
	c.groups[groupKey{topic: "first"}].users.Store(0)
	for i := 0; c.groups[groupKey{topic: "first"}] != nil; i++ {
		c.For(fmt.Sprint("third", i), Enqueue).Release()
	}
	require.NotEqual(t, series.ID, c.For("first", Enqueue).series.Get().ID)
}

// The set of topics heals after Redis has come back empty: at once where the first job tells, else
// within a minute.
func TestTopicsAreAddedAgain(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		c := newCaller(rdb, redistest.Prefix(t))
		keys, jobs := script.NewKeys(c.Prefix, "topic"), 0
		enqueue := func() []string {
			t.Helper()
			jobs++
			require.NoError(t, c.do(t.Context(), job{}.store(t, "topic", fmt.Sprint(jobs))))
			return rdb.SMembers(t.Context(), script.TopicsKey(c.Prefix)).Val()
		}
		require.Equal(t, []string{"topic"}, enqueue())
		require.NoError(t, rdb.Del(t.Context(), script.TopicsKey(c.Prefix), keys.Pool, keys.Ready, keys.Stats).Err())
		require.Equal(t, []string{"topic"}, enqueue())
		require.NoError(t, rdb.Del(t.Context(), script.TopicsKey(c.Prefix)).Err())
		require.Empty(t, enqueue(), "not each time")
		g := c.groups[groupKey{topic: "topic"}]
		g.recorded = g.recorded.Add(-recordEvery)
		enqueue()
		require.Eventually(t, func() bool {
			return rdb.SIsMember(t.Context(), script.TopicsKey(c.Prefix), "topic").Val()
		}, time.Minute, 5*time.Millisecond)
		require.WithinDuration(t, time.Now(), g.recorded, time.Minute)
	})
}

// Calls that wait for replicas are in no other call's way, and have receipts of their own.
func TestCallsThatWaitForReplicasHaveTheirOwnGroup(t *testing.T) {
	t.Parallel()
	rdb := redistest.Unused(t)
	plain, waits := newCaller(rdb, "delayq"), newCaller(rdb, "delayq")
	waits.Replicas, waits.Wait = 1, time.Second
	require.Same(t, plain.For("topic", Enqueue), plain.For("topic", Cancel))
	stores, cancels := waits.For("topic", Enqueue), waits.For("topic", Cancel)
	require.NotSame(t, stores, cancels)
	require.Same(t, cancels, waits.For("topic", Get))
	require.NotEqual(t, stores.series.Get().ID, cancels.series.Get().ID)
}
