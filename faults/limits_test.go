package faults_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/check"
	"github.com/delayq/delayq/faults/rig"
)

// most is the number of jobs that may run at the same time in the tests here.
const most = 5

// kills returns how often a test kills a server: 50 times, with -short three times.
func kills() int {
	if testing.Short() {
		return 3
	}
	return 50
}

// TestKillsKeepALimit kills one of two servers again and again while the jobs that may run at the
// same time are limited. Redis never has more leases than that. The other server then runs as many
// jobs as the limit allows, so no place is lost with its holder.
func TestKillsKeepALimit(t *testing.T) {
	for name, c := range map[string]struct {
		options []delayq.JobOption
		limits  delayq.Limits
		check   check.Limits
	}{
		"of a topic": {nil, delayq.Limits{Running: most}, check.Limits{Topic: check.Limit{Running: most}}},
		"of a key": {
			[]delayq.JobOption{delayq.Key("k")}, delayq.Limits{RunningPerKey: most}, check.Limits{Key: check.Limit{Running: most}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.options.Limits = map[string]check.Limits{"t": c.check}
			require.NoError(t, b.client.SetLimits(t.Context(), "t", c.limits))
			stop := b.background(func(ctx context.Context) { b.sample(ctx, "t") }, func(ctx context.Context) { b.feed(ctx, c.options) })
			defer stop()
			workers := []*rig.Worker{b.worker("w0"), b.worker("w1")}
			var back []time.Duration
			for i := range kills() {
				killed, other := workers[i%2], workers[(i+1)%2]
				from := rig.Mono()
				b.await("jobs of "+killed.Name(), patient, func(events []rig.Event) bool { return atOnce(events, killed.Name(), from) >= 2 })
				require.NoError(t, killed.Kill())
				from = rig.Mono()
				b.await(fmt.Sprintf("%d jobs of %s at once", most, other.Name()), patient, func(events []rig.Event) bool {
					return atOnce(events, other.Name(), from) >= most
				})
				back = append(back, time.Duration(rig.Mono()-from))
				require.NoError(t, killed.Start())
			}
			stop()
			slices.Sort(back)
			t.Logf("after %d kills, all places were in use again after %v in the median and %v at most, with a lease of %v",
				len(back), back[len(back)/2], back[len(back)-1], lease)
			report := b.judge()
			require.Greater(t, report.Limited.Samples, 10*len(back))
			require.Equal(t, most, report.Limited.Together)
		})
	}
}

// background runs functions until they are told to stop.
func (b *bench) background(all ...func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, f := range all {
		wg.Go(func() { f(ctx) })
	}
	return sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
}

// sample notes the leases of a topic as fast as Redis says them.
func (b *bench) sample(ctx context.Context, topic string) {
	for ctx.Err() == nil {
		n, byKey, err := check.Running(context.Background(), b.direct, b.prefix, topic)
		if err != nil {
			b.t.Errorf("sample: %v", err)
			return
		}
		b.rec.Record(rig.Event{Op: rig.OpSample, Topic: topic, Count: n, Keys: byKey})
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// feed keeps some jobs ready.
func (b *bench) feed(ctx context.Context, options []delayq.JobOption) {
	for i := 0; ctx.Err() == nil; {
		stats, err := rig.StatsOf(context.Background(), b.client.Inspector, "t")
		if err != nil {
			b.t.Errorf("stats: %v", err)
			return
		}
		for range 40 - stats.Ready {
			task := &rig.Task{Topic: "t", ID: fmt.Sprint(i), Steps: []string{"hang:50ms"}, Retries: -1, Options: options}
			if err := b.client.Put(context.Background(), task, false); err != nil {
				b.t.Errorf("put: %v", err)
				return
			}
			i++
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// atOnce returns how many jobs that a process has started since then it runs at the same time at
// most.
func atOnce(events []rig.Event, proc string, since int64) (found int) {
	open := 0
	for _, e := range events {
		if e.Proc != proc || e.Mono < since {
			continue
		}
		switch e.Op {
		case rig.OpStart:
			open++
			found = max(found, open)
		case rig.OpEnd:
			open = max(0, open-1) // of a job that was started before
		}
	}
	return found
}
