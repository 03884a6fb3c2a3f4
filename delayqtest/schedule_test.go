package delayqtest_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// A year of a monthly report, and of a nightly job by the clocks of Berlin, in much less than a
// second.
func TestAdvanceDrivesSchedules(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	q := delayqtest.Start(t)
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	var months []string
	q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("report", func(_ context.Context, job *delayq.Job) error {
			require.Equal(t, job.Slot, q.Now())
			months = append(months, job.Slot.In(berlin).Format("2006-01-02 15:04"))
			return nil
		})
	})
	require.NoError(t, q.Client.Schedule(ctx, "report", "monthly", delayq.Cron("0 9 1 * *", "Europe/Berlin"), nil))
	begin := q.Now()
	end := begin.AddDate(1, 0, 0)
	q.Advance(end.Sub(begin))
	var want []string
	for at := time.Date(begin.In(berlin).Year(), begin.In(berlin).Month(), 1, 9, 0, 0, 0, berlin); !at.After(end); at = at.AddDate(0, 1, 0) {
		if at.After(begin) {
			want = append(want, at.Format("2006-01-02 15:04"))
		}
	}
	require.Equal(t, want, months)
	require.Len(t, months, 12)
	info, err := q.Inspector.Schedule(ctx, "report", "monthly")
	require.NoError(t, err)
	require.EqualValues(t, 12, info.Fired)
	require.Zero(t, info.Missed+info.Skipped+info.Failures)
}

// Slots that wait for a run that backs off, and a run that is cancelled by the next slot.
func TestAdvanceWithOverlap(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	q := delayqtest.Start(t)
	var starts []time.Duration
	q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("t", func(_ context.Context, job *delayq.Job) error {
			starts = append(starts, q.Now().Sub(job.Slot))
			if len(starts) == 1 {
				return errors.New("once more")
			}
			return nil
		})
	})
	begin := q.Now()
	require.NoError(t, q.Client.Schedule(ctx, "t", "s", delayq.Every(10*time.Second), nil, delayq.OverlapQueueOne, delayq.StartAt(begin),
		delayq.Backoff(25*time.Second, 25*time.Second)))
	q.Advance(21 * time.Second)
	info, err := q.Inspector.Schedule(ctx, "t", "s")
	require.NoError(t, err)
	require.False(t, info.WaitingSlot.IsZero())
	require.True(t, info.LastUnfinished)
	q.Advance(40 * time.Second)
	require.Zero(t, starts[0])
	require.Positive(t, starts[1]) // the retry
	require.Positive(t, starts[2]) // the slot that waited for it
	// no later slot waits: the clock stood still until that one had started
	require.Zero(t, starts[3])
	info, err = q.Inspector.Schedule(ctx, "t", "s")
	require.NoError(t, err)
	require.Zero(t, info.WaitingSlot)
	require.Positive(t, info.Skipped)
}

// A calendar that no server knows is an error that says so, not an endless wait.
func TestAdvanceSaysThatACalendarIsMissing(t *testing.T) {
	t.Parallel()
	q, err := delayqtest.Open()
	require.NoError(t, err)
	defer func() { require.NoError(t, q.Close()) }()
	_, err = q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("t", func(context.Context, *delayq.Job) error { return nil })
	}, delayq.Logger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	q.Limit = 300 * time.Millisecond
	require.NoError(t, q.Client.Schedule(t.Context(), "t", "s", delayq.OnCalendar("nowhere"), nil))
	require.ErrorContains(t, q.Advance(t.Context(), 0), "calendars may not be registered")
}
