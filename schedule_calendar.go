package delayq

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/script"
)

// A Calendar computes arbitrary slots, like the working days of a bank. Next returns the first
// slot after a time, or the zero time if there is none. Slots are rounded up to the millisecond.
//
// Next must depend only on its argument, return the same on every server, be fast, and be safe for
// concurrent use. The topic waits for the call. A call that takes longer than a second is logged.
// Next is then not called again for a minute, and not before that call has returned.
//
// The schedules of package github.com/robfig/cron are Calendars.
type Calendar interface {
	Next(after time.Time) time.Time
}

// Calendar registers a calendar for schedules with [OnCalendar] in all topics of this server. A
// second calendar with the same name, an invalid name or a nil calendar makes [Server.Run] return
// an error. Calls after Run has started are ignored and logged as errors.
func (s *Server) Calendar(name string, c Calendar) {
	if !s.made("calendar") {
		return
	}
	var errs []error
	if err := script.CheckName("calendar", name); err != nil {
		errs = append(errs, err)
	}
	if contain.IsNil(c) {
		errs = append(errs, fmt.Errorf("calendar %q is nil", name))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calendars[name] != nil {
		errs = append(errs, fmt.Errorf("calendar %q already registered", name))
	}
	switch {
	case s.used:
		s.log.Error("calendar not registered", "err", errors.Join(append(errs, errTooLate)...))
	case len(errs) > 0:
		s.errs = append(s.errs, invalid(errs))
	default:
		s.calendars[name] = &calendar{inner: c}
	}
}

// A calendar wraps a user's Calendar on a server. It is called on a goroutine of its own, because
// the timer of the topic waits for it.
type calendar struct {
	inner Calendar

	mu    sync.Mutex
	asked int       // calls that have not returned
	stuck bool      // one of these calls took too long
	until time.Time // no call before this time
}

const (
	calendarPatience = time.Second // how long a calendar can take to answer
	calendarRest     = time.Minute // how long a slow calendar is not called again
)

var errStuck = fmt.Errorf("no answer within %v; the next call follows after %v, and not before this one has returned", calendarPatience, calendarRest)

// Next returns the result of the user's Next if the calendar answers in time.
func (c *calendar) Next(after time.Time) (time.Time, error) {
	c.mu.Lock()
	if c.stuck || time.Now().Before(c.until) {
		c.mu.Unlock()
		return time.Time{}, errStuck
	}
	c.asked++
	c.mu.Unlock()
	type answer struct {
		at  time.Time
		err error
	}
	answers := make(chan answer, 1)
	contain.Launch(nil, func() {
		at := c.inner.Next(after)
		c.returned()
		answers <- answer{at: at}
	}, func(why *contain.Crash) {
		c.returned()
		answers <- answer{err: why}
	})
	patience := time.NewTimer(calendarPatience)
	defer patience.Stop()
	select {
	case a := <-answers:
		return a.at, a.err
	case <-patience.C:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stuck, c.until = c.asked > 0, time.Now().Add(calendarRest)
		return time.Time{}, errStuck
	}
}

func (c *calendar) returned() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked--
	c.stuck = c.stuck && c.asked > 0
}
