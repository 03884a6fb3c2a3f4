package faults_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
)

// TestCancelAtTheDueTime (D1, HDT's TryIntercept): 100,000 cancels (with -short 4,000) within two
// milliseconds of the due time. Cancelled while it waited means that it never starts; not found
// means that it has run. There is no third outcome.
func TestCancelAtTheDueTime(t *testing.T) {
	b := newBench(t)
	n := 100_000
	if testing.Short() {
		n = 4000
	}
	started := make([]atomic.Bool, n)
	r := b.serve(b.direct, func(s *delayq.Server) {
		s.HandlerFunc("t", func(_ context.Context, job *delayq.Job) error {
			var i int
			_, err := fmt.Sscan(job.ID, &i)
			started[i].Store(true)
			return err
		}, delayq.Concurrency(50))
	}, delayq.Lease(time.Minute))
	var wg sync.WaitGroup
	var waiting, running, gone atomic.Int64
	states := make([]delayq.State, n)
	limit := make(chan struct{}, 64)
	for i := range n {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			job, err := b.client.Enqueue(context.Background(), "t", fmt.Sprint(i), nil, delayq.ProcessIn(5*time.Millisecond))
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(time.Until(job.Due) - time.Duration(2000-i%4000)*time.Microsecond)
			state, err := b.client.Dequeue(context.Background(), "t", job.ID)
			states[i] = state
			switch {
			case errors.Is(err, delayq.ErrNotFound):
				gone.Add(1)
				if !started[i].Load() {
					t.Errorf("job %d was not found and has not run", i)
				}
			case err != nil:
				t.Error(err)
			case state == delayq.StateRunning:
				running.Add(1)
			default:
				waiting.Add(1)
			}
		})
	}
	wg.Wait()
	b.drained(patient)
	r.end(t)
	for i, state := range states {
		if (state == delayq.StateScheduled || state == delayq.StateReady) && started[i].Load() {
			t.Errorf("job %d ran, though it was cancelled while %s", i, state)
		}
	}
	t.Logf("cancelled while waiting %d, while running %d, too late %d", waiting.Load(), running.Load(), gone.Load())
}

// TestStoppedWorkerDoesNotStartWhatItLost: a worker that stood still for several leases had taken
// jobs ahead. It does not run what others have long finished, but for the handlers that were being
// called at that very moment. (B7)
func TestStoppedWorkerDoesNotStartWhatItLost(t *testing.T) {
	b := newBench(t)
	w1 := b.worker("w1", func(c *rig.WorkerConfig) { c.Slots = 2 })
	stale := 0
	for round := range 5 {
		id := fmt.Sprintf("%d-", round)
		b.put(400, rig.Task{ID: id, Retries: -1})
		b.awaitN(1, "start", func(e rig.Event) bool { return e.Op == rig.OpStart && e.ID[:2] == id })
		require.NoError(t, w1.Stop())
		w2 := b.worker(fmt.Sprint("other", round), func(c *rig.WorkerConfig) { c.Slots = 50 })
		b.drained(patient)
		require.NoError(t, w1.Cont())
		since := rig.Mono()
		b.put(1, rig.Task{ID: id + "end", Retries: -1})
		b.drained(patient)
		for _, e := range b.events(by("w1", is(rig.OpStart, ""))) {
			if e.Mono > since && e.ID != id+"end" {
				stale++
			}
		}
		require.NoError(t, w2.Kill())
	}
	t.Logf("%d runs without a lease in 5 rounds", stale)
	require.LessOrEqual(t, stale, 5*2, "no more than one for each slot")
	require.Empty(t, b.events(by("w1", is(rig.OpSettled, "cancelled"))), "nobody cancelled anything")
	b.judge()
}
