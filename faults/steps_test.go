package faults_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
)

// A told is what a caller has learned of the end of a job.
type told struct {
	kind  int
	nonce string // of the job, as its handler gave it out
	err   error
}

// The kinds of jobs in the storm.
const (
	done      = iota // four steps
	again            // two, a failure, and the others
	dies             // two, and no retry
	cancelled        // while it runs
	kinds
)

// Workers are killed while they make steps, the connections of those who wait are reset, and their
// messages are lost for a while. Nobody misses the end of a job. No step is made again that was
// saved. That it takes ten seconds at most is held where time is not real (TestNoEndIsMissed).
func TestKilledWorkersTellWhoWaitsAndRepeatNoStep(t *testing.T) {
	b := newBench(t)
	const jobs = 32
	far := b.newProxy(b.server.Addr())
	caller := delayq.NewClient(b.through(far), delayq.Prefix(b.prefix))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	var mu sync.Mutex
	var list []told
	var waiting sync.WaitGroup
	for i := range jobs {
		kind, id := i%kinds, fmt.Sprint("j", i)
		steps := [...]string{`"steps:400ms"`, `"half:100ms","steps:200ms"`, `"half:200ms"`, `"steps:1m"`}[kind]
		payload := fmt.Appendf(nil, `{"inc":%d,"steps":[%s]}`, i+1, steps)
		opts := []delayq.JobOption{delayq.Backoff(100*time.Millisecond, time.Second)}
		if kind == dies {
			opts = append(opts, delayq.Retry(0))
		}
		waiting.Go(func() {
			r, err := caller.Call(ctx, "t", id, payload, opts...)
			known := told{kind: kind, err: err}
			if err == nil {
				known.nonce = string(r.Output)
			}
			mu.Lock()
			defer mu.Unlock()
			list = append(list, known)
		})
	}
	workers := []*rig.Worker{b.worker("w1"), b.worker("w2")}
	for kill := range 6 {
		w := b.busy(workers, 3, "step", rig.Mono(), func(e rig.Event) bool {
			return e.Op == rig.OpStep && e.Type == rig.Invoke
		})
		require.NoError(t, w.Kill())
		if kill%2 == 0 {
			far.Reset()
		}
		require.NoError(t, w.Start())
		slices.Reverse(workers)
	}
	far.Mute() // from here on they learn by their looks
	for i := cancelled; i < jobs; i += kinds {
		_, err := b.client.Dequeue(ctx, "t", fmt.Sprint("j", i))
		require.NoError(t, err)
	}
	waiting.Wait() // no longer than ctx
	far.Heal()
	require.Len(t, list, jobs)
	for _, known := range list {
		switch known.kind {
		case done, again:
			require.NoError(t, known.err)
			require.Len(t, known.nonce, 2*8, "the output is that of the job")
		case dies:
			require.ErrorIs(t, known.err, delayq.ErrDead)
		case cancelled:
			require.ErrorIs(t, known.err, delayq.ErrCancelled)
		}
	}
	require.NotZero(t, far.Dropped(), "messages were lost")
	b.stepsAreMadeOnce(jobs)
	b.drained(patient)
}

// stepsAreMadeOnce looks at what the runs say of their steps, beside the rules of the checker.
func (b *bench) stepsAreMadeOnce(jobs int) {
	b.t.Helper()
	saved, keys, known, repeated := map[string]bool{}, map[string]string{}, 0, 0
	for _, e := range b.events(func(e rig.Event) bool { return e.Op == rig.OpStep }) {
		step := fmt.Sprint(e.ID, " ", e.Nonce, " ", e.Count)
		require.Empty(b.t, e.Err, step)
		nonce, err := hex.DecodeString(e.Nonce)
		require.NoError(b.t, err)
		require.Len(b.t, nonce, 8)
		switch {
		case e.Type == rig.Invoke:
			require.False(b.t, saved[step], "%s is made again", step)
			if keys[step] != "" {
				repeated++
				require.Equal(b.t, keys[step], e.Sum, "%s has another key", step)
			}
			keys[step] = e.Sum
		case e.Result == rig.StepKnown:
			known++
		default:
			saved[step] = true
		}
	}
	require.Greater(b.t, len(saved), jobs)
	b.t.Logf("%d steps were known to later runs, %d were made again: TestKillAtEachLineOfAStep has each", known, repeated)
}
