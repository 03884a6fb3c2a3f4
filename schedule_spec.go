package delayq

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/robfig/cron/v3"

	"github.com/delayq/delayq/internal/record"
)

// A Spec defines the slots of a schedule. Use [Every], [Cron] or [OnCalendar] to create one. Specs
// can be compared.
type Spec struct {
	rule record.Spec
	err  error // an invalid argument that could be detected immediately
}

// Every returns the spec of an interval. There is a slot at every multiple of d since the
// beginning of 1970 UTC by Redis's clock, or since [StartAt] if the schedule has one. So the slots
// depend neither on when the schedule was created nor on restarts. Time zones and daylight saving
// do not affect them.
//
// Each time a server looks, it fires only the latest slot that has come, and a look takes a few
// calls to Redis. If d is below about 5 ms plus a round trip, slots are missed even in normal
// operation. [OverlapAllow] with [MissedCatchUp] enqueues jobs for them. Range: 1 ms to 100 years,
// rounded up to whole milliseconds.
func Every(d time.Duration) Spec {
	return Spec{record.Spec{Kind: record.Interval, Every: ceilMS(d)}, positive("Every", d)}
}

// maxCronLen is the maximum length of a cron rule and of the name of a zone, in bytes.
const maxCronLen = 1 << 10

// Cron returns the spec of a cron rule in a time zone. The rule has 5 fields (minute, hour, day of
// month, month, day of week) or 6 (second first). A field is *, a value, a range 1-5, a step */15
// or 10-50/10, or a list of these with commas. Months and days of the week can also be English
// names of three letters; Sunday is 0. If both days are restricted, one of them is enough, as
// always in cron. The descriptors are @yearly, @annually, @monthly, @weekly, @daily, @midnight,
// @hourly, and @every with a duration, which is [Every].
//
// The zone is an IANA name, like Europe/Berlin. An empty zone is UTC. "Local" is rejected because
// it differs between machines. The time zone database must be on the machines of the clients and
// servers that use the schedule; the package time/tzdata embeds it.
//
// When clocks are put forward, a slot in the hour that is left out moves to the time of the jump.
// Several such slots become one. When clocks are put back, a slot in the repeated hour comes only
// the first time. A rule for every hour of the day continues through both hours, because the
// second one is an hour of its own.
//
// Where clocks move by half an hour (Australia/Lord_Howe), a rule for every hour follows the
// minutes that they show. In autumn 45 * * * * has a slot at both times that they show 1:45, half
// an hour apart. 15 * * * * then has none for an hour and a half. In spring it has one at the time
// of the jump instead of 2:15.
func Cron(rule, zone string) Spec {
	if text, ok := strings.CutPrefix(strings.TrimSpace(rule), "@every "); ok {
		d, err := time.ParseDuration(strings.TrimSpace(text))
		if err != nil {
			return Spec{record.Spec{Kind: record.Interval}, fmt.Errorf("Cron(%q): invalid duration %q at byte %d", rule, text, strings.Index(rule, "@every ")+7)}
		}
		spec := Every(d)
		spec.err = errors.Join(spec.err, checkZone(zone))
		return spec
	}
	return Spec{record.Spec{Kind: record.Cron, Text: strings.Join(strings.Fields(rule), " "), Zone: zone}, checkCron(rule)}
}

// OnCalendar returns the spec of a [Calendar] that servers have registered under this name. Names
// have the same limits as topics. If no server of its topic has the calendar, the schedule waits
// for one.
func OnCalendar(name string) Spec {
	return Spec{record.Spec{Kind: record.Calendar, Text: name}, checkName("calendar", name)}
}

// A Calendar computes arbitrary slots, like the working days of a bank. Next returns the first
// slot after a time, or the zero time if there is none. Slots are rounded up to the millisecond.
//
// Next must depend on that time only, return the same on every server, be fast, and be safe for
// concurrent use. A topic waits for it. If it does not return within a second, this is logged. It
// is then not called again for a minute, nor before that call has returned.
//
// The schedules of package github.com/robfig/cron are Calendars.
type Calendar interface {
	Next(after time.Time) time.Time
}

// String describes the spec: "every 10s", "cron 0 9 * * 1-5 Europe/Berlin", "calendar bank-days".
func (s Spec) String() string { return s.rule.String() }

// A rhythm returns the first slot after a time, both in Unix ms, or 0 if there is none. after can
// be negative.
type rhythm func(after int64) (slot int64, err error)

// errNoCalendar is returned when this server does not have the calendar of a schedule. Another
// server may have it.
var errNoCalendar = errors.New("calendar is not registered")

// newRhythm computes the slots of a spec, from first on. Without its calendar, the spec of one
// returns errNoCalendar.
func newRhythm(s record.Spec, first int64, calendars map[string]*calendar) (rhythm, error) {
	switch s.Kind {
	case record.Interval:
		return interval(s.Every, first), nil
	case record.Cron:
		if err := checkZone(s.Zone); err != nil {
			return nil, err
		}
		zone, err := time.LoadLocation(s.Zone)
		if err != nil {
			return nil, err
		}
		rule, err := parseCron(s.Text)
		if err != nil {
			return nil, err
		}
		return (&wallClock{rule: rule, zone: zone}).rhythm(first), nil
	case record.Calendar:
		if c := calendars[s.Text]; c != nil {
			return calendarRhythm(s.Text, c, first), nil
		}
		return nil, fmt.Errorf("%w: %q", errNoCalendar, s.Text)
	}
	return nil, errors.New("zero Spec: use Every, Cron or OnCalendar")
}

// checkZone validates the name of a zone.
func checkZone(name string) error {
	if name == "Local" {
		return errors.New(`zone "Local" depends on the machine: use an IANA name`)
	}
	if len(name) > maxCronLen {
		return fmt.Errorf("zone of %d bytes, at most %d are allowed", len(name), maxCronLen)
	}
	if _, err := time.LoadLocation(name); err != nil {
		return fmt.Errorf("zone %.100q: %w", name, err)
	}
	return nil
}

// interval returns the rhythm with a slot at first and then one after every that many ms.
func interval(every, first int64) rhythm {
	return func(after int64) (int64, error) {
		if after < first {
			return max(first, 1), nil // a slot at 0 would mean none
		}
		if step := (after-first)/every + 1; step <= (maxDueMS-first)/every {
			return first + step*every, nil
		}
		return 0, nil
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

// next returns the result of Next if the calendar answers in time.
func (c *calendar) next(after time.Time) (time.Time, error) {
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
	launch(nil, func() {
		at := c.inner.Next(after)
		c.returned()
		answers <- answer{at: at}
	}, func(why *crash) {
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

// calendarRhythm calls a user's calendar and validates what it returns.
func calendarRhythm(name string, c *calendar, first int64) rhythm {
	return func(after int64) (slot int64, err error) {
		from := msTime(max(after, first-1)).UTC()
		at, err := c.next(from)
		switch {
		case err != nil:
			return 0, fmt.Errorf("calendar %q: %w", name, err)
		case at.IsZero():
			return 0, nil
		case !at.After(from):
			return 0, fmt.Errorf("calendar %q: the slot after %v is %v, which is not later", name, from, at)
		case at.After(msTime(maxDueMS)):
			return 0, nil
		}
		return instant("calendar", at)
	}
}

// cronParser accepts 5 or 6 fields and descriptors.
var cronParser = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

var cronFields = [...]string{"second", "minute", "hour", "day of month", "month", "day of week"}

// parseCron parses a rule as if its times were in UTC, whatever its zone.
func parseCron(rule string) (*cron.SpecSchedule, error) {
	// The parser would accept a zone in front of the rule, and panics if nothing follows it.
	if strings.Contains(rule, "=") {
		return nil, errors.New("zone inside the rule: use the second argument")
	}
	parsed, err := cronParser.Parse(rule)
	if err != nil {
		return nil, err
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok { // @every without a following space
		return nil, errors.New("unknown descriptor")
	}
	for i, bits := range [...]uint64{spec.Second, spec.Minute, spec.Hour, spec.Dom, spec.Month, spec.Dow} {
		if bits == 0 { // a field with nothing but commas
			return nil, fmt.Errorf("the %s is empty", cronFields[i])
		}
	}
	spec.Location = time.UTC
	return spec, nil
}

// checkCron validates a cron rule. The error says where the fault is.
func checkCron(rule string) error {
	switch {
	case len(rule) > maxCronLen:
		return fmt.Errorf("Cron: rule of %d bytes, at most %d are allowed", len(rule), maxCronLen)
	case !utf8.ValidString(rule):
		return fmt.Errorf("Cron(%q): not valid UTF-8", rule)
	}
	_, err := parseCron(rule)
	if err == nil {
		return nil
	}
	fields := strings.Fields(rule)
	if n := len(fields); n != 5 && n != 6 || strings.Contains(rule, "=") {
		if (n == 0 || !strings.HasPrefix(fields[0], "@")) && !strings.Contains(rule, "=") {
			err = fmt.Errorf("want 5 or 6 fields, got %d", n)
		}
		return fmt.Errorf("Cron(%q): %w", rule, err)
	}
	// To find the invalid field, each one is parsed with stars in all others.
	at := 0
	for i, field := range fields {
		at += strings.Index(rule[at:], field)
		alone := []string{"*", "*", "*", "*", "*", "*"}
		name := i + len(cronFields) - len(fields)
		alone[name] = field
		if _, err := parseCron(strings.Join(alone, " ")); err != nil {
			return fmt.Errorf("Cron(%q): %s %q at byte %d: %w", rule, cronFields[name], field, at, err)
		}
		at += len(field)
	}
	return fmt.Errorf("Cron(%q): %w", rule, err)
}

// A wallClock has its slots where the clocks of a zone show the times of a cron rule. The parser's
// own Next leaves out slots that the spring jump leaves out, and returns slots twice that autumn
// repeats. So here it only sees a clock without daylight saving, and wallClock handles the jumps.
type wallClock struct {
	rule *cron.SpecSchedule
	zone *time.Location
}

func (w *wallClock) rhythm(first int64) rhythm {
	return func(after int64) (int64, error) {
		at := w.next(msTime(max(after, first-1, 0)))
		if at.IsZero() || at.UnixMilli() > maxDueMS {
			return 0, nil
		}
		return at.UnixMilli(), nil
	}
}

// next returns the first slot after t, or the zero time if there is none.
//
// It walks through the periods of the zone between two jumps of its clocks. Within a period, wall
// time is UTC plus a constant.
func (w *wallClock) next(t time.Time) time.Time {
	everyHour := w.rule.Hour&(1<<24-1) == 1<<24-1
	for period := t; ; {
		start, end := period.In(w.zone).ZoneBounds()
		shift := offset(period, w.zone)
		wall := t.Add(shift)
		if !start.IsZero() && !everyHour {
			// Times that the clocks showed before they were put back are over.
			if shown := start.Add(offset(start.Add(-1), w.zone) - 1); wall.Before(shown) {
				wall = shown
			}
		}
		slot := w.wallNext(wall)
		if slot.IsZero() {
			return time.Time{}
		}
		at := slot.Add(-shift)
		if end.IsZero() || at.Before(end) {
			return at
		}
		if first := end.Add(offset(end, w.zone)); first.After(end.Add(shift)) && !slot.After(first) {
			// The clocks never show the slot, or it is the first time they show after the jump.
			return end
		}
		t, period = end.Add(-1), end
	}
}

// wallNext returns the first wall time after another that matches the rule. The parser's own Next
// searches five years, but from 2096 to 2104 there is no 29 February.
func (w *wallClock) wallNext(wall time.Time) time.Time {
	wall = wall.UTC()
	if slot := w.rule.Next(wall); !slot.IsZero() {
		return slot
	}
	return w.rule.Next(time.Date(wall.Year()+6, time.January, 1, 0, 0, 0, -1, time.UTC))
}

// offset returns how far the clocks of a zone are ahead of UTC.
func offset(t time.Time, zone *time.Location) time.Duration {
	_, seconds := t.In(zone).Zone()
	return time.Duration(seconds) * time.Second
}
