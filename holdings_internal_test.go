package delayq

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
)

// leased returns a run whose lease ends at a Unix ms, which is until by the local clock.
func leased(id string, end int64, until time.Time) *run {
	return &run{id: id, fence: record.FenceOf(record.LeaseEndAt(end)), until: until}
}

// called makes a run one whose handler is running, and returns its context.
func (r *run) called(now time.Time) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	r.start, r.cancel = now, cancel
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
		var h holdings
		old, young := leased("x", 1000, c.until), leased("x", 2000, now.Add(time.Minute))
		old.nonce, young.nonce = "1", c.nonce
		h.add(old, now)
		ctx := old.called(now)
		h.add(young, now)
		require.Equal(t, c.want, context.Cause(ctx), name)
		require.Equal(t, map[string]*run{"x": young}, h.runs, name)
		require.EqualValues(t, 2, h.taken, name)
	}
}

// A message that comes before the reply of the take ends the run as soon as it arrives, for a
// second, and only the run with that lease.
func TestHoldingsHearBeforeTheTake(t *testing.T) {
	now := time.Now()
	about := func(id string, end int64, at time.Time) loss {
		return loss{id, record.LeaseEndAt(end), ErrCancelled, at}
	}
	var h holdings
	require.False(t, h.hear(about("x", 1000, now)))
	other, x := leased("x", 2000, now.Add(time.Minute)), leased("x", 1000, now.Add(time.Minute))
	h.add(other, now)
	require.NoError(t, other.lost, "another lease")
	h.drop(other)
	h.add(x, now)
	require.Equal(t, ErrCancelled, x.lost)
	require.Empty(t, h.runs)

	h.hear(about("y", 1, now.Add(1001*time.Millisecond)))
	require.Len(t, h.unheard, 1, "the first one is forgotten")
	for i := range takeLimit + 5 {
		h.hear(about(fmt.Sprint(i), 1, now.Add(time.Second)))
	}
	require.Len(t, h.unheard, takeLimit)

	held := leased("z", 5000, now.Add(time.Minute))
	h.add(held, now)
	require.True(t, h.hear(about("z", 5000, now)))
	require.Equal(t, ErrCancelled, held.lost)
}

// A run that is being settled is not lost: the reply says what became of it.
func TestHoldingsLeaveWhatIsBeingSettled(t *testing.T) {
	now := time.Now()
	var h holdings
	r := leased("x", 1000, now)
	h.add(r, now)
	r.settling = true
	h.lose(r, ErrCancelled, now)
	h.expire(r, now)
	require.Empty(t, h.extendable(now))
	require.NoError(t, r.lost)
	require.Len(t, h.runs, 1)
}

// A handler that has replaced its own job goes on, until the server cancels all.
func TestHoldingsKeepWhoReplacedItsOwnJob(t *testing.T) {
	now := time.Now()
	var h holdings
	r := leased("x", 1000, now.Add(time.Minute))
	h.add(r, now)
	ctx := r.called(now)
	r.replaced = true
	h.lose(r, ErrReplaced, now)
	require.NoError(t, ctx.Err())
	require.Empty(t, h.runs)
	h.cancelAll(ErrShutdown)
	require.Equal(t, ErrShutdown, context.Cause(ctx))
}

// Leases that are over by the local clock are lost, unless their handlers have returned: then only
// Redis knows. A lease is not extended past the Timeout of its job.
func TestHoldingsExtendable(t *testing.T) {
	now := time.Now()
	var h holdings
	add := func(id string, until time.Time) *run {
		r := leased(id, 1000, until)
		h.add(r, now)
		return r
	}
	fine, over, returned := add("fine", now.Add(1)), add("over", now), add("returned", now)
	returned.returned = true
	late := add("late", now.Add(1))
	late.deadline = now.Add(-1)
	timely := add("timely", now.Add(1))
	timely.deadline = now
	require.ElementsMatch(t, []*run{fine, timely}, h.extendable(now))
	require.Equal(t, ErrLeaseLost, over.lost)
	require.NoError(t, returned.lost)
	require.NoError(t, late.lost)
	require.Len(t, h.runs, 4)
}

// An unanswered end is proposed again while it is at least two thirds of a lease ahead, and not
// after Redis's clock was set back.
func TestHoldingsProposeFewEnds(t *testing.T) {
	const lease = 30_000
	var h holdings
	require.EqualValues(t, 1_030_000, h.propose(1_000_000, lease))
	require.EqualValues(t, 1_030_000, h.propose(1_010_000, lease))
	require.EqualValues(t, 1_040_001, h.propose(1_010_001, lease))
	require.EqualValues(t, 530_000, h.propose(500_000, lease), "set back")
	h.proposed = 0 // answered
	require.EqualValues(t, 530_001, h.propose(500_001, lease))
}

// A lease that already ends as late is left alone, unless Redis's clock was set back since.
func TestRunNeedsAnExtension(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		e    extension
		want bool
	}{
		"later":                  {extension{record.LeaseEndAt(1001), now.Add(2), 0}, true},
		"the same end":           {extension{record.LeaseEndAt(1000), now.Add(2), 0}, false},
		"the same, set back":     {extension{record.LeaseEndAt(1000), now.Add(2), 1}, true},
		"not later by our clock": {extension{record.LeaseEndAt(1001), now.Add(1), 0}, false},
	} {
		r := leased("x", 1000, now.Add(1))
		require.Equal(t, c.want, r.needs(c.e), name)
		r.fence.Propose(c.e.end)
		r.confirm(c.e)
		require.Equal(t, c.e.end.String(), r.fence.String(), name)
		require.Equal(t, c.e.end.Micros(), r.lease.Load(), name)
		require.False(t, r.needs(c.e), name)
	}
}

// An extension that overtakes the call with the outcome of a run would make Redis reject that call,
// so no extension is asked for, even if the run was extendable a moment before.
func TestNoExtensionForAnOutcomeOnItsWay(t *testing.T) {
	now := time.Now()
	e := extension{end: record.LeaseEndAt(3000), until: now.Add(time.Hour)}
	gains, settling := leased("a", 1000, now.Add(time.Minute)), leased("b", 1000, now.Add(time.Minute))
	later := leased("c", 4000, now.Add(time.Minute))
	var h holdings
	for _, r := range []*run{gains, settling, later} {
		h.add(r, now)
	}
	list := h.extendable(now)
	require.Len(t, list, 3)
	settling.settling = true
	asked, rest, fences := ask(list, e)
	require.Equal(t, []*run{gains}, asked)
	require.Equal(t, []*run{later}, rest)
	require.Equal(t, []string{leased("a", 1000, now).fence.String()}, fences, "Redis has that one until the call")
	require.True(t, gains.fence.Has(e.end))
	require.False(t, settling.fence.Has(e.end))
}

// Whoever waits for the last run to go is woken by it.
func TestHoldingsEmpty(t *testing.T) {
	freed := 0
	h := holdings{freed: func() { freed++ }}
	<-h.empty()
	a, b := leased("a", 1, time.Now()), leased("b", 1, time.Now())
	h.add(a, time.Now())
	h.add(b, time.Now())
	gone := h.empty()
	h.drop(a)
	require.Equal(t, 1, freed)
	select {
	case <-gone:
		t.Fatal("b is still there")
	default:
	}
	h.drop(b)
	<-gone
}
