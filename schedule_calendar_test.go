package delayq_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
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
	inBubble(t, func(b *bubble) {
		var r recorder
		var log logbook
		b.schedule("days", delayq.OnCalendar("work"))
		b.schedule("tick", delayq.Every(5*time.Second))
		require.Zero(b, b.info("days").NextSlot)
		b.serve("t", r.then(nil), log.to())
		b.pass(11 * time.Second)
		require.Equal(b, seconds(5, 10), b.slots(&r, "tick"))
		require.Len(b, log.with("calendar is not registered", "schedule=days"), 1)

		days := workdays{b.began.Add(3 * time.Second), b.began.Add(17*time.Second + time.Microsecond), b.began.Add(23 * time.Second)}
		serveMany(b.T, b.rdb, bubblePrefix, func(s *delayq.Server) {
			s.HandlerFunc("t", r.then(nil))
			s.Calendar("work", days)
			s.Calendar("broken", workdays{})
		})
		b.pass(20 * time.Second)
		require.Equal(b, []time.Duration{11 * time.Second, 17*time.Second + time.Millisecond, 23 * time.Second}, b.slots(&r, "days"))
		require.Contains(b, r.ids(), b.id("days", 3*time.Second), "it had come before anybody knew")
		require.Equal(b, delayq.ScheduleEnded, b.info("days").State)
		require.Len(b, b.slots(&r, "tick"), 6)
	})
}

// A calendar that does not do what it should stops nothing but its own schedule, and is in the log.
// (F10)
func TestCalendarsThatMisbehave(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var r recorder
		var log logbook
		for _, name := range []string{"panics", "leaves", "stands still", "never"} {
			b.schedule(name, delayq.OnCalendar(name))
		}
		b.schedule("tick", delayq.Every(time.Second))
		serveMany(b.T, b.rdb, bubblePrefix, func(s *delayq.Server) {
			s.HandlerFunc("t", r.then(nil))
			s.Calendar("panics", nextFunc(func(time.Time) time.Time { panic("oh") }))
			s.Calendar("leaves", nextFunc(func(time.Time) time.Time { runtime.Goexit(); return time.Time{} }))
			s.Calendar("stands still", nextFunc(func(t time.Time) time.Time { return t }))
			s.Calendar("never", nextFunc(func(time.Time) time.Time { return time.Time{} }))
		}, log.to())
		b.pass(10 * time.Second)
		require.Len(b, b.slots(&r, "tick"), 10)
		require.Len(b, log.with("calendar", "panics", "panic: oh"), 1)
		require.Len(b, log.with("calendar", "leaves", "goexit: "), 1)
		require.Len(b, log.with("calendar", "stands still", "not later"), 1)
		require.Empty(b, log.with(`msg="promote failed"`), "its loop has not been started anew")
		require.Equal(b, delayq.ScheduleEnded, b.info("never").State)
		require.Equal(b, delayq.ScheduleWaiting, b.info("panics").State)
	})
}

// A calendar that blocks stops neither the other schedules of its topic nor its other jobs: not for
// longer than a second in a minute. When it answers again, it is asked again.
func TestCalendarThatBlocks(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var r recorder
		var log logbook
		var asked atomic.Int64
		answer := make(chan struct{})
		b.schedule("blocks", delayq.OnCalendar("blocks"))
		b.schedule("tick", delayq.Every(5*time.Second))
		serveMany(b.T, b.rdb, bubblePrefix, func(s *delayq.Server) {
			s.HandlerFunc("t", r.then(nil))
			s.Calendar("blocks", nextFunc(func(after time.Time) time.Time {
				asked.Add(1)
				<-answer
				return after.Truncate(time.Hour).Add(time.Hour)
			}))
		}, log.to())
		b.pass(5 * time.Minute)
		require.EqualValues(b, 1, asked.Load(), "it has not returned")
		require.Len(b, b.slots(&r, "tick"), 60)
		require.Len(b, log.with(`msg="schedule failed"`, "schedule=blocks", "no answer within 1s"), 1)
		b.enqueue("t", "job", delayq.ProcessIn(2500*time.Millisecond))
		b.pass(3 * time.Second)
		require.WithinDuration(b, r.of("job")[0].due, r.of("job")[0].at, 0)
		close(answer)
		b.pass(2 * time.Minute)
		require.Greater(b, asked.Load(), int64(1))
		require.NotZero(b, b.info("blocks").NextSlot)
		require.Len(b, log.with("level=INFO", "schedule works again", "schedule=blocks"), 1)
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
