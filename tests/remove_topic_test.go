package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// doneIDs is a hook that sends the IDs of completed jobs.
type doneIDs chan string

func (c doneIDs) Done(e delayq.RunEvent) { c <- e.ID }

// keysOf lists the keys of a prefix, without receipts and lists of takes, which expire.
func keysOf(t *testing.T, f *queuetest.Fixture) (names []string) {
	t.Helper()
	all, err := redistest.Census(t.Context(), f.RDB, f.Prefix+":*")
	require.NoError(t, err)
	for key := range all {
		ttl, err := f.RDB.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		if ttl == -1 { // -2 is that of a key that has expired since
			names = append(names, key)
		} else {
			require.LessOrEqual(t, ttl, 3*time.Minute, key)
		}
	}
	return names
}

// An empty topic is removed with all its keys and its name, and one that is not is left as it is.
func TestRemoveTopic(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx, c := t.Context(), f.Client
		const topic = "topic"
		refuse := func(what string) {
			t.Helper()
			before := f.Dump()
			err := c.RemoveTopic(ctx, topic)
			require.ErrorIs(t, err, delayq.ErrNotEmpty)
			require.ErrorContains(t, err, `remove topic "topic": delayq: topic is not empty: `+what)
			require.Equal(t, before, f.Dump())
			topics, err := f.Inspector.Topics(ctx)
			require.NoError(t, err)
			require.Equal(t, []string{topic}, topics)
		}
		f.Enqueue("later", delayq.ProcessIn(time.Hour))
		refuse("it has 1 unfinished jobs, 0 leases, 0 done jobs and 0 schedules")
		require.NoError(t, c.Bury(ctx, topic, "later", "why"))
		refuse("it has 1 unfinished jobs")
		_, err := c.Dequeue(ctx, topic, "later")
		require.NoError(t, err)

		require.NoError(t, c.Schedule(ctx, topic, "s", delayq.Every(time.Hour), nil))
		refuse("it has 0 unfinished jobs, 0 leases, 0 done jobs and 1 schedules")
		require.NoError(t, c.Unschedule(ctx, topic, "s"))

		acked := make(chan string, 10)
		s := queuetest.Serve(t, f.RDB, f.Prefix, topic, func(_ context.Context, job *delayq.Job) error {
			if job.ID == "fails" && job.Attempt == 1 {
				return errors.New("once")
			}
			return nil
		}, delayq.Hooks(doneIDs(acked)))
		f.Enqueue("fails", delayq.Backoff(time.Millisecond, time.Millisecond))
		f.Enqueue("kept", delayq.Retention(time.Hour))
		queuetest.Receive(t, acked)
		queuetest.Receive(t, acked)
		require.NoError(t, c.Delete(ctx, topic, "kept"))
		queuetest.Until(t, func() bool {
			servers, err := f.Inspector.Servers(ctx)
			return err == nil && len(servers) == 1
		})
		require.ErrorIs(t, c.RemoveTopic(ctx, topic), delayq.ErrNotEmpty)
		require.ErrorContains(t, c.RemoveTopic(ctx, topic), "the server "+s.ID()+" handles it")
		require.NoError(t, s.Stop())

		f.Enqueue("kept", delayq.Retention(time.Hour))
		s = queuetest.Serve(t, f.RDB, f.Prefix, topic, func(context.Context, *delayq.Job) error { return nil },
			delayq.Hooks(doneIDs(acked)))
		queuetest.Receive(t, acked)
		require.NoError(t, s.Stop())
		// A server that stops does not wait long for a slow Redis to delete its heartbeat.
		require.NoError(t, f.RDB.Del(ctx, f.Prefix+":servers").Err())
		refuse("it has 0 unfinished jobs, 0 leases, 1 done jobs and 0 schedules")
		require.NoError(t, c.Delete(ctx, topic, "kept"))

		require.NoError(t, c.Pause(ctx, topic, delayq.Pause{By: "ops"}))
		require.NoError(t, f.RDB.RPush(ctx, f.Key("ready"), "left over").Err())
		require.NoError(t, c.RemoveTopic(delayq.WithActor(ctx, "alice"), topic))
		require.Equal(t, []string{f.Prefix + ":audit"}, keysOf(t, f))
		require.Equal(t, []string{"remove topic|topic|||1"}, acts(t, f.RDB, f.Prefix))
		require.NoError(t, c.RemoveTopic(ctx, topic), "again")

		// A topic of the same name begins anew.
		f.Enqueue("a")
		topics, err := f.Inspector.Topics(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{topic}, topics)
		require.EqualValues(t, 1, f.Stats().Counters[delayq.CounterEnqueued])
		_, err = c.Dequeue(ctx, topic, "a")
		require.NoError(t, err)
		require.NoError(t, c.RemoveTopic(ctx, topic))
		require.NoError(t, c.Schedule(ctx, topic, "s", delayq.Every(time.Hour), nil))
		topics, err = f.Inspector.Topics(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{topic}, topics, "a schedule brings the name back")

		require.NoError(t, c.Unschedule(ctx, topic, "s"))
		require.NoError(t, delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix)).RemoveTopic(ctx, topic))
		require.NoError(t, c.Schedule(ctx, topic, "s", delayq.Every(time.Hour), nil))
		topics, err = f.Inspector.Topics(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{topic}, topics, "also if another client has removed it")

		require.ErrorIs(t, c.RemoveTopic(ctx, "bad{"), delayq.ErrInvalid)
	})
}

// A job that is stored between the removal of the keys and that of the name keeps its topic.
func TestRemoveTopicWhileAJobIsStored(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("a")
		_, err := f.Client.Dequeue(t.Context(), "topic", "a")
		require.NoError(t, err)
		other := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix))
		stored := false
		c := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(scriptHook(func(e delayq.ScriptEvent) {
			if e.Name == "remove_topic" && !stored {
				stored = true
				_, err := other.Enqueue(context.Background(), "topic", "b", nil)
				require.NoError(t, err)
			}
		})))
		require.NoError(t, c.RemoveTopic(t.Context(), "topic"))
		topics, err := f.Inspector.Topics(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"topic"}, topics)
		require.Equal(t, delayq.StateReady, f.Get("b").State)
		require.ErrorIs(t, c.RemoveTopic(t.Context(), "topic"), delayq.ErrNotEmpty)
	})
}

// A RemoveTopic whose context ends when the keys are deleted still removes the name, or adds it if
// a job was stored meanwhile.
func TestRemoveTopicOutlivesItsContext(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, stores := range []bool{false, true} {
			f.Enqueue("a")
			_, err := f.Client.Dequeue(t.Context(), "topic", "a")
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			other := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix))
			between := scriptHook(func(e delayq.ScriptEvent) {
				if e.Name == "remove_topic" {
					if stores {
						_, err := other.Enqueue(t.Context(), "topic", "b", nil)
						require.NoError(t, err)
					}
					cancel()
				}
			})
			c := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(between))
			require.NoError(t, c.RemoveTopic(ctx, "topic"))
			require.Error(t, ctx.Err())
			topics, err := f.Inspector.Topics(t.Context())
			require.NoError(t, err)
			require.Equal(t, stores, len(topics) == 1, topics)
		}
	})
}

// A job or a schedule is not stored if Redis does not take the name of its topic.
func TestNothingIsStoredWithoutTheNameOfItsTopic(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		key := f.Prefix + ":topics"
		why := `the name of the topic was not stored: key "` + key + `" is a string and not a set: WRONGTYPE`
		require.NoError(t, f.RDB.Set(t.Context(), key, "of the wrong type", 0).Err())
		_, err := f.Client.Enqueue(t.Context(), "topic", "a", nil)
		require.ErrorContains(t, err, `enqueue topic "topic" job "a": `+why)
		_, err = f.Client.EnqueueBatch(t.Context(), []delayq.NewJob{{Topic: "topic", ID: "a"}})
		require.ErrorContains(t, err, why)
		err = f.Client.Schedule(t.Context(), "topic", "s", delayq.Every(time.Hour), nil)
		require.ErrorContains(t, err, `schedule topic "topic" schedule "s": `+why)
		require.Equal(t, []string{key}, keysOf(t, f))
	})
}

// RemoveTopic names the key of a set of topics that is another thing.
func TestRemoveTopicFromAWrongSet(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		key := queuetest.Prefix + ":topics"
		require.NoError(b, b.RDB.Set(b.Context(), key, "of the wrong type", 0).Err())
		err := b.Client.RemoveTopic(b.Context(), "topic")
		require.ErrorContains(b, err, `remove topic "topic": key "`+key+`" is a string and not a set: WRONGTYPE`)
		require.NoError(b, b.RDB.Del(b.Context(), key).Err())
		b.Pass(5 * time.Second) // the client adds the name in the background
	})
}

// The name of a topic is in another slot of a Cluster than its keys.
func TestRemoveTopicOnACluster(t *testing.T) {
	t.Parallel()
	f := queuetest.NewFixture(t, redistest.SharedCluster(t).Client(t))
	for i := range 5 {
		topic := fmt.Sprint("topic", i)
		_, err := f.Client.Enqueue(t.Context(), topic, "a", nil)
		require.NoError(t, err)
		require.ErrorIs(t, f.Client.RemoveTopic(t.Context(), topic), delayq.ErrNotEmpty)
		_, err = f.Client.Dequeue(t.Context(), topic, "a")
		require.NoError(t, err)
		require.NoError(t, f.Client.RemoveTopic(t.Context(), topic))
	}
	require.Empty(t, keysOf(t, f))
}
