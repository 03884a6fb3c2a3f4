package faults_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/check"
	"github.com/delayq/delayq/faults/rig"
)

// TestKillsKeepTheOrder kills and stops three servers again and again while they run jobs of four
// keys in their order, some of which fail at first. Redis never has two leases of a key, and the
// jobs of a key run for the first time in the order in which they were enqueued.
func TestKillsKeepTheOrder(t *testing.T) {
	const keys, perFault = 4, 6
	faults := 4
	if !testing.Short() {
		faults = 50
	}
	jobs := (faults + 1) * perFault // of each key
	b := newBench(t)
	b.options.Limits = map[string]check.Limits{"t": {Key: check.Limit{Running: 1}}}
	require.NoError(t, b.client.SetLimits(t.Context(), "t", delayq.Limits{Ordered: true}))
	for i := range jobs {
		for k := range keys {
			task := &rig.Task{
				Topic: "t", ID: fmt.Sprintf("k%d/%05d", k, i), Steps: []string{"hang:20ms"}, Retries: -1,
				Options: []delayq.JobOption{delayq.Key(fmt.Sprint("k", k)), delayq.Backoff(20*time.Millisecond, time.Second)},
			}
			if (i+k)%5 == 0 {
				task.Steps = []string{"err", "panic", "ok"}
			}
			require.NoError(t, b.client.Put(t.Context(), task, false))
		}
	}

	stop := b.background(func(ctx context.Context) { b.sample(ctx, "t") })
	defer stop()
	workers := []*rig.Worker{b.worker("w0"), b.worker("w1"), b.worker("w2")}
	begun := func(least int) { // waits until so many jobs of each key have begun
		b.await(fmt.Sprintf("%d jobs of each key", least), 2*patient, func(events []rig.Event) bool {
			first := firstStarts(events)
			for _, ids := range first {
				if len(ids) < least {
					return false
				}
			}
			return len(first) == keys
		})
	}
	for i := range faults {
		begun((i + 1) * perFault)
		w := workers[i%len(workers)]
		if i%2 == 0 {
			require.NoError(t, w.Kill())
			require.NoError(t, w.Start())
			continue
		}
		require.NoError(t, w.Stop())
		begun((i+1)*perFault + perFault/2) // also of the keys whose jobs it has
		require.NoError(t, w.Cont())
	}
	b.drained(2 * patient)
	stop()
	events, err := b.history.Events()
	require.NoError(t, err)
	for key, ids := range firstStarts(events) {
		require.Len(t, ids, jobs, key)
		require.IsIncreasing(t, ids, key)
	}
	require.EqualValues(t, 1, b.judge().Limited.Together)
}

// firstStarts returns the jobs of each key in the order in which they first started.
func firstStarts(events []rig.Event) map[string][]string {
	order, seen := map[string][]string{}, map[string]bool{}
	for _, e := range events {
		if e.Op == rig.OpStart && !seen[e.ID] {
			seen[e.ID] = true
			order[e.Key] = append(order[e.Key], e.ID)
		}
	}
	return order
}
