package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A poller that fails now and then goes on for ever: what failed before a Snooze does not add up
// with what fails after it.
func TestSnoozeStartsTheCountOfFailuresAnew(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const sequence = "ffsffssffff" // fail, snooze
		var rec queuetest.Recorder
		var left []int
		var last []bool
		var snoozes []int
		b.Serve("a", rec.Then(func(_ context.Context, job *delayq.Job) error {
			left, last, snoozes = append(left, job.RetriesLeft()), append(last, job.LastAttempt()), append(snoozes, job.Snoozes)
			if sequence[len(left)-1] == 's' {
				return delayq.Snooze(time.Minute)
			}
			return queuetest.ErrTest
		}))
		b.Enqueue("a", "1", delayq.Retry(2), delayq.Backoff(10*time.Second, time.Hour))
		b.Pass(10 * time.Minute)
		info := b.Get("a", "1")
		require.Equal(b, delayq.StateDead, info.State)
		require.Equal(b, 3, info.Snoozes)
		require.Zero(b, info.RetriesLeft())
		require.Equal(b, 7, info.Attempt, "failures")
		require.Len(b, info.Errors, 7)
		require.Equal(b, []int{2, 1, 0, 2, 1, 0, 2, 2, 1, 0}, left)
		require.Equal(b, []int{0, 0, 0, 1, 1, 1, 2, 3, 3, 3}, snoozes)
		for i := range left {
			require.Equal(b, left[i] == 0, last[i])
		}
		for i, e := range info.Errors[:6] { // the backoff is the first, the second, and after a snooze the first again
			delay := e.NextDue.Sub(e.At)
			first := []time.Duration{10, 20, 10, 20, 10, 20}[i] * time.Second
			require.GreaterOrEqual(b, delay, first)
			require.LessOrEqual(b, delay, first*6/5)
		}
	})
}

// Only a revival lifts the expiry.
func TestSnoozedJobExpires(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		var hooks queuetest.HookLog
		b.Serve("a", rec.Then(func(_ context.Context, job *delayq.Job) error {
			if len(rec.Of(job.ID)) == 1 {
				return queuetest.ErrTest // so that there is a finished attempt
			}
			return delayq.Snooze(time.Minute)
		}), delayq.Hooks(&hooks))
		opts := []delayq.JobOption{delayq.ExpireIn(90 * time.Second), delayq.Backoff(time.Second, time.Second)}
		b.Enqueue("a", "snoozed", opts...)
		b.Enqueue("a", "buried", append(opts, delayq.Retry(0))...)
		b.Pass(10 * time.Second)
		require.NoError(b, b.Client.Revive(b.Context(), "a", "buried"))
		b.Pass(10 * time.Minute)
		require.Empty(b, b.State("a", "snoozed"))
		require.Len(b, rec.Of("snoozed"), 3)
		require.Len(b, hooks.Of("Expired"), 1)
		info := b.Get("a", "buried")
		require.Equal(b, delayq.StateScheduled, info.State, "a revived job goes on, also once it is snoozed")
		require.Equal(b, len(rec.Of("buried"))-1, info.Snoozes)
		require.NoError(b, b.Client.Reschedule(b.Context(), "a", "buried", delayq.ProcessIn(10*time.Minute)))
		require.Equal(b, info.Snoozes, b.Get("a", "buried").Snoozes)
		b.Pass(20 * time.Minute)
		require.NotEmpty(b, b.State("a", "buried"))
	})
}

// A server that puts a job back because it cannot read its record changes nothing of what is known
// of it.
func TestJobThatIsPutBackKeepsItsTally(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const root = "q:{a}:"
		b.Enqueue("a", "1")
		ctx := b.Context()
		raw := b.RDB.HGet(ctx, root+"pool", "1").Val()
		require.NoError(b, b.RDB.HSet(ctx, root+"pool", "1", raw[:8]+"\x7f"+raw[9:]).Err())
		require.NoError(b, b.RDB.HSet(ctx, root+"attempts", "1", 5).Err())
		require.NoError(b, b.RDB.HSet(ctx, root+"moved", "1", "1 revive 3 2 1").Err())
		b.Serve("a", func(context.Context, *delayq.Job) error { return nil })
		b.Pass(time.Second)
		require.Equal(b, delayq.StateScheduled, b.State("a", "1"))
		require.Regexp(b, `^\d{12} revive 3 2 1$`, b.RDB.HGet(ctx, root+"moved", "1").Val())
	})
}

func TestSnoozeIsRoundedUp(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		delays := map[string]time.Duration{
			"none": 0, "negative": -time.Hour, "1ns": 1, "1500µs": 1500 * time.Microsecond, "2ms": 2 * time.Millisecond,
		}
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(func(_ context.Context, job *delayq.Job) error {
			kind, delay, _ := strings.Cut(job.ID, " ")
			switch {
			case len(rec.Of(job.ID)) > 1:
				return nil
			case kind == "snooze":
				return delayq.Snooze(delays[delay])
			}
			return delayq.RetryIn(delays[delay], queuetest.ErrTest)
		}), delayq.Hooks(&hooks))
		for delay := range delays {
			b.Enqueue("a", "snooze "+delay)
			b.Enqueue("a", "retry "+delay)
		}
		b.Pass(time.Minute)
		events := append(hooks.Of("Snoozed"), hooks.Of("Retried")...)
		require.Len(b, events, 2*len(delays))
		for _, e := range events {
			_, delay, _ := strings.Cut(e.ID, " ")
			want := map[string]time.Duration{"1ns": time.Millisecond, "1500µs": 2 * time.Millisecond, "2ms": 2 * time.Millisecond}[delay]
			require.Equal(b, want, e.NextDue.Sub(e.FinishedAt), e.ID)
			require.False(b, rec.Of(e.ID)[1].At.Before(e.FinishedAt.Add(want)), "never early")
		}
	})
}

func TestRetryInIsAFailureWithItsOwnDelay(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		require.NoError(b, delayq.RetryIn(time.Second, nil))
		var rec queuetest.Recorder
		var hooks queuetest.HookLog
		b.Serve("a", rec.Then(func(_ context.Context, job *delayq.Job) error {
			if job.ID == "far" {
				return delayq.RetryIn(1<<63-1, queuetest.ErrTest)
			}
			return fmt.Errorf("busy: %w", delayq.RetryIn(90*time.Second, queuetest.ErrTest))
		}), delayq.Hooks(&hooks))
		b.Enqueue("a", "1", delayq.Retry(2), delayq.Backoff(time.Hour, time.Hour))
		b.Enqueue("a", "far")
		b.Pass(10 * time.Minute)
		var at []time.Duration
		for _, s := range rec.Of("1") {
			at = append(at, s.At.Sub(b.Began))
		}
		require.Equal(b, []time.Duration{0, 90 * time.Second, 180 * time.Second}, at)
		info := b.Get("a", "1")
		require.Equal(b, delayq.StateDead, info.State)
		require.Len(b, info.Errors, 3)
		e := info.Errors[0]
		require.Equal(b, delayq.KindError, e.Kind)
		require.Equal(b, "*errors.errorString", e.Type)
		require.Equal(b, "busy: "+queuetest.ErrTest.Error(), e.Message)
		require.Equal(b, 90*time.Second, e.NextDue.Sub(e.At))
		require.Len(b, hooks.Of("Retried", "1"), 2)
		require.ErrorIs(b, hooks.Of("Retried", "1")[0].Err, queuetest.ErrTest)
		require.Equal(b, 2099, b.Get("a", "far").Due.Year(), "a hundred years of 365 days, and no more")
	})
}

// What an error asks for when it asks for several things, seen by middleware and by what becomes of
// the job.
func TestWhatAnErrorAsksFor(t *testing.T) {
	permanent, snooze, retry := delayq.Permanent(queuetest.ErrTest), delayq.Snooze(time.Minute), delayq.RetryIn(time.Hour, queuetest.ErrTest)
	cases := map[string]struct {
		ends    func() error
		outcome delayq.Outcome
		delay   time.Duration // 0: the backoff
	}{
		"permanent":              {func() error { return permanent }, delayq.OutcomeBuried, 0},
		"snooze":                 {func() error { return snooze }, delayq.OutcomeSnoozed, time.Minute},
		"retry":                  {func() error { return retry }, delayq.OutcomeRetried, time.Hour},
		"error":                  {func() error { return queuetest.ErrTest }, delayq.OutcomeRetried, 0},
		"wrapped snooze":         {func() error { return fmt.Errorf("not yet: %w", snooze) }, delayq.OutcomeSnoozed, time.Minute},
		"snooze, error":          {func() error { return errors.Join(queuetest.ErrTest, snooze) }, delayq.OutcomeSnoozed, time.Minute},
		"snooze, permanent":      {func() error { return errors.Join(snooze, permanent) }, delayq.OutcomeBuried, 0},
		"permanent of a snooze":  {func() error { return delayq.Permanent(snooze) }, delayq.OutcomeBuried, 0},
		"retry, snooze":          {func() error { return errors.Join(retry, snooze) }, delayq.OutcomeSnoozed, time.Minute},
		"retry of a snooze":      {func() error { return delayq.RetryIn(time.Hour, snooze) }, delayq.OutcomeSnoozed, time.Minute},
		"retry, permanent":       {func() error { return errors.Join(retry, permanent) }, delayq.OutcomeBuried, 0},
		"panic with a permanent": {func() error { panic(permanent) }, delayq.OutcomeRetried, 0},
		"panic with a snooze":    {func() error { panic(snooze) }, delayq.OutcomeRetried, 0},
		"panic with a retry":     {func() error { panic(retry) }, delayq.OutcomeRetried, 0},
	}
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		seen := map[string]error{}
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			err := cases[job.ID].ends()
			seen[job.ID] = err
			return err
		}, delayq.Hooks(&hooks), delayq.Concurrency(1))
		for id := range cases {
			b.Enqueue("a", id, delayq.Backoff(5*time.Minute, 5*time.Minute))
		}
		b.Pass(time.Second)
		for id, c := range cases {
			events := append(append(hooks.Of("Retried", id), hooks.Of("Snoozed", id)...), hooks.Of("Buried", id)...)
			require.Len(b, events, 1, id)
			require.Equal(b, c.outcome, events[0].Outcome, id)
			delay := events[0].NextDue.Sub(events[0].FinishedAt)
			switch {
			case c.delay > 0:
				require.Equal(b, c.delay, delay, id)
			case c.outcome == delayq.OutcomeRetried:
				require.GreaterOrEqual(b, delay, 5*time.Minute, id)
				require.LessOrEqual(b, delay, 6*time.Minute, id)
			}
			if strings.HasPrefix(id, "panic") {
				continue // middleware sees no error
			}
			d, ok := delayq.AsSnooze(seen[id])
			require.Equal(b, c.outcome == delayq.OutcomeSnoozed, ok, id)
			if ok {
				require.Equal(b, c.delay, d, id)
			}
			d, ok = delayq.AsRetryIn(seen[id])
			require.Equal(b, c.outcome == delayq.OutcomeRetried && c.delay > 0, ok, id)
			if ok {
				require.Equal(b, c.delay, d, id)
			}
		}
	})
	for _, err := range []error{nil, queuetest.ErrTest} {
		_, snoozed := delayq.AsSnooze(err)
		_, retried := delayq.AsRetryIn(err)
		require.False(t, snoozed || retried)
	}
	d, ok := delayq.AsSnooze(delayq.Snooze(1))
	require.True(t, ok)
	require.Equal(t, time.Millisecond, d, "as it will be")
}

// An error that comes with a Snooze is not lost; a Snooze alone is no news.
func TestErrorBesideASnoozeIsTold(t *testing.T) {
	snooze := delayq.Snooze(time.Hour)
	ends := map[string]struct {
		err  error
		told bool
	}{
		"bare":        {snooze, false},
		"wrapped":     {fmt.Errorf("handler: %w", snooze), false},
		"twice":       {errors.Join(snooze, fmt.Errorf("%w", snooze)), false},
		"joined":      {errors.Join(snooze, queuetest.ErrTest), true},
		"in one text": {fmt.Errorf("%w, so %w", queuetest.ErrTest, snooze), true},
		"deep":        {fmt.Errorf("handler: %w", errors.Join(snooze, fmt.Errorf("x: %w", queuetest.ErrTest))), true},
		"with retry":  {delayq.RetryIn(time.Second, errors.Join(queuetest.ErrTest, snooze)), true},
	}
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log queuetest.Logbook
		var hooks queuetest.HookLog
		b.Serve("a", func(_ context.Context, job *delayq.Job) error { return ends[job.ID].err }, log.To(), delayq.Hooks(&hooks))
		for id := range ends {
			b.Enqueue("a", id)
		}
		b.Pass(time.Second)
		for id, c := range ends {
			events := hooks.Of("Snoozed", id)
			require.Len(b, events, 1, id)
			require.Equal(b, c.err, events[0].Err, id)
			lines := log.With("level=WARN", `msg="job snoozed"`, "job=\""+id+"\"", "delay=1h0m0s")
			lines = append(lines, log.With("level=WARN", `msg="job snoozed"`, "job="+id+" ", "delay=1h0m0s")...)
			if !c.told {
				require.Empty(b, lines, id)
				continue
			}
			require.Len(b, lines, 1, id)
			require.Contains(b, lines[0], queuetest.ErrTest.Error())
			require.Empty(b, b.Get("a", id).Errors, "it is no failure")
		}
	})
}

func TestLastAttempt(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		type seen struct {
			left int
			last bool
		}
		runs := map[string][]seen{}
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			runs[job.ID] = append(runs[job.ID], seen{job.RetriesLeft(), job.LastAttempt()})
			if job.ID == "snoozed" && len(runs[job.ID]) == 2 {
				return delayq.Snooze(0)
			}
			return queuetest.ErrTest
		}, delayq.Concurrency(1))
		opts := []delayq.JobOption{delayq.Backoff(time.Second, time.Second)}
		for id, retries := range map[string]int{"never": 0, "once": 1, "snoozed": 1} {
			job := b.Enqueue("a", id, append(opts, delayq.Retry(retries))...)
			require.Equal(b, retries, job.RetriesLeft())
		}
		job := b.Enqueue("a", "unlimited", append(opts, delayq.Backoff(time.Hour, time.Hour))...)
		require.Equal(b, delayq.Unlimited, job.RetriesLeft())
		require.False(b, job.LastAttempt())
		b.Pass(time.Minute)
		require.NoError(b, b.Client.Revive(b.Context(), "a", "once"))
		info := b.Get("a", "never")
		require.Equal(b, []int{0, 1}, []int{info.RetriesLeft(), info.Attempt})
		b.Pass(time.Minute)
		require.Equal(b, map[string][]seen{
			"never":     {{0, true}},
			"once":      {{1, false}, {0, true}, {1, false}, {0, true}},
			"snoozed":   {{1, false}, {0, true}, {1, false}, {0, true}},
			"unlimited": {{-1, false}},
		}, runs)
	})
}
