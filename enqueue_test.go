package delayq_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

func TestEnqueueGivesTheJobAsStored(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		at := time.Date(2100, 2, 3, 4, 5, 6, 7_000_000, time.UTC)
		job, err := f.client.Enqueue(t.Context(), "topic", "x", []byte("p"),
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

		info := f.get("x")
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
	eachClient(t, func(t *testing.T, f *fixture) {
		before, err := f.rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		job := f.enqueue("x")
		after, err := f.rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		require.False(t, job.EnqueuedAt.Before(before.Truncate(time.Millisecond)), job.EnqueuedAt)
		require.False(t, job.EnqueuedAt.After(after), job.EnqueuedAt)
		require.Equal(t, job.EnqueuedAt, job.Due, "due at once")
	})
}

func TestEnqueueWithoutAnID(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		seen := map[string]bool{}
		for range 50 {
			id := f.enqueue("").ID
			require.NotEmpty(t, id)
			require.False(t, seen[id])
			seen[id] = true
			require.Equal(t, []byte("payload of "), f.get(id).Payload)
		}
		require.Len(t, f.hand.Take(100, time.Minute), 50)
	})
}

func TestEveryAcceptedJobHasItsOwnNonce(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		seen := map[string]bool{}
		for range 10 {
			nonce := f.enqueue("x", delayq.Replace()).Nonce()
			require.False(t, seen[nonce])
			seen[nonce] = true
			require.Equal(t, nonce, f.get("x").Nonce())
		}
	})
}

// Jobs that are due now are taken in the order in which they came, those that were due later in the
// order of their due times.
func TestEnqueueKeepsTheOrder(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		f.enqueue("later", delayq.ProcessIn(2*time.Hour))
		f.enqueue("soon", delayq.ProcessIn(time.Hour))
		f.enqueue("z")
		f.enqueue("a")
		f.hand.Hasten(24 * time.Hour)
		f.hand.Promote()
		for _, id := range []string{"z", "a", "soon", "later"} {
			f.hand.TakeOne(id)
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
	eachClient(t, func(t *testing.T, f *fixture) {
		for name, value := range values {
			id := string(value[:min(len(value), 1024)]) + name[:min(len(name), 1024-min(len(value), 1024))]
			_, err := f.client.Enqueue(t.Context(), "topic", id, value, delayq.Header(id, string(value[:min(len(value), 9000)])))
			require.NoError(t, err, name)
			info := f.get(id)
			require.Equal(t, id, info.ID, name)
			require.Equal(t, string(value), string(info.Payload), name)
			require.Equal(t, len(value), info.PayloadSize)
			require.Equal(t, map[string]string{id: string(value[:min(len(value), 9000)])}, info.Headers, name)
			require.Equal(t, id, f.hand.TakeOne(id).ID, name)
		}
	})
}

// The caller may use its buffer again when Enqueue has returned.
func TestEnqueueKeepsNothingOfTheBuffer(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		buffer := []byte("first")
		_, err := f.client.Enqueue(t.Context(), "topic", "x", buffer)
		require.NoError(t, err)
		copy(buffer, "other")
		require.Equal(t, "first", string(f.get("x").Payload))
	})
}

// (I8)
func TestTopicsAreIndependent(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		for _, topic := range []string{"a", "a:", "a b", "ünïcødé 🐢", strings.Repeat("t", 255)} {
			_, err := f.client.Enqueue(ctx, topic, "x", []byte(topic))
			require.NoError(t, err, topic)
		}
		for _, topic := range []string{"a", "a:", "a b", "ünïcødé 🐢", strings.Repeat("t", 255)} {
			info, err := f.client.Get(ctx, topic, "x")
			require.NoError(t, err)
			require.Equal(t, topic, string(info.Payload))
			_, err = f.client.Dequeue(ctx, topic, "x")
			require.NoError(t, err)
		}
	})
}

func TestPrefixesAreIndependent(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		f.enqueue("x")
		other := newFixture(t, f.rdb)
		_, err := other.client.Get(t.Context(), "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
		other.enqueue("x")
	})
}

func TestEnqueueWithAnEndedContext(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		job, err := f.client.Enqueue(ctx, "topic", "x", nil)
		require.Nil(t, job)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, delayq.ErrUnknownOutcome)
		results, err := f.client.EnqueueBatch(ctx, []delayq.NewJob{{Topic: "topic", ID: "y"}})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, results[0].Err, context.Canceled)
		require.Empty(t, f.dump())
	})
}

func TestEnqueueErrorsNameTheTopic(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		f.enqueue("x")
		_, err := f.client.Enqueue(t.Context(), "topic", "x", nil)
		require.ErrorIs(t, err, delayq.ErrDuplicate)
		require.ErrorContains(t, err, `"topic"`)
		require.ErrorContains(t, err, `"x"`)
	})
}

// 50 goroutines want the same ID: one gets it. (D14)
func TestOneOfManyEnqueuesGetsTheID(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var stored []string
		clients := []*delayq.Client{f.client, delayq.NewClient(f.rdb, delayq.Prefix(f.prefix))}
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
		require.Equal(t, []string{string(f.get("x").Payload)}, stored)
		require.Len(t, f.hand.Take(100, time.Minute), 1)
	})
}

// A topic set of the wrong type serves only Topics: it decides nothing.
func TestEnqueueWithoutTheSetOfTopics(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		require.NoError(t, f.rdb.Set(t.Context(), f.prefix+":topics", "a slip", 0).Err())
		f.enqueue("x")
		f.hand.TakeOne("x")
		_, err := f.client.Topics(t.Context())
		require.ErrorContains(t, err, "WRONGTYPE")
	})
}

func TestScriptsComeBackAfterAFlush(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	f := newFixture(t, rdb)
	flush := func() { require.NoError(t, rdb.ScriptFlush(t.Context()).Err()) }
	for i, call := range []func(){
		func() { f.enqueue("x", delayq.ProcessIn(time.Hour)) },
		func() { f.get("x") },
		func() { require.NoError(t, f.client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(0))) },
		func() { f.hand.Promote() },
		func() { f.hand.Bury(f.hand.TakeOne("x")) },
		func() { require.NoError(t, f.client.Revive(t.Context(), "topic", "x")) },
		func() { f.dequeue("x") },
		func() { require.NoError(t, f.client.Pause(t.Context(), "topic", delayq.Pause{})) },
		func() { _, err := f.client.Inspect(t.Context(), "topic"); require.NoError(t, err) },
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
	f := newFixture(t, s.Client(t))
	ctx := t.Context()
	f.enqueue("due", delayq.ProcessIn(time.Hour))
	f.hand.Hasten(2 * time.Hour)
	f.enqueue("lapsed")
	require.Len(t, f.hand.Take(1, 0), 1)
	f.enqueue("dead")
	require.Equal(t, "o", f.hand.Bury(f.hand.TakeOne("dead")))
	f.enqueue("a")
	f.enqueue("b")
	running := f.hand.TakeOne("a")
	require.NoError(t, f.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	before := f.dump()

	for _, due := range []time.Duration{0, time.Hour} {
		job, err := f.client.Enqueue(ctx, "topic", "new", nil, delayq.ProcessIn(due))
		require.Nil(t, job)
		require.ErrorContains(t, err, "OOM")
		require.NotErrorIs(t, err, delayq.ErrUnknownOutcome)
	}
	require.Equal(t, before, f.dump(), "nothing was written")

	require.Equal(t, "o", f.hand.Ack(running))
	require.Equal(t, delayq.StateDead, f.dequeue("dead"))
	moved, reclaimed := f.hand.Promote()
	require.Equal(t, []int{1, 1}, []int{moved, reclaimed})
	held := f.hand.Take(10, time.Minute)
	require.Len(t, held, 3)
	require.Equal(t, "o", f.hand.Retry(time.Hour, held[0]))
	require.Equal(t, "o", f.hand.Snooze(time.Hour, held[1]))
	require.Equal(t, "o", f.hand.Return(held[2]))
	require.Equal(t, "o", f.hand.Bury(f.hand.TakeOne(held[2].ID)))
}
