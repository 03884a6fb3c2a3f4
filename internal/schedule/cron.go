package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"

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
		return fmt.Errorf("zone %.100q: %w: use an IANA name, such as Europe/Berlin", name, err)
	}
	return nil
}

// CheckCron validates a cron rule. The error lists everything that is wrong with it: which field,
// where, and what to write instead.
func CheckCron(rule string) error {
	if _, mistakes := parseCron(rule); len(mistakes) > 0 {
		return errors.New(strings.Join(mistakes, "; "))
	}
	return nil
}

// StoredCron says what is wrong with a rule that is in Redis, and what becomes of it. Earlier
// releases accepted rules that CheckCron refuses, and a later one may accept more.
func StoredCron(rule string) error {
	r, mistakes := parseCron(rule)
	switch text := strings.Join(mistakes, "; "); {
	case len(mistakes) == 0:
		return nil
	case r == nil:
		return fmt.Errorf("servers of this release cannot fire the rule: %s", text)
	default:
		return fmt.Errorf("the rule is no longer accepted, and fires as in the release that accepted it: %s", text)
	}
}

// A wallClock has its slots where the clocks of a zone show the times of a cron rule. The rule
// itself knows no zone, and wallClock handles the jumps of the clocks.
type wallClock struct {
	rule *cronRule
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
	everyHour := w.rule.hour == allHours
	var slot, after time.Time // slot is the first one after this wall time
	for period := t; ; {
		start, end := bounds(period, w.zone)
		shift := offset(period, w.zone)
		wall := t.Add(shift)
		if !start.IsZero() && !everyHour {
			// Times that the clocks showed before they were put back are over.
			if shown := start.Add(offset(start.Add(-1), w.zone) - 1); wall.Before(shown) {
				wall = shown
			}
		}
		if slot.IsZero() || wall.Before(after) || !slot.After(wall) {
			if slot, after = w.rule.next(wall), wall; slot.IsZero() {
				return slot
			}
		}
		at := slot.Add(-shift)
		if end.IsZero() || at.Before(end) {
			return at
		}
		if !everyHour && w.skipped(slot, end.Add(shift), end.Add(offset(end, w.zone))) {
			return end
		}
		t, period = end.Add(-1), end
	}
}

// bounds returns the beginning and the end of a period of a zone; zero: none. A change of the year
// can be one too.
//
// On 31 December of leap years, the package time names the beginning of the day as the end, if the
// period follows from a rule of the zone (tzset of Go 1.26). Nothing changes on that day.
func bounds(t time.Time, zone *time.Location) (start, end time.Time) {
	start, end = t.In(zone).ZoneBounds()
	if !end.IsZero() && !end.After(t) {
		end = t.Truncate(24 * time.Hour).Add(24 * time.Hour)
	}
	return start, end
}

// skipped reports whether clocks that are put forward leave out a slot of the rule. They jump from
// one wall time to another. slot is the first one from the jump on. A day that is left out from its
// beginning to its end has no slots.
func (w *wallClock) skipped(slot, from, to time.Time) bool {
	const day = 24 * time.Hour
	if before, after := from.Add(-1).Truncate(day), to.Truncate(day); slot.Before(after) && !slot.Before(before.Add(day)) {
		slot = w.rule.next(after.Add(-1))
	}
	return !slot.IsZero() && slot.Before(to)
}

// offset returns how far the clocks of a zone are ahead of UTC.
func offset(t time.Time, zone *time.Location) time.Duration {
	_, seconds := t.In(zone).Zone()
	return time.Duration(seconds) * time.Second
}
