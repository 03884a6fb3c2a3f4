package schedule

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
)

func cronSpec(rule, zone string) record.Spec {
	return record.Spec{Kind: record.Cron, Text: rule, Zone: zone}
}

func every(d time.Duration) record.Spec {
	return record.Spec{Kind: record.Interval, Every: d.Milliseconds()}
}

// rhythmOf returns the rhythm of a definition that is nothing but a spec.
func rhythmOf(t testing.TB, spec record.Spec, first, last int64) Rhythm {
	t.Helper()
	next, err := NewRhythm(&record.Definition{Spec: spec, First: first, Last: last}, nil)
	require.NoError(t, err)
	return next
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// slotsOf lists the slots of a spec after a time and before another, in the zone's own words.
func slotsOf(t *testing.T, spec record.Spec, zone, from, to string) (list []string) {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	require.NoError(t, err)
	at, err := time.Parse(time.RFC3339, from)
	require.NoError(t, err)
	end, err := time.Parse(time.RFC3339, to)
	require.NoError(t, err)
	next := rhythmOf(t, spec, 0, 0)
	for ms := at.UnixMilli(); ; {
		ms, err = next(ms)
		require.NoError(t, err)
		if ms == 0 || ms >= end.UnixMilli() {
			return list
		}
		list = append(list, time.UnixMilli(ms).In(loc).Format("02 15:04:05 -0700"))
	}
}

// Both changes of the clocks in three zones, one of which moves them by half an hour. (F9)
func TestCronThroughDaylightSaving(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, zone, rule, from, to string
		want                       []string
	}{
		{"skipped", "Europe/Berlin", "30 2 * * *", "2026-03-28T00:00:00Z", "2026-03-31T00:00:00Z",
			[]string{"28 02:30:00 +0100", "29 03:00:00 +0200", "30 02:30:00 +0200"}},
		{"several skipped are one", "Europe/Berlin", "*/20 2 * * *", "2026-03-28T02:00:00Z", "2026-03-30T00:30:00Z",
			[]string{"29 03:00:00 +0200", "30 02:00:00 +0200", "30 02:20:00 +0200"}},
		{"at the jump itself", "Europe/Berlin", "30 2,3 * * *", "2026-03-29T00:00:00Z", "2026-03-30T00:00:00Z",
			[]string{"29 03:00:00 +0200", "29 03:30:00 +0200"}},
		{"skipped and the first after it are one", "Europe/Berlin", "0 2,3 * * *", "2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z",
			[]string{"29 03:00:00 +0200"}},
		{"repeated", "Europe/Berlin", "30 2 * * *", "2026-10-24T00:00:00Z", "2026-10-27T00:00:00Z",
			[]string{"24 02:30:00 +0200", "25 02:30:00 +0200", "26 02:30:00 +0100"}},
		{"repeated and after it", "Europe/Berlin", "0,30 2,3 * * *", "2026-10-25T00:00:00Z", "2026-10-25T12:00:00Z",
			[]string{"25 02:30:00 +0200", "25 03:00:00 +0100", "25 03:30:00 +0100"}},
		{"every hour goes on in spring", "Europe/Berlin", "0 * * * *", "2026-03-28T23:30:00Z", "2026-03-29T03:00:00Z",
			[]string{"29 01:00:00 +0100", "29 03:00:00 +0200", "29 04:00:00 +0200"}},
		{"every hour at a minute, spring", "Europe/Berlin", "45 * * * *", "2026-03-28T23:30:00Z", "2026-03-29T03:00:00Z",
			[]string{"29 00:45:00 +0100", "29 01:45:00 +0100", "29 03:45:00 +0200", "29 04:45:00 +0200"}},
		{"every hour goes on in autumn", "Europe/Berlin", "*/30 * * * *", "2026-10-24T23:45:00Z", "2026-10-25T02:15:00Z",
			[]string{"25 02:00:00 +0200", "25 02:30:00 +0200", "25 02:00:00 +0100", "25 02:30:00 +0100", "25 03:00:00 +0100"}},
		{"midnight is as it always is", "Europe/Berlin", "@daily", "2026-10-24T12:00:00Z", "2026-10-27T00:00:00Z",
			[]string{"25 00:00:00 +0200", "26 00:00:00 +0100", "27 00:00:00 +0100"}},

		{"skipped", "America/New_York", "30 2 * * *", "2026-03-07T00:00:00-05:00", "2026-03-10T00:00:00-04:00",
			[]string{"07 02:30:00 -0500", "08 03:00:00 -0400", "09 02:30:00 -0400"}},
		{"repeated", "America/New_York", "30 1 * * *", "2026-10-31T00:00:00-04:00", "2026-11-03T00:00:00-05:00",
			[]string{"31 01:30:00 -0400", "01 01:30:00 -0400", "02 01:30:00 -0500"}},

		{"skipped half an hour", "Australia/Lord_Howe", "15 2 * * *", "2026-10-03T00:00:00+10:30", "2026-10-06T00:00:00+11:00",
			[]string{"03 02:15:00 +1030", "04 02:30:00 +1100", "05 02:15:00 +1100"}},
		{"after the half hour", "Australia/Lord_Howe", "45 2 * * *", "2026-10-04T00:00:00+10:30", "2026-10-05T00:00:00+11:00",
			[]string{"04 02:45:00 +1100"}},
		{"repeated half an hour", "Australia/Lord_Howe", "45 1 * * *", "2026-04-04T00:00:00+11:00", "2026-04-07T00:00:00+10:30",
			[]string{"04 01:45:00 +1100", "05 01:45:00 +1100", "06 01:45:00 +1030"}},
		{"before the half hour", "Australia/Lord_Howe", "15 1 * * *", "2026-04-05T00:00:00+11:00", "2026-04-06T00:00:00+10:30",
			[]string{"05 01:15:00 +1100"}},
		{"every hour, half an hour longer", "Australia/Lord_Howe", "*/30 * * * *", "2026-04-05T01:15:00+11:00", "2026-04-05T02:15:00+10:30",
			[]string{"05 01:30:00 +1100", "05 01:30:00 +1030", "05 02:00:00 +1030"}},

		{"every hour at a minute, spring", "Australia/Lord_Howe", "15 * * * *", "2026-10-04T00:30:00+10:30", "2026-10-04T04:00:00+11:00",
			[]string{"04 01:15:00 +1030", "04 03:15:00 +1100"}},
		{"every hour at a minute after the jump", "Australia/Lord_Howe", "45 * * * *", "2026-10-04T00:30:00+10:30", "2026-10-04T04:00:00+11:00",
			[]string{"04 00:45:00 +1030", "04 01:45:00 +1030", "04 02:45:00 +1100", "04 03:45:00 +1100"}},
		{"every hour at a minute, autumn", "Australia/Lord_Howe", "45 * * * *", "2026-04-05T00:30:00+11:00", "2026-04-05T03:00:00+10:30",
			[]string{"05 00:45:00 +1100", "05 01:45:00 +1100", "05 01:45:00 +1030", "05 02:45:00 +1030"}},
		{"every hour at a minute that is not repeated", "Australia/Lord_Howe", "15 * * * *", "2026-04-05T00:30:00+11:00", "2026-04-05T03:00:00+10:30",
			[]string{"05 01:15:00 +1100", "05 02:15:00 +1030"}},

		{"a day that never was", "Pacific/Apia", "0 12 * * *", "2011-12-29T00:00:00-10:00", "2012-01-01T00:00:00+14:00",
			[]string{"29 12:00:00 -1000", "31 12:00:00 +1400"}},
		{"midnight of a day that never was", "Pacific/Apia", "0 0 * * *", "2011-12-29T00:00:01-10:00", "2012-01-01T00:00:01+14:00",
			[]string{"31 00:00:00 +1400", "01 00:00:00 +1400"}},
		{"a day skipped from the middle of one to that of another", "Pacific/Kwajalein", "0 9 * * *", "1993-08-20T00:00:00-12:00", "1993-08-23T00:00:00+12:00",
			[]string{"20 09:00:00 -1200", "22 09:00:00 +1200"}},
		{"three hours", "Antarctica/Casey", "30 1 * * *", "2020-10-03T00:00:00+08:00", "2020-10-06T00:00:00+11:00",
			[]string{"03 01:30:00 +0800", "04 03:01:00 +1100", "05 01:30:00 +1100"}},
		{"before midnight", "America/Nuuk", "30 23 * * *", "2027-03-26T12:00:00-02:00", "2027-03-29T12:00:00-01:00",
			[]string{"26 23:30:00 -0200", "28 00:00:00 -0100", "28 23:30:00 -0100"}},
		{"no daylight saving", "Asia/Tokyo", "30 2 * * *", "2026-03-29T00:00:00+09:00", "2026-03-30T00:00:00+09:00", []string{"29 02:30:00 +0900"}},
		{"seconds", "UTC", "*/20 59 23 31 12 *", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z",
			[]string{"31 23:59:00 +0000", "31 23:59:20 +0000", "31 23:59:40 +0000"}},
		{"no leap year in 2100", "UTC", "0 0 29 2 *", "2096-03-01T00:00:00Z", "2105-01-01T00:00:00Z", []string{"29 00:00:00 +0000"}},
	} {
		t.Run(test.zone+"/"+test.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, slotsOf(t, cronSpec(test.rule, test.zone), test.zone, test.from, test.to))
		})
	}
}

// Asking from anywhere gives what walking from the beginning gives: the slot after a time does not
// depend on how one came there.
func TestCronHasOneRowOfSlots(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Tehran", "UTC"} {
		for _, rule := range []string{"30 2 * * *", "*/15 1-3 * * *", "*/30 * * * *", "45 1 * * 0", "0 0 1 * *"} {
			next := rhythmOf(t, cronSpec(rule, zone), 0, 0)
			from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
			to := time.Date(2027, 1, 2, 0, 0, 0, 0, time.UTC).UnixMilli()
			slot := must(next(from))
			for at := from; at < to; at += (47 * time.Minute).Milliseconds() {
				for slot <= at {
					slot = must(next(slot))
				}
				require.Equal(t, slot, must(next(at)), "%s %s after %v", rule, zone, time.UnixMilli(at).UTC())
			}
		}
	}
}

// The last days of a leap year are as any other, also of years for which a zone has only its rule.
func TestCronAtTheEndOfLeapYears(t *testing.T) {
	t.Parallel()
	for _, zone := range crontabZones {
		for _, year := range []int{2028, 2040, 2096, 2204} {
			loc := must(time.LoadLocation(zone))
			from, to := time.Date(year, time.December, 29, 0, 0, 0, 0, loc), time.Date(year+1, time.January, 4, 0, 0, 0, 0, loc)
			for rule, count := range map[string]int{"30 9 * * *": 6, "0 * * * *": 6 * 24, "30 23 31 12 *": 1, "0 0 1 1 *": 1} {
				require.Len(t, allSlots(t, rule, zone, from.UnixMilli(), to.UnixMilli()), count, "%s in %s %d", rule, zone, year)
			}
		}
	}
}

func TestIntervalsAreAbsolute(t *testing.T) {
	t.Parallel()
	next := rhythmOf(t, every(24*time.Hour), 0, 0)
	day := time.Date(2026, 3, 28, 0, 0, 0, 0, time.UTC)
	for i := range 4 { // the clocks of Berlin and others jump meanwhile
		require.Equal(t, day.AddDate(0, 0, i+1).UnixMilli(), must(next(day.AddDate(0, 0, i).UnixMilli())))
	}
	next = rhythmOf(t, every(7*time.Second), 1_000_003, 0)
	require.EqualValues(t, 1_000_003, must(next(5)))
	require.EqualValues(t, 1_007_003, must(next(1_000_003)))
	require.EqualValues(t, 0, must(next(record.MaxTime)))
	next = rhythmOf(t, every(7*time.Second), 1_000_003, 1_014_003)
	require.EqualValues(t, 1_014_003, must(next(1_007_003)), "the last one")
	require.EqualValues(t, 0, must(next(1_014_003)))
}

func TestCronDescriptors(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 13, 12, 34, 56, 0, time.UTC).UnixMilli() // a Wednesday
	for rule, want := range map[string]time.Time{
		"@yearly":      time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC),
		"@annually":    time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC),
		"@monthly":     time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC),
		"@weekly":      time.Date(2026, 5, 17, 0, 0, 0, 0, time.UTC),
		"@daily":       time.Date(2026, 5, 14, 0, 0, 0, 0, time.UTC),
		"@midnight":    time.Date(2026, 5, 14, 0, 0, 0, 0, time.UTC),
		"@hourly":      time.Date(2026, 5, 13, 13, 0, 0, 0, time.UTC),
		"0 9 * * 1-5":  time.Date(2026, 5, 14, 9, 0, 0, 0, time.UTC),
		"0 9 13 * 5":   time.Date(2026, 5, 15, 9, 0, 0, 0, time.UTC), // either day
		"0 0 29 feb *": time.Date(2028, 2, 29, 0, 0, 0, 0, time.UTC),
	} {
		next := rhythmOf(t, cronSpec(rule, ""), 0, 0)
		require.Equal(t, want, time.UnixMilli(must(next(at))).UTC(), rule)
	}
}

// Whatever is written into a rule, it is an error or has slots that go up.
func FuzzCron(f *testing.F) {
	for _, rule := range []string{"* * * * *", "TZ=", "@every 1s", ", , , , ,", "*/9 1-5/2 ? jan-mar sun,mon", "0 0 30 2 *", "0 0 29 2 */7", "1,*/99 5/3 -- x#2 9-"} {
		f.Add(rule, "Europe/Berlin", int64(1_700_000_000_000))
	}
	f.Fuzz(func(t *testing.T, rule, zone string, at int64) {
		err := CheckCron(rule)
		if err == nil {
			require.NoError(t, StoredCron(rule))
			crontabAgrees(t, rule)
		} else {
			require.Error(t, StoredCron(rule))
			require.True(t, utf8.ValidString(err.Error()), "%q: %q", rule, err)
			require.Less(t, len(err.Error()), 10_000)
		}
		next, bad := NewRhythm(&record.Definition{Spec: cronSpec(rule, zone)}, nil)
		if bad != nil {
			require.True(t, err != nil || CheckZone(zone) != nil, "%q", rule)
			return
		}
		if at = min(max(at, -record.MaxTime), record.MaxTime); err == nil && at < record.MaxTime/2 {
			require.Positive(t, must(next(at)), "%q in %q after %d", rule, zone, at)
		}
		for range 3 {
			slot, err := next(at)
			require.NoError(t, err)
			if slot == 0 {
				return
			}
			require.Greater(t, slot, at)
			at = slot
		}
	})
}

// crontabAgrees compares the values of the fields of an accepted rule with those of crontab(5).
func crontabAgrees(t *testing.T, rule string) {
	t.Helper()
	fields := strings.Fields(rule)
	if strings.HasPrefix(rule, "@") || strings.Contains(strings.ToLower(fields[len(fields)-1]), "-sun") {
		return // a range that ends with the name of Sunday is not in crontab(5)
	}
	got, _ := parseCron(rule)
	fields = append(slices.Repeat([]string{"0"}, 6-len(fields)), fields...)
	want := new(cronRule)
	for _, f := range []struct {
		set         *uint64
		text        string
		first, last int
		names       []string
	}{
		{&want.second, fields[0], 0, 59, nil}, {&want.minute, fields[1], 0, 59, nil}, {&want.hour, fields[2], 0, 23, nil},
		{&want.day, fields[3], 1, 31, nil}, {&want.month, fields[4], 1, 12, crontabMonths}, {&want.weekday, fields[5], 0, 7, crontabDays},
	} {
		for v, matches := range newCrontabField(t, f.text, f.first, f.last, f.names) {
			if matches {
				*f.set |= 1 << v
			}
		}
	}
	if want.weekday&(1<<7) != 0 {
		want.weekday = want.weekday&^(1<<7) | 1
	}
	want.both = strings.HasPrefix(fields[3], "*") || strings.HasPrefix(fields[5], "*")
	require.Equal(t, want, got, "%q", rule)
}

// days is a calendar. Whatever it answers, its rhythm has slots that go up or is an error.
type days func(after time.Time) (time.Time, error)

func (d days) Next(after time.Time) (time.Time, error) { return d(after) }

func TestCalendarAnswers(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_700_000_000_000).UTC()
	for name, c := range map[string]struct {
		answer time.Time
		err    error
		slot   int64
		want   string
	}{
		"later":          {at.Add(time.Hour), nil, 1_700_003_600_000, ""},
		"rounded up":     {at.Add(1), nil, 1_700_000_000_001, ""},
		"none":           {time.Time{}, nil, 0, ""},
		"after all time": {at.AddDate(1000, 0, 0), nil, 0, ""},
		"not later":      {at, nil, 0, "which is not later"},
		"before 1970":    {time.Unix(-1, 0), nil, 0, "not later"},
		"error":          {at.Add(time.Hour), errors.New("closed"), 0, `calendar "days": closed`},
	} {
		all := Calendars{"days": days(func(after time.Time) (time.Time, error) {
			require.Equal(t, at, after)
			return c.answer, c.err
		})}
		d := &record.Definition{Spec: record.Spec{Kind: record.Calendar, Text: "days"}}
		next, err := NewRhythm(d, all)
		require.NoError(t, err)
		slot, err := next(at.UnixMilli())
		require.Equal(t, c.slot, slot, name)
		if c.want == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.want, name)
		}
		_, err = NewRhythm(d, nil)
		require.ErrorIs(t, err, ErrNoCalendar)
	}
	next, err := NewRhythm(&record.Definition{Spec: record.Spec{Kind: record.Calendar, Text: "days"}},
		Calendars{"days": days(func(after time.Time) (time.Time, error) { return after.Add(1), nil })})
	require.NoError(t, err)
	_, err = next(-7_200_000)
	require.ErrorContains(t, err, "before 1970")
	_, err = NewRhythm(new(record.Definition), nil)
	require.ErrorContains(t, err, "zero Spec")
}

// Whatever bytes are a definition, its rhythm is an error or has slots, and neither panics.
func FuzzDefinition(f *testing.F) {
	d := record.Definition{Spec: cronSpec("0 9 * * 1", "Europe/Berlin"), Payload: []byte("p"), Size: 1}
	raw, err := d.Encode()
	require.NoError(f, err)
	f.Add(raw)
	f.Add(raw[:len(raw)-3])
	f.Fuzz(func(_ *testing.T, raw string) {
		stored, err := record.DecodeDefinition(raw)
		if err != nil {
			return
		}
		if next, err := NewRhythm(stored, nil); err == nil {
			_, _ = next(1_700_000_000_000)
		}
	})
}
