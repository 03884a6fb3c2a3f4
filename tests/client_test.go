package tests

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

func TestBatchKeepsTheOrder(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		jobs := make([]delayq.NewJob, 1700)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "topic", ID: strconv.Itoa(i)}
			if i%100 == 0 { // which goes in another call
				jobs[i].Options = []delayq.JobOption{delayq.Replace()}
			}
		}
		_, err := f.Client.EnqueueBatch(t.Context(), jobs)
		require.NoError(t, err)
		for i := 0; i < len(jobs); {
			for _, held := range f.Hand.Take(500, time.Minute) {
				require.Equal(t, jobs[i].ID, held.ID)
				i++
			}
		}
	})
}

// Braces in IDs move no key to another slot of a cluster, on no path: retry, crash and its rescue,
// burial, revival. (I9)
func TestClusterWithBracesInIDs(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	f := queuetest.NewFixture(t, rdb)
	for _, topic := range []string{"topic 1", "topic 2", "topic 3", "a:b"} {
		hand := hand.New(t, rdb, f.Prefix, topic)
		for _, id := range []string{"{x}", "}{", "{", "a{b}c", "{}", ":{" + topic + "}:pool"} {
			_, err := f.Client.Enqueue(t.Context(), topic, id, nil)
			require.NoError(t, err)
			require.Equal(t, id, hand.Take(1, 0)[0].ID) // its server dies
			_, reclaimed := hand.Promote()
			require.Equal(t, 1, reclaimed)
			require.Equal(t, "o", hand.Retry(time.Hour, hand.TakeOne(id)))
			require.NoError(t, f.Client.Reschedule(t.Context(), topic, id, delayq.ProcessIn(0)))
			require.Equal(t, "o", hand.Snooze(time.Hour, hand.TakeOne(id)))
			hand.Hasten(2 * time.Hour)
			moved, _ := hand.Promote()
			require.Equal(t, 1, moved)
			require.Equal(t, "o", hand.Return(hand.TakeOne(id)))
			require.Equal(t, "o", hand.Bury(hand.TakeOne(id)))
			require.NoError(t, f.Client.Revive(t.Context(), topic, id))
			require.Equal(t, "o", hand.Ack(hand.TakeOne(id)))
			require.Empty(t, hand.Traces(id))
		}
	}
}

func TestEnqueueGivesTheJobAsStored(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		at := time.Date(2100, 2, 3, 4, 5, 6, 7_000_000, time.UTC)
		job, err := f.Client.Enqueue(t.Context(), "topic", "x", []byte("p"),
			delayq.ProcessAt(at), delayq.Retry(3), delayq.Header("a", "b"))
		require.NoError(t, err)
		require.Equal(t, "topic", job.Topic)
		require.Equal(t, "x", job.ID)
		require.Equal(t, []byte("p"), job.Payload)
		require.Equal(t, map[string]string{"a": "b"}, job.Headers)
		require.Equal(t, 1, job.Attempt)
		require.Equal(t, 3, job.Retries)
		require.True(t, job.Due.Equal(at), job.Due)
		require.Len(t, job.Nonce(), 8)
		require.Zero(t, job.StartedAt)

		info := f.Get("x")
		require.Equal(t, delayq.StateScheduled, info.State)
		require.Equal(t, job.EnqueuedAt, info.EnqueuedAt)
		require.Equal(t, job.Due, info.Due)
		require.Equal(t, job.Nonce(), info.Nonce())
		require.Equal(t, job.Payload, info.Payload)
		require.Equal(t, job.Headers, info.Headers)
		require.Equal(t, job.Retries, info.Retries)
	})
}

func TestEnqueueIsByTheClockOfRedis(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		before, err := f.RDB.Time(t.Context()).Result()
		require.NoError(t, err)
		job := f.Enqueue("x")
		after, err := f.RDB.Time(t.Context()).Result()
		require.NoError(t, err)
		require.False(t, job.EnqueuedAt.Before(before.Truncate(time.Millisecond)), job.EnqueuedAt)
		require.False(t, job.EnqueuedAt.After(after), job.EnqueuedAt)
		require.Equal(t, job.EnqueuedAt, job.Due, "due at once")
	})
}

func TestEnqueueWithoutAnID(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		seen := map[string]bool{}
		for range 50 {
			id := f.Enqueue("").ID
			require.NotEmpty(t, id)
			require.False(t, seen[id])
			seen[id] = true
			require.Equal(t, []byte("payload of "), f.Get(id).Payload)
		}
		require.Len(t, f.Hand.Take(100, time.Minute), 50)
	})
}

func TestEveryAcceptedJobHasItsOwnNonce(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		seen := map[string]bool{}
		for range 10 {
			nonce := f.Enqueue("x", delayq.Replace()).Nonce()
			require.False(t, seen[nonce])
			seen[nonce] = true
			require.Equal(t, nonce, f.Get("x").Nonce())
		}
	})
}

// Jobs that are due now are taken in the order in which they came, those that were due later in the
// order of their due times.
func TestEnqueueKeepsTheOrder(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("later", delayq.ProcessIn(2*time.Hour))
		f.Enqueue("soon", delayq.ProcessIn(time.Hour))
		f.Enqueue("z")
		f.Enqueue("a")
		f.Hand.Hasten(24 * time.Hour)
		f.Hand.Promote()
		for _, id := range []string{"z", "a", "soon", "later"} {
			f.Hand.TakeOne(id)
		}
	})
}

// (B16, I11)
func TestPayloadsAndHeadersComeBackIdentical(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	values := map[string][]byte{
		"nil": nil, "empty": {}, "every byte": all, "colons and braces": []byte(":{}#:{a}"), "newlines": []byte("\r\n\n"),
		"emoji": []byte("🐢"), "NUL": {0}, "not UTF-8": {0xff, 0xfe}, "1 MiB": make([]byte, 1<<20),
	}
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for name, value := range values {
			id := string(value[:min(len(value), 1024)]) + name[:min(len(name), 1024-min(len(value), 1024))]
			_, err := f.Client.Enqueue(t.Context(), "topic", id, value, delayq.Header(id, string(value[:min(len(value), 9000)])))
			require.NoError(t, err, name)
			info := f.Get(id)
			require.Equal(t, id, info.ID, name)
			require.Equal(t, string(value), string(info.Payload), name)
			require.Equal(t, len(value), info.PayloadSize)
			require.Equal(t, map[string]string{id: string(value[:min(len(value), 9000)])}, info.Headers, name)
			require.Equal(t, id, f.Hand.TakeOne(id).ID, name)
		}
	})
}

// The caller may use its buffer again when Enqueue has returned.
func TestEnqueueKeepsNothingOfTheBuffer(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		buffer := []byte("first")
		_, err := f.Client.Enqueue(t.Context(), "topic", "x", buffer)
		require.NoError(t, err)
		copy(buffer, "other")
		require.Equal(t, "first", string(f.Get("x").Payload))
	})
}

// (I8)
func TestTopicsAreIndependent(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		for _, topic := range []string{"a", "a:", "a b", "ünïcødé 🐢", strings.Repeat("t", 255)} {
			_, err := f.Client.Enqueue(ctx, topic, "x", []byte(topic))
			require.NoError(t, err, topic)
		}
		for _, topic := range []string{"a", "a:", "a b", "ünïcødé 🐢", strings.Repeat("t", 255)} {
			info, err := f.Client.Get(ctx, topic, "x")
			require.NoError(t, err)
			require.Equal(t, topic, string(info.Payload))
			_, err = f.Client.Dequeue(ctx, topic, "x")
			require.NoError(t, err)
		}
	})
}

func TestPrefixesAreIndependent(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x")
		other := queuetest.NewFixture(t, f.RDB)
		_, err := other.Client.Get(t.Context(), "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
		other.Enqueue("x")
	})
}

func TestEnqueueWithAnEndedContext(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		job, err := f.Client.Enqueue(ctx, "topic", "x", nil)
		require.Nil(t, job)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, delayq.ErrUnknownOutcome)
		results, err := f.Client.EnqueueBatch(ctx, []delayq.NewJob{{Topic: "topic", ID: "y"}})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, results[0].Err, context.Canceled)
		require.Empty(t, f.Dump())
	})
}

func TestEnqueueErrorsNameTheTopic(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x")
		_, err := f.Client.Enqueue(t.Context(), "topic", "x", nil)
		require.ErrorIs(t, err, delayq.ErrDuplicate)
		require.ErrorContains(t, err, `"topic"`)
		require.ErrorContains(t, err, `"x"`)
	})
}

// 50 goroutines want the same ID: one gets it. (D14)
func TestOneOfManyEnqueuesGetsTheID(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var stored []string
		clients := []*delayq.Client{f.Client, delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix))}
		for i := range 50 {
			wg.Go(func() {
				job, err := clients[i%2].Enqueue(t.Context(), "topic", "x", fmt.Append(nil, i))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					stored = append(stored, string(job.Payload))
				case !errors.Is(err, delayq.ErrDuplicate):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, []string{string(f.Get("x").Payload)}, stored)
		require.Len(t, f.Hand.Take(100, time.Minute), 1)
	})
}

func TestScriptsComeBackAfterAFlush(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	f := queuetest.NewFixture(t, rdb)
	flush := func() { require.NoError(t, rdb.ScriptFlush(t.Context()).Err()) }
	for i, call := range []func(){
		func() { f.Enqueue("x", delayq.ProcessIn(time.Hour)) },
		func() { f.Get("x") },
		func() { require.NoError(t, f.Client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(0))) },
		func() { f.Hand.Promote() },
		func() { f.Hand.Bury(f.Hand.TakeOne("x")) },
		func() { require.NoError(t, f.Client.Revive(t.Context(), "topic", "x")) },
		func() { f.Dequeue("x") },
		func() { require.NoError(t, f.Client.Pause(t.Context(), "topic", delayq.Pause{})) },
		func() { f.Stats() },
	} {
		flush()
		t.Log("call", i)
		call()
	}
}

// What Redis says of its own accord reaches the caller, and nothing is stored. What is there can be
// worked off all the same: that is how memory becomes free. (J4)
func TestEnqueueWhenRedisIsFull(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	f := queuetest.NewFixture(t, s.Client(t))
	ctx := t.Context()
	f.Enqueue("due", delayq.ProcessIn(time.Hour))
	f.Hand.Hasten(2 * time.Hour)
	f.Enqueue("lapsed")
	require.Len(t, f.Hand.Take(1, 0), 1)
	f.Enqueue("dead")
	require.Equal(t, "o", f.Hand.Bury(f.Hand.TakeOne("dead")))
	f.Enqueue("a")
	f.Enqueue("b")
	running := f.Hand.TakeOne("a")
	require.NoError(t, f.RDB.ConfigSet(ctx, "maxmemory", "1").Err())
	before := f.Dump()

	for _, due := range []time.Duration{0, time.Hour} {
		job, err := f.Client.Enqueue(ctx, "topic", "new", nil, delayq.ProcessIn(due))
		require.Nil(t, job)
		require.ErrorContains(t, err, "OOM")
		require.NotErrorIs(t, err, delayq.ErrUnknownOutcome)
	}
	require.Equal(t, before, f.Dump(), "nothing was written")

	require.Equal(t, "o", f.Hand.Ack(running))
	require.Equal(t, delayq.StateDead, f.Dequeue("dead"))
	moved, reclaimed := f.Hand.Promote()
	require.Equal(t, []int{1, 1}, []int{moved, reclaimed})
	held := f.Hand.Take(10, time.Minute)
	require.Len(t, held, 3)
	require.Equal(t, "o", f.Hand.Retry(time.Hour, held[0]))
	require.Equal(t, "o", f.Hand.Snooze(time.Hour, held[1]))
	require.Equal(t, "o", f.Hand.Return(held[2]))
	require.Equal(t, "o", f.Hand.Bury(f.Hand.TakeOne(held[2].ID)))
}

// All calls of a client work on a cluster, whichever node a topic is on. (J7)
func TestClusterClient(t *testing.T) {
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	rdb := cluster.Client(t)
	ctx := t.Context()
	f := queuetest.NewFixture(t, rdb)
	nodes := map[string]bool{}
	for _, topic := range queuetest.TopicsOnAllNodes() {
		node, err := rdb.MasterForKey(ctx, fmt.Sprintf("%s:{%s}:pool", f.Prefix, topic))
		require.NoError(t, err)
		nodes[node.Options().Addr] = true

		hand := hand.New(t, rdb, f.Prefix, topic)
		job, err := f.Client.Enqueue(ctx, topic, "x", []byte(topic), delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
		require.Equal(t, time.Hour, job.Due.Sub(job.EnqueuedAt))
		_, err = f.Client.Enqueue(ctx, topic, "x", nil)
		require.ErrorIs(t, err, delayq.ErrDuplicate)
		_, err = f.Client.Enqueue(ctx, topic, "x", []byte("new"), delayq.Replace(), delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
		require.NoError(t, f.Client.Reschedule(ctx, topic, "x", delayq.ProcessIn(0)))
		info, err := f.Client.Get(ctx, topic, "x")
		require.NoError(t, err)
		require.Equal(t, "new", string(info.Payload))

		require.NoError(t, f.Client.Pause(ctx, topic, delayq.Pause{By: "me", Reason: "why", For: time.Hour}))
		require.Empty(t, hand.Take(1, time.Minute))
		require.NoError(t, f.Client.Resume(ctx, topic, "me"))
		held := hand.TakeOne("x")
		require.ErrorIs(t, f.Client.Reschedule(ctx, topic, "x", delayq.ProcessIn(0)), delayq.ErrRunning)
		require.Equal(t, "o", hand.Bury(held))
		for _, state := range []delayq.State{
			delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead, delayq.StateDone,
		} {
			list := queuetest.JobsOf(t, f.Inspector, topic, state)
			require.Equal(t, state == delayq.StateDead, len(list) == 1, state)
		}
		require.NoError(t, f.Client.Revive(ctx, topic, "x"))
		require.Equal(t, "o", hand.Retry(time.Hour, hand.TakeOne("x")))
		counts := queuetest.StatsOf(t, f.Inspector, topic)
		require.EqualValues(t, 1, counts.Scheduled)
		state, err := f.Client.Dequeue(ctx, topic, "x")
		require.NoError(t, err)
		require.Equal(t, delayq.StateScheduled, state)
		_, err = f.Client.Dequeue(ctx, topic, "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
	}
	require.Len(t, nodes, 3, "the topics are not on all nodes: take more")
	topics, err := f.Inspector.Topics(ctx)
	require.NoError(t, err)
	require.ElementsMatch(t, queuetest.TopicsOnAllNodes(), topics)
}

// A job becomes ready at its due time to the millisecond, and not one earlier. (F1)
func TestDueToTheMillisecond(t *testing.T) {
	t.Parallel()
	r := embedded.New()
	defer r.Close()
	rdb := r.Client()
	defer func() { require.NoError(t, rdb.Close()) }()
	for _, us := range []int64{0, 1, 999} { // the clock does not stand at a whole ms
		for _, d := range []time.Duration{time.Millisecond, time.Millisecond + 1, 1500 * time.Microsecond, time.Hour, 30 * 24 * time.Hour} {
			f := queuetest.NewFixture(t, rdb)
			start := time.UnixMicro(1_763_712_345_678_000 + us)
			r.SetTime(start)
			job := f.Enqueue("x", delayq.ProcessIn(d))
			r.SetTime(job.Due.Add(-time.Microsecond))
			f.Hand.Promote()
			require.Empty(t, f.Hand.Take(1, time.Minute), d)
			r.SetTime(job.Due)
			f.Hand.Promote()
			f.Hand.TakeOne("x")
		}
	}
}

// What cannot be met hurts neither the other jobs of the call nor the job that it would have
// replaced.
func TestExpiryThatCannotBeMetBesideOthers(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		past := delayq.ExpireAt(queuetest.ClockOf(t, f.RDB).Add(-time.Hour))
		old := f.Enqueue("old")
		var calls queuetest.CountScripts
		client := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(&calls))
		results, err := client.EnqueueBatch(t.Context(), []delayq.NewJob{
			{Topic: "topic", ID: "a"},
			{Topic: "topic", ID: "hopeless", Options: []delayq.JobOption{past}},
			{Topic: "topic", ID: "old", Options: []delayq.JobOption{past, delayq.Replace()}},
			{Topic: "topic", ID: "b", Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}},
		})
		require.ErrorContains(t, err, "2 of 4")
		require.Equal(t, 1, calls["replace"]+calls["enqueue"], "one call")
		for i, r := range results {
			if i == 1 || i == 2 {
				require.ErrorIs(t, r.Err, delayq.ErrInvalid)
				require.ErrorContains(t, r.Err, `job "`+[]string{"a", "hopeless", "old"}[i]+`": delayq: invalid: expires at `)
				require.Nil(t, r.Job)
				continue
			}
			require.NoError(t, r.Err)
		}
		require.Equal(t, old.Nonce(), f.Get("old").Nonce())
		require.Equal(t, delayq.StateReady, f.Get("a").State)
		require.Equal(t, delayq.StateScheduled, f.Get("b").State)
		require.Empty(t, f.Hand.Traces("hopeless"))
	})
}

// A job that was revived does not expire any more: it may be moved anywhere.
func TestRescheduleOfARevivedJobBeyondItsExpiry(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x", delayq.ExpireIn(time.Hour))
		require.Equal(t, "o", f.Hand.Bury(f.Hand.TakeOne("x")))
		require.NoError(t, f.Client.Revive(t.Context(), "topic", "x"))
		for range 2 {
			require.NoError(t, f.Client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(5*time.Hour)))
		}
		require.Equal(t, delayq.StateScheduled, f.Get("x").State)
	})
}

// Each call triggers a job of its own, with nobody to fire the schedule. (On both backends.)
func TestTriggerAgainAndAgain(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		require.NoError(t, f.Client.Schedule(ctx, "topic", "n", delayq.Every(time.Hour), []byte("payload")))
		ids := map[string]bool{}
		for range 3 {
			id, err := f.Client.Trigger(ctx, "topic", "n")
			require.NoError(t, err)
			info := f.Get(id)
			require.Equal(t, delayq.StateReady, info.State)
			require.Equal(t, "payload", string(info.Payload))
			ids[id] = true
		}
		require.Len(t, ids, 3)
		require.EqualValues(t, 3, queuetest.CounterOf(t, f.Inspector, "topic", "enqueued"))
	})
}

// The batches of calls about jobs that exist say of each job what became of it, in the order given.
func TestBatchesSayWhatBecameOfEachJob(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for round := range 4 { // enough for each user that may make these calls
			id := fmt.Sprint("job ", round)
			f.Enqueue(id, delayq.ProcessIn(time.Hour))
			refs := []delayq.JobRef{{Topic: "topic", ID: "none"}, {Topic: "topic", ID: id}}
			got, err := f.Client.GetBatch(t.Context(), refs)
			require.ErrorIs(t, err, delayq.ErrNotFound)
			require.ErrorIs(t, got[0].Err, delayq.ErrNotFound)
			require.NoError(t, got[1].Err)
			moved, err := f.Client.RescheduleBatch(t.Context(), []delayq.NewDue{
				{Topic: "topic", ID: "none", Due: delayq.ProcessIn(0)}, {Topic: "topic", ID: id, Due: delayq.ProcessIn(2 * time.Hour)},
			})
			require.ErrorIs(t, err, delayq.ErrNotFound)
			require.ErrorIs(t, moved[0].Err, delayq.ErrNotFound)
			require.NoError(t, moved[1].Err)
			gone, err := f.Client.CancelBatch(t.Context(), refs)
			require.ErrorIs(t, err, delayq.ErrNotFound)
			require.ErrorIs(t, gone[0].Err, delayq.ErrNotFound)
			require.NoError(t, gone[1].Err)
			require.Equal(t, delayq.StateScheduled, gone[1].State)
		}
	})
}
