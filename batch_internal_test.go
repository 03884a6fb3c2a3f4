package delayq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
)

// A silence is a hook that takes the answer from the calls of scripts, from one of them on, or does
// not even send them.
type silence struct {
	from   int
	calls  int
	unsent bool
}

func (s *silence) DialHook(next redis.DialHook) redis.DialHook { return next }
func (s *silence) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *silence) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "evalsha") {
			if s.calls++; s.calls >= s.from {
				if !s.unsent {
					_ = next(ctx, cmd) // its answer is lost
				}
				cmd.SetErr(errSilent)
				return errSilent
			}
		}
		return next(ctx, cmd)
	}
}

var errSilent = errors.New("i/o timeout")

// After a chunk without an answer no other is sent: the batch says which jobs may be stored and
// which are not.
func TestBatchOnASilentRedis(t *testing.T) {
	t.Parallel()
	for name, unsent := range map[string]bool{"answers are lost": false, "nothing is sent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) { batchOnASilentRedis(t, rdb, unsent) })
		})
	}
}

func batchOnASilentRedis(t *testing.T, rdb redis.UniversalClient, unsent bool) {
	require.NoError(t, LoadScripts(t.Context(), rdb))
	h := NewHand(t, rdb, redistest.Prefix(t), "a")
	o := *rdb.(*redis.Client).Options()
	own := redis.NewClient(&o)
	defer func() { require.NoError(t, own.Close()) }()
	silent := &silence{from: 3, unsent: unsent}
	own.AddHook(silent)
	redistest.InRoles(t, own)
	client := NewClient(own, Prefix(h.prefix()))
	var jobs []NewJob
	for i := range 4 * chunkJobs {
		jobs = append(jobs, NewJob{Topic: "a", ID: fmt.Sprint(i)})
	}
	jobs = append(jobs, NewJob{Topic: "b", ID: "last"}, NewJob{Topic: "{"})
	results, err := client.EnqueueBatch(t.Context(), jobs)
	require.Equal(t, 3, silent.calls, "no call after the one without an answer")
	require.ErrorContains(t, err, fmt.Sprintf("%d of %d jobs failed", 2*chunkJobs+2, len(jobs)))
	for i, r := range results {
		switch {
		case i < 2*chunkJobs:
			require.NoError(t, r.Err)
		case i < 3*chunkJobs && !unsent:
			require.ErrorIs(t, r.Err, ErrUnknownOutcome)
			require.Equal(t, jobs[i].ID, r.Job.ID)
		case i < 3*chunkJobs:
			require.ErrorIs(t, r.Err, errSilent)
			require.NotErrorIs(t, r.Err, ErrUnknownOutcome)
			require.Nil(t, r.Job)
		case jobs[i].Topic == "{":
			require.ErrorIs(t, r.Err, ErrInvalid)
		default:
			require.NotErrorIs(t, r.Err, ErrUnknownOutcome)
			require.ErrorIs(t, r.Err, errSilent)
			require.ErrorContains(t, r.Err,
				fmt.Sprintf(`enqueue topic %q job %q: not sent, because Redis did not answer`, jobs[i].Topic, jobs[i].ID))
			require.Nil(t, r.Job)
		}
	}
	stored := 3 * chunkJobs
	if unsent {
		stored = 2 * chunkJobs
	}
	info, err := NewClient(rdb, Prefix(h.prefix())).Inspect(t.Context(), "a")
	require.NoError(t, err)
	require.EqualValues(t, stored, info.Ready)

	silent.from = 1 << 30
	_, err = client.EnqueueBatch(t.Context(), jobs[3*chunkJobs:4*chunkJobs+1])
	require.NoError(t, err, "what was not sent can be sent again")
}

// A batch holds no records but those that are on their way.
func TestBatchHoldsNoSecondCopy(t *testing.T) {
	for name, topics := range map[string]int{"one topic": 1, "many topics": 3000} {
		t.Run(name, func(t *testing.T) {
			rdb := redis.NewClient(&redis.Options{})
			defer func() { require.NoError(t, rdb.Close()) }()
			client := NewClient(rdb)
			b := &batch{client: client, ctx: t.Context(), results: make([]EnqueueResult, 100_000), waiting: map[string]*parcel{}}
			sent := 0
			b.out = &outbox{client: client, ctx: t.Context(), lists: make(chan []*enqueueing, 1), done: make(chan struct{})}
			taken := make(chan struct{})
			go func() {
				defer close(taken)
				for list := range b.out.lists {
					sent += len(list)
					for _, e := range list {
						e.err = nil
					}
				}
			}()
			most := 0
			for i := range b.results {
				b.add(i, NewJob{Topic: fmt.Sprint("topic", i%topics), Payload: make([]byte, 100)})
				held := b.queued
				for _, p := range b.sent {
					held += len(p.list)
				}
				most = max(most, held)
			}
			b.sendAll()
			close(b.out.lists)
			<-taken
			b.collect(0)
			require.Equal(t, len(b.results), sent)
			require.Zero(t, b.failed)
			for i, r := range b.results {
				require.NotNil(t, r.Job, i)
			}
			require.LessOrEqual(t, most, parcelsHeld+(parcelsSent+1)*chunkJobs)
		})
	}
}

// Large payloads are sent before they are many.
func TestBatchHoldsFewBytes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		client := NewClient(rdb, Prefix(redistest.Prefix(t)))
		payload := make([]byte, 300<<10)
		var jobs []NewJob
		for i := range 60 {
			jobs = append(jobs, NewJob{Topic: fmt.Sprint("topic", i%30), ID: fmt.Sprint(i), Payload: payload})
		}
		b := &batch{client: client, ctx: t.Context(), results: make([]EnqueueResult, len(jobs)), waiting: map[string]*parcel{}}
		b.out = client.newOutbox(t.Context(), len(jobs))
		for i, job := range jobs {
			b.add(i, job)
			require.Less(t, b.bytes, parcelsBytes)
		}
		b.sendAll()
		b.out.close()
		b.collect(0)
		for _, r := range b.results {
			require.NoError(t, r.Err)
		}
	})
}

// A client keeps the state of about a thousand topics, however many it uses, and leaves no receipts
// but one in each.
func TestClientForgetsTopics(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		var adds countAdds
		o := *rdb.(*redis.Client).Options()
		own := redis.NewClient(&o)
		defer func() { require.NoError(t, own.Close()) }()
		own.AddHook(&adds)
		redistest.InRoles(t, own)
		client := NewClient(own, Prefix(redistest.Prefix(t)))
		require.Equal(t, 1000, client.most)
		const topics, rounds = 60, 3
		client.most = 50
		for range rounds {
			for i := range topics {
				_, err := client.Enqueue(t.Context(), fmt.Sprint("topic", i), "", nil)
				require.NoError(t, err)
				require.LessOrEqual(t, len(client.commits), client.most)
			}
		}
		receipts, err := rdb.Keys(t.Context(), client.o.prefix+":*:receipt:*").Result()
		require.NoError(t, err)
		require.Len(t, receipts, topics)
		require.EqualValues(t, topics, adds, "a topic is added once")
		names, err := client.Topics(t.Context())
		require.NoError(t, err)
		require.Len(t, names, topics)
		info, err := client.Inspect(t.Context(), "topic7")
		require.NoError(t, err)
		require.EqualValues(t, rounds, info.Ready, "none of the calls was taken for an old one")
	})
}

// countAdds counts additions to sets.
type countAdds int

func (c *countAdds) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *countAdds) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *countAdds) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "sadd" {
			*c++
		}
		return next(ctx, cmd)
	}
}

// What is in use is not forgotten, and a name of a series that was given up is not used again.
func TestClientKeepsTopicsInUse(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{})
	defer func() { require.NoError(t, rdb.Close()) }()
	client := NewClient(rdb)
	first := client.commit("first")
	series := first.series.get()
	series.seq = 41
	for i := range 5 * mostCommits {
		client.commit(fmt.Sprint("topic", i)).done()
	}
	require.Same(t, first, client.commits["first"])
	require.LessOrEqual(t, len(client.commits), mostCommits)
	first.series.put(series, nil)
	first.done()
	for i := 0; client.commits["first"] != nil; i++ {
		client.commit(fmt.Sprint("other", i)).done()
	}
	again := client.commit("first").series.get()
	require.Equal(t, series.id, again.id)
	require.Equal(t, uint64(41), again.seq)

	client.commit("first").series.put(again, context.DeadlineExceeded)
	client.commits["first"].users.Store(0)
	for i := 0; client.commits["first"] != nil; i++ {
		client.commit(fmt.Sprint("third", i)).done()
	}
	require.NotEqual(t, series.id, client.commit("first").series.get().id)
}

// The set of topics heals after Redis has come back empty: at once where the first job tells, else
// within a minute.
func TestTopicsAreAddedAgain(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		c := h.client()
		enqueue := func() []string {
			t.Helper()
			_, err := c.Enqueue(t.Context(), "topic", "", nil)
			require.NoError(t, err)
			names, err := c.Topics(t.Context())
			require.NoError(t, err)
			return names
		}
		require.Equal(t, []string{"topic"}, enqueue())
		require.NoError(t, rdb.Del(t.Context(), topicsKey(h.prefix()), h.keys.pool, h.keys.ready, h.keys.stats).Err())
		require.Equal(t, []string{"topic"}, enqueue())
		require.NoError(t, rdb.Del(t.Context(), topicsKey(h.prefix())).Err())
		require.Empty(t, enqueue(), "not each time")
		g := c.commits["topic"]
		g.recorded = g.recorded.Add(-recordEvery)
		require.Equal(t, []string{"topic"}, enqueue())
		require.WithinDuration(t, time.Now(), g.recorded, time.Minute)
	})
}
