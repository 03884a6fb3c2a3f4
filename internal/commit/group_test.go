package commit

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

func TestCommitGathersWhatComesMeanwhile(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		for i := range SecondFlight - 1 {
			c.enqueue(c.stored, fmt.Sprint("job", i), job{})
		}
		require.False(t, c.has("job0"))
		c.release()
		require.Equal(t, []int{1, SecondFlight - 1}, c.log.stored())
		require.Len(t, c.pool(), SecondFlight+1)
	})
}

// Many do not wait for the flight that is under way: a second one goes beside it, and no third.
func TestCommitFliesTwice(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		for i := range SecondFlight {
			c.enqueue(c.stored, fmt.Sprint("job", i), job{})
		}
		require.Equal(t, []int{SecondFlight}, c.log.stored(), "the first is still under way")
		require.True(t, c.has("job0"))

		second := make(chan struct{})
		c.fault.Again("second", func() { <-second })
		for i := range SecondFlight {
			c.enqueue(c.stored, fmt.Sprint("second", i), job{})
		}
		for i := range 99 {
			c.enqueue(c.stored, fmt.Sprint("third", i), job{})
		}
		require.False(t, c.has("third0"))
		close(second)
		synctest.Wait()
		require.Equal(t, []int{SecondFlight, SecondFlight, 99}, c.log.stored())

		// The flight of 99 was a large one: as many must wait before another goes beside the first.
		for i := range 98 {
			c.enqueue(c.stored, fmt.Sprint("fourth", i), job{})
		}
		require.False(t, c.has("fourth0"))
		c.enqueue(c.stored, "last", job{})
		require.True(t, c.has("fourth0"))
		c.release()
		require.Len(t, c.pool(), 2+2*SecondFlight+2*99)
	})
}

func TestCommitOfALoneCallerIsAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		c := newCaller(rdb, "delayq")
		began := time.Now()
		for i := range 5 {
			require.NoError(t, c.do(t.Context(), job{}.store(t, "topic", fmt.Sprint(i))))
		}
		require.Equal(t, []int{1, 1, 1, 1, 1}, c.log.stored())
		require.Zero(t, time.Since(began))
	})
}

func TestCommitsOfTopicsDoNotWaitForEachOther(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		require.NoError(t, c.do(t.Context(), job{}.store(t, "other", "x")))
		c.release()
	})
}

// A caller that goes while its job waits gets its context's error, and the job is not stored.
func TestCommitLeftWhilePending(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		c.enqueue(c.stored, "before", job{})
		ctx, cancel := context.WithCancel(t.Context())
		var got error
		c.start(ctx, job{}.store(t, "topic", "left"), into(&got))
		c.enqueue(c.stored, "after", job{})
		cancel()
		synctest.Wait()
		require.ErrorIs(t, got, context.Canceled)
		require.False(t, isUnknown(got))
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
		c.start(ctx, job{}.store(t, "topic", "left"), into(&got))
		<-ctx.Done()
		synctest.Wait()
		require.ErrorIs(t, got, context.DeadlineExceeded)
		c.release()
		require.False(t, c.has("left"))
	})
}

// A caller that goes while its job is on the way cannot know the outcome, and its error says so.
func TestCommitLeftInFlight(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		ctx, cancel := context.WithCancel(t.Context())
		var got error
		c.start(ctx, job{}.store(t, "topic", "left"), into(&got))
		c.enqueue(c.stored, "other", job{})
		second := make(chan struct{})
		c.fault.Again("left", func() { <-second })
		c.release()
		require.NoError(t, got, "it waits for the second flight")
		cancel()
		synctest.Wait()
		require.True(t, isUnknown(got))
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
		for i := range SecondFlight {
			c.enqueue(c.stored, fmt.Sprint("second", i), job{})
		}
		for i := range 2*ChunkJobs + 200 {
			o := job{}.store(t, "topic", fmt.Sprint("job", i))
			c.wg.Go(func() { c.stored(o, c.do(t.Context(), o)) })
		}
		synctest.Wait()
		close(second)
		synctest.Wait()
		require.Equal(t, []int{SecondFlight, ChunkJobs, ChunkJobs, 200}, c.log.stored())
		c.release()
	})
}

func TestCommitChunksByBytes(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		for i := range 5 {
			c.enqueue(c.stored, fmt.Sprint("job", i), job{payload: make([]byte, 600<<10)})
		}
		c.release()
		require.Equal(t, []int{1, 2, 2, 1}, c.log.stored())
	})
}

// One call is about no ID twice. Jobs of one ID keep their order, and others do not wait for them,
// whatever they replace.
func TestCommitKeepsJobsOfOneIDApart(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		twin := c.says(script.LetterReady)
		c.enqueue(c.stored, "a", job{payload: []byte("1")})
		c.enqueue(c.stored, "b", job{})
		second := job{payload: []byte("2"), replace: ReplaceAny}.store(t, "topic", "a")
		c.start(t.Context(), second, c.stored)
		c.enqueue(c.stored, "c", job{replace: ReplaceAny})
		c.enqueue(twin, "a", job{payload: []byte("3")})
		c.enqueue(twin, "a", job{payload: []byte("4")})
		c.enqueue(c.stored, "d", job{})
		c.release()
		require.Equal(t, []int{1, 4, 1, 1, 1}, c.log.stored())
		raw := c.rdb.HGet(t.Context(), "delayq:{topic}:pool", "a").Val()
		require.Contains(t, raw, string(second.Fresh.Nonce[:]))
	})
}

// An error of Redis reaches every caller of that flight, and the next ones are not in its way.
func TestCommitThatFails(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		got := make([]error, 3)
		for i := range got {
			c.enqueue(into(&got[i]), fmt.Sprint("job", i), job{})
		}
		c.r.SetError("ERR broken")
		c.release()
		c.r.SetError("")
		for _, err := range got {
			require.ErrorContains(t, err, "ERR broken")
			require.False(t, isUnknown(err))
		}
		c.enqueue(c.stored, "next", job{})
	})
}

// All callers of a flight whose reply is lost for good are told that the outcome is not known.
func TestCommitWithoutAReply(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		got := make([]error, 3)
		for i := range got {
			c.enqueue(into(&got[i]), fmt.Sprint("job", i), job{})
		}
		c.r.Close()
		c.release()
		c.wg.Wait()
		for _, err := range got {
			require.True(t, isUnknown(err))
		}
		require.Empty(t, c.For("topic", Enqueue).series.Free, "the lost call may still arrive")
	})
}

// A hook of the user's go-redis client crashes in a flight on behalf of several callers: each of
// them hears that the outcome is not known, and those that come later are not in its way.
func TestCommitWhoseFlightCrashes(t *testing.T) {
	for what, with := range crashes {
		t.Run(what, func(t *testing.T) {
			holding(t, func(t *testing.T, c *commitTest) {
				broken := &crashing{with: with}
				c.rdb.AddHook(broken)
				got := make([]error, 3)
				for i := range got {
					c.enqueue(into(&got[i]), fmt.Sprint("job", i), job{})
				}
				broken.on.Store(true)
				c.release()
				c.wg.Wait()
				for i, err := range got {
					require.True(t, isUnknown(err))
					require.ErrorContains(t, err, fmt.Sprintf(`enqueue topic "topic" job "job%d": `, i))
					require.ErrorContains(t, err, what+": ")
				}
				require.EqualValues(t, 1, broken.n.Load())
				require.Zero(t, c.For("topic", Enqueue).flights.up)
				broken.on.Store(false)
				for i := range 3 {
					c.enqueue(c.stored, fmt.Sprint("next", i), job{})
				}
			})
		})
	}
}

// Those that have gathered while a flight crashes go with the next one.
func TestCommitGoesOnAfterACrash(t *testing.T) {
	for what, with := range crashes {
		t.Run(what, func(t *testing.T) {
			holding(t, func(t *testing.T, c *commitTest) {
				var once atomic.Bool
				broken := &crashing{with: func() {
					if once.CompareAndSwap(false, true) {
						with()
					}
				}}
				broken.on.Store(true)
				c.rdb.AddHook(broken)
				var lost atomic.Int64
				for i := range ChunkJobs + 10 { // two flights
					o := job{}.store(t, "topic", fmt.Sprint("job", i))
					c.wg.Go(func() {
						if c.do(t.Context(), o) != nil {
							lost.Add(1)
						}
					})
				}
				synctest.Wait()
				c.release()
				c.wg.Wait()
				require.Positive(t, lost.Load())
				require.Less(t, lost.Load(), int64(ChunkJobs+10))
				require.Len(t, c.pool(), ChunkJobs+12-int(lost.Load()))
			})
		})
	}
}

// A caller that has gone is not carried out when the rest of its flight is.
func TestCommitDropsWhatWasLeft(t *testing.T) {
	t.Parallel()
	g := &Group{pending: []*Op{{ID: "c"}}}
	g.putBack([]*Op{{ID: "settled", settled: true, sent: true}, {ID: "a", sent: true}, {ID: "left", left: true, sent: true}, {ID: "b", sent: true}})
	var ids []string
	for _, o := range g.pending {
		ids = append(ids, o.ID)
		require.False(t, o.sent)
	}
	require.Equal(t, []string{"a", "b", "c"}, ids)
}
