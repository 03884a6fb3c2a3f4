package delayq_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// A job that waits gets another due time; any other is left alone, and the error says why.
func TestRescheduleInEveryState(t *testing.T) {
	eachLife(t, func(t *testing.T, f *fixture, state delayq.State, _ delayq.Held) {
		before := f.Dump()
		err := f.Client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(5*time.Hour))
		switch state {
		case delayq.StateScheduled, delayq.StateReady:
			require.NoError(t, err)
		default:
			want := map[delayq.State]error{
				"": delayq.ErrNotFound, delayq.StateRunning: delayq.ErrRunning, delayq.StateDead: delayq.ErrDead,
			}[state]
			require.ErrorIs(t, err, want)
			require.ErrorContains(t, err, `"topic"`)
			require.Equal(t, before, f.Dump(), "nothing was written")
			return
		}
		info := f.Get("x")
		require.Equal(t, delayq.StateScheduled, info.State)
		require.Equal(t, delayq.DueReschedule, info.DueReason)
		require.InDelta(t, 5*time.Hour, info.Due.Sub(info.EnqueuedAt), float64(time.Minute))

		f.hand.Hasten(4*time.Hour + 50*time.Minute)
		f.hand.Promote()
		require.Empty(t, f.hand.Take(10, time.Minute), "before its time")
		f.hand.Hasten(10 * time.Minute)
		f.hand.Promote()
		held := f.hand.TakeOne("x")
		require.Empty(t, f.hand.Take(10, time.Minute), "a second time")
		require.Equal(t, "o", f.hand.Ack(held))
		require.Empty(t, f.hand.Traces("x"))
	})
}

// To now is at once, and a job that is ready already stays so.
func TestRescheduleToNow(t *testing.T) {
	eachLife(t, func(t *testing.T, f *fixture, state delayq.State, _ delayq.Held) {
		if state != delayq.StateScheduled && state != delayq.StateReady {
			return
		}
		for _, due := range []delayq.DueOption{
			delayq.ProcessIn(0), delayq.ProcessIn(-time.Hour), delayq.ProcessAt(time.Unix(1, 0)), delayq.ProcessIn(math.MinInt64),
		} {
			require.NoError(t, f.Client.Reschedule(t.Context(), "topic", "x", due))
			require.Equal(t, delayq.StateReady, f.Get("x").State)
		}
		held := f.hand.TakeOne("x")
		require.Empty(t, f.hand.Take(10, time.Minute), "a second time")
		require.Equal(t, "o", f.hand.Ack(held))
	})
}

func TestRescheduleTellsTheDueTime(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		f.Enqueue("x", delayq.ProcessIn(time.Hour))
		at := time.UnixMilli(4_000_000_000_001)
		require.NoError(t, f.Client.Reschedule(t.Context(), "topic", "x", delayq.ProcessAt(at.Add(-1))))
		require.True(t, f.Get("x").Due.Equal(at), "rounded up")
		score, err := f.RDB.ZScore(t.Context(), f.Key("bucket"), "x").Result()
		require.NoError(t, err)
		require.Equal(t, float64(at.UnixMilli()), score)
	})
}

// The attempts before the last revival stay on record, whatever comes later.
func TestRescheduleKeepsWhatARevivalHasGiven(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		f.Enqueue("x")
		f.hand.Bury(f.hand.TakeOne("x"))
		require.NoError(t, f.Client.Revive(t.Context(), "topic", "x"))
		require.NoError(t, f.Client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(0)))
		require.Regexp(t, ` reschedule 1 0 1$`, f.hand.TakeOne("x").Moved)
	})
}

func TestRescheduleRefusesAnInvalidDueTime(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		f.Enqueue("x", delayq.ProcessIn(time.Hour))
		before := f.Dump()
		for _, opt := range []delayq.DueOption{nil, delayq.ProcessIn(math.MaxInt64), delayq.ProcessIn(30), delayq.ProcessAt(time.Time{})} {
			require.ErrorIs(t, f.Client.Reschedule(t.Context(), "topic", "x", opt), delayq.ErrInvalid)
		}
		require.Equal(t, before, f.Dump())
	})
}

// Revive brings a dead job back, and leaves any other alone.
func TestReviveInEveryState(t *testing.T) {
	eachLife(t, func(t *testing.T, f *fixture, state delayq.State, _ delayq.Held) {
		before := f.Dump()
		err := f.Client.Revive(t.Context(), "topic", "x")
		if state != delayq.StateDead {
			require.ErrorIs(t, err, delayq.ErrNotFound)
			require.Equal(t, before, f.Dump(), "nothing was written")
			return
		}
		require.NoError(t, err)
		info := f.Get("x")
		require.Equal(t, delayq.StateReady, info.State)
		require.Equal(t, 2, info.Attempt, "its attempts go on counting")
		require.Len(t, info.Errors, 1, "what had happened is kept")
		require.Equal(t, delayq.DueRevive, info.DueReason)
		held := f.hand.TakeOne("x")
		require.Regexp(t, ` revive 1 0 1$`, held.Moved, "all its retries are before it again")
		require.ErrorIs(t, f.Client.Revive(t.Context(), "topic", "x"), delayq.ErrNotFound)
		require.Equal(t, "o", f.hand.Bury(held))
		require.NoError(t, f.Client.Revive(t.Context(), "topic", "x"))
		require.Regexp(t, ` revive 2 0 1$`, f.hand.TakeOne("x").Moved)
	})
}
