package run

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
)

// leased returns a run whose lease ends at a Unix ms, which is until by the local clock.
func leased(id string, end int64, until time.Time) *Run {
	return &Run{ID: id, Fence: record.FenceOf(record.LeaseEndAt(end)), Until: until}
}

// called makes a run one whose handler is running, and returns its context.
func (r *Run) called(now time.Time) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	r.Start, r.Cancel = now, cancel
	return ctx
}

// A job that is taken again while its older run goes on: that run has lost its lease, or was
// replaced if it is another job and its lease was not over.
func TestHoldingsTakeAJobAgain(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		nonce string
		until time.Time
		want  error
	}{
		"the same job":               {"1", now.Add(time.Second), ErrLeaseLost},
		"another job":                {"2", now.Add(time.Second), ErrReplaced},
		"another job, after a lease": {"2", now, ErrLeaseLost},
	} {
		var h Holdings
		old, young := leased("x", 1000, c.until), leased("x", 2000, now.Add(time.Minute))
		old.Nonce, young.Nonce = "1", c.nonce
		h.Add(old, now)
		ctx := old.called(now)
		h.Add(young, now)
		require.Equal(t, c.want, context.Cause(ctx), name)
		require.Equal(t, map[string]*Run{"x": young}, h.Runs, name)
		require.EqualValues(t, 2, h.Taken, name)
	}
}

// A message that comes before the reply of the take ends the run as soon as it arrives, for a
// second, and only the run with that lease.
func TestHoldingsHearBeforeTheTake(t *testing.T) {
	now := time.Now()
	about := func(id string, end int64, at time.Time) Loss {
		return Loss{id, record.LeaseEndAt(end), ErrCancelled, at}
	}
	var h Holdings
	require.False(t, h.Hear(about("x", 1000, now)))
	other, x := leased("x", 2000, now.Add(time.Minute)), leased("x", 1000, now.Add(time.Minute))
	h.Add(other, now)
	require.NoError(t, other.Lost, "another lease")
	h.Drop(other)
	h.Add(x, now)
	require.Equal(t, ErrCancelled, x.Lost)
	require.Empty(t, h.Runs)

	h.Hear(about("y", 1, now.Add(1001*time.Millisecond)))
	require.Len(t, h.Unheard, 1, "the first one is forgotten")
	for i := range TakeLimit + 5 {
		h.Hear(about(fmt.Sprint(i), 1, now.Add(time.Second)))
	}
	require.Len(t, h.Unheard, TakeLimit)

	held := leased("z", 5000, now.Add(time.Minute))
	h.Add(held, now)
	require.True(t, h.Hear(about("z", 5000, now)))
	require.Equal(t, ErrCancelled, held.Lost)
}

// A run that is being settled is not lost: the reply says what became of it.
func TestHoldingsLeaveWhatIsBeingSettled(t *testing.T) {
	now := time.Now()
	var h Holdings
	r := leased("x", 1000, now)
	h.Add(r, now)
	r.Settling = true
	h.Lose(r, ErrCancelled, now)
	h.Expire(r, now)
	require.Empty(t, h.Extendable(now))
	require.NoError(t, r.Lost)
	require.Len(t, h.Runs, 1)
}

// A handler that has replaced its own job goes on, until the server cancels all.
func TestHoldingsKeepWhoReplacedItsOwnJob(t *testing.T) {
	now := time.Now()
	var h Holdings
	r := leased("x", 1000, now.Add(time.Minute))
	h.Add(r, now)
	ctx := r.called(now)
	r.Replaced = true
	h.Lose(r, ErrReplaced, now)
	require.NoError(t, ctx.Err())
	require.Empty(t, h.Runs)
	h.CancelAll(ErrShutdown)
	require.Equal(t, ErrShutdown, context.Cause(ctx))
}

// Leases that are over by the local clock are lost, unless their handlers have returned: then only
// Redis knows. A lease is not extended past the Timeout of its job.
func TestHoldingsExtendable(t *testing.T) {
	now := time.Now()
	var h Holdings
	add := func(id string, until time.Time) *Run {
		r := leased(id, 1000, until)
		h.Add(r, now)
		return r
	}
	fine, over, returned := add("fine", now.Add(1)), add("over", now), add("returned", now)
	returned.Returned = true
	late := add("late", now.Add(1))
	late.Deadline = now.Add(-1)
	timely := add("timely", now.Add(1))
	timely.Deadline = now
	require.ElementsMatch(t, []*Run{fine, timely}, h.Extendable(now))
	require.Equal(t, ErrLeaseLost, over.Lost)
	require.NoError(t, returned.Lost)
	require.NoError(t, late.Lost)
	require.Len(t, h.Runs, 4)
}

// An unanswered end is proposed again while it is at least two thirds of a lease ahead, and not
// after Redis's clock was set back.
func TestHoldingsProposeFewEnds(t *testing.T) {
	const lease = 30_000
	var h Holdings
	require.EqualValues(t, 1_030_000, h.Propose(1_000_000, lease))
	require.EqualValues(t, 1_030_000, h.Propose(1_010_000, lease))
	require.EqualValues(t, 1_040_001, h.Propose(1_010_001, lease))
	require.EqualValues(t, 530_000, h.Propose(500_000, lease), "set back")
	h.Proposed = 0 // answered
	require.EqualValues(t, 530_001, h.Propose(500_001, lease))
}

// A lease that already ends as late is left alone, unless Redis's clock was set back since.
func TestRunNeedsAnExtension(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		e    Extension
		want bool
	}{
		"later":                  {Extension{record.LeaseEndAt(1001), now.Add(2), 0}, true},
		"the same end":           {Extension{record.LeaseEndAt(1000), now.Add(2), 0}, false},
		"the same, set back":     {Extension{record.LeaseEndAt(1000), now.Add(2), 1}, true},
		"not later by our clock": {Extension{record.LeaseEndAt(1001), now.Add(1), 0}, false},
	} {
		r := leased("x", 1000, now.Add(1))
		require.Equal(t, c.want, r.Needs(c.e), name)
		r.Fence.Propose(c.e.End)
		r.Confirm(c.e)
		require.Equal(t, c.e.End.String(), r.Fence.String(), name)
		require.Equal(t, c.e.End.Micros(), r.Lease.Load(), name)
		require.False(t, r.Needs(c.e), name)
	}
}

// An extension that overtakes the call with the outcome of a run would make Redis reject that call,
// so no extension is asked for, even if the run was extendable a moment before.
func TestNoExtensionForAnOutcomeOnItsWay(t *testing.T) {
	now := time.Now()
	e := Extension{End: record.LeaseEndAt(3000), Until: now.Add(time.Hour)}
	gains, settling := leased("a", 1000, now.Add(time.Minute)), leased("b", 1000, now.Add(time.Minute))
	later := leased("c", 4000, now.Add(time.Minute))
	var h Holdings
	for _, r := range []*Run{gains, settling, later} {
		h.Add(r, now)
	}
	list := h.Extendable(now)
	require.Len(t, list, 3)
	settling.Settling = true
	asked, rest, fences := Ask(list, e)
	require.Equal(t, []*Run{gains}, asked)
	require.Equal(t, []*Run{later}, rest)
	require.Equal(t, []string{leased("a", 1000, now).Fence.String()}, fences, "Redis has that one until the call")
	require.True(t, gains.Fence.Has(e.End))
	require.False(t, settling.Fence.Has(e.End))
}
