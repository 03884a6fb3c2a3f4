package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/robfig/cron/v3"

	"github.com/delayq/delayq/internal/record"
)

// MaxCronLen is the maximum length of a cron rule and of the name of a zone, in bytes.
const MaxCronLen = 1 << 10

// CheckZone validates the name of a zone.
func CheckZone(name string) error {
	if name == "Local" {
		return errors.New(`zone "Local" depends on the machine: use an IANA name`)
	}
	if len(name) > MaxCronLen {
		return fmt.Errorf("zone of %d bytes, at most %d are allowed", len(name), MaxCronLen)
	}
	if _, err := time.LoadLocation(name); err != nil {
		return fmt.Errorf("zone %.100q: %w", name, err)
	}
	return nil
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

// CheckCron validates a cron rule. The error says where the fault is.
func CheckCron(rule string) error {
	if !utf8.ValidString(rule) {
		return errors.New("not valid UTF-8")
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
		return err
	}
	// To find the invalid field, each one is parsed with stars in all others.
	at := 0
	for i, field := range fields {
		at += strings.Index(rule[at:], field)
		alone := []string{"*", "*", "*", "*", "*", "*"}
		name := i + len(cronFields) - len(fields)
		alone[name] = field
		if _, err := parseCron(strings.Join(alone, " ")); err != nil {
			return fmt.Errorf("%s %q at byte %d: %w", cronFields[name], field, at, err)
		}
		at += len(field)
	}
	return err
}

// A wallClock has its slots where the clocks of a zone show the times of a cron rule. The parser's
// own Next leaves out slots that the spring jump leaves out, and returns slots twice that autumn
// repeats. So here it only sees a clock without daylight saving, and wallClock handles the jumps.
type wallClock struct {
	rule *cron.SpecSchedule
	zone *time.Location
}

func (w *wallClock) rhythm(first int64) Rhythm {
	return func(after int64) (int64, error) {
		at := w.next(time.UnixMilli(max(after, first-1, 0)))
		if at.IsZero() || at.UnixMilli() > record.MaxTime {
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
