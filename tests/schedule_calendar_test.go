package tests

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// workdays is a calendar with a slot at each of some times.
type workdays []time.Time

func (w workdays) Next(after time.Time) time.Time {
	for _, at := range w {
		if at.After(after) {
			return at
		}
	}
	return time.Time{}
}

// A calendar is known to servers only: the first one that knows it works out the first slot. One
// that does not know it leaves it alone, and fires all others.
func TestScheduleOnCalendar(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r queuetest.Recorder
		var log queuetest.Logbook
		b.AddSchedule("days", delayq.OnCalendar("work"))
		b.AddSchedule("tick", delayq.Every(5*time.Second))
		require.Zero(b, b.ScheduleInfo("days").NextSlot)
		b.Serve("t", r.Then(nil), log.To())
		b.Pass(11 * time.Second)
		require.Equal(b, seconds(5, 10), slotsOf(b, &r, "tick"))
		require.Len(b, log.With("calendar is not registered", "schedule=days"), 1)

		days := workdays{b.Began.Add(3 * time.Second), b.Began.Add(17*time.Second + time.Microsecond), b.Began.Add(23 * time.Second)}
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("t", r.Then(nil))
			s.Calendar("work", days)
			s.Calendar("broken", workdays{})
		})
		b.Pass(20 * time.Second)
		require.Equal(b, []time.Duration{11 * time.Second, 17*time.Second + time.Millisecond, 23 * time.Second}, slotsOf(b, &r, "days"))
		require.Contains(b, r.IDs(), b.SlotID("days", 3*time.Second), "it had come before anybody knew")
		require.Equal(b, delayq.ScheduleEnded, b.ScheduleInfo("days").State)
		require.Len(b, slotsOf(b, &r, "tick"), 6)
	})
}

// A calendar that does not do what it should stops nothing but its own schedule, and is in the log.
// (F10)
func TestCalendarsThatMisbehave(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r queuetest.Recorder
		var log queuetest.Logbook
		for _, name := range []string{"panics", "leaves", "stands still", "never"} {
			b.AddSchedule(name, delayq.OnCalendar(name))
		}
		b.AddSchedule("tick", delayq.Every(time.Second))
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("t", r.Then(nil))
			s.Calendar("panics", nextFunc(func(time.Time) time.Time { panic("oh") }))
			s.Calendar("leaves", nextFunc(func(time.Time) time.Time { runtime.Goexit(); return time.Time{} }))
			s.Calendar("stands still", nextFunc(func(t time.Time) time.Time { return t }))
			s.Calendar("never", nextFunc(func(time.Time) time.Time { return time.Time{} }))
		}, log.To())
		b.Pass(10 * time.Second)
		require.Len(b, slotsOf(b, &r, "tick"), 10)
		require.Len(b, log.With("calendar", "panics", "panic: oh"), 1)
		require.Len(b, log.With("calendar", "leaves", "goexit: "), 1)
		require.Len(b, log.With("calendar", "stands still", "not later"), 1)
		require.Empty(b, log.With(`msg="promote failed"`), "its loop has not been started anew")
		require.Equal(b, delayq.ScheduleEnded, b.ScheduleInfo("never").State)
		require.Equal(b, delayq.ScheduleWaiting, b.ScheduleInfo("panics").State)
	})
}

// A calendar that blocks stops neither the other schedules of its topic nor its other jobs: not for
// longer than a second in a minute. When it answers again, it is asked again.
func TestCalendarThatBlocks(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r queuetest.Recorder
		var log queuetest.Logbook
		var asked atomic.Int64
		answer := make(chan struct{})
		b.AddSchedule("blocks", delayq.OnCalendar("blocks"))
		b.AddSchedule("tick", delayq.Every(5*time.Second))
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("t", r.Then(nil))
			s.Calendar("blocks", nextFunc(func(after time.Time) time.Time {
				asked.Add(1)
				<-answer
				return after.Truncate(time.Hour).Add(time.Hour)
			}))
		}, log.To())
		b.Pass(5 * time.Minute)
		require.EqualValues(b, 1, asked.Load(), "it has not returned")
		require.Len(b, slotsOf(b, &r, "tick"), 60)
		require.Len(b, log.With(`msg="schedule failed"`, "schedule=blocks", "no answer within 1s"), 1)
		b.Enqueue("t", "job", delayq.ProcessIn(2500*time.Millisecond))
		b.Pass(3 * time.Second)
		require.WithinDuration(b, r.Of("job")[0].Due, r.Of("job")[0].At, 0)
		close(answer)
		b.Pass(2 * time.Minute)
		require.Greater(b, asked.Load(), int64(1))
		require.NotZero(b, b.ScheduleInfo("blocks").NextSlot)
		require.Len(b, log.With("level=INFO", "schedule works again", "schedule=blocks"), 1)
	})
}

type nextFunc func(time.Time) time.Time

func (f nextFunc) Next(after time.Time) time.Time { return f(after) }

// What is wrong with the calendars of a server is an error of Run.
func TestCalendarMisuse(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = rdb.Close() })
	s := delayq.NewServer(rdb)
	s.HandlerFunc("t", func(context.Context, *delayq.Job) error { return nil })
	s.Calendar("", workdays{})
	s.Calendar("x", nil)
	s.Calendar("y", workdays{})
	s.Calendar("y", workdays{})
	err := s.Run(t.Context())
	require.ErrorIs(t, err, delayq.ErrInvalid)
	for _, say := range []string{"empty calendar", `"x" is nil`, `"y" already registered`} {
		require.ErrorContains(t, err, say)
	}
}
