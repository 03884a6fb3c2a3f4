package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/redistest"
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
		if e.Name == enqueueScript.name || e.Name == replaceScript.name {
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
	fault  *fault
	wg     sync.WaitGroup
}

// holding runs a test while the first flush, of the job "gatekeeper", is under way.
func holding(t *testing.T, test func(t *testing.T, c *commitTest)) {
	t.Helper()
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
		gate := make(chan struct{})
		c := &commitTest{t: t, r: r, open: sync.OnceFunc(func() { close(gate) })}
		c.fault = &fault{what: "gatekeeper", after: func() { <-gate }}
		defer func() { // also when the test has failed half way
			c.open()
			c.wg.Wait()
		}()
		faulty := redis.NewClient(faulty(rdb, c.fault))
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
		g := c.client.commit("topic")
		require.Zero(t, g.flushes)
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
		for i := range secondFlush - 1 {
			c.enqueue(t.Context(), c.stored, fmt.Sprint("job", i), nil)
		}
		require.False(t, c.has("job0"))
		c.release()
		require.Equal(t, []int{1, secondFlush - 1}, c.log.stored())
		require.Len(t, c.pool(), secondFlush+1)
	})
}

// Many do not wait for the flush that is under way: a second one goes beside it, and no third.
func TestCommitFliesTwice(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		for i := range secondFlush {
			c.enqueue(t.Context(), c.stored, fmt.Sprint("job", i), nil)
		}
		require.Equal(t, []int{secondFlush}, c.log.stored(), "the first is still under way")
		require.True(t, c.has("job0"))

		second := make(chan struct{})
		c.fault.again("second", func() { <-second })
		for i := range secondFlush {
			c.enqueue(t.Context(), c.stored, fmt.Sprint("second", i), nil)
		}
		for i := range 99 {
			c.enqueue(t.Context(), c.stored, fmt.Sprint("third", i), nil)
		}
		require.False(t, c.has("third0"))
		close(second)
		synctest.Wait()
		require.Equal(t, []int{secondFlush, secondFlush, 99}, c.log.stored())

		// The flush of 99 was a large one: as many must wait before another goes beside the first.
		for i := range 98 {
			c.enqueue(t.Context(), c.stored, fmt.Sprint("fourth", i), nil)
		}
		require.False(t, c.has("fourth0"))
		c.enqueue(t.Context(), c.stored, "last", nil)
		require.True(t, c.has("fourth0"))
		c.release()
		require.Len(t, c.pool(), 2+2*secondFlush+2*99)
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
		c.fault.again("left", func() { <-second })
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
		c.fault.again("second", func() { <-second })
		for i := range secondFlush {
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
		require.Equal(t, []int{secondFlush, chunkJobs, chunkJobs, 200}, c.log.stored())
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
		require.Empty(t, c.client.commit("topic").series.free, "the lost call may still arrive")
	})
}
