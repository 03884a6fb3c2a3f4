package tests

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// An entry that is no successor ends with the run. Ack and again would leave the job to each other
// for ever.
func TestSuccessorThatCannotBeRead(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, entry := range []string{"", "x", "5 ", "latest 5 x"} {
			f.Enqueue("x")
			held := f.Hand.TakeOne("x")
			require.NoError(t, f.RDB.HSet(t.Context(), f.Key("all:next"), "x", entry).Err())
			require.Equal(t, "o", f.Hand.Ack(held))
			_, err := f.Client.Get(t.Context(), "topic", "x")
			require.ErrorIs(t, err, delayq.ErrNotFound)
			require.Zero(t, f.RDB.Exists(t.Context(), f.Key("all:next")).Val())
			checkSound(f)
		}
	})
}

// Books of a wrong type do not make a successor run twice.
func TestSuccessorRunsOnceWithoutBooks(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x")
		held := f.Hand.TakeOne("x")
		follow(f, cellSorts[0], "new")
		mend := f.Hand.Deface("moved")
		require.Equal(t, "o", f.Hand.Ack(held))
		mend()
		require.Zero(t, f.RDB.Exists(t.Context(), f.Key("all:next")).Val())
		f.Hand.Hasten(time.Hour)
		f.Hand.Promote()
		held = f.Hand.TakeOne("x")
		require.Equal(t, "o", f.Hand.Ack(held))
		_, err := f.Client.Get(t.Context(), "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
	})
}

// A successor of a stage of a plan takes the place of all stages that are left. The run of a stage
// that has failed for good ends as buried, in Redis and in hooks.
func TestSuccessorOfAStage(t *testing.T) {
	for name, c := range map[string]struct {
		err     error
		outcome delayq.Outcome
	}{
		"succeeded": {nil, delayq.OutcomeAcked},
		"failed":    {delayq.Permanent(errors.New("bad")), delayq.OutcomeBuried},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var mu sync.Mutex
				var outcomes []delayq.Outcome
				hook := endedHook(func(e delayq.RunEvent) {
					mu.Lock()
					defer mu.Unlock()
					outcomes = append(outcomes, e.Outcome)
				})
				var ran []string
				b.Serve("t", func(ctx context.Context, job *delayq.Job) error {
					mu.Lock()
					defer mu.Unlock()
					ran = append(ran, string(job.Payload))
					if len(ran) > 1 {
						return nil
					}
					_, err := b.Client.Enqueue(ctx, "t", "x", []byte("new"), delayq.Latest())
					require.NoError(b, err)
					return c.err
				}, delayq.Hooks(hook))
				b.Enqueue("t", "x", delayq.ProcessAtEach(b.Began.Add(time.Second), b.Began.Add(10*time.Second)))
				b.Pass(20 * time.Second)
				mu.Lock()
				defer mu.Unlock()
				require.Equal(b, []string{"of x", "new"}, ran)
				require.Equal(b, []delayq.Outcome{c.outcome, delayq.OutcomeAcked}, outcomes)
				for outcome, counter := range map[delayq.Outcome]delayq.Counter{
					delayq.OutcomeAcked: delayq.CounterAcked, delayq.OutcomeBuried: delayq.CounterBuried,
				} {
					want := int64(0)
					for _, one := range outcomes {
						if one == outcome {
							want++
						}
					}
					require.Equal(b, want, b.Counter("t", counter), counter)
				}
			})
		})
	}
}

// A job takes no payload that would expire before it is due, however the expiry is given.
func TestMergingKnowsWhenThePayloadExpires(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, c := range []struct {
			id   string
			opts []delayq.JobOption
			lead func(id string)
		}{
			{"scheduled", []delayq.JobOption{delayq.Latest()}, func(id string) { f.Enqueue(id, delayq.ProcessIn(time.Hour)) }},
			{"backing off", []delayq.JobOption{delayq.Debounce(time.Second, time.Minute)}, func(id string) {
				f.Enqueue(id)
				require.Equal(t, "o", f.Hand.Retry(time.Hour, f.Hand.TakeOne(id)))
			}},
		} {
			c.lead(c.id)
			before := f.Get(c.id)
			enqueue := func(opt delayq.JobOption) error {
				_, err := f.Client.Enqueue(t.Context(), "topic", c.id, []byte("new"), append(c.opts, opt)...)
				return err
			}
			for _, opt := range []delayq.JobOption{delayq.ExpireIn(time.Minute), delayq.ExpireAt(before.Due.Add(-time.Minute))} {
				err := enqueue(opt)
				require.ErrorIs(t, err, delayq.ErrInvalid)
				require.ErrorContains(t, err, "before the job that has its ID is due")
				require.Equal(t, before, f.Get(c.id))
			}
			require.NoError(t, enqueue(delayq.ExpireIn(2*time.Hour)))
			require.Equal(t, "new", string(f.Get(c.id).Payload))
			checkSound(f)
		}
	})
}

// endAsBefore ends the running job x as a server of v0.1.0 does, which knows no successors.
func endAsBefore(f *queuetest.Fixture) {
	for _, name := range []string{"pool", "keyed", "moved"} {
		require.NoError(f.T, f.RDB.HDel(f.T.Context(), f.Key(name), "x").Err())
	}
	require.NoError(f.T, f.RDB.Del(f.T.Context(), f.Key("leases")).Err())
}

// A payload that comes after the end of a run is not followed by an older one.
func TestMergingIsTheLastWord(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, sort := range cellSorts[:2] {
			for _, opts := range [][]delayq.JobOption{{delayq.Debounce(20*time.Minute, 50*time.Minute)}, {delayq.Latest()}} {
				f.Enqueue("x", sort.opts...)
				f.Hand.TakeOne("x")
				follow(f, sort, "older")
				endAsBefore(f)
				_, refused := send(f, "newer", append(opts, sort.opts...)...)
				require.Empty(t, refused)
				f.Hand.Promote()
				require.Equal(t, "newer", string(f.Get("x").Payload))
				require.Zero(t, f.RDB.Exists(t.Context(), f.Key("all:next")).Val())
				checkSound(f)
				f.Dequeue("x")
			}
		}
	})
}

// A cancel of a job as it was read removes no successor that its caller has not read.
func TestCancelUnchangedLeavesALeftSuccessor(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x")
		f.Hand.TakeOne("x")
		info := f.Get("x")
		follow(f, cellSorts[0], "new")
		endAsBefore(f)
		_, err := f.Client.Dequeue(t.Context(), "topic", "x", delayq.IfUnchanged(info))
		require.ErrorIs(t, err, delayq.ErrNotFound)
		f.Hand.Promote()
		require.Equal(t, "new", string(f.Get("x").Payload))
		checkSound(f)
	})
}

// IfUnchanged cannot choose among those who give a running job a successor: the job stays as it is.
func TestMergingHasNoGuard(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x")
		f.Hand.TakeOne("x")
		for _, opt := range []delayq.JobOption{delayq.Latest(), delayq.Debounce(time.Second, time.Minute)} {
			_, err := f.Client.Enqueue(t.Context(), "topic", "x", nil, opt, delayq.IfUnchanged(f.Get("x")))
			require.ErrorIs(t, err, delayq.ErrInvalid)
			require.ErrorContains(t, err, "IfUnchanged: the job needs Replace or ReplaceDead")
		}
		require.Zero(t, f.RDB.Exists(t.Context(), f.Key("all:next")).Val())
	})
}

// A Redis at its maxmemory stores no successor, and then it does nothing else. It ends runs.
func TestSuccessorWhenRedisIsFull(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	f, ctx := queuetest.NewFixture(t, rdb), t.Context()
	limit := func(bytes string) { require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", bytes).Err()) }
	f.Enqueue("x")
	held := f.Hand.TakeOne("x")
	f.Enqueue("y")
	f.Hand.TakeOne("y")
	sub := rdb.Subscribe(ctx, script.ControlChannel(f.Prefix))
	defer func() { require.NoError(t, sub.Close()) }()
	_, err := sub.Receive(ctx)
	require.NoError(t, err)

	limit("1")
	_, err = f.Client.EnqueueBatch(ctx, []delayq.NewJob{
		{Topic: "topic", ID: "y", Options: []delayq.JobOption{delayq.Replace()}},
		{Topic: "topic", ID: "x", Options: []delayq.JobOption{delayq.Latest()}},
	})
	require.ErrorContains(t, err, "OOM")
	limit("0")
	require.NoError(t, rdb.Publish(ctx, script.ControlChannel(f.Prefix), "the end").Err())
	m, err := sub.ReceiveMessage(ctx)
	require.NoError(t, err)
	require.Equal(t, "the end", m.Payload, "nobody hears of a job that was not replaced")
	require.Equal(t, delayq.StateRunning, f.Get("y").State)

	follow(f, cellSorts[0], "new")
	limit("1")
	require.Equal(t, "o", f.Hand.Ack(held))
	limit("0")
	require.Equal(t, "new", string(f.Get("x").Payload))
	require.Zero(t, rdb.Exists(ctx, f.Key("all:next")).Val())
	checkSound(f)
}
