package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/record"
)

// A Rhythm returns the first slot after a time, both in Unix ms, or 0 if there is none. after can
// be negative.
type Rhythm func(after int64) (slot int64, err error)

// A Calendar computes slots as users define them.
type Calendar interface {
	// Next returns the first slot after a time, or the zero time if there is none.
	Next(after time.Time) (time.Time, error)
}

// Calendars holds calendars by name.
type Calendars map[string]Calendar

// ErrNoCalendar is returned when this server does not have the calendar of a schedule. Another
// server may have it.
var ErrNoCalendar = errors.New("calendar is not registered")

// NewRhythm returns the slots of a definition, from its first slot to its last.
func NewRhythm(d *record.Definition, calendars Calendars) (Rhythm, error) {
	next, err := newRhythm(d.Spec, d.First, calendars)
	if err != nil || d.Last <= 0 {
		return next, err
	}
	last := d.Last
	return func(after int64) (int64, error) {
		slot, err := next(after)
		if slot > last {
			slot = 0
		}
		return slot, err
	}, nil
}

func newRhythm(s record.Spec, first int64, calendars Calendars) (Rhythm, error) {
	switch s.Kind {
	case record.Interval:
		return interval(s.Every, first), nil
	case record.Cron:
		if err := CheckZone(s.Zone); err != nil {
			return nil, err
		}
		zone, err := time.LoadLocation(s.Zone)
		if err != nil {
			return nil, err
		}
		rule, mistakes := parseCron(s.Text)
		if rule == nil {
			return nil, fmt.Errorf("cron rule %.100q: %s", s.Text, strings.Join(mistakes, "; "))
		}
		return (&wallClock{rule: rule, zone: zone}).rhythm(first), nil
	case record.Calendar:
		if c := calendars[s.Text]; c != nil {
			return calendarRhythm(s.Text, c, first), nil
		}
		return nil, fmt.Errorf("%w: %q", ErrNoCalendar, s.Text)
	}
	return nil, errors.New("zero Spec: use Every, Cron or OnCalendar")
}

// interval returns the rhythm with a slot at first and then one after every that many ms.
func interval(every, first int64) Rhythm {
	return func(after int64) (int64, error) {
		if after < first {
			return max(first, 1), nil // a slot at 0 would mean none
		}
		if step := (after-first)/every + 1; step <= (record.MaxTime-first)/every {
			return first + step*every, nil
		}
		return 0, nil
	}
}

// calendarRhythm calls a calendar and validates what it returns.
func calendarRhythm(name string, c Calendar, first int64) Rhythm {
	return func(after int64) (int64, error) {
		from := time.UnixMilli(max(after, first-1)).UTC()
		at, err := c.Next(from)
		switch {
		case err != nil:
			return 0, fmt.Errorf("calendar %q: %w", name, err)
		case at.IsZero():
			return 0, nil
		case !at.After(from):
			return 0, fmt.Errorf("calendar %q: the slot after %v is %v, which is not later", name, from, at)
		case at.After(time.UnixMilli(record.MaxTime)):
			return 0, nil
		}
		slot, ok := record.Millis(at)
		if !ok {
			return 0, fmt.Errorf("calendar %q: the slot %v is before 1970", name, at)
		}
		return slot, nil
	}
}
