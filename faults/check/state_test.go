package check

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// TestCensusFindsPlantedFaults puts one thing wrong in Redis at a time.
func TestCensusFindsPlantedFaults(t *testing.T) {
	for name, plant := range map[string]func(ctx context.Context, rdb redis.UniversalClient, root string){
		"": func(context.Context, redis.UniversalClient, string) {},
		"record without a place": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.HSet(ctx, root+"pool", "x", "r")
		},
		"record in bucket and dead": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.ZAdd(ctx, root+"dead", redis.Z{Score: 1, Member: "later"})
		},
		"record in bucket and leases": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.ZAdd(ctx, root+"leases", redis.Z{Score: 1, Member: "later"})
		},
		"in bucket without a record": func(ctx context.Context, rdb redis.UniversalClient, root string) { rdb.HDel(ctx, root+"pool", "later") },
		"in leases without a record": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.ZAdd(ctx, root+"leases", redis.Z{Score: 1, Member: "x"})
		},
		"in attempts without a record": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.HSet(ctx, root+"attempts", "x", "1")
		},
		"in moved without a record": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.HSet(ctx, root+"moved", "x", "1")
		},
		"in errors without a record": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.HSet(ctx, root+"errors", "x", "1")
		},
		"in done without a result": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.ZAdd(ctx, root+"done", redis.Z{Score: 1, Member: "x"})
		},
		"result that is not in done": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.HSet(ctx, root+"results", "x", "1")
		},
		"undocumented key new": func(ctx context.Context, rdb redis.UniversalClient, root string) { rdb.Set(ctx, root+"new", "x", 0) },
		"key receipt:x is kept for": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.Set(ctx, root+"receipt:x", "x", time.Hour)
		},
		"key receipt:clean is kept for": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.Set(ctx, root+"receipt:clean", "x", 2*time.Hour)
		},
		"key minutes is kept for": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.HSet(ctx, root+"minutes", "1", "1 acked 1")
		},
		"key hours is kept for": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.HSet(ctx, root+"hours", "1", "1 acked 1")
			rdb.Expire(ctx, root+"hours", 32*24*time.Hour)
		},
		"key hours is a list": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.RPush(ctx, root+"hours", "1")
		},
		"schedule without an entry in fired": func(ctx context.Context, rdb redis.UniversalClient, root string) { rdb.HDel(ctx, root+"fired", "s") },
		"schedule without an entry in runs":  func(ctx context.Context, rdb redis.UniversalClient, root string) { rdb.HDel(ctx, root+"runs", "s") },
		"schedule without an entry in schedules": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.HDel(ctx, root+"schedules", "s")
		},
		"state of a schedule": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.HSet(ctx, root+"fired", "s", "{")
		},
		"schedule without a slot": func(ctx context.Context, rdb redis.UniversalClient, root string) { rdb.ZRem(ctx, root+"slots", "s") },
		"schedule in slots and waiting": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.ZAdd(ctx, root+"waiting", redis.Z{Score: 1, Member: "s"})
		},
		"schedule that is paused or has ended, and has a slot": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.HSet(ctx, root+"fired", "s", `{"ended":true}`)
		},
		"in lane without a record": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.ZAdd(ctx, root+"lane", redis.Z{Member: "\x01k" + strings.Repeat("0", 37) + "x"})
		},
		"record in bucket and lane": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			place := "\x01k" + strings.Repeat("0", 29) + rdb.HGet(ctx, root+"pool", "later").Val()[:nonceLen]
			rdb.HSet(ctx, root+"keyed", "later", place)
			rdb.ZAdd(ctx, root+"lane", redis.Z{Member: place + "later"})
			rdb.ZAdd(ctx, root+"turn", redis.Z{Member: "k"})
		},
		"in keyed with the place": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.HSet(ctx, root+"keyed", "later", "\x01k"+strings.Repeat("0", 37))
		},
		"in blockers with the place": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			place := "\x01k" + strings.Repeat("0", 29) + rdb.HGet(ctx, root+"pool", "later").Val()[:nonceLen]
			rdb.HSet(ctx, root+"keyed", "later", place)
			other := strings.Replace(place, "k0", "k1", 1)
			rdb.ZAdd(ctx, root+"blockers", redis.Z{Member: other + "later"})
		},
		"lane has the places": func(ctx context.Context, rdb redis.UniversalClient, root string) {
			rdb.ZRem(ctx, root+"bucket", "later")
			rdb.ZAdd(ctx, root+"lane", redis.Z{Member: "\x01k" + strings.Repeat("0", 37) + "later"})
			rdb.ZAdd(ctx, root+"turn", redis.Z{Member: "k"})
		},
		`key "k" has jobs in lane and no turn`: func(ctx context.Context, rdb redis.UniversalClient, root string) {
			place := "\x01k" + strings.Repeat("0", 29) + rdb.HGet(ctx, root+"pool", "later").Val()[:nonceLen]
			rdb.ZRem(ctx, root+"bucket", "later")
			rdb.HSet(ctx, root+"keyed", "later", place)
			rdb.ZAdd(ctx, root+"lane", redis.Z{Member: place + "later"})
		},
		`key "l" has jobs in lane and no turn`: func(ctx context.Context, rdb redis.UniversalClient, root string) { // k is held, m is parked
			place := func(key string) string {
				return "\x01" + key + strings.Repeat("0", 29) + rdb.HGet(ctx, root+"pool", "later").Val()[:nonceLen]
			}
			for id, key := range map[string]string{"held": "k", "later": "l", "parked": "m"} {
				rdb.ZRem(ctx, root+"bucket", id)
				rdb.HSet(ctx, root+"pool", id, rdb.HGet(ctx, root+"pool", "later").Val())
				rdb.HSet(ctx, root+"keyed", id, place(key))
				rdb.ZAdd(ctx, root+"lane", redis.Z{Member: place(key) + id})
			}
			rdb.ZAdd(ctx, root+"held", redis.Z{Score: 1, Member: "k"})
			rdb.ZAdd(ctx, root+"parked", redis.Z{Score: 1, Member: "m"})
		},
		"key dead is a string": func(ctx context.Context, rdb redis.UniversalClient, root string) { rdb.Set(ctx, root+"dead", "x", 0) },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
				ctx, prefix := t.Context(), redistest.Prefix(t)
				client := delayq.NewClient(rdb, delayq.Prefix(prefix))
				_, err := client.Enqueue(ctx, "t", "now", nil)
				require.NoError(t, err)
				_, err = client.Enqueue(ctx, "t", "later", []byte("x"), delayq.ProcessIn(time.Hour))
				require.NoError(t, err)
				require.NoError(t, client.Schedule(ctx, "t", "s", delayq.Every(time.Hour), nil))
				plant(ctx, rdb, prefix+":{t}:")

				s, err := Read(ctx, rdb, prefix)
				require.NoError(t, err)
				found, leftovers := Census(s)
				if name == "" {
					require.Empty(t, found)
					require.Zero(t, leftovers)
					require.Len(t, Empty(s), 7, "both jobs, the list ready, and the schedule in four keys")
					return
				}
				require.Len(t, found, 1)
				require.True(t, strings.HasPrefix(found[0].Text, name), found[0].Text)
			})
		})
	}
}

// TestLeftoversAreCounted shows what may stand in ready beside jobs.
func TestLeftoversAreCounted(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		client := delayq.NewClient(rdb, delayq.Prefix(prefix))
		for _, id := range []string{"gone", "moved", "twice"} {
			_, err := client.Enqueue(ctx, "t", id, nil)
			require.NoError(t, err)
		}
		_, err := client.Dequeue(ctx, "t", "gone")
		require.NoError(t, err)
		require.NoError(t, client.Reschedule(ctx, "t", "moved", delayq.ProcessIn(time.Hour)))
		require.NoError(t, rdb.RPush(ctx, prefix+":{t}:ready", "gone", "moved", "twice", "").Err())

		s, err := Read(ctx, rdb, prefix)
		require.NoError(t, err)
		found, leftovers := Census(s)
		require.Empty(t, found)
		require.Equal(t, 4, leftovers)
	})
}

// A key that expires between its listing and its reading is none.
func TestKeyThatExpiresMeanwhile(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		topic := &Topic{Keys: map[string]Key{}}
		require.NoError(t, topic.read(t.Context(), rdb, redistest.Prefix(t)+":gone", "taken:x", "hash"))
		require.Empty(t, topic.Keys)
	})
}
