package tests

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

const partsKey = queuetest.Prefix + ":{t}:all:parts"

// Jobs of a key run one after the other, in the order of their due times, while the topic is
// divided again and again. Old generations leave the map when their keys have nothing left there.
func TestOrderOfKeysWhileATopicIsDivided(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		require.NoError(b, b.Client.SetLimits(ctx, "t", delayq.Limits{Ordered: true}))
		var mu sync.Mutex
		running, order := make(map[string]int), make(map[string][]string)
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			mu.Lock()
			running[job.Key]++
			twice := running[job.Key] > 1
			order[job.Key] = append(order[job.Key], job.ID)
			mu.Unlock()
			time.Sleep(40 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			running[job.Key]--
			if twice {
				order[job.Key] = append(order[job.Key], "beside another one")
			}
			return nil
		}, delayq.Concurrency(20))
		want := make(map[string][]string)
		resize := map[int]int{30: 2, 60: 5, 61: 3, 100: 4, 170: 2}
		for i := range 200 {
			if n := resize[i]; n > 0 {
				require.NoError(b, b.Client.Partition(ctx, "t", n, delayq.ByKey()))
			}
			var jobs []delayq.NewJob
			for k := range 10 {
				key := fmt.Sprint("k", k)
				job := delayq.NewJob{Topic: "t", ID: fmt.Sprint(key, "-", i), Options: []delayq.JobOption{delayq.Key(key), delayq.ProcessIn(100 * time.Millisecond)}}
				jobs = append(jobs, job)
				want[key] = append(want[key], job.ID)
			}
			_, err := b.Client.EnqueueBatch(ctx, jobs)
			require.NoError(b, err)
			b.Pass(time.Duration(5+i%3*30) * time.Millisecond)
		}
		b.Pass(time.Minute)
		require.Equal(b, want, order)
		b.Pass(2 * time.Minute)
		require.Equal(b, "5:2k", b.RDB.HGet(ctx, partsKey, "map").Val())
	})
}

// The starts of a key that its rate counts, and a hold of it that its handler has asked for, hold
// for its jobs after the topic was divided, too.
func TestRatesAndHoldsOfKeysWhileATopicIsDivided(t *testing.T) {
	for what, c := range map[string]struct {
		limits delayq.Limits
		err    error
	}{
		"rate": {delayq.Limits{RatePerKey: delayq.Per(1, 10*time.Minute).Burst(1)}, nil},
		"hold": {delayq.Limits{}, delayq.HoldKey(10 * time.Minute)},
	} {
		t.Run(what, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				ctx := b.Context()
				require.NoError(b, b.Client.SetLimits(ctx, "t", c.limits))
				var mu sync.Mutex
				var starts []string
				began := time.Now()
				b.Serve("t", func(_ context.Context, job *delayq.Job) error {
					mu.Lock()
					defer mu.Unlock()
					if starts = append(starts, fmt.Sprint(job.Key, " ", time.Since(began).Round(time.Minute))); len(starts) == 1 {
						return c.err
					}
					return nil
				}, delayq.Concurrency(5))
				put := func(key, id string) {
					_, err := b.Client.Enqueue(ctx, "t", id, nil, delayq.Key(key))
					require.NoError(b, err)
				}
				put("k", "first")
				b.Pass(time.Second)
				require.NoError(b, b.Client.Partition(ctx, "t", 3, delayq.ByKey()))
				b.Pass(time.Minute)
				if c.err != nil { // it has put the job back, which is not to keep the key in its place
					_, err := b.Client.Dequeue(ctx, "t", "first")
					require.NoError(b, err)
				}
				b.Pass(4 * time.Minute)
				put("k", "second")
				put("other", "other")
				b.Pass(30 * time.Minute)
				require.Equal(b, []string{"k 0s", "other 5m0s", "k 10m0s"}, starts)
				require.Equal(b, "1:3k", b.RDB.HGet(ctx, partsKey, "map").Val())
			})
		})
	}
}

// A Call with a key that stays in a closed place waits there.
func TestCallWaitsWhereItsKeyStays(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		b.Serve("t", func(_ context.Context, job *delayq.Job) error { return job.SetOutput(append(job.Payload, '!')) })
		_, err := b.Client.Enqueue(ctx, "t", "later", nil, delayq.Key("k"), delayq.ProcessIn(time.Hour))
		require.NoError(b, err)
		for i, n := range []int{3, 2} {
			require.NoError(b, b.Client.Partition(ctx, "t", n, delayq.ByKey()))
			b.Pass(time.Minute)
			for _, key := range []string{"k", "other"} {
				end := call(b.T, b.Client, fmt.Sprint(key, i), delayq.Key(key)).get()
				require.NoError(b, end.err)
				require.Equal(b, fmt.Sprint("of ", key, i, "!"), string(end.result.Output))
			}
		}
		b.Pass(time.Minute)
		require.Equal(b, "0:1 2:2k", b.RDB.HGet(ctx, partsKey, "map").Val(), "the home has the key, and generation 1 has none")
	})
}

// An ID is unique among the jobs of its key, whatever place has them: one that is enqueued again is
// a duplicate or replaces the other, and a tomb is one for all places.
func TestIDsOfKeysWhileATopicIsDivided(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		put := func(id, key string, opts ...delayq.JobOption) error {
			_, err := b.Client.Enqueue(ctx, "t", id, nil, append(opts, delayq.Key(key), delayq.ProcessIn(time.Hour))...)
			return err
		}
		b.Serve("t", func(context.Context, *delayq.Job) error { return nil })
		require.NoError(b, put("a", "k"))
		for _, n := range []int{3, 2, 5} {
			require.NoError(b, b.Client.Partition(ctx, "t", n, delayq.ByKey()))
			b.Pass(time.Minute)
			require.ErrorIs(b, put("a", "k"), delayq.ErrDuplicate)
			require.NoError(b, put("a", "k", delayq.Replace()))
			require.NoError(b, put(fmt.Sprint("b", n), "k"))
			_, err := b.Client.Dequeue(ctx, "t", fmt.Sprint("c", n), delayq.Tombstone(time.Hour))
			require.ErrorIs(b, err, delayq.ErrNotFound)
			require.ErrorIs(b, put(fmt.Sprint("c", n), "k"), delayq.ErrDuplicate)
			require.ErrorIs(b, put(fmt.Sprint("c", n), "other"), delayq.ErrDuplicate)
		}
		pools := b.RDB.HKeys(ctx, queuetest.Prefix+":{t}:pool").Val()
		slices.Sort(pools)
		require.Equal(b, []string{"a", "b2", "b3", "b5"}, pools, "all jobs of the key are at home")
	})
}

// A job whose ID another key has at home is a duplicate, also if it is to replace that one. A
// Dequeue that is refused closes no ID, and a hold by an operator keeps no partition.
func TestKeysThatHaveLeftTheHome(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		put := func(id, key string, opts ...delayq.JobOption) error {
			_, err := b.Client.Enqueue(ctx, "t", id, nil, append(opts, delayq.Key(key), delayq.ProcessIn(3*time.Hour))...)
			return err
		}
		b.Serve("t", func(context.Context, *delayq.Job) error { return nil })
		require.NoError(b, put("a", "j"))
		require.NoError(b, b.Client.Partition(ctx, "t", 2, delayq.ByKey()))
		b.Pass(time.Minute)
		require.NoError(b, put("x", "m"), "in generation 1")
		for _, opt := range []delayq.JobOption{delayq.Header("plain", "x"), delayq.Replace(), delayq.Latest()} {
			require.ErrorIs(b, put("a", "m", opt), delayq.ErrDuplicate)
		}
		require.Equal(b, "j", b.Get("t", "a").Key)

		info := b.Get("t", "x")
		require.NoError(b, put("x", "m", delayq.Replace()))
		_, err := b.Client.Dequeue(ctx, "t", "x", delayq.Tombstone(time.Hour), delayq.IfUnchanged(info))
		require.ErrorIs(b, err, delayq.ErrChanged)
		require.NoError(b, put("x", "m", delayq.Replace()), "its ID is not closed")

		require.NoError(b, b.Client.HoldKey(ctx, "t", "other", 24*time.Hour))
		require.NoError(b, b.Client.Partition(ctx, "t", 3, delayq.ByKey()))
		b.Pass(4 * time.Hour)
		require.Equal(b, "2:3k", b.RDB.HGet(ctx, partsKey, "map").Val())
	})
}

// A Call whose key leaves between its first look and the enqueueing follows its job.
func TestCallFollowsAKeyThatLeaves(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			time.Sleep(time.Second)
			return job.SetOutput(append(job.Payload, '!'))
		})
		_, err := b.Client.Enqueue(ctx, "t", "a", nil, delayq.Key("j"), delayq.ProcessIn(100*time.Hour))
		require.NoError(b, err)
		require.NoError(b, b.Client.Partition(ctx, "t", 2, delayq.ByKey()))
		b.Pass(time.Minute)
		staying, left := queuetest.Prefix+":{t}:all:staying", false
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(queuetest.OnScript(func(e delayq.ScriptEvent) {
			if e.Name == "wait" && !left { // as a pass does
				left = b.RDB.ZRem(ctx, staying, "k").Val() > 0
			}
		})))
		require.NoError(b, b.RDB.ZAdd(ctx, staying, redis.Z{Member: "k", Score: 1}).Err())
		end := call(b.T, client, "new", delayq.Key("k")).get()
		require.True(b, left)
		require.NoError(b, end.err)
		require.Equal(b, "of new!", string(end.result.Output))
	})
}

// An unheard hides the answers to new jobs in partitions.
type unheard struct{}

func (unheard) DialHook(next redis.DialHook) redis.DialHook { return next }

func (unheard) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if text := fmt.Sprint(cmd.Args()); strings.Contains(text, "{t#1.") && strings.Contains(text, queuetest.Digest("enqueue")) {
			err = io.EOF
			cmd.SetErr(err)
		}
		return err
	}
}

func (unheard) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A Call whose enqueue has no answer waits where its job may be, not where the answer before that
// came from.
func TestCallWithoutAReplyFromItsPartition(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			time.Sleep(time.Minute)
			return job.SetOutput(append(job.Payload, '!'))
		})
		_, err := b.Client.Enqueue(ctx, "t", "later", nil, delayq.ProcessIn(time.Hour))
		require.NoError(b, err)
		require.NoError(b, b.Client.Partition(ctx, "t", 3))
		b.RDB.AddHook(unheard{})
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix))
		_, err = client.Enqueue(ctx, "t", "x", nil)
		require.ErrorIs(b, err, delayq.ErrUnknownOutcome)
		end := call(b.T, client, "new").get()
		require.NoError(b, end.err)
		require.Equal(b, "of new!", string(end.result.Output))
	})
}
