package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// eachParted runs a test of a topic "mail" without partitions, with some by ID or by key, and after
// two Partition calls of which the first has jobs yet.
func eachParted(t *testing.T, test func(t *testing.T, fresh func() *delayq.Client)) {
	t.Parallel()
	for name, calls := range map[string][]func(context.Context, *delayq.Client) error{
		"home":   nil,
		"by ID":  {func(ctx context.Context, c *delayq.Client) error { return c.Partition(ctx, "mail", 3) }},
		"by key": {func(ctx context.Context, c *delayq.Client) error { return c.Partition(ctx, "mail", 3, delayq.ByKey()) }},
		"twice": {
			func(ctx context.Context, c *delayq.Client) error { return c.Partition(ctx, "mail", 2) },
			func(ctx context.Context, c *delayq.Client) error { return c.Partition(ctx, "mail", 5) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
				prefix := delayq.Prefix(redistest.Prefix(t))
				fresh := func() *delayq.Client { return delayq.NewClient(rdb, prefix) }
				c := fresh()
				for i, call := range calls {
					_, err := c.Enqueue(t.Context(), "mail", fmt.Sprint("old", i), nil, delayq.ProcessIn(time.Hour))
					require.NoError(t, err)
					require.NoError(t, call(t.Context(), c))
				}
				test(t, fresh)
			})
		})
	}
}

// Every call about a job finds it, whichever partition has it, and says of each ID what it says in
// a topic without partitions. So does a client that does not know the partitions yet.
func TestCallsFindJobsInPartitions(t *testing.T) {
	eachParted(t, func(t *testing.T, fresh func() *delayq.Client) {
		ctx := t.Context()
		for i, c := range []*delayq.Client{fresh(), fresh()} {
			id := func(name string) string { return fmt.Sprint(name, i) }
			for n := range 20 {
				_, err := c.Enqueue(ctx, "mail", id(fmt.Sprint("a", n, "-")), []byte("x"), delayq.ProcessIn(time.Hour), delayq.Key("k"))
				require.NoError(t, err)
			}
			other := fresh()
			_, err := other.Enqueue(ctx, "mail", id("a7-"), nil, delayq.Key("k"))
			require.ErrorIs(t, err, delayq.ErrDuplicate)
			info, err := other.Get(ctx, "mail", id("a7-"))
			require.NoError(t, err)
			require.Equal(t, "mail", info.Topic)
			require.Equal(t, "k", info.Key)
			require.NoError(t, fresh().Reschedule(ctx, "mail", id("a7-"), delayq.ProcessIn(2*time.Hour)))
			require.NoError(t, fresh().SetPriority(ctx, "mail", id("a7-"), time.Minute))
			require.NoError(t, fresh().Bury(ctx, "mail", id("a7-"), "why"))
			require.NoError(t, fresh().Revive(ctx, "mail", id("a7-")))
			state, err := fresh().Dequeue(ctx, "mail", id("a7-"), delayq.Tombstone(time.Hour))
			require.NoError(t, err)
			require.Equal(t, delayq.StateReady, state)
			_, err = fresh().Enqueue(ctx, "mail", id("a7-"), nil, delayq.Key("k"))
			require.ErrorIs(t, err, delayq.ErrDuplicate)
			_, err = fresh().Dequeue(ctx, "mail", id("none"))
			require.ErrorIs(t, err, delayq.ErrNotFound)
			_, err = fresh().Get(ctx, "mail", id("none"))
			require.ErrorIs(t, err, delayq.ErrNotFound)
			require.ErrorIs(t, fresh().Delete(ctx, "mail", id("none")), delayq.ErrNotFound)
			require.ErrorIs(t, fresh().SetPriority(ctx, "mail", id("none"), time.Minute), delayq.ErrNotFound)
			wait, cancel := context.WithTimeout(ctx, time.Minute)
			_, err = fresh().Wait(wait, "mail", id("none"))
			cancel()
			require.ErrorIs(t, err, delayq.ErrNotFound)

			var jobs []delayq.NewJob
			var refs []delayq.JobRef
			for n := range 100 {
				jobs = append(jobs, delayq.NewJob{Topic: "mail", ID: id(fmt.Sprint("b", n, "-")), Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}})
				refs = append(refs, delayq.JobRef{Topic: "mail", ID: jobs[n].ID})
			}
			_, err = fresh().EnqueueBatch(ctx, jobs)
			require.NoError(t, err)
			results, err := fresh().EnqueueBatch(ctx, jobs)
			require.ErrorIs(t, err, delayq.ErrDuplicate)
			for _, r := range results {
				require.ErrorIs(t, r.Err, delayq.ErrDuplicate)
			}
			got, err := fresh().GetBatch(ctx, refs)
			require.NoError(t, err)
			require.Equal(t, refs[99].ID, got[99].Job.ID)
			cancelled, err := fresh().CancelBatch(ctx, refs)
			require.NoError(t, err)
			for _, r := range cancelled {
				require.Equal(t, delayq.StateScheduled, r.State)
			}
		}
	})
}

// New jobs are spread over the partitions of the last call, and those that are there stay.
func TestPartitionSpreadsNewJobs(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		c := delayq.NewClient(rdb, delayq.Prefix(prefix))
		store := func(name string) {
			for n := range 200 {
				_, err := c.Enqueue(ctx, "mail", fmt.Sprint(name, n), nil, delayq.ProcessIn(time.Hour))
				require.NoError(t, err)
			}
		}
		jobs := func(g part.Generation) (list []int64) {
			for _, name := range g.Names("mail") {
				n, err := rdb.HLen(ctx, script.NewKeys(prefix, name).Pool).Result()
				require.NoError(t, err)
				list = append(list, n)
			}
			return list
		}
		store("home")
		require.NoError(t, c.Partition(ctx, "mail", 4))
		store("first")
		require.NoError(t, c.Partition(ctx, "mail", 4), "again, nothing changes")
		require.NoError(t, c.Partition(ctx, "mail", 2, delayq.ByKey()))
		store("second")
		require.Equal(t, []int64{200}, jobs(part.Generation{Parts: 1}))
		sum := int64(0)
		for _, n := range jobs(part.Generation{Number: 1, Parts: 4}) {
			require.Greater(t, n, int64(20))
			sum += n
		}
		require.EqualValues(t, 200, sum)
		second := jobs(part.Generation{Number: 2, Parts: 2, ByKey: true})
		require.EqualValues(t, 200, second[0]+second[1])
		topics, err := rdb.SMembers(ctx, script.TopicsKey(prefix)).Result()
		require.NoError(t, err)
		require.Equal(t, []string{"mail"}, topics)
	})
}

// Partition refuses what it cannot do, and then the topic is as before.
func TestPartitionRefuses(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		c := delayq.NewClient(rdb, delayq.Prefix(prefix))
		for _, n := range []int{-1, 0, 1025} {
			require.ErrorIs(t, c.Partition(ctx, "mail", n), delayq.ErrInvalid)
		}
		require.ErrorIs(t, c.Partition(ctx, strings.Repeat("x", 240), 2), delayq.ErrInvalid)
		require.ErrorIs(t, c.Partition(ctx, "ma#il", 2), delayq.ErrInvalid)
		require.ErrorIs(t, c.Partition(ctx, "mail", 2, nil), delayq.ErrInvalid)

		require.NoError(t, c.SetLimits(ctx, "mail", delayq.Limits{RunningPerKey: 1}))
		require.ErrorIs(t, c.Partition(ctx, "mail", 2), delayq.ErrInvalid)
		require.NoError(t, c.SetLimits(ctx, "mail", delayq.Limits{Running: 3}))
		require.ErrorContains(t, c.Partition(ctx, "mail", 3), "3 running jobs, and 4 partitions")
		require.NoError(t, c.SetLimits(ctx, "mail", delayq.Limits{}))
		require.NoError(t, c.SetKeyLimits(ctx, "mail", "k", delayq.KeyLimits{Running: 1}))
		require.ErrorIs(t, c.Partition(ctx, "mail", 2), delayq.ErrInvalid)
		exists, err := rdb.Exists(ctx, script.NewKeys(prefix, "mail").Parts).Result()
		require.NoError(t, err)
		require.Zero(t, exists)
		require.NoError(t, c.Partition(ctx, "mail", 2, delayq.ByKey()))

		for n := range 6 {
			require.NoError(t, c.Partition(ctx, "mail", 3+n, delayq.ByKey()))
		}
		err = c.Partition(ctx, "mail", 20, delayq.ByKey())
		require.ErrorIs(t, err, delayq.ErrInvalid)
		require.ErrorContains(t, err, "too many generations")
	})
}

// Settings are those of all partitions, of new ones too.
func TestSettingsAreEverywhere(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		c := delayq.NewClient(rdb, delayq.Prefix(prefix))
		require.NoError(t, c.Pause(ctx, "mail", delayq.Pause{By: "anna", Reason: "why"}))
		require.NoError(t, c.Hold(ctx, "mail", time.Hour, "slow"))
		require.NoError(t, c.PauseKey(ctx, "mail", "k1"))
		require.NoError(t, c.HoldKey(ctx, "mail", "k2", time.Hour))
		require.NoError(t, c.SetKeyLimits(ctx, "mail", "k3", delayq.KeyLimits{Weight: 5}))
		require.NoError(t, c.SetLimits(ctx, "mail", delayq.Limits{Running: 10, Rate: delayq.Per(100, time.Second)}))
		require.NoError(t, c.Partition(ctx, "mail", 3))
		each := func(test func(k *script.Keys)) {
			t.Helper()
			for _, name := range (part.Generation{Number: 1, Parts: 3}).Names("mail") {
				test(script.NewKeys(prefix, name))
			}
		}
		running := 0
		each(func(k *script.Keys) {
			fields, err := rdb.HMGet(ctx, k.Meta, "pauses", "holdby", "holdwhy", "flow", "shared").Result()
			require.NoError(t, err)
			require.Contains(t, fields[0], "annawhy")
			require.Equal(t, "slow", fields[2])
			var n int
			_, err = fmt.Sscan(fields[3].(string), &n)
			require.NoError(t, err)
			running += n
			require.Equal(t, "10 10000 10 100 1000000 0", fields[4])
			ends, err := rdb.ZMScore(ctx, k.Held, "k1", "k2").Result()
			require.NoError(t, err)
			require.EqualValues(t, 9_999_999_999_999, ends[0])
			require.Greater(t, ends[1], float64(time.Now().UnixMilli()))
			rule, err := rdb.HGet(ctx, k.Rules, "k3").Result()
			require.NoError(t, err)
			require.Equal(t, "5", rule)
		})
		require.Equal(t, 7, running, "the home has a share of 3")

		require.NoError(t, c.ResumeAll(ctx, "mail"))
		require.NoError(t, c.EndHold(ctx, "mail"))
		require.NoError(t, c.ResumeKey(ctx, "mail", "k1"))
		require.NoError(t, c.SetLimits(ctx, "mail", delayq.Limits{Running: 40}))
		require.ErrorIs(t, c.SetLimits(ctx, "mail", delayq.Limits{Running: 3}), delayq.ErrInvalid)
		require.ErrorIs(t, c.SetLimits(ctx, "mail", delayq.Limits{RunningPerKey: 3}), delayq.ErrInvalid)
		require.ErrorIs(t, c.SetLimits(ctx, "mail", delayq.Limits{Running: 40, Ordered: true}), delayq.ErrInvalid)
		require.ErrorIs(t, c.SetKeyLimits(ctx, "mail", "refused", delayq.KeyLimits{Running: 1}), delayq.ErrInvalid)
		each(func(k *script.Keys) {
			fields, err := rdb.HMGet(ctx, k.Meta, "pauses", "hold", "flow").Result()
			require.NoError(t, err)
			require.Equal(t, []any{nil, nil, "10 0 0 0 0 0"}, fields, "what is refused changes no place")
			require.False(t, rdb.HExists(ctx, k.Rules, "refused").Val())
			require.ErrorIs(t, rdb.ZScore(ctx, k.Held, "k1").Err(), redis.Nil)
		})
	})
}
