package delayqtest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// A topic can be divided in a test, before its server starts or while it runs. Every job runs at
// its own due time, those that were there before too, and the test sees one topic.
func TestAdvanceRunsPartitions(t *testing.T) {
	for name, opts := range map[string][]delayq.PartitionOption{"by ID": nil, "by key": {delayq.ByKey()}} {
		t.Run(name, func(t *testing.T) {
			q := delayqtest.Start(t)
			start := q.Now()
			due := func(i int) time.Time { return start.Add(time.Duration(i) * time.Minute) }
			store := func(from, to int) {
				for i := from; i < to; i++ {
					_, err := q.Client.Enqueue(t.Context(), "mail", fmt.Sprint(i), nil, delayq.ProcessAt(due(i)), delayq.Key(fmt.Sprint("user", i%5)))
					require.NoError(t, err)
				}
			}
			store(0, 8)
			require.NoError(t, q.Client.Partition(t.Context(), "mail", 3, opts...))
			store(8, 12)
			var mu sync.Mutex
			var ran []string
			q.Serve(func(s *delayq.Server) {
				s.HandlerFunc("mail", func(_ context.Context, job *delayq.Job) error {
					mu.Lock()
					defer mu.Unlock()
					ran = append(ran, fmt.Sprintf("%s.%d of %s after %v", job.ID, job.Attempt, job.Topic, q.Now().Sub(start)))
					if job.ID == "7" && job.Attempt == 1 {
						return delayq.RetryIn(90*time.Second, errors.New("not yet"))
					}
					return nil
				})
			})
			require.NoError(t, q.Client.Partition(t.Context(), "mail", 4, opts...))
			store(12, 20)
			_, err := q.Client.Enqueue(t.Context(), "mail", "7", nil, delayq.Key("user2"))
			require.ErrorIs(t, err, delayq.ErrDuplicate)
			require.Len(t, q.Scheduled("mail"), 20-1, "the first one is due")
			for _, i := range []int{3, 9, 19} {
				q.AssertScheduled("mail", fmt.Sprint(i), due(i))
			}

			var want []string
			for i := range 20 {
				want = append(want, fmt.Sprintf("%d.1 of mail after %v", i, time.Duration(i)*time.Minute))
				if i == 8 {
					want = append(want, "7.2 of mail after 8m30s")
				}
			}
			q.Advance(19*time.Minute - time.Millisecond)
			require.Equal(t, want[:20], ran)
			q.AssertState("mail", "19", delayq.StateScheduled)
			q.Advance(time.Millisecond)
			require.Equal(t, want, ran)
			q.AssertNone("mail")
		})
	}
}

// Whoever waits for a job of a partition learns how it has ended, however far the clock moves.
func TestWaitInPartitionsThroughAdvance(t *testing.T) {
	looked, stored := after("wait"), after("enqueue")
	q := delayqtest.Start(t, delayq.Hooks(looked, stored))
	q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("mail", func(_ context.Context, job *delayq.Job) error { return job.SetOutput([]byte("of " + job.ID)) })
	})
	require.NoError(t, q.Client.Partition(t.Context(), "mail", 3))
	_, err := q.Client.Enqueue(t.Context(), "mail", "x", nil, delayq.ProcessIn(30*24*time.Hour))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	end := make(chan waited, 1)
	go func() {
		result, err := q.Client.Wait(ctx, "mail", "x")
		end <- waited{result, err}
	}()
	<-looked.made // the topic itself, which says that the job is elsewhere
	<-looked.made // the partition
	q.Advance(31 * 24 * time.Hour)
	w := <-end
	require.NoError(t, w.err)
	require.Equal(t, "of x", string(w.result.Output))
}

// What has a limit in a partition starts at the millisecond that its share allows. All of them
// together keep to the rate of the topic.
func TestAdvanceKnowsTheRateOfPartitions(t *testing.T) {
	q := delayqtest.Start(t)
	start := q.Now()
	require.NoError(t, q.Client.SetLimits(t.Context(), "mail", delayq.Limits{Rate: delayq.Per(6, time.Hour).Burst(1)}))
	require.NoError(t, q.Client.Partition(t.Context(), "mail", 2))
	var mu sync.Mutex
	ran, total := map[time.Duration]int{}, 0
	q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("mail", func(context.Context, *delayq.Job) error {
			mu.Lock()
			defer mu.Unlock()
			ran[q.Now().Sub(start)]++
			total++
			return nil
		})
	})
	for i := range 40 {
		_, err := q.Client.Enqueue(t.Context(), "mail", fmt.Sprint(i), nil)
		require.NoError(t, err)
	}
	q.Advance(10 * time.Hour)
	require.Equal(t, 2, ran[0], "each partition has a burst of one: %v", ran)
	require.LessOrEqual(t, total, 62, "%v", ran)
	require.Greater(t, total, 36, "%v", ran)
	for at := range ran {
		require.Zero(t, at%(10*time.Minute), "%v", ran)
	}
}

// A hold that a handler returns is one of the partition of its job: of all jobs there, or of those
// of a key. By key, these are all jobs of the key. A hold of a client is one of all partitions.
func TestHoldsInPartitions(t *testing.T) {
	for name, c := range map[string]struct {
		opts   []delayq.PartitionOption
		held   error             // what the first run returns
		reason delayq.ReasonCode // of the jobs that wait for it
		all    bool              // the jobs of the key are in one partition
	}{
		"topic":       {held: delayq.Hold(time.Hour), reason: delayq.ReasonTopicHeld},
		"key":         {held: delayq.HoldKey(time.Hour), reason: delayq.ReasonKeyHeld},
		"key, by key": {opts: []delayq.PartitionOption{delayq.ByKey()}, held: delayq.HoldKey(time.Hour), reason: delayq.ReasonKeyHeld, all: true},
	} {
		t.Run(name, func(t *testing.T) {
			q := delayqtest.Start(t)
			require.NoError(t, q.Client.SetLimits(t.Context(), "mail", delayq.Limits{Running: 4})) // none is taken ahead
			require.NoError(t, q.Client.Partition(t.Context(), "mail", 3, c.opts...))
			var mu sync.Mutex
			holder, ran := "", map[string]bool{}
			q.Serve(func(s *delayq.Server) {
				s.HandlerFunc("mail", func(_ context.Context, job *delayq.Job) error {
					mu.Lock()
					defer mu.Unlock()
					if holder == "" {
						holder = job.ID
						return c.held
					}
					ran[job.ID] = true
					return nil
				}, delayq.Concurrency(1))
			})
			where := map[string]delayq.PartitionRef{}
			explain := func(id string) *delayq.Explanation {
				e, err := q.Inspector.Explain(t.Context(), "mail", id)
				require.NoError(t, err)
				return e
			}
			for i := range 30 {
				id := fmt.Sprint(i)
				_, err := q.Client.Enqueue(t.Context(), "mail", id, nil, delayq.ProcessIn(time.Minute), delayq.Key("user"))
				require.NoError(t, err)
				where[id] = explain(id).Partition
			}
			q.Advance(time.Minute)
			for id, at := range where {
				require.Equal(t, at != where[holder], ran[id], id)
				if !ran[id] {
					require.Equal(t, c.reason, explain(id).Reasons[0].Code)
				}
			}
			require.Equal(t, c.all, len(ran) == 0)
			q.Advance(time.Hour)
			q.AssertNone("mail")

			require.NoError(t, q.Client.HoldKey(t.Context(), "mail", "user", time.Hour))
			for i := range 30 {
				_, err := q.Client.Enqueue(t.Context(), "mail", fmt.Sprint(i), nil, delayq.Key("user"))
				require.NoError(t, err)
			}
			clear(ran)
			q.Advance(time.Hour - time.Millisecond)
			require.Empty(t, ran)
			q.Advance(time.Millisecond)
			require.Len(t, ran, 30)
		})
	}
}
