package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A job that would have expired by the time it is due is refused, however the two times are given,
// and nothing of it is written; one that has a millisecond is not. (M4)
func TestExpiryThatCannotBeMet(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		now := queuetest.ClockOf(t, f.RDB).Truncate(time.Millisecond)
		hour := now.Add(time.Hour)
		type options []delayq.JobOption
		for name, opts := range map[string]options{
			"in, in":               {delayq.ProcessIn(time.Hour), delayq.ExpireIn(time.Hour)},
			"in, in less":          {delayq.ProcessIn(time.Hour), delayq.ExpireIn(time.Minute)},
			"at, at":               {delayq.ProcessAt(hour), delayq.ExpireAt(hour)},
			"at, at before":        {delayq.ProcessAt(hour), delayq.ExpireAt(hour.Add(-time.Millisecond))},
			"at, in":               {delayq.ProcessAt(hour), delayq.ExpireIn(30 * time.Minute)},
			"in, at":               {delayq.ProcessIn(2 * time.Hour), delayq.ExpireAt(hour)},
			"now, past":            {delayq.ExpireAt(now.Add(-time.Hour))},
			"now, this very ms":    {delayq.ExpireAt(now)},
			"in, past":             {delayq.ProcessIn(time.Hour), delayq.ExpireAt(now.Add(-time.Hour))},
			"at, past":             {delayq.ProcessAt(hour), delayq.ExpireAt(now.Add(-time.Hour))},
			"past, a later past":   {delayq.ProcessAt(now.Add(-time.Hour)), delayq.ExpireAt(now.Add(-time.Minute))},
			"replace, now, past":   {delayq.Replace(), delayq.ExpireAt(now.Add(-time.Hour))},
			"dead only, now, past": {delayq.ReplaceDead(), delayq.ExpireAt(now.Add(-time.Hour))},
		} {
			before := f.Dump()
			job, err := f.Client.Enqueue(t.Context(), "topic", "x", nil, opts...)
			require.ErrorIs(t, err, delayq.ErrInvalid, name)
			require.ErrorContains(t, err, "topic", name)
			require.Nil(t, job, name)
			require.Equal(t, before, f.Dump(), name)
		}
		for name, opts := range map[string]options{
			"in, in":     {delayq.ProcessIn(time.Hour), delayq.ExpireIn(time.Hour + time.Millisecond)},
			"at, at":     {delayq.ProcessAt(hour), delayq.ExpireAt(hour.Add(time.Millisecond))},
			"at, in":     {delayq.ProcessAt(hour), delayq.ExpireIn(2 * time.Hour)},
			"in, at":     {delayq.ProcessIn(30 * time.Minute), delayq.ExpireAt(hour)},
			"now, in":    {delayq.ExpireIn(time.Millisecond)},
			"now, at":    {delayq.ExpireAt(hour)},
			"past, in":   {delayq.ProcessAt(now.Add(-time.Hour)), delayq.ExpireIn(time.Millisecond)},
			"replace":    {delayq.Replace(), delayq.ExpireAt(hour)},
			"not at all": nil,
		} {
			_, err := f.Client.Enqueue(t.Context(), "topic", name, nil, opts...)
			require.NoError(t, err, name)
		}
	})
}

// A due time at which the job would have expired is refused by Reschedule too, and the job stays as
// it was. It is asked once more only if the job can expire at all.
func TestRescheduleBeyondTheExpiry(t *testing.T) {
	for name, due := range map[string]delayq.JobOption{"ready": delayq.ProcessIn(0), "scheduled": delayq.ProcessIn(time.Minute)} {
		t.Run(name, func(t *testing.T) {
			queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
				ctx := t.Context()
				job := f.Enqueue("x", due, delayq.ExpireIn(time.Hour), delayq.Header("h", "v"))
				f.Enqueue("at", due, delayq.ExpireAt(job.EnqueuedAt.Add(time.Hour)))
				f.Enqueue("free", due)
				before := f.Dump()
				for _, id := range []string{"x", "at"} {
					for _, late := range []delayq.DueOption{
						delayq.ProcessIn(2 * time.Hour), delayq.ProcessAt(job.EnqueuedAt.Add(time.Hour)), delayq.ProcessIn(time.Hour),
					} {
						err := f.Client.Reschedule(ctx, "topic", id, late)
						require.ErrorIs(t, err, delayq.ErrInvalid)
						require.ErrorContains(t, err, fmt.Sprintf(`topic "topic" job %q: delayq: invalid: expires at `, id))
						require.Equal(t, before, f.Dump(), "nothing was written")
					}
				}
				require.NoError(t, f.Client.Reschedule(ctx, "topic", "x", delayq.ProcessAt(job.EnqueuedAt.Add(time.Hour-time.Millisecond))))
				require.Equal(t, delayq.StateScheduled, f.Get("x").State)

				var calls queuetest.CountScripts
				client := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(&calls))
				require.NoError(t, client.Reschedule(ctx, "topic", "free", delayq.ProcessIn(10000*time.Hour)))
				require.Equal(t, queuetest.CountScripts{"reschedule": 1}, calls)
			})
		})
	}
}

// meddler is a hook that does something after the first call of a script.
type meddler struct {
	script string
	then   func()
}

func (m *meddler) Script(e delayq.ScriptEvent) {
	if then := m.then; e.Name == m.script && then != nil {
		m.then = nil
		then()
	}
}

// The job is replaced by another one, with another expiry, between the two calls of a Reschedule:
// that one's counts.
func TestRescheduleOfAJobThatIsReplacedMeanwhile(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x", delayq.ExpireIn(10*time.Hour))
		hook := &meddler{"reschedule", func() { f.Enqueue("x", delayq.Replace(), delayq.ExpireIn(time.Hour)) }}
		client := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(hook))
		require.ErrorIs(t, client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(5*time.Hour)), delayq.ErrInvalid)
		require.Equal(t, delayq.StateReady, f.Get("x").State)

		hook.then = func() { f.Enqueue("x", delayq.Replace(), delayq.ExpireIn(100*time.Hour)) }
		require.NoError(t, client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(50*time.Hour)))
		require.Equal(t, delayq.StateScheduled, f.Get("x").State)
	})
}

// A job that expires is not taken for one of a schedule because its ID looks like it.
func TestExpiringJobIsNoJobOfASchedule(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := context.WithoutCancel(t.Context())
		require.NoError(t, f.Client.Schedule(ctx, "topic", "s", delayq.Every(1000*time.Hour), nil))
		f.Enqueue("s@12", delayq.ExpireIn(time.Hour))
		f.Dequeue("s@12")
		runs, err := f.Inspector.Runs(ctx, "topic", "s", 10)
		require.NoError(t, err)
		require.Empty(t, runs)
	})
}
