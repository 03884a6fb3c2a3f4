package commit

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// errorsOf returns a report that notes the errors of a batch.
func errorsOf(errs []error) func(i int, o *Op) error {
	return func(i int, o *Op) error {
		errs[i] = o.Err
		return o.Err
	}
}

// A batch holds no records but those that are on their way.
func TestBatchHoldsNoSecondCopy(t *testing.T) {
	for name, topics := range map[string]int{"one topic": 1, "many topics": 3000} {
		t.Run(name, func(t *testing.T) {
			rdb := redistest.Unused(t)
			c, reported := newCaller(rdb, "delayq"), 0
			b := c.NewBatch(t.Context(), Enqueue, 100_000, func(int, *Op) error { reported++; return nil })
			b.Close()
			sent := 0
			b.out = &conveyor{all: c.Groups, ctx: t.Context(), lists: make(chan []*Op, 1), done: make(chan struct{})}
			taken := make(chan struct{})
			go func() {
				defer close(taken)
				for list := range b.out.lists {
					sent += len(list)
					for _, o := range list {
						o.answer(1, script.LetterStored)
					}
				}
			}()
			most := 0
			for i := range b.jobs {
				b.Put(i, job{payload: make([]byte, 100)}.store(t, fmt.Sprint("topic", i%topics), fmt.Sprint(i)))
				held := b.queued
				for _, p := range b.sent {
					held += len(p.list)
				}
				most = max(most, held)
			}
			b.Send()
			close(b.out.lists)
			<-taken
			b.collect(0)
			require.Equal(t, b.jobs, sent)
			require.Equal(t, b.jobs, reported)
			require.Zero(t, b.failed)
			require.LessOrEqual(t, most, parcelsHeld+(parcelsSent+1)*ChunkJobs)
		})
	}
}

// Large payloads are sent before they are many.
func TestBatchHoldsFewBytes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		c := newCaller(rdb, redistest.Prefix(t))
		errs := make([]error, 60)
		b := c.NewBatch(t.Context(), Enqueue, len(errs), errorsOf(errs))
		defer b.Close()
		for i := range errs {
			b.Put(i, job{payload: make([]byte, 300<<10)}.store(t, fmt.Sprint("topic", i%30), fmt.Sprint(i)))
			require.Less(t, b.bytes, parcelsBytes)
		}
		require.NoError(t, b.Finish())
		require.Equal(t, make([]error, len(errs)), errs)
	})
}

// A batch whose context is done sends nothing more.
func TestBatchIsLeft(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		c := newCaller(rdb, redistest.Prefix(t))
		ctx, cancel := context.WithCancel(t.Context())
		errs := make([]error, 2)
		b := c.NewBatch(ctx, Enqueue, len(errs), errorsOf(errs))
		defer b.Close()
		b.Put(0, job{payload: make([]byte, chunkBytes)}.store(t, "topic", "sent"))
		b.Put(1, job{}.store(t, "topic", "left"))
		cancel()
		err := b.Finish()
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "enqueue batch: 1 of 2 jobs failed: ")
		require.NoError(t, errs[0])
		require.ErrorContains(t, errs[1], `enqueue topic "topic" job "left": `)
		require.Equal(t, []string{"sent"}, rdb.HKeys(t.Context(), script.NewKeys(c.Prefix, "topic").Pool).Val())
	})
}

// Jobs of a batch that come to the same partition are sent together, also while earlier generations
// are asked first: a call about each place of each generation would be about few jobs.
func TestBatchInPartitionsMakesFewCalls(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		const parts, jobs = 8, 8 * ChunkJobs
		c := newCaller(rdb, redistest.Prefix(t))
		_, err := c.Resize(t.Context(), "topic", part.Generation{Parts: parts}, fewSettings)
		require.NoError(t, err)
		for generations, m := range []string{1: "1:8", 2: "0:1 1:8"} {
			if m == "" {
				continue
			}
			known, err := part.ParseMap(m)
			require.NoError(t, err)
			c.maps.set("topic", known)
			before := len(c.log.calls())
			b := c.NewBatch(t.Context(), Enqueue, jobs, func(_ int, o *Op) error { return o.Err })
			for i := range jobs {
				b.Put(i, job{when: "+3600000"}.store(t, "topic", fmt.Sprint(m, i)))
			}
			require.NoError(t, b.Finish())
			most := generations * (jobs/ChunkJobs + parts) // full ones, and what is left in the end
			require.LessOrEqual(t, len(c.log.calls())-before, most, m)
		}
	})
}

// Calls about IDs alone ask all partitions of a generation by key. They are not divided before.
func TestBatchOfIDsByKeyIsSentTogether(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		c := newCaller(rdb, redistest.Prefix(t))
		_, err := c.Resize(t.Context(), "topic", part.Generation{Parts: 8, ByKey: true}, fewSettings)
		require.NoError(t, err)
		before := len(c.log.calls())
		b := c.NewBatch(t.Context(), Cancel, ChunkJobs, func(int, *Op) error { return nil })
		for i := range ChunkJobs {
			b.Put(i, &Op{Kind: Cancel, Topic: "topic", ID: fmt.Sprint(i)})
		}
		require.NoError(t, b.Finish())
		require.LessOrEqual(t, len(c.log.calls())-before, 1+8+1, "one to each place, and one for the map")
	})
}

// Operations about one ID keep their order when the client learns of partitions between them, even
// if the later one is in a chunk that is complete first.
func TestBatchKeepsItsOrderWhenTheMapChanges(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		c, g := newCaller(rdb, prefix), part.Generation{Number: 1, Parts: 4}
		_, err := newCaller(rdb, prefix).Resize(ctx, "topic", part.Generation{Parts: 4}, fewSettings)
		require.NoError(t, err)
		b, jobs := c.NewBatch(ctx, Enqueue, 1+ChunkJobs, func(_ int, o *Op) error { return o.Err }), 0
		put := func(id string) *Op {
			o := job{when: "r+3600000", replace: ReplaceAny}.store(t, "topic", id)
			b.Put(jobs, o)
			jobs++
			return o
		}
		put("j0")
		_, err = c.ReadMap(ctx, "topic")
		require.NoError(t, err)
		last := put("j0")
		for n := 1; jobs < 1+ChunkJobs; n++ {
			if id := fmt.Sprint("j", n); g.Index(id, "") == g.Index("j0", "") {
				put(id)
			}
		}
		require.NoError(t, b.Finish())
		got := &Op{Kind: Get, Topic: "topic", ID: "j0"}
		require.NoError(t, c.Do(ctx, got))
		require.Contains(t, fmt.Sprint(got.Row), string(last.Fresh.Nonce[:]))
	})
}
