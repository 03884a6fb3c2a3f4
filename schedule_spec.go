package delayq

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/schedule"
	"github.com/delayq/delayq/internal/script"
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

// Cron returns the spec of a cron rule in a time zone. Rules are those of crontab(5), as Debian's
// cron reads them. A rule has 5 fields (minute, hour, day of month, month, day of week) or 6
// (second first). A field is *, a value, a range 1-5, a star or a range with a step, */15 or
// 10-50/10, or a list of these with commas. Months and days of the week can also be English names
// of three letters. Sunday is 0 and 7.
//
// If both day fields are restricted, a day needs to match only one of them. A day field that begins
// with * does not count as restricted, and then a day must match both: 0 9 13 * 5 comes every
// Friday and on each 13th, 0 9 1-7 * */7 on the first Sunday of a month.
//
// The words are @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly, and @every with
// a duration, which is [Every].
//
// Cron refuses rules that crontab(5) accepts but that cannot mean what they say: steps larger than
// their range (*/90 in the minutes would be every hour), ranges that go backwards, and days that no
// month has. The error lists all mistakes: the field, where it is, what is wrong, and what to write
// instead.
//
// The zone is an IANA name, like Europe/Berlin. An empty zone is UTC. "Local" is rejected because
// it differs between machines. The time zone database must be on the machines of the clients and
// servers that use the schedule; the package time/tzdata embeds it.
//
// When clocks are put forward, a slot in the hour that is left out moves to the time of the jump.
// Several such slots become one. When clocks are put back, a slot in the repeated hour comes only
// the first time. So a daily rule has one slot on each local day. If the end of a day is left out,
// as in America/Nuuk, its slot comes at midnight. A day that is left out as a whole has none.
//
// A rule for every hour of the day has a slot whenever the clocks show one of its times, and at no
// other time. So a slot that is left out does not move, and one that is repeated comes again: where
// clocks move by an hour, 45 * * * * comes once an hour all year. Where they move by half an hour
// (Australia/Lord_Howe), the minutes that they show decide. In autumn, 45 * * * * has a slot both
// times that the clocks show 1:45, half an hour apart, and 15 * * * * has none for an hour and a
// half. In spring 15 * * * * has none at 2:15, which the clocks leave out.
func Cron(rule, zone string) Spec {
	if fields := strings.Fields(rule); len(fields) > 1 && fields[0] == "@every" {
		text := strings.Join(fields[1:], " ")
		d, err := time.ParseDuration(text)
		if err != nil {
			at := strings.Index(rule, fields[0]) + len(fields[0])
			at += strings.Index(rule[at:], fields[1])
			err = fmt.Errorf("Cron(%.100q): invalid duration %.60q at byte %d: write it with h, m, s and ms, such as 90m or 1h30m", rule, text, at)
			return Spec{record.Spec{Kind: record.Interval}, errors.Join(err, schedule.CheckZone(zone))}
		}
		spec := Every(d)
		spec.err = errors.Join(spec.err, schedule.CheckZone(zone))
		return spec
	}
	return Spec{record.Spec{Kind: record.Cron, Text: strings.Join(strings.Fields(rule), " "), Zone: zone}, errors.Join(checkCron(rule), schedule.CheckZone(zone))}
}

func checkCron(rule string) error {
	if n := len(rule); n > schedule.MaxCronLen {
		return fmt.Errorf("Cron: rule of %d bytes, at most %d are allowed", n, schedule.MaxCronLen)
	}
	if err := schedule.CheckCron(rule); err != nil {
		return fmt.Errorf("Cron(%q): %w", rule, err)
	}
	return nil
}

// OnCalendar returns the spec of a [Calendar] that servers have registered under this name. Names
// have the same limits as topics. If no server of its topic has the calendar, the schedule waits
// for one.
func OnCalendar(name string) Spec {
	return Spec{record.Spec{Kind: record.Calendar, Text: name}, script.CheckName("calendar", name)}
}

// String describes the spec: "every 10s", "cron 0 9 * * 1-5 Europe/Berlin", "calendar bank-days".
func (s Spec) String() string { return s.rule.String() }
