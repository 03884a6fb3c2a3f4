package faults_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/check"
	"github.com/delayq/delayq/faults/rig"
)

// TestKilledWorkerLosesNothing (A1, A19, C3, C5): W1 is killed while its handlers run and further
// jobs are in its hands; W2, started before and never restarted, finishes all of them within the
// lease and the tick.
func TestKilledWorkerLosesNothing(t *testing.T) {
	b := newBench(t)
	w1 := b.worker("w1")
	b.worker("w2")
	b.awaitN(2, "up", is(rig.OpUp, ""))
	b.put(100, rig.Task{Steps: []string{"hang:300ms"}, Retries: -1})
	b.awaitN(10, "start", by("w1", is(rig.OpStart, "")))
	b.awaitN(1, "start", by("w2", is(rig.OpStart, "")))
	require.NoError(t, w1.Kill())
	killed := rig.Mono()
	b.drained(patient)
	report := b.judge()
	require.Equal(t, 100, report.Finished)
	last := time.Duration(0)
	for _, e := range b.events(is(rig.OpStart, "")) {
		if e.Attempt == 2 {
			last = max(last, time.Duration(e.Mono-killed))
		}
	}
	t.Logf("the last rerun began %v after the kill, with a lease of %v", last, lease)
	require.Positive(t, last)
}

// TestCrashCountsAsAttempt (M2, M3): the run that a kill cut off is attempt 1; with no retry left
// the job is buried, not run again.
func TestCrashCountsAsAttempt(t *testing.T) {
	b := newBench(t)
	w1 := b.worker("w1")
	b.put(1, rig.Task{ID: "any", Steps: []string{"hang:5s", "ok"}, Retries: -1})
	b.put(1, rig.Task{ID: "one", Steps: []string{"hang:5s", "ok"}, Retries: 1})
	b.put(1, rig.Task{ID: "none", Steps: []string{"hang:5s", "ok"}, Retries: 0})
	b.awaitN(3, "start", is(rig.OpStart, ""))
	require.NoError(t, w1.Kill())
	b.worker("w2")
	b.awaitN(2, "ack", by("w2", is(rig.OpSettled, "acked")))
	b.awaitN(1, "bury", by("w2", is(rig.OpSettled, "buried")))
	for _, e := range b.events(by("w2", is(rig.OpStart, ""))) {
		require.Equal(t, 2, e.Attempt)
		require.NotEqual(t, "none", e.ID)
	}
	info, err := b.client.Get(t.Context(), "t", "none")
	require.NoError(t, err)
	require.Equal(t, delayq.StateDead, info.State)
	require.Equal(t, delayq.KindLeaseLost, info.Errors[0].Kind)
	b.judge()
}

// TestPoisonStopsKilling (I1, sidekiq#4633): a job that ends its process is run again by a
// supervisor's next process, a bounded number of times; the others finish.
func TestPoisonStopsKilling(t *testing.T) {
	b := newBench(t)
	b.put(20, rig.Task{ID: "good", Steps: []string{"hang:50ms"}, Retries: -1})
	b.put(1, rig.Task{ID: "poison", Steps: []string{"exit"}, Retries: 2})
	w := b.worker("w")
	ends := 0
	for done := false; !done; {
		select {
		case <-w.Ended():
			require.Equal(t, 3, w.Code())
			b.fault("exit")()
			ends++
			require.LessOrEqual(t, ends, 3)
			require.NoError(t, w.Start())
		case <-time.After(50 * time.Millisecond):
			info, err := b.client.Get(t.Context(), "t", "poison")
			require.NoError(t, err)
			done = info.State == delayq.StateDead
		}
	}
	require.Equal(t, 3, ends)
	report := b.judge()
	require.Equal(t, 20, report.Finished)
	require.Equal(t, 1, report.Dead)
}

// TestStoppedWorkerIsFenced (B7, D15, bull#308): W1 stands still for three leases while W2 runs its
// jobs. When W1 goes on, whatever it says is refused, and the contexts of handlers that still run
// end with ErrLeaseLost.
func TestStoppedWorkerIsFenced(t *testing.T) {
	b := newBench(t)
	w1 := b.worker("w1")
	b.put(4, rig.Task{ID: "ok", Steps: []string{"deaf:500ms", "ok"}, Retries: -1})
	b.put(4, rig.Task{ID: "long", Steps: []string{"hang:1m", "ok"}, Retries: -1})
	b.awaitN(8, "start", is(rig.OpStart, ""))
	require.NoError(t, w1.Stop())
	b.worker("w2")
	b.awaitN(8, "ack", by("w2", is(rig.OpSettled, "acked")))
	require.NoError(t, w1.Cont())
	b.awaitN(8, "lease_lost", by("w1", is(rig.OpSettled, "lease_lost")))
	b.awaitN(4, "lost context", by("w1", func(e rig.Event) bool {
		return e.Op == rig.OpLost && e.Result == "lease_lost" && strings.HasPrefix(e.ID, "long")
	}))
	report := b.judge()
	require.Equal(t, 16, report.Runs)
}

// TestStoppedWorkerDoesNotTouchTheNextIncarnation (D15, I9): while W1 stands still its job is
// cancelled and its ID enqueued again for later. What W1 says when it goes on does not concern the
// new job.
func TestStoppedWorkerDoesNotTouchTheNextIncarnation(t *testing.T) {
	b := newBench(t)
	w1 := b.worker("w1")
	old := b.put(1, rig.Task{ID: "j", Steps: []string{"deaf:300ms"}, Retries: -1})[0]
	b.awaitN(1, "start", is(rig.OpStart, ""))
	require.NoError(t, w1.Stop())
	_, err := b.client.Cancel(t.Context(), old)
	require.NoError(t, err)
	fresh := b.put(1, rig.Task{ID: "j", Delay: time.Hour, Retries: -1})[0]
	require.NoError(t, w1.Cont())
	b.awaitN(1, "end", by("w1", is(rig.OpSettled, "cancelled")))
	info, err := b.client.Get(t.Context(), "t", "j")
	require.NoError(t, err)
	require.Equal(t, delayq.StateScheduled, info.State)
	require.Greater(t, time.Until(info.Due), 50*time.Minute)
	_, err = b.client.Cancel(t.Context(), fresh)
	require.NoError(t, err)
	b.judge()
}

// TestCancelOfAnOrphan (D5, asynq#420): the worker is dead, the job still leased: cancel takes it
// out, and it never runs again.
func TestCancelOfAnOrphan(t *testing.T) {
	b := newBench(t)
	w1 := b.worker("w1")
	task := b.put(1, rig.Task{ID: "j", Steps: []string{"hang:5s"}, Retries: -1})[0]
	b.awaitN(1, "start", is(rig.OpStart, ""))
	require.NoError(t, w1.Kill())
	state, err := b.client.Cancel(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, delayq.StateRunning, state)
	b.worker("w2")
	b.put(1, rig.Task{ID: "after", Delay: 2 * lease, Retries: -1})
	b.awaitN(1, "ack", is(rig.OpSettled, "acked"))
	require.Len(t, b.events(func(e rig.Event) bool { return e.Op == rig.OpStart && e.ID == "j" }), 1)
	b.judge()
}

// TestNewWorkerLeavesOthersJobsAlone (B10): W2 starts while W1 holds ten jobs for several leases.
func TestNewWorkerLeavesOthersJobsAlone(t *testing.T) {
	b := newBench(t)
	b.worker("w1")
	b.put(10, rig.Task{Steps: []string{"hang:3s"}, Retries: -1}) // B12: three times the lease
	b.awaitN(10, "start", is(rig.OpStart, ""))
	b.worker("w2")
	b.awaitN(10, "ack", by("w1", is(rig.OpSettled, "acked")))
	require.Equal(t, 10, b.judge().Runs)
}

// TestRedisCrashLosesNothing (A9, A10, A11, C14): Redis is killed and comes back. What was due
// before, during and after the outage runs, with workers that were not restarted and never early.
func TestRedisCrashLosesNothing(t *testing.T) {
	b := newBench(t)
	w := b.worker("w")
	b.put(5, rig.Task{ID: "running", Steps: []string{"hang:2s"}, Retries: -1})
	b.awaitN(5, "start", is(rig.OpStart, ""))
	b.put(20, rig.Task{ID: "during", Delay: time.Second, Retries: -1})
	b.put(20, rig.Task{ID: "after", Delay: 4 * time.Second, Retries: -1})
	heal := b.fault("redis kill")
	require.NoError(t, b.server.Kill())
	time.Sleep(1500 * time.Millisecond) // the length of the outage is the fault
	require.NoError(t, b.server.Restart())
	back := rig.Mono()
	heal()
	b.awaitN(40, "ack", func(e rig.Event) bool {
		return e.Op == rig.OpSettled && e.Result == "acked" && !strings.HasPrefix(e.ID, "running")
	})
	for _, e := range b.events(is(rig.OpStart, "")) {
		if strings.HasPrefix(e.ID, "during") {
			require.Less(t, time.Duration(e.Mono-back), 5*time.Second)
		}
	}
	report := b.judge()
	require.Equal(t, 45, report.Finished)
	require.Equal(t, 1, errorsIn(w.Log(), "redis away"), "trouble is logged once when it begins")
	eventually(t, "a word when it ends", patient, func() bool { return errorsIn(w.Log(), "redis back") == 1 })
}

// TestDueWhileEverythingIsDown (A11, A12, A20): neither Redis nor a worker runs when the job falls
// due.
func TestDueWhileEverythingIsDown(t *testing.T) {
	b := newBench(t)
	w := b.worker("w1")
	b.put(5, rig.Task{Delay: time.Second, Retries: -1})
	require.NoError(t, w.Kill())
	heal := b.fault("redis kill")
	require.NoError(t, b.server.Kill())
	time.Sleep(1500 * time.Millisecond) // past the due time
	require.NoError(t, b.server.Restart())
	heal()
	b.worker("w2")
	b.awaitN(5, "ack", is(rig.OpSettled, "acked"))
	require.Equal(t, 5, b.judge().Runs)
}

// TestRedisWithoutPersistenceStartsEmpty (J13, J12, asynq#650): all jobs are gone, which the log
// announced at the start. Running workers go on with what comes next.
func TestRedisWithoutPersistenceStartsEmpty(t *testing.T) {
	b := newBench(t, "--appendonly", "no")
	w := b.worker("w")
	b.put(1, rig.Task{ID: "before", Retries: -1})
	b.awaitN(1, "ack", is(rig.OpSettled, "acked"))
	require.Contains(t, w.Log(), "append-only file")
	require.NoError(t, b.server.Kill())
	require.NoError(t, b.server.Restart())
	b.put(10, rig.Task{ID: "after", Retries: -1})
	b.awaitN(11, "ack", is(rig.OpSettled, "acked"))
}

// TestFlushallUnderALiveWorker (J12, bull#2609): running handlers end their leases, new jobs run.
func TestFlushallUnderALiveWorker(t *testing.T) {
	b := newBench(t)
	b.worker("w")
	b.put(5, rig.Task{ID: "before", Steps: []string{"hang:10s"}, Retries: -1})
	b.awaitN(5, "start", is(rig.OpStart, ""))
	require.NoError(t, b.direct.FlushAll(t.Context()).Err())
	b.awaitN(5, "end of context", is(rig.OpLost, ""))
	b.put(10, rig.Task{ID: "after", Retries: -1})
	b.awaitN(10, "ack", is(rig.OpSettled, "acked"))
	b.drained(patient)
}

// TestScriptFlushIsNotNoticed (J1, go-redis#3228): the script cache is emptied every 10 ms under
// load.
func TestScriptFlushIsNotNoticed(t *testing.T) {
	b := newBench(t)
	w := b.worker("w")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = b.direct.ScriptFlush(ctx).Err()
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	for i := range 20 {
		b.put(100, rig.Task{ID: fmt.Sprintf("%d-", i), Retries: -1})
	}
	b.awaitN(2000, "ack", is(rig.OpSettled, "acked"))
	stop()
	<-done
	require.Equal(t, 2000, b.judge().Runs)
	require.Zero(t, errorsIn(w.Log(), "NOSCRIPT"))
}

// TestRecordDeletedByHandIsDropped (J5, C1): a record is gone (evicted, deleted); its ID leaves all
// places by itself, and others go on.
func TestRecordDeletedByHandIsDropped(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	b.put(1, rig.Task{ID: "ready", Retries: -1})
	b.put(1, rig.Task{ID: "scheduled", Delay: 500 * time.Millisecond, Retries: -1})
	root := b.prefix + ":{t}:"
	require.NoError(t, b.direct.HDel(ctx, root+"pool", "ready", "scheduled").Err())
	require.NoError(t, b.direct.ZAdd(ctx, root+"leases", redis.Z{Score: 1, Member: "leased"}).Err())
	b.worker("w")
	b.put(1, rig.Task{ID: "good", Delay: time.Second, Retries: -1})
	b.awaitN(1, "ack", is(rig.OpSettled, "acked"))
	b.drained(patient)
	state, err := check.Read(ctx, b.direct, b.prefix)
	require.NoError(t, err)
	found, _ := check.Census(state)
	require.Empty(t, found)
	info, err := rig.StatsOf(ctx, b.client.Inspector, "t")
	require.NoError(t, err)
	require.EqualValues(t, 1, info.Counters["dropped"], "the leased one; an ID that waits without a record is what every cancel leaves")
}

// TestLostLeasesKeyIsMended (C1, asynq#1144): the whole key of leases is deleted under load. The
// handlers end, nothing else is disturbed, and a server finds the jobs that are in no place any
// more and puts them back: they run again to their end.
func TestLostLeasesKeyIsMended(t *testing.T) {
	b := newBench(t)
	b.worker("w")
	b.put(5, rig.Task{Steps: []string{"hang:700ms", "ok"}, Retries: -1})
	b.awaitN(5, "start", is(rig.OpStart, ""))
	heal := b.fault("leases deleted")
	require.NoError(t, b.direct.Del(t.Context(), b.prefix+":{t}:leases").Err())
	defer heal()
	b.awaitN(5, "lease_lost", is(rig.OpSettled, "lease_lost"))
	b.put(5, rig.Task{ID: "after", Retries: -1})
	b.awaitN(10, "ack", is(rig.OpSettled, "acked"))
	state, err := check.Read(t.Context(), b.direct, b.prefix)
	require.NoError(t, err)
	require.Empty(t, state.Topics["t"].Pool)
}
