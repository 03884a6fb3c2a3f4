package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// What cancelled jobs leave behind in ready takes no place on a page and counts for no offset.
func TestListPagesAreFull(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		enqueueMany(f, 1500, "gone")
		for i := range 1500 {
			f.Dequeue(fmt.Sprint("gone", i))
		}
		var live []string
		for i := range 10 {
			live = append(live, fmt.Sprint("live", i))
			f.Enqueue(live[i])
		}
		// One of those IDs stands in front too: it counts where it will be taken first.
		require.NoError(t, f.RDB.LPush(t.Context(), f.Key("ready"), live[7], "").Err())
		live = slices.Concat(live[7:8], live[:7], live[8:])

		for _, size := range []int{1, 3, 10, 1000} {
			var got []string
			for {
				page, err := f.Client.List(t.Context(), "topic", delayq.ListQuery{State: delayq.StateReady, Offset: len(got), Limit: size})
				require.NoError(t, err)
				got = append(got, queuetest.InfoIDs(page)...)
				if len(page) < size {
					break
				}
			}
			require.Equal(t, live, got, "in pages of %d", size)
		}
	})
}

// A page has no gaps where the bucket or the dead name jobs that are not there, or not in this
// state.
func TestListPagesHaveNoGaps(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		places := make([]redis.Z, 1200)
		for i := range places {
			places[i] = redis.Z{Score: float64(i), Member: fmt.Sprint("nobody", i)}
		}
		for key, state := range map[string]delayq.State{"bucket": delayq.StateScheduled, "dead": delayq.StateDead} {
			f.Enqueue(key, delayq.ProcessIn(time.Hour))
			require.NoError(t, f.RDB.ZAdd(t.Context(), f.Key(key), append(places, redis.Z{Score: -1, Member: key})...).Err())
			if state == delayq.StateScheduled { // by due time: the job is the last one
				require.NoError(t, f.RDB.ZAdd(t.Context(), f.Key(key), redis.Z{Score: 2000, Member: key}).Err())
			}
			page, err := f.Client.List(t.Context(), "topic", delayq.ListQuery{State: state, Limit: 1})
			require.NoError(t, err)
			require.Equal(t, []string{key}, queuetest.InfoIDs(page), "%s", state)
		}
	})
}

// One call of a script reads about 1 MiB of records and one job.
func TestListReadsAMebibyteAtATime(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		calls := map[string]int{}
		f := queuetest.NewFixture(t, rdb, delayq.Hooks(scriptHook(func(e delayq.ScriptEvent) { calls[e.Name]++ })))
		const jobs, size = 60, 100 << 10
		for i := range jobs {
			_, err := f.Client.Enqueue(t.Context(), "topic", fmt.Sprint(i), make([]byte, size), delayq.ProcessIn(time.Hour))
			require.NoError(t, err)
		}
		for _, payload := range []bool{false, true} {
			clear(calls)
			list, err := f.Client.List(t.Context(), "topic", delayq.ListQuery{State: delayq.StateScheduled, Limit: 1000, Payload: payload})
			require.NoError(t, err)
			require.Len(t, list, jobs)
			require.Equal(t, map[string]int{"list": 1, "get": jobs / (1 << 20 / size)}, calls)
		}
	})
}

// A query without a limit returns a page of 100 jobs.
func TestListHasADefaultLimit(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		enqueueMany(f, 101, "x")
		page, err := f.Client.List(t.Context(), "topic", delayq.ListQuery{State: delayq.StateReady})
		require.NoError(t, err)
		require.Len(t, page, 100)
	})
}

// A scriptHook is a function that is a ScriptHook.
type scriptHook func(delayq.ScriptEvent)

func (f scriptHook) Script(e delayq.ScriptEvent) { f(e) }

// The recipe of docs/operations.md removes all wrong jobs and no other, however many there are and
// whatever cancelled ones have left behind.
func TestRecipeForWrongJobs(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("right-0")
		enqueueMany(f, 1500, "wrong-a")
		f.Enqueue("right-1")
		enqueueMany(f, 1500, "wrong-b")
		enqueueMany(f, 1100, "wrong-later", delayq.ProcessIn(time.Hour))
		f.Enqueue("right-2", delayq.ProcessIn(2*time.Hour))
		wrong := func(job *delayq.JobInfo) bool { return strings.HasPrefix(job.ID, "wrong") }
		for _, state := range []delayq.State{delayq.StateScheduled, delayq.StateReady} {
			require.NoError(t, cancelWrong(t.Context(), f.Client, "topic", state, wrong))
		}
		info := f.Stats()
		require.EqualValues(t, 2, info.Ready)
		require.EqualValues(t, 1, info.Scheduled)
		for i := range 3 {
			f.Get(fmt.Sprint("right-", i))
		}
	})
}

// cancelWrong is what docs/operations.md says; TestProseRecipeIsTheTest compares the two.
func cancelWrong(ctx context.Context, client *delayq.Client, topic string, state delayq.State, wrong func(*delayq.JobInfo) bool) error {
	for kept := 0; ; {
		page, err := client.List(ctx, topic, delayq.ListQuery{State: state, Offset: kept, Limit: 1000})
		if err != nil || len(page) == 0 {
			return err
		}
		for _, job := range page {
			if !wrong(job) {
				kept++ // the next page begins behind it
				continue
			}
			_, err := client.Dequeue(ctx, topic, job.ID)
			if err != nil && !errors.Is(err, delayq.ErrNotFound) {
				return err
			}
		}
	}
}

// enqueueMany stores n jobs whose IDs are name and a number from 0.
func enqueueMany(f *queuetest.Fixture, n int, name string, opts ...delayq.JobOption) {
	f.T.Helper()
	jobs := make([]delayq.NewJob, n)
	for i := range jobs {
		jobs[i] = delayq.NewJob{Topic: "topic", ID: fmt.Sprint(name, i), Options: opts}
	}
	_, err := f.Client.EnqueueBatch(f.T.Context(), jobs)
	require.NoError(f.T, err)
}
