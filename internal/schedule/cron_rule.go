package schedule

import (
	"math/bits"
	"time"
)

// A cronRule says which seconds of a clock without a zone match a rule. Each field is a set: bit n
// stands for the value n. Sunday is 0.
type cronRule struct {
	second, minute, hour, day, month, weekday uint64

	// both says that a day must match both day fields. Otherwise one of them is enough. As in
	// crontab(5), that is decided by how the fields are written: a field that begins with *
	// restricts days, but does not count as restricted.
	both bool
}

const allHours = 1<<24 - 1

// searchMonths is how many months are searched for a day. The days that are farthest apart are
// those of 29 February on a given weekday, at most 40 years: 2100 is no leap year.
const searchMonths = 40*12 + 1

// next returns the first time after another that matches, or the zero time if no time does.
func (r *cronRule) next(after time.Time) time.Time {
	t := after.UTC().Truncate(time.Second).Add(time.Second)
	year, month, day := t.Date()
	days := r.days(year, month)
	if days>>day&1 != 0 {
		if clock, ok := r.clock(t.Clock()); ok {
			return t.Truncate(24 * time.Hour).Add(clock)
		}
	}
	days = days >> (day + 1) << (day + 1)
	for range searchMonths {
		if days != 0 {
			first, _ := r.clock(0, 0, 0)
			return time.Date(year, month, bits.TrailingZeros64(days), 0, 0, 0, 0, time.UTC).Add(first)
		}
		if month++; month > time.December {
			year, month = year+1, time.January
		}
		days = r.days(year, month)
	}
	return time.Time{}
}

// days returns the days of a month that match.
func (r *cronRule) days(year int, month time.Month) uint64 {
	if r.month>>month&1 == 0 {
		return 0
	}
	first := time.Date(year, month, 1, 0, 0, 0, 0, time.UTC).Weekday()
	weeks := r.weekday
	for range 5 {
		weeks = weeks<<7 | r.weekday
	}
	weekdays := weeks >> first << 1
	all := uint64(1)<<(daysOf(year, month)+1) - 2
	if r.both {
		return r.day & weekdays & all
	}
	return (r.day | weekdays) & all
}

func daysOf(year int, month time.Month) int {
	return time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

// clock returns the first time of a day, from the given one on, that matches.
func (r *cronRule) clock(hour, minute, second int) (time.Duration, bool) {
	h := from(r.hour, hour)
	m, s := from(r.minute, 0), from(r.second, 0)
	if h == hour {
		if m = from(r.minute, minute); m == minute {
			if s = from(r.second, second); s == none {
				m, s = from(r.minute, minute+1), from(r.second, 0)
			}
		}
		if m == none {
			h, m = from(r.hour, hour+1), from(r.minute, 0)
		}
	}
	return time.Duration(h)*time.Hour + time.Duration(m)*time.Minute + time.Duration(s)*time.Second, h != none
}

// none is what from returns if there is no value.
const none = 64

// from returns the first value of a set that is not below another.
func from(set uint64, value int) int { return bits.TrailingZeros64(set >> value << value) }
