package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A scriptLog is a hook that notes the calls of scripts.
type scriptLog struct {
	mu     sync.Mutex
	events []ScriptEvent
}

func (l *scriptLog) Script(e ScriptEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// stored gives how many jobs each call of enqueue or replace was about.
func (l *scriptLog) stored() (list []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.Name == script.Enqueue.Name || e.Name == script.Replace.Name {
			list = append(list, e.Jobs)
		}
	}
	return list
}

// A commitTest is a client in a bubble whose flushes can be held up.
type commitTest struct {
	t      *testing.T
	r      *embedded.Redis
	client *Client
	log    scriptLog
	open   func() // lets the flush go on
	fault  *redistest.Fault
	wg     sync.WaitGroup
}

// holding runs a test while the first flush, of the job "gatekeeper", is under way.
func holding(t *testing.T, test func(t *testing.T, c *commitTest)) {
	t.Helper()
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
		gate := make(chan struct{})
		c := &commitTest{t: t, r: r, open: sync.OnceFunc(func() { close(gate) })}
		c.fault = &redistest.Fault{What: "gatekeeper", After: func() { <-gate }}
		defer func() { // also when the test has failed half way
			c.open()
			c.wg.Wait()
		}()
		faulty := redis.NewClient(redistest.Faulty(rdb, c.fault))
		defer func() { require.NoError(t, faulty.Close()) }()
		c.client = NewClient(faulty, Hooks(&c.log))
		// The script is known from here on, so that one flush is one call.
		_, err := c.client.Enqueue(t.Context(), "topic", "zeroth", nil)
		require.NoError(t, err)
		c.log.events = nil

		c.enqueue(t.Context(), c.stored, "gatekeeper", nil)
		test(t, c)
		c.wg.Wait()
		synctest.Wait()
		g := c.client.commits.of("topic", enqueueKind)
		require.Zero(t, g.flights.up)
		require.Zero(t, g.flights.gathering)
		require.Zero(t, g.flights.air)
		require.Zero(t, c.client.commits.air.up.Load())
		require.Empty(t, g.pending)
	})
}

// enqueue starts an Enqueue and returns when it waits for something.
func (c *commitTest) enqueue(ctx context.Context, outcome func(error), id string, payload []byte, opts ...JobOption) {
	c.wg.Go(func() {
		_, err := c.client.Enqueue(ctx, "topic", id, payload, opts...)
		outcome(err)
	})
	synctest.Wait()
}

func (c *commitTest) stored(err error) {
	if err != nil {
		c.t.Error(err)
	}
}

func (c *commitTest) refused(err error) {
	if !errors.Is(err, ErrDuplicate) {
		c.t.Error(err)
	}
}

func (c *commitTest) release() {
	c.open()
	synctest.Wait()
}

func (c *commitTest) has(id string) bool {
	return slices.Contains(c.pool(), id)
}

func (c *commitTest) pool() []string {
	ids, err := c.r.HKeys("delayq:{topic}:pool")
	require.NoError(c.t, err)
	return ids
}

func TestCommitGathersWhatComesMeanwhile(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		for i := range secondFlight - 1 {
			c.enqueue(t.Context(), c.stored, fmt.Sprint("job", i), nil)
		}
		require.False(t, c.has("job0"))
		c.release()
		require.Equal(t, []int{1, secondFlight - 1}, c.log.stored())
		require.Len(t, c.pool(), secondFlight+1)
	})
}

// Many do not wait for the flush that is under way: a second one goes beside it, and no third.
func TestCommitFliesTwice(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		for i := range secondFlight {
			c.enqueue(t.Context(), c.stored, fmt.Sprint("job", i), nil)
		}
		require.Equal(t, []int{secondFlight}, c.log.stored(), "the first is still under way")
		require.True(t, c.has("job0"))

		second := make(chan struct{})
		c.fault.Again("second", func() { <-second })
		for i := range secondFlight {
			c.enqueue(t.Context(), c.stored, fmt.Sprint("second", i), nil)
		}
		for i := range 99 {
			c.enqueue(t.Context(), c.stored, fmt.Sprint("third", i), nil)
		}
		require.False(t, c.has("third0"))
		close(second)
		synctest.Wait()
		require.Equal(t, []int{secondFlight, secondFlight, 99}, c.log.stored())

		// The flush of 99 was a large one: as many must wait before another goes beside the first.
		for i := range 98 {
			c.enqueue(t.Context(), c.stored, fmt.Sprint("fourth", i), nil)
		}
		require.False(t, c.has("fourth0"))
		c.enqueue(t.Context(), c.stored, "last", nil)
		require.True(t, c.has("fourth0"))
		c.release()
		require.Len(t, c.pool(), 2+2*secondFlight+2*99)
	})
}

func TestCommitOfALoneCallerIsAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		var log scriptLog
		client := NewClient(rdb, Hooks(&log))
		began := time.Now()
		for i := range 5 {
			_, err := client.Enqueue(t.Context(), "topic", fmt.Sprint(i), nil)
			require.NoError(t, err)
		}
		require.Equal(t, []int{1, 1, 1, 1, 1}, log.stored())
		require.Zero(t, time.Since(began))
	})
}

func TestCommitsOfTopicsDoNotWaitForEachOther(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		_, err := c.client.Enqueue(t.Context(), "other", "x", nil)
		require.NoError(t, err)
		c.release()
	})
}

// A caller that goes while its job waits gets its context's error, and the job is not stored.
func TestCommitLeftWhilePending(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		c.enqueue(t.Context(), c.stored, "before", nil)
		ctx, cancel := context.WithCancel(t.Context())
		var got error
		c.enqueue(ctx, func(err error) { got = err }, "left", nil)
		c.enqueue(t.Context(), c.stored, "after", nil)
		cancel()
		synctest.Wait()
		require.ErrorIs(t, got, context.Canceled)
		require.NotErrorIs(t, got, ErrUnknownOutcome)
		c.release()
		require.Equal(t, []int{1, 2}, c.log.stored())
		require.False(t, c.has("left"))
		require.True(t, c.has("before") && c.has("after"))
	})
}

func TestCommitLeftByADeadline(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var got error
		c.enqueue(ctx, func(err error) { got = err }, "left", nil)
		time.Sleep(time.Second)
		synctest.Wait()
		require.ErrorIs(t, got, context.DeadlineExceeded)
		c.release()
		require.False(t, c.has("left"))
	})
}

// A caller that goes while its job is on the way cannot know what becomes of it, and is told so.
func TestCommitLeftInFlight(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		ctx, cancel := context.WithCancel(t.Context())
		var got error
		c.enqueue(ctx, func(err error) { got = err }, "left", nil)
		c.enqueue(t.Context(), c.stored, "other", nil)
		second := make(chan struct{})
		c.fault.Again("left", func() { <-second })
		c.release()
		require.NoError(t, got, "it waits for the second flush")
		cancel()
		synctest.Wait()
		require.ErrorIs(t, got, ErrUnknownOutcome)
		require.ErrorIs(t, got, context.Canceled)
		close(second)
		synctest.Wait()
		require.True(t, c.has("left"), "it had been sent")
	})
}

func TestCommitChunks(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		second := make(chan struct{})
		c.fault.Again("second", func() { <-second })
		for i := range secondFlight {
			c.enqueue(t.Context(), c.stored, fmt.Sprint("second", i), nil)
		}
		for i := range 2*chunkJobs + 200 {
			c.wg.Go(func() {
				_, err := c.client.Enqueue(t.Context(), "topic", fmt.Sprint("job", i), nil)
				c.stored(err)
			})
		}
		synctest.Wait()
		close(second)
		synctest.Wait()
		require.Equal(t, []int{secondFlight, chunkJobs, chunkJobs, 200}, c.log.stored())
		c.release()
	})
}

func TestCommitChunksByBytes(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		for i := range 5 {
			c.enqueue(t.Context(), c.stored, fmt.Sprint("job", i), make([]byte, 600<<10))
		}
		c.release()
		require.Equal(t, []int{1, 2, 2, 1}, c.log.stored())
	})
}

// One call is about no ID twice. Jobs of one ID keep their order, and others do not wait for them,
// whatever they replace.
func TestCommitKeepsJobsOfOneIDApart(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		c.enqueue(t.Context(), c.stored, "a", []byte("1"))
		c.enqueue(t.Context(), c.stored, "b", nil)
		c.enqueue(t.Context(), c.stored, "a", []byte("2"), Replace())
		c.enqueue(t.Context(), c.stored, "c", nil, Replace())
		c.enqueue(t.Context(), c.refused, "a", []byte("3"))
		c.enqueue(t.Context(), c.refused, "a", []byte("4"))
		c.enqueue(t.Context(), c.stored, "d", nil)
		c.release()
		require.Equal(t, []int{1, 4, 1, 1, 1}, c.log.stored())
		info, err := c.client.Get(t.Context(), "topic", "a")
		require.NoError(t, err)
		require.Equal(t, "2", string(info.Payload))
	})
}

// An error of Redis reaches every caller of that flush, and the next ones are not in its way.
func TestCommitThatFails(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		got := make([]error, 3)
		for i := range got {
			c.enqueue(t.Context(), func(err error) { got[i] = err }, fmt.Sprint("job", i), nil)
		}
		c.r.SetError("ERR broken")
		c.release()
		c.r.SetError("")
		for _, err := range got {
			require.ErrorContains(t, err, "ERR broken")
			require.NotErrorIs(t, err, ErrUnknownOutcome)
		}
		_, err := c.client.Enqueue(t.Context(), "topic", "next", nil)
		require.NoError(t, err)
	})
}

// All callers of a flush whose reply is lost for good are told that the outcome is not known.
func TestCommitWithoutAReply(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		got := make([]error, 3)
		for i := range got {
			c.enqueue(t.Context(), func(err error) { got[i] = err }, fmt.Sprint("job", i), nil)
		}
		c.r.Close()
		c.release()
		c.wg.Wait()
		for _, err := range got {
			require.ErrorIs(t, err, ErrUnknownOutcome)
		}
		require.Empty(t, c.client.commits.of("topic", enqueueKind).series.Free, "the lost call may still arrive")
	})
}

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
	info := statsOf(t, NewClient(rdb, Prefix(h.prefix())), "a")
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
			b := client.newEnqueueBatch(t.Context(), 100_000)
			b.out.close()
			sent := 0
			b.out = &conveyor{all: client.commits, ctx: t.Context(), lists: make(chan []*operation, 1), done: make(chan struct{})}
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
		b := client.newEnqueueBatch(t.Context(), len(jobs))
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
		require.Equal(t, 1000, client.commits.most)
		const topics, rounds = 60, 3
		client.commits.most = 50
		for range rounds {
			for i := range topics {
				_, err := client.Enqueue(t.Context(), fmt.Sprint("topic", i), "", nil)
				require.NoError(t, err)
				require.LessOrEqual(t, len(client.commits.topics), client.commits.most)
			}
		}
		receipts, err := rdb.Keys(t.Context(), client.o.prefix+":*:receipt:*").Result()
		require.NoError(t, err)
		require.Len(t, receipts, topics)
		require.EqualValues(t, topics, adds, "a topic is added once")
		names, err := inspectorOf(client).Topics(t.Context())
		require.NoError(t, err)
		require.Len(t, names, topics)
		info := statsOf(t, client, "topic7")
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
	first := client.commits.of("first", enqueueKind)
	series := first.series.Get()
	series.Seq = 41
	for i := range 5 * mostCommits {
		client.commits.of(fmt.Sprint("topic", i), enqueueKind).done()
	}
	require.Same(t, first, client.commits.topics[commitKey{topic: "first"}])
	require.LessOrEqual(t, len(client.commits.topics), mostCommits)
	first.series.Put(series, nil)
	first.done()
	for i := 0; client.commits.topics[commitKey{topic: "first"}] != nil; i++ {
		client.commits.of(fmt.Sprint("other", i), enqueueKind).done()
	}
	again := client.commits.of("first", enqueueKind).series.Get()
	require.Equal(t, series.ID, again.ID)
	require.Equal(t, uint64(41), again.Seq)

	client.commits.of("first", enqueueKind).series.Put(again, context.DeadlineExceeded)
	client.commits.topics[commitKey{topic: "first"}].users.Store(0)
	for i := 0; client.commits.topics[commitKey{topic: "first"}] != nil; i++ {
		client.commits.of(fmt.Sprint("third", i), enqueueKind).done()
	}
	require.NotEqual(t, series.ID, client.commits.of("first", enqueueKind).series.Get().ID)
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
			names, err := inspectorOf(c).Topics(t.Context())
			require.NoError(t, err)
			return names
		}
		require.Equal(t, []string{"topic"}, enqueue())
		require.NoError(t, rdb.Del(t.Context(), script.TopicsKey(h.prefix()), h.keys.Pool, h.keys.Ready, h.keys.Stats).Err())
		require.Equal(t, []string{"topic"}, enqueue())
		require.NoError(t, rdb.Del(t.Context(), script.TopicsKey(h.prefix())).Err())
		require.Empty(t, enqueue(), "not each time")
		g := c.commits.topics[commitKey{topic: "topic"}]
		g.recorded = g.recorded.Add(-recordEvery)
		require.Equal(t, []string{"topic"}, enqueue())
		require.WithinDuration(t, time.Now(), g.recorded, time.Minute)
	})
}
