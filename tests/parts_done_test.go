package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/script"
)

// clientsOf returns a client that knows the partitions of the topic, and one that does not.
func clientsOf(f *queuetest.Fixture) map[string]*delayq.Client {
	return map[string]*delayq.Client{"warm": f.Client, "new": delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix))}
}

// atPartition returns hands for the partition that takes a job in a generation.
func atPartition(f *queuetest.Fixture, g part.Generation, id, key string) *hand.Hand {
	return hand.New(f.T, f.RDB, f.Prefix, g.Names("topic")[g.Index(id, key)])
}

// waitFor waits for a job that has ended.
func waitFor(t testing.TB, c *delayq.Client, id string) (*delayq.Result, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return c.Wait(ctx, "topic", id)
}

// A done job that is kept in an earlier generation is what is known of its ID until another job has
// the ID, as in a topic without partitions.
func TestDoneJobOfAnEarlierGeneration(t *testing.T) {
	for name, opts := range map[string][]delayq.PartitionOption{"by ID": nil, "by key": {delayq.ByKey()}} {
		t.Run(name, func(t *testing.T) {
			queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
				ctx := t.Context()
				keep, key := delayq.Retention(time.Hour), delayq.Key("k")
				found := func(state delayq.State, payload string) {
					t.Helper()
					info, err := f.Inspector.Job(ctx, "topic", "x")
					require.NoError(t, err)
					require.Equal(t, []any{state, payload}, []any{info.State, string(info.Payload)}, "inspector")
					for who, c := range clientsOf(f) {
						info, err := c.Get(ctx, "topic", "x")
						require.NoError(t, err, who)
						require.Equal(t, []any{state, payload}, []any{info.State, string(info.Payload)}, who)
						require.Equal(t, "topic", info.Topic, who)
						list, err := c.GetBatch(ctx, refs("none", "x"))
						require.ErrorIs(t, err, delayq.ErrNotFound, who)
						require.Equal(t, []any{state, payload}, []any{list[1].Job.State, string(list[1].Job.Payload)}, who)
					}
				}
				attempt := func() (number int) {
					t.Helper()
					for who, c := range clientsOf(f) {
						result, err := waitFor(t, c, "x")
						require.NoError(t, err, who)
						require.True(t, number == 0 || number == result.Attempt, who)
						number = result.Attempt
					}
					return number
				}
				store := func(payload string) {
					t.Helper()
					_, err := f.Client.Enqueue(ctx, "topic", "x", []byte(payload), keep, key)
					require.NoError(t, err)
				}

				store("first")
				f.Hand.Ack(f.Hand.TakeOne("x"))
				require.NoError(t, f.Client.Partition(ctx, "topic", 3, opts...))
				found(delayq.StateDone, "first")
				require.Equal(t, 1, attempt())

				store("second")
				found(delayq.StateReady, "second")
				place := atPartition(f, part.Generation{Number: 1, Parts: 3, ByKey: opts != nil}, "x", "k")
				place.Retry(0, place.TakeOne("x"))
				place.Promote()
				place.Ack(place.TakeOne("x"))
				found(delayq.StateDone, "second")
				require.Equal(t, 2, attempt())

				require.NoError(t, f.Client.Partition(ctx, "topic", 2, opts...))
				found(delayq.StateDone, "second")
				require.Equal(t, 2, attempt())
				store("third")
				require.NoError(t, f.Client.Bury(ctx, "topic", "x", "broken"))
				found(delayq.StateDead, "third")
				for who, c := range clientsOf(f) {
					_, err := waitFor(t, c, "x")
					require.ErrorIs(t, err, delayq.ErrDead, who)
				}

				_, err := f.Client.Dequeue(ctx, "topic", "x")
				require.NoError(t, err)
				found(delayq.StateDone, "second")
				require.Equal(t, 2, attempt())
			})
		})
	}
}

// Two keys can have jobs with the same ID in a generation by key. One that is done does not hide
// one that is not.
func TestDoneJobOfAnotherKey(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx, g := t.Context(), part.Generation{Number: 1, Parts: 8, ByKey: true}
		require.NoError(t, f.Client.Partition(ctx, "topic", g.Parts, delayq.ByKey()))
		done := 0
		for n := range 8 {
			key, unfinished := fmt.Sprint("k", n), fmt.Sprint("k", n+1)
			if g.Index("", key) == g.Index("", unfinished) {
				continue
			}
			id := fmt.Sprint("x", n)
			_, err := f.Client.Enqueue(ctx, "topic", id, nil, delayq.Key(key), delayq.Retention(time.Hour))
			require.NoError(t, err)
			place := atPartition(f, g, id, key)
			place.Ack(place.TakeOne(id))
			_, err = f.Client.Enqueue(ctx, "topic", id, nil, delayq.Key(unfinished), delayq.ProcessIn(time.Hour))
			require.NoError(t, err)
			for who, c := range clientsOf(f) {
				info, err := c.Get(ctx, "topic", id)
				require.NoError(t, err, who)
				require.Equal(t, delayq.StateScheduled, info.State, who)
			}
			info, err := f.Inspector.Job(ctx, "topic", id)
			require.NoError(t, err)
			require.Equal(t, delayq.StateScheduled, info.State)
			done++
		}
		require.Greater(t, done, 2)
	})
}

// The jobs of schedules are at home even after it has left the map. A client that knows only the
// map without it finds them.
func TestJobsOfAHomeThatHasLeftTheMap(t *testing.T) {
	for name, opts := range map[string][]delayq.PartitionOption{"by ID": nil, "by key": {delayq.ByKey()}} {
		t.Run(name, func(t *testing.T) {
			queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
				ctx := t.Context()
				f.Enqueue("done", delayq.Retention(time.Hour))
				f.Hand.Ack(f.Hand.TakeOne("done"))
				ids := []string{"s1", "s2", "s3", "s4", "s5"}
				for _, id := range ids {
					f.Enqueue(id, delayq.ProcessIn(time.Hour))
				}
				require.NoError(t, f.Client.Partition(ctx, "topic", 3, opts...))
				parts := script.NewKeys(f.Prefix, "topic").Parts
				now := part.Generation{Number: 1, Parts: 3, ByKey: opts != nil}
				require.NoError(t, f.RDB.HSet(ctx, parts, "map", part.Map{now}.String()).Err())
				f.Enqueue("warm", delayq.ProcessIn(100*time.Hour))
				found := func(state delayq.State) {
					t.Helper()
					for who, c := range clientsOf(f) {
						list, err := c.GetBatch(ctx, refs(ids...))
						require.NoError(t, err, who)
						for n, one := range list {
							require.Equal(t, state, one.Job.State, who)
							info, err := c.Get(ctx, "topic", ids[n])
							require.NoError(t, err, who)
							require.Equal(t, state, info.State, who)
							info, err = f.Inspector.Job(ctx, "topic", ids[n])
							require.NoError(t, err)
							require.Equal(t, state, info.State)
						}
						info, err := c.Get(ctx, "topic", "done")
						require.NoError(t, err, who)
						require.Equal(t, delayq.StateDone, info.State, who)
						_, err = waitFor(t, c, "done")
						require.NoError(t, err, who)
						_, err = waitFor(t, c, "none")
						require.ErrorIs(t, err, delayq.ErrNotFound, who)
					}
				}
				apply := func(state delayq.State, a delayq.Action) {
					t.Helper()
					applied, err := f.Client.Apply(ctx, delayq.Query{Topic: "topic", State: state, IDPrefix: "s"}, a)
					require.NoError(t, err)
					require.EqualValues(t, 5, applied.Done)
					require.Zero(t, applied.Skipped)
				}
				found(delayq.StateScheduled)
				apply(delayq.StateScheduled, delayq.Bury("broken"))
				found(delayq.StateDead)
				for _, id := range ids {
					_, err := waitFor(t, f.Client, id)
					require.ErrorIs(t, err, delayq.ErrDead)
				}
				apply(delayq.StateDead, delayq.Revive())
				found(delayq.StateReady)
				apply(delayq.StateReady, delayq.Cancel())
				for _, id := range ids {
					_, err := f.Client.Get(ctx, "topic", id)
					require.ErrorIs(t, err, delayq.ErrNotFound)
				}
			})
		})
	}
}

// A Wait for the run that Trigger has started lasts until that run ends, wherever its job is.
func TestWaitForATriggeredRun(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		b.Serve("mail", func(context.Context, *delayq.Job) error {
			time.Sleep(time.Minute)
			return nil
		}, delayq.Concurrency(10))
		require.NoError(b, b.Client.Partition(ctx, "mail", 3))
		b.Pass(2 * time.Minute)
		require.NotContains(b, b.RDB.HGet(ctx, "q:{mail}:all:parts", "map").Val(), "0:1")
		c := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix))
		require.NoError(b, c.Schedule(ctx, "mail", "s", delayq.Every(time.Hour), nil))
		_, err := c.Enqueue(ctx, "mail", "warm", nil)
		require.NoError(b, err)
		_, err = c.Trigger(ctx, "mail", "s")
		require.NoError(b, err)
		b.Pass(time.Second)
		ids := b.RDB.HKeys(ctx, queuetest.PoolKey("mail")).Val()
		require.Len(b, ids, 1)
		began := time.Now()
		bounded, cancel := context.WithTimeout(ctx, 5*time.Minute)
		defer cancel()
		result, err := c.Wait(bounded, "mail", ids[0])
		require.NoError(b, err)
		require.True(b, result.FinishedAt.After(began))
	})
}

// A Wait that begins after a job has the ID of a done one in an earlier generation waits for it.
func TestWaitForTheLaterJob(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		b.Serve("mail", func(_ context.Context, job *delayq.Job) error {
			return job.SetOutput(job.Payload)
		}, delayq.Concurrency(10))
		b.Enqueue("mail", "x", delayq.Retention(time.Hour))
		b.Pass(time.Second)
		require.NoError(b, b.Client.Partition(ctx, "mail", 3))
		_, err := b.Client.Enqueue(ctx, "mail", "x", []byte("later"), delayq.ProcessIn(time.Minute))
		require.NoError(b, err)
		bounded, cancel := context.WithTimeout(ctx, 5*time.Minute)
		defer cancel()
		result, err := b.Client.Wait(bounded, "mail", "x")
		require.NoError(b, err)
		require.Equal(b, "later", string(result.Output))
	})
}
