package delayq_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// A poller that fails now and then goes on for ever: what failed before a Snooze does not add up
// with what fails after it.
func TestSnoozeStartsTheCountOfFailuresAnew(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const sequence = "ffsffssffff" // fail, snooze
		var rec recorder
		var left []int
		var last []bool
		var snoozes []int
		b.serve("a", rec.then(func(_ context.Context, job *delayq.Job) error {
			left, last, snoozes = append(left, job.RetriesLeft()), append(last, job.LastAttempt()), append(snoozes, job.Snoozes)
			if sequence[len(left)-1] == 's' {
				return delayq.Snooze(time.Minute)
			}
			return errTest
		}))
		b.enqueue("a", "1", delayq.Retry(2), delayq.Backoff(10*time.Second, time.Hour))
		b.pass(time.Hour)
		info := b.get("a", "1")
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
	inBubble(t, func(b *bubble) {
		var rec recorder
		var hooks told
		b.serve("a", rec.then(func(_ context.Context, job *delayq.Job) error {
			if len(rec.of(job.ID)) == 1 {
				return errTest // so that there is a finished attempt
			}
			return delayq.Snooze(time.Minute)
		}), delayq.Hooks(&hooks))
		opts := []delayq.JobOption{delayq.ExpireIn(90 * time.Second), delayq.Backoff(time.Second, time.Second)}
		b.enqueue("a", "snoozed", opts...)
		b.enqueue("a", "buried", append(opts, delayq.Retry(0))...)
		b.pass(10 * time.Second)
		require.NoError(b, b.client.Revive(b.Context(), "a", "buried"))
		b.pass(10 * time.Minute)
		require.Empty(b, b.state("a", "snoozed"))
		require.Len(b, rec.of("snoozed"), 3)
		require.Len(b, hooks.of("Expired"), 1)
		info := b.get("a", "buried")
		require.Equal(b, delayq.StateScheduled, info.State, "a revived job goes on, also once it is snoozed")
		require.Equal(b, len(rec.of("buried"))-1, info.Snoozes)
		require.NoError(b, b.client.Reschedule(b.Context(), "a", "buried", delayq.ProcessIn(time.Hour)))
		require.Equal(b, info.Snoozes, b.get("a", "buried").Snoozes)
		b.pass(2 * time.Hour)
		require.NotEmpty(b, b.state("a", "buried"))
	})
}

// A server that puts a job back because it cannot read its record changes nothing of what is known
// of it.
func TestJobThatIsPutBackKeepsItsTally(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const root = "q:{a}:"
		b.enqueue("a", "1")
		ctx := b.Context()
		raw := b.rdb.HGet(ctx, root+"pool", "1").Val()
		require.NoError(b, b.rdb.HSet(ctx, root+"pool", "1", raw[:8]+"\x7f"+raw[9:]).Err())
		require.NoError(b, b.rdb.HSet(ctx, root+"attempts", "1", 5).Err())
		require.NoError(b, b.rdb.HSet(ctx, root+"moved", "1", "1 revive 3 2 1").Err())
		b.serve("a", func(context.Context, *delayq.Job) error { return nil })
		b.pass(time.Second)
		require.Equal(b, delayq.StateScheduled, b.state("a", "1"))
		require.Regexp(b, ` snooze 3 2 1$`, b.rdb.HGet(ctx, root+"moved", "1").Val())
	})
}

func TestSnoozeIsRoundedUp(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var hooks told
		delays := map[string]time.Duration{
			"none": 0, "negative": -time.Hour, "1ns": 1, "1500µs": 1500 * time.Microsecond, "2ms": 2 * time.Millisecond,
		}
		var rec recorder
		b.serve("a", rec.then(func(_ context.Context, job *delayq.Job) error {
			kind, delay, _ := strings.Cut(job.ID, " ")
			switch {
			case len(rec.of(job.ID)) > 1:
				return nil
			case kind == "snooze":
				return delayq.Snooze(delays[delay])
			}
			return delayq.RetryIn(delays[delay], errTest)
		}), delayq.Hooks(&hooks))
		for delay := range delays {
			b.enqueue("a", "snooze "+delay)
			b.enqueue("a", "retry "+delay)
		}
		b.pass(time.Minute)
		events := append(hooks.of("Snoozed"), hooks.of("Retried")...)
		require.Len(b, events, 2*len(delays))
		for _, e := range events {
			_, delay, _ := strings.Cut(e.ID, " ")
			want := map[string]time.Duration{"1ns": time.Millisecond, "1500µs": 2 * time.Millisecond, "2ms": 2 * time.Millisecond}[delay]
			require.Equal(b, want, e.NextDue.Sub(e.FinishedAt), e.ID)
			require.False(b, rec.of(e.ID)[1].at.Before(e.FinishedAt.Add(want)), "never early")
		}
	})
}

func TestRetryInIsAFailureWithItsOwnDelay(t *testing.T) {
	inBubble(t, func(b *bubble) {
		require.NoError(b, delayq.RetryIn(time.Second, nil))
		var rec recorder
		var hooks told
		b.serve("a", rec.then(func(_ context.Context, job *delayq.Job) error {
			if job.ID == "far" {
				return delayq.RetryIn(1<<63-1, errTest)
			}
			return fmt.Errorf("busy: %w", delayq.RetryIn(90*time.Second, errTest))
		}), delayq.Hooks(&hooks))
		b.enqueue("a", "1", delayq.Retry(2), delayq.Backoff(time.Hour, time.Hour))
		b.enqueue("a", "far")
		b.pass(10 * time.Minute)
		var at []time.Duration
		for _, s := range rec.of("1") {
			at = append(at, s.at.Sub(b.began))
		}
		require.Equal(b, []time.Duration{0, 90 * time.Second, 180 * time.Second}, at)
		info := b.get("a", "1")
		require.Equal(b, delayq.StateDead, info.State)
		require.Len(b, info.Errors, 3)
		e := info.Errors[0]
		require.Equal(b, delayq.KindError, e.Kind)
		require.Equal(b, "*errors.errorString", e.Type)
		require.Equal(b, "busy: "+errTest.Error(), e.Message)
		require.Equal(b, 90*time.Second, e.NextDue.Sub(e.At))
		require.Len(b, hooks.of("Retried", "1"), 2)
		require.ErrorIs(b, hooks.of("Retried", "1")[0].Err, errTest)
		require.Equal(b, 2099, b.get("a", "far").Due.Year(), "a hundred years of 365 days, and no more")
	})
}

// What an error asks for when it asks for several things, seen by middleware and by what becomes of
// the job.
func TestWhatAnErrorAsksFor(t *testing.T) {
	permanent, snooze, retry := delayq.Permanent(errTest), delayq.Snooze(time.Minute), delayq.RetryIn(time.Hour, errTest)
	cases := map[string]struct {
		ends    func() error
		outcome delayq.Outcome
		delay   time.Duration // 0: the backoff
	}{
		"permanent":              {func() error { return permanent }, delayq.OutcomeBuried, 0},
		"snooze":                 {func() error { return snooze }, delayq.OutcomeSnoozed, time.Minute},
		"retry":                  {func() error { return retry }, delayq.OutcomeRetried, time.Hour},
		"error":                  {func() error { return errTest }, delayq.OutcomeRetried, 0},
		"wrapped snooze":         {func() error { return fmt.Errorf("not yet: %w", snooze) }, delayq.OutcomeSnoozed, time.Minute},
		"snooze, error":          {func() error { return errors.Join(errTest, snooze) }, delayq.OutcomeSnoozed, time.Minute},
		"snooze, permanent":      {func() error { return errors.Join(snooze, permanent) }, delayq.OutcomeBuried, 0},
		"permanent of a snooze":  {func() error { return delayq.Permanent(snooze) }, delayq.OutcomeBuried, 0},
		"retry, snooze":          {func() error { return errors.Join(retry, snooze) }, delayq.OutcomeSnoozed, time.Minute},
		"retry of a snooze":      {func() error { return delayq.RetryIn(time.Hour, snooze) }, delayq.OutcomeSnoozed, time.Minute},
		"retry, permanent":       {func() error { return errors.Join(retry, permanent) }, delayq.OutcomeBuried, 0},
		"panic with a permanent": {func() error { panic(permanent) }, delayq.OutcomeRetried, 0},
		"panic with a snooze":    {func() error { panic(snooze) }, delayq.OutcomeRetried, 0},
		"panic with a retry":     {func() error { panic(retry) }, delayq.OutcomeRetried, 0},
	}
	inBubble(t, func(b *bubble) {
		var hooks told
		seen := map[string]error{}
		b.serve("a", func(_ context.Context, job *delayq.Job) error {
			err := cases[job.ID].ends()
			seen[job.ID] = err
			return err
		}, delayq.Hooks(&hooks), delayq.Concurrency(1))
		for id := range cases {
			b.enqueue("a", id, delayq.Backoff(5*time.Minute, 5*time.Minute))
		}
		b.pass(time.Second)
		for id, c := range cases {
			events := append(append(hooks.of("Retried", id), hooks.of("Snoozed", id)...), hooks.of("Buried", id)...)
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
	for _, err := range []error{nil, errTest} {
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
		"joined":      {errors.Join(snooze, errTest), true},
		"in one text": {fmt.Errorf("%w, so %w", errTest, snooze), true},
		"deep":        {fmt.Errorf("handler: %w", errors.Join(snooze, fmt.Errorf("x: %w", errTest))), true},
		"with retry":  {delayq.RetryIn(time.Second, errors.Join(errTest, snooze)), true},
	}
	inBubble(t, func(b *bubble) {
		var log logbook
		var hooks told
		b.serve("a", func(_ context.Context, job *delayq.Job) error { return ends[job.ID].err }, log.to(), delayq.Hooks(&hooks))
		for id := range ends {
			b.enqueue("a", id)
		}
		b.pass(time.Second)
		for id, c := range ends {
			events := hooks.of("Snoozed", id)
			require.Len(b, events, 1, id)
			require.Equal(b, c.err, events[0].Err, id)
			lines := log.with("level=WARN", `msg="job snoozed"`, "job=\""+id+"\"", "delay=1h0m0s")
			lines = append(lines, log.with("level=WARN", `msg="job snoozed"`, "job="+id+" ", "delay=1h0m0s")...)
			if !c.told {
				require.Empty(b, lines, id)
				continue
			}
			require.Len(b, lines, 1, id)
			require.Contains(b, lines[0], errTest.Error())
			require.Empty(b, b.get("a", id).Errors, "it is no failure")
		}
	})
}

func TestLastAttempt(t *testing.T) {
	inBubble(t, func(b *bubble) {
		type seen struct {
			left int
			last bool
		}
		runs := map[string][]seen{}
		b.serve("a", func(_ context.Context, job *delayq.Job) error {
			runs[job.ID] = append(runs[job.ID], seen{job.RetriesLeft(), job.LastAttempt()})
			if job.ID == "snoozed" && len(runs[job.ID]) == 2 {
				return delayq.Snooze(0)
			}
			return errTest
		}, delayq.Concurrency(1))
		opts := []delayq.JobOption{delayq.Backoff(time.Second, time.Second)}
		for id, retries := range map[string]int{"never": 0, "once": 1, "snoozed": 1} {
			job := b.enqueue("a", id, append(opts, delayq.Retry(retries))...)
			require.Equal(b, retries, job.RetriesLeft())
		}
		job := b.enqueue("a", "unlimited", append(opts, delayq.Backoff(time.Hour, time.Hour))...)
		require.Equal(b, delayq.Unlimited, job.RetriesLeft())
		require.False(b, job.LastAttempt())
		b.pass(time.Minute)
		require.NoError(b, b.client.Revive(b.Context(), "a", "once"))
		info := b.get("a", "never")
		require.Equal(b, []int{0, 1}, []int{info.RetriesLeft(), info.Attempt})
		b.pass(time.Minute)
		require.Equal(b, map[string][]seen{
			"never":     {{0, true}},
			"once":      {{1, false}, {0, true}, {1, false}, {0, true}},
			"snoozed":   {{1, false}, {0, true}, {1, false}, {0, true}},
			"unlimited": {{-1, false}},
		}, runs)
	})
}

// How often a job was snoozed is there in every state, also when it is done.
func TestSnoozesAreCounted(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		f.enqueue("x", delayq.Retention(time.Hour), delayq.Retry(5))
		require.Zero(t, f.get("x").Snoozes)
		for range 2 {
			require.Equal(t, "o", f.hand.Snooze(0, f.hand.TakeOne("x")))
			f.hand.Promote()
		}
		require.Equal(t, 2, f.get("x").Snoozes)
		held := f.hand.TakeOne("x")
		require.Equal(t, 2, f.get("x").Snoozes)
		require.Equal(t, "o", f.hand.Bury(held))
		require.Equal(t, 2, f.get("x").Snoozes)
		require.Equal(t, 5, f.get("x").RetriesLeft())
		require.NoError(t, f.client.Revive(t.Context(), "topic", "x"))
		require.Equal(t, 5, f.get("x").RetriesLeft())
		require.NoError(t, f.client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(0)))
		held = f.hand.TakeOne("x")
		require.Regexp(t, ` reschedule 1 2 1$`, held.Moved)
		require.Equal(t, "o", f.hand.Ack(held))
		info := f.get("x")
		require.Equal(t, delayq.StateDone, info.State)
		require.Equal(t, 2, info.Snoozes)
	})
}
