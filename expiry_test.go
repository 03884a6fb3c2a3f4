package delayq_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// clockOf is the time by Redis's clock.
func clockOf(t *testing.T, rdb redis.UniversalClient) time.Time {
	t.Helper()
	now, err := rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	return now
}

// A job that would have expired by the time it is due is refused, however the two times are given,
// and nothing of it is written; one that has a millisecond is not. (M4)
func TestExpiryThatCannotBeMet(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		now := clockOf(t, f.rdb).Truncate(time.Millisecond)
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
			before := f.dump()
			job, err := f.client.Enqueue(t.Context(), "topic", "x", nil, opts...)
			require.ErrorIs(t, err, delayq.ErrInvalid, name)
			require.ErrorContains(t, err, "topic", name)
			require.Nil(t, job, name)
			require.Equal(t, before, f.dump(), name)
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
			_, err := f.client.Enqueue(t.Context(), "topic", name, nil, opts...)
			require.NoError(t, err, name)
		}
	})
}

// What cannot be met hurts neither the other jobs of the call nor the job that it would have
// replaced.
func TestExpiryThatCannotBeMetBesideOthers(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		past := delayq.ExpireAt(clockOf(t, f.rdb).Add(-time.Hour))
		old := f.enqueue("old")
		var calls countScripts
		client := delayq.NewClient(f.rdb, delayq.Prefix(f.prefix), delayq.Hooks(&calls))
		results, err := client.EnqueueBatch(t.Context(), []delayq.NewJob{
			{Topic: "topic", ID: "a"},
			{Topic: "topic", ID: "hopeless", Options: []delayq.JobOption{past}},
			{Topic: "topic", ID: "old", Options: []delayq.JobOption{past, delayq.Replace()}},
			{Topic: "topic", ID: "b", Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}},
		})
		require.ErrorContains(t, err, "2 of 4")
		require.Equal(t, 1, calls["replace"]+calls["enqueue"], "one call")
		for i, r := range results {
			if i == 1 || i == 2 {
				require.ErrorIs(t, r.Err, delayq.ErrInvalid)
				require.ErrorContains(t, r.Err, `job "`+[]string{"a", "hopeless", "old"}[i]+`": delayq: invalid: expires at `)
				require.Nil(t, r.Job)
				continue
			}
			require.NoError(t, r.Err)
		}
		require.Equal(t, old.Nonce(), f.get("old").Nonce())
		require.Equal(t, delayq.StateReady, f.get("a").State)
		require.Equal(t, delayq.StateScheduled, f.get("b").State)
		require.Empty(t, f.hand.Traces("hopeless"))
	})
}

// countScripts is a hook that counts the calls of scripts.
type countScripts map[string]int

func (c *countScripts) Script(e delayq.ScriptEvent) {
	if *c == nil {
		*c = countScripts{}
	}
	(*c)[e.Name]++
}

// A due time at which the job would have expired is refused by Reschedule too, and the job stays as
// it was. It is asked once more only if the job can expire at all.
func TestRescheduleBeyondTheExpiry(t *testing.T) {
	for name, due := range map[string]delayq.JobOption{"ready": delayq.ProcessIn(0), "scheduled": delayq.ProcessIn(time.Minute)} {
		t.Run(name, func(t *testing.T) {
			eachClient(t, func(t *testing.T, f *fixture) {
				ctx := t.Context()
				job := f.enqueue("x", due, delayq.ExpireIn(time.Hour), delayq.Header("h", "v"))
				f.enqueue("at", due, delayq.ExpireAt(job.EnqueuedAt.Add(time.Hour)))
				f.enqueue("free", due)
				before := f.dump()
				for _, id := range []string{"x", "at"} {
					for _, late := range []delayq.DueOption{
						delayq.ProcessIn(2 * time.Hour), delayq.ProcessAt(job.EnqueuedAt.Add(time.Hour)), delayq.ProcessIn(time.Hour),
					} {
						err := f.client.Reschedule(ctx, "topic", id, late)
						require.ErrorIs(t, err, delayq.ErrInvalid)
						require.ErrorContains(t, err, fmt.Sprintf(`topic "topic" job %q: delayq: invalid: expires at `, id))
						require.Equal(t, before, f.dump(), "nothing was written")
					}
				}
				require.NoError(t, f.client.Reschedule(ctx, "topic", "x", delayq.ProcessAt(job.EnqueuedAt.Add(time.Hour-time.Millisecond))))
				require.Equal(t, delayq.StateScheduled, f.get("x").State)

				var calls countScripts
				client := delayq.NewClient(f.rdb, delayq.Prefix(f.prefix), delayq.Hooks(&calls))
				require.NoError(t, client.Reschedule(ctx, "topic", "free", delayq.ProcessIn(10000*time.Hour)))
				require.Equal(t, countScripts{"reschedule": 1}, calls)
			})
		})
	}
}

// A job that was revived does not expire any more: it may be moved anywhere.
func TestRescheduleOfARevivedJobBeyondItsExpiry(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		f.enqueue("x", delayq.ExpireIn(time.Hour))
		require.Equal(t, "o", f.hand.Bury(f.hand.TakeOne("x")))
		require.NoError(t, f.client.Revive(t.Context(), "topic", "x"))
		for range 2 {
			require.NoError(t, f.client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(5*time.Hour)))
		}
		require.Equal(t, delayq.StateScheduled, f.get("x").State)
	})
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
	eachClient(t, func(t *testing.T, f *fixture) {
		f.enqueue("x", delayq.ExpireIn(10*time.Hour))
		hook := &meddler{"reschedule", func() { f.enqueue("x", delayq.Replace(), delayq.ExpireIn(time.Hour)) }}
		client := delayq.NewClient(f.rdb, delayq.Prefix(f.prefix), delayq.Hooks(hook))
		require.ErrorIs(t, client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(5*time.Hour)), delayq.ErrInvalid)
		require.Equal(t, delayq.StateReady, f.get("x").State)

		hook.then = func() { f.enqueue("x", delayq.Replace(), delayq.ExpireIn(100*time.Hour)) }
		require.NoError(t, client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(50*time.Hour)))
		require.Equal(t, delayq.StateScheduled, f.get("x").State)
	})
}

// A job that expires is not taken for one of a schedule because its ID looks like it.
func TestExpiringJobIsNoJobOfASchedule(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		ctx := context.WithoutCancel(t.Context())
		require.NoError(t, f.client.Schedule(ctx, "topic", "s", delayq.Every(1000*time.Hour), nil))
		f.enqueue("s@12", delayq.ExpireIn(time.Hour))
		f.dequeue("s@12")
		runs, err := f.client.Runs(ctx, "topic", "s", 10)
		require.NoError(t, err)
		require.Empty(t, runs)
	})
}
