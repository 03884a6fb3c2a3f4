package faults_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
)

// The fault that separates queues: a request is carried out and its reply is lost. Each test loses
// the reply of one script and says what must not come of it.

// TestLostReplyOfTakeDoesNotCostTheLease (A4, B4): the server asks again with the same number and
// gets the same jobs at once.
func TestLostReplyOfTakeDoesNotCostTheLease(t *testing.T) {
	b := newBench(t)
	trap := b.proxy.DropReply(rig.Script("take"))
	b.worker("w", func(c *rig.WorkerConfig) { c.Lease = time.Minute })
	b.put(10, rig.Task{Retries: -1})
	<-trap.Hit()
	defer b.fault("drop take")()
	starts := b.awaitN(10, "start", is(rig.OpStart, ""))
	for _, e := range starts {
		require.Equal(t, 1, e.Attempt)
	}
	report := b.judge()
	require.Equal(t, 10, report.Runs)
}

// TestLostRepliesOfTakeLoseNothing (A2): one in twenty for 10,000 jobs.
func TestLostRepliesOfTakeLoseNothing(t *testing.T) {
	b := newBench(t)
	trap := b.proxy.DropReplies(rig.Every(20, rig.Script("take")))
	defer b.fault("drop take")()
	b.worker("w", func(c *rig.WorkerConfig) { c.Slots = 4; c.Lease = 30 * time.Second })
	for i := range 10 {
		b.put(1000, rig.Task{ID: fmt.Sprintf("%d-", i), Retries: -1})
	}
	b.awaitN(10_000, "end", is(rig.OpSettled, "acked"))
	require.Positive(t, trap.Count())
	require.Equal(t, 10_000, b.judge().Runs, "none has to wait for the end of its lease and run again")
}

// TestLostReplyOfEnqueueMakesOneJob (B2, B3, B4, sidekiq#3303): for an ID of one's own, a generated
// one and a batch. The call succeeds: it is no conflict with itself.
func TestLostReplyOfEnqueueMakesOneJob(t *testing.T) {
	b := newBench(t)
	client := delayq.NewClient(b.through(b.proxy), delayq.Prefix(b.prefix))
	ctx := t.Context()
	for _, id := range []string{"mine", ""} {
		trap := b.proxy.DropReply(rig.Script("enqueue", "enqueue_now"))
		job, err := client.Enqueue(ctx, "t", id, []byte("x"))
		require.NoError(t, err)
		require.Equal(t, 1, trap.Count())
		require.NotEmpty(t, job.ID)
	}
	trap := b.proxy.DropReply(rig.Script("enqueue"))
	results, err := client.EnqueueBatch(ctx, []delayq.NewJob{{Topic: "t", ID: "a"}, {Topic: "t", ID: "b"}, {Topic: "t", ID: "mine"}})
	require.ErrorIs(t, err, delayq.ErrDuplicate)
	require.NoError(t, results[0].Err)
	require.NoError(t, results[1].Err)
	require.ErrorIs(t, results[2].Err, delayq.ErrDuplicate, "the true answer survives the repetition")
	require.Equal(t, 1, trap.Count())
	info, err := rig.StatsOf(ctx, b.client.Inspector, "t")
	require.NoError(t, err)
	require.EqualValues(t, 4, info.Ready)
}

// TestLostReplyOfReplaceReplacesOnce: the repetition does not take the new job for the old one.
// (B3)
func TestLostReplyOfReplaceReplacesOnce(t *testing.T) {
	b := newBench(t)
	client := b.newClient(b.through(b.proxy))
	ctx := t.Context()
	require.NoError(t, client.Put(ctx, &rig.Task{Topic: "t", ID: "j", Delay: time.Hour, Retries: -1}, false))
	trap := b.proxy.DropReply(rig.Script("replace"))
	require.NoError(t, client.Put(ctx, &rig.Task{Topic: "t", ID: "j", Retries: -1}, true))
	require.Equal(t, 1, trap.Count())
	b.worker("w")
	b.awaitN(1, "end", is(rig.OpSettled, "acked"))
	require.Equal(t, 1, b.judge().Runs)
}

// TestUnknownOutcomeIsSaid (B2, K6): when every reply is lost the caller gets ErrUnknownOutcome,
// never a conflict, and asking again tells.
func TestUnknownOutcomeIsSaid(t *testing.T) {
	b := newBench(t)
	client := delayq.NewClient(b.through(b.proxy), delayq.Prefix(b.prefix))
	ctx := t.Context()
	trap := b.proxy.DropReplies(rig.Script("enqueue", "cancel"))
	_, err := client.Enqueue(ctx, "t", "j", nil)
	require.ErrorIs(t, err, delayq.ErrUnknownOutcome)
	require.NotErrorIs(t, err, delayq.ErrDuplicate)
	trap.Remove()
	_, err = client.Enqueue(ctx, "t", "j", nil)
	require.ErrorIs(t, err, delayq.ErrDuplicate)

	trap = b.proxy.DropReplies(rig.Script("cancel"))
	_, err = client.Dequeue(ctx, "t", "j")
	require.ErrorIs(t, err, delayq.ErrUnknownOutcome)
	trap.Remove()
	_, err = client.Dequeue(ctx, "t", "j")
	require.ErrorIs(t, err, delayq.ErrNotFound)
}

// TestLostReplyOfCancelTellsTheTruth: the repeated call answers as the first one did, not with
// ErrNotFound.
func TestLostReplyOfCancelTellsTheTruth(t *testing.T) {
	b := newBench(t)
	client := delayq.NewClient(b.through(b.proxy), delayq.Prefix(b.prefix))
	ctx := t.Context()
	_, err := client.Enqueue(ctx, "t", "j", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	b.proxy.DropReply(rig.Script("reschedule"))
	require.NoError(t, client.Reschedule(ctx, "t", "j", delayq.ProcessIn(time.Minute)))
	b.proxy.DropReply(rig.Script("cancel"))
	state, err := client.Dequeue(ctx, "t", "j")
	require.NoError(t, err)
	require.Equal(t, delayq.StateScheduled, state)
}

// TestLostReplyOfSettlingSettlesOnce (B5, B6, A8): ack, retry, snooze, bury. The job ends as its
// handler said, once, and its attempts are counted once.
func TestLostReplyOfSettlingSettlesOnce(t *testing.T) {
	for script, c := range map[string]struct {
		steps    []string
		outcome  string
		attempts []int
	}{
		"ack":    {[]string{"ok"}, "acked", []int{1}},
		"retry":  {[]string{"err", "err", "ok"}, "retried", []int{1, 2, 3}},
		"snooze": {[]string{"snooze:1s"}, "snoozed", nil},
		"bury":   {[]string{"perm"}, "buried", []int{1}},
	} {
		t.Run(script, func(t *testing.T) {
			b := newBench(t)
			trap := b.proxy.DropReply(rig.Script(script))
			b.worker("w", func(c *rig.WorkerConfig) { c.Lease = time.Minute })
			b.awaitN(1, "up", is(rig.OpUp, "")) // a snooze counts from the enqueue
			b.put(1, rig.Task{
				ID: "j", Steps: c.steps, Retries: -1, Options: []delayq.JobOption{delayq.Backoff(10*time.Millisecond, 10*time.Millisecond)},
			})
			b.awaitN(1, c.outcome, is(rig.OpSettled, c.outcome))
			<-trap.Hit()
			report := b.judge()
			var attempts []int
			for _, e := range b.events(is(rig.OpStart, "")) {
				attempts = append(attempts, e.Attempt)
			}
			if script == "snooze" {
				require.LessOrEqual(t, len(attempts), 1+int(time.Second/rig.SnoozeBit))
				c.attempts = slices.Repeat([]int{1}, max(2, len(attempts)))
			}
			require.Equal(t, c.attempts, attempts)
			require.Equal(t, 1, report.Finished+report.Dead)
		})
	}
}

// TestLostReplyOfExtendKeepsTheLease: what was extended without an answer is known under both ends.
// (B12)
func TestLostReplyOfExtendKeepsTheLease(t *testing.T) {
	b := newBench(t)
	trap := b.proxy.DropReplies(rig.Every(2, rig.Script("extend")))
	b.worker("w")
	b.put(5, rig.Task{Steps: []string{"hang:4s"}, Retries: -1})
	b.awaitN(5, "ack", is(rig.OpSettled, "acked"))
	require.Greater(t, trap.Count(), 1)
	require.Equal(t, 5, b.judge().Runs)
}

// TestAckAfterACutIsMadeGood (B5, asynq ≥ 0.25, asynq#1051): a handler ends well, then the network
// is away for longer than any single call lasts, but not for a whole lease.
func TestAckAfterACutIsMadeGood(t *testing.T) {
	b := newBench(t)
	w := b.worker("w", func(c *rig.WorkerConfig) { c.Lease = 12 * time.Second })
	b.worker("other", func(c *rig.WorkerConfig) {
		c.Redis.Addr = b.server.Addr()
		c.Lease = 12 * time.Second
		c.Topics = []string{"none"}
	})
	b.put(3, rig.Task{Steps: []string{"hang:500ms"}, Retries: -1})
	b.awaitN(3, "start", is(rig.OpStart, ""))
	b.proxy.Cut()
	b.awaitN(3, "end", is(rig.OpEnd, "ok"))
	time.Sleep(8 * time.Second) // the length of the cut is the fault
	b.proxy.Heal()
	b.awaitN(3, "ack", is(rig.OpSettled, "acked"))
	report := b.judge()
	require.Equal(t, 3, report.Runs, "one run each, no attempt burnt")
	eventually(t, "log", patient, func() bool { return errorsIn(w.Log(), "redis back") == 1 })
}

// TestAckWhoseReplyIsLostBeforeACut (B6, sidekiq#4495): the ack was carried out; the long silence
// after it must not make it fail.
func TestAckWhoseReplyIsLostBeforeACut(t *testing.T) {
	b := newBench(t)
	trap := b.proxy.DropReply(rig.Script("ack"))
	b.worker("w")
	b.put(1, rig.Task{ID: "j", Retries: -1})
	<-trap.Hit()
	b.proxy.Cut()
	time.Sleep(3 * lease) // the length of the cut is the fault
	b.proxy.Heal()
	b.awaitN(1, "ack", is(rig.OpSettled, "acked"))
	require.Equal(t, 1, b.judge().Runs)
}

// TestFailureDuringACutIsRetried (A8, sidekiq#4141): the handler fails while Redis is away. The
// failure is put on record when it is back.
func TestFailureDuringACutIsRetried(t *testing.T) {
	b := newBench(t)
	b.worker("w", func(c *rig.WorkerConfig) { c.Lease = 10 * time.Second })
	b.put(1, rig.Task{
		ID: "j", Steps: []string{"hang:300ms", "ok"}, Retries: -1,
		Options: []delayq.JobOption{delayq.Timeout(200 * time.Millisecond), delayq.Backoff(time.Millisecond, time.Millisecond)},
	})
	b.awaitN(1, "start", is(rig.OpStart, ""))
	b.proxy.Cut()
	b.awaitN(1, "end", is(rig.OpEnd, "err"))
	time.Sleep(2 * time.Second) // the length of the cut is the fault
	b.proxy.Heal()
	b.awaitN(1, "ack", is(rig.OpSettled, "acked"))
	starts := b.events(is(rig.OpStart, ""))
	require.Len(t, starts, 2)
	require.Equal(t, 2, starts[1].Attempt, "2, not 3")
	b.judge()
}

// TestEnqueueDuringACutIsRefused (A17, A18, K6): no hidden buffer, no end of the process: every
// call has a definite answer, and what was answered with an error did not happen.
func TestEnqueueDuringACutIsRefused(t *testing.T) {
	b := newBench(t)
	rdb := b.through(b.proxy, func(o *redis.Options) { o.DialTimeout = 100 * time.Millisecond; o.MaxRetries = 1 })
	client := delayq.NewClient(rdb, delayq.Prefix(b.prefix))
	b.proxy.Cut()
	var wg sync.WaitGroup
	errs := make([]error, 10_000)
	for i := range errs {
		wg.Go(func() { _, errs[i] = client.Enqueue(context.Background(), "t", fmt.Sprint(i), nil) })
	}
	wg.Wait()
	for _, err := range errs {
		require.Error(t, err)
	}
	b.proxy.Heal()
	_, err := client.Enqueue(t.Context(), "t", "after", nil)
	require.NoError(t, err)
	info, err := rig.StatsOf(t.Context(), b.client.Inspector, "t")
	require.NoError(t, err)
	require.EqualValues(t, 1, info.Ready)
}

// TestRefusedRepetitionIsNoRefusal: Redis carries a call out and dies with the reply; the
// repetition by go-redis is answered with LOADING. That the repetition was refused says nothing
// about the call: the outcome is unknown. Found by the soak (B2, I16)
func TestRefusedRepetitionIsNoRefusal(t *testing.T) {
	b := newBench(t)
	client := delayq.NewClient(b.through(b.proxy), delayq.Prefix(b.prefix))
	for script, call := range map[string]func() error{
		"enqueue": func() error { _, err := client.Enqueue(t.Context(), "t", "j", nil); return err },
		"cancel":  func() error { _, err := client.Dequeue(t.Context(), "t", "j"); return err },
	} {
		lost := b.proxy.DropReply(rig.Script(script))
		loading := b.proxy.Answer(rig.Script(script), "-LOADING Redis is loading the dataset in memory", -1)
		err := call()
		loading.Remove()
		require.Equal(t, 1, lost.Count())
		require.ErrorIs(t, err, delayq.ErrUnknownOutcome)
		require.ErrorContains(t, err, "LOADING", "the answer is told as well")
	}
}
