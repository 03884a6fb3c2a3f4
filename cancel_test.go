package delayq_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// Dequeue works in every state, tells it, and leaves nothing of the job behind. Whoever was running
// it can write nothing any more. (D2, D3, D7)
func TestDequeueInEveryState(t *testing.T) {
	eachLife(t, func(t *testing.T, f *fixture, state delayq.State, lease delayq.Held) {
		before := f.Dump()
		got, err := f.Client.Dequeue(t.Context(), "topic", "x")
		if state == "" {
			require.ErrorIs(t, err, delayq.ErrNotFound)
			require.ErrorContains(t, err, `"topic"`)
			require.Empty(t, got)
			require.Equal(t, before, f.Dump(), "nothing was written")
			return
		}
		require.NoError(t, err)
		require.Equal(t, state, got)
		_, err = f.Client.Get(t.Context(), "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)

		if lease.ID != "" {
			for _, letter := range []string{
				f.hand.Ack(lease), f.hand.Retry(0, lease), f.hand.Snooze(0, lease), f.hand.Bury(lease), f.hand.Return(lease),
			} {
				require.Equal(t, "g", letter, "lost, because it is gone")
			}
		}
		f.hand.Hasten(24 * time.Hour)
		f.hand.Promote()
		require.Empty(t, f.hand.Take(10, time.Minute), "it ran")
		require.Empty(t, f.hand.Traces("x"))
		for key := range f.Dump() {
			require.Equal(t, f.Key("stats"), key, "left over")
		}
		_, err = f.Client.Dequeue(t.Context(), "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
	})
}

func TestDequeueCountsOnce(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		f.Enqueue("x")
		f.Dequeue("x")
		_, err := f.Client.Dequeue(t.Context(), "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
		info, err := f.Client.Inspect(t.Context(), "topic")
		require.NoError(t, err)
		require.EqualValues(t, 1, info.Counters["cancelled"])
	})
}

func TestDequeueOfOneLeavesTheOthers(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		for i := range 5 {
			f.Enqueue(fmt.Sprint("ready", i))
			f.Enqueue(fmt.Sprint("scheduled", i), delayq.ProcessIn(time.Hour))
		}
		f.Dequeue("ready2")
		f.Dequeue("scheduled2")
		f.hand.Hasten(2 * time.Hour)
		f.hand.Promote()
		var ids []string
		for _, held := range f.hand.Take(100, time.Minute) {
			ids = append(ids, held.ID)
		}
		require.ElementsMatch(t, []string{
			"ready0", "ready1", "ready3", "ready4", "scheduled0", "scheduled1", "scheduled3", "scheduled4",
		}, ids)
	})
}

// Cancel races with the taking of a job: it runs if and only if the cancel says that it was
// running. (D1)
func TestDequeueRacesWithTake(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		const n = 200
		for i := range n {
			f.Enqueue(fmt.Sprint(i))
		}
		states := make([]delayq.State, n)
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range n {
				state, err := f.Client.Dequeue(t.Context(), "topic", fmt.Sprint(n-1-i))
				if err != nil {
					t.Error(err)
				}
				states[n-1-i] = state
			}
		})
		taken := map[string]delayq.Held{}
		for range n {
			for _, held := range f.hand.Take(2, time.Minute) {
				taken[held.ID] = held
			}
		}
		wg.Wait()
		for i, state := range states {
			held, ran := taken[fmt.Sprint(i)]
			require.Equal(t, ran, state == delayq.StateRunning, "job %d was %s", i, state)
			require.Contains(t, []delayq.State{delayq.StateReady, delayq.StateRunning}, state)
			if ran {
				require.Equal(t, "g", f.hand.Ack(held))
			}
		}
		require.Empty(t, f.hand.Take(n, time.Minute))
	})
}

func TestDequeueAmongMany(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		jobs := make([]delayq.NewJob, 3000)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "topic", ID: fmt.Sprint(i)}
			if i%2 == 0 {
				jobs[i].Options = []delayq.JobOption{delayq.ProcessIn(time.Hour)}
			}
		}
		_, err := f.Client.EnqueueBatch(t.Context(), jobs)
		require.NoError(t, err)
		require.Equal(t, delayq.StateScheduled, f.Dequeue("1500"))
		require.Equal(t, delayq.StateReady, f.Dequeue("1501"))
		info, err := f.Client.Inspect(t.Context(), "topic")
		require.NoError(t, err)
		require.EqualValues(t, 1499, info.Scheduled)
		require.EqualValues(t, 1499, info.Ready)
	})
}
