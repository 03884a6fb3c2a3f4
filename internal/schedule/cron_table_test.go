package schedule

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
)

// crontab holds rules, and how many minutes of the year 2027 match them in UTC. The numbers are
// those of Debian's cron 3.0pl1-162 itself: its load_entry read the rules, and the condition of its
// find_jobs counted the days.
var crontab = []struct {
	rule    string
	minutes int
}{
	// stars, values, lists
	{"* * * * *", 525600},
	{"0 * * * *", 8760},
	{"59 * * * *", 8760},
	{"7 * * * *", 8760},
	{"45 * * * *", 8760},
	{"15 * * * *", 8760},
	{"0,30 * * * *", 17520},
	{"0,15,30,45 * * * *", 35040},
	{"59,0,30 * * * *", 26280},
	{"5,5,5 * * * *", 8760},
	{"00 * * * *", 8760},
	{"05 * * * *", 8760},
	{"005 5 * * *", 365},
	{"*,5 * * * *", 525600},
	{"5,* * * * *", 525600},
	{"*/20,7 * * * *", 35040},
	{"7,*/20 * * * *", 35040},
	{"1,2,3-6,50-59/4 * * * *", 78840},
	{"0 0 * * *", 365},
	{"0 12 * * *", 365},
	{"30 2 * * *", 365},
	{"0 2 * * *", 365},
	{"59 1 * * *", 365},
	{"30 1 * * *", 365},
	{"0 3 * * *", 365},
	{"30 0 * * *", 365},
	{"59 23 * * *", 365},
	{"30 23 * * *", 365},
	{"45 1 * * *", 365},
	{"15 2 * * *", 365},
	{"45 2 * * *", 365},
	{"0 1 * * *", 365},
	{"1 0 * * *", 365},
	{"30 4 * * *", 365},
	{"0 9,17 * * *", 730},
	{"0 0,6,12,18 * * *", 1460},
	{"0,30 2,3 * * *", 1460},
	{"30 1,2,3 * * *", 1095},
	// ranges and steps
	{"1-5 * * * *", 43800},
	{"0-59 * * * *", 525600},
	{"58-59 * * * *", 17520},
	{"3-3 * * * *", 8760},
	{"10-20/3 * * * *", 35040},
	{"5-59/15 * * * *", 35040},
	{"0-59/7 * * * *", 78840},
	{"0-59/59 * * * *", 17520},
	{"0-30/30 * * * *", 17520},
	{"10-20/10 * * * *", 17520},
	{"*/1 * * * *", 525600},
	{"*/01 * * * *", 525600},
	{"*/2 * * * *", 262800},
	{"*/5 * * * *", 105120},
	{"*/7 * * * *", 78840},
	{"*/10 * * * *", 52560},
	{"*/13 * * * *", 43800},
	{"*/15 * * * *", 35040},
	{"*/20 * * * *", 26280},
	{"*/25 * * * *", 26280},
	{"*/30 * * * *", 17520},
	{"*/45 * * * *", 17520},
	{"*/59 * * * *", 17520},
	{"0 */2 * * *", 4380},
	{"0 */3 * * *", 2920},
	{"0 */5 * * *", 1825},
	{"0 */7 * * *", 1460},
	{"0 */12 * * *", 730},
	{"0 */23 * * *", 730},
	{"30 */4 * * *", 2190},
	{"0 1-23/2 * * *", 4380},
	{"0 0-23 * * *", 8760},
	{"15 0-23 * * *", 8760},
	{"15 0-23/1 * * *", 8760},
	{"*/30 0-11,12-23 * * *", 17520},
	{"0 9-17 * * *", 3285},
	{"*/15 9-17 * * *", 13140},
	{"*/20 2 * * *", 1095},
	{"* 2 * * *", 21900},
	{"*/10 1-3 * * *", 6570},
	{"0 1-3 * * *", 1095},
	{"*/30 0-6 * * *", 5110},
	{"* 0 * * *", 21900},
	{"* 23 * * *", 21900},
	{"*/15 22-23,0-2 * * *", 7300},
	{"0 8-18/5 * * *", 1095},
	// days of the month and months
	{"0 0 1 * *", 12},
	{"0 0 31 * *", 7},
	{"0 0 30 * *", 11},
	{"0 0 29 * *", 11},
	{"0 0 28 * *", 12},
	{"0 0 1,15 * *", 24},
	{"0 0 1-7 * *", 84},
	{"0 0 8-14 * *", 84},
	{"0 0 25-31 * *", 77},
	{"0 0 1-31 * *", 365},
	{"0 0 */2 * *", 186},
	{"0 0 */5 * *", 79},
	{"0 0 */10 * *", 43},
	{"0 0 */30 * *", 19},
	{"0 0 1-31/30 * *", 19},
	{"0 0 2-31/2 * *", 179},
	{"0 0 10-20/5,25 * *", 48},
	{"30 2 28 * *", 12},
	{"30 2 14 3 *", 1},
	{"30 2 28 3 *", 1},
	{"30 2 31 10 *", 1},
	{"0 0 1 1 *", 1},
	{"0 0 31 12 *", 1},
	{"0 0 28 2 *", 1},
	{"0 0 29 2 *", 0},
	{"0 0 29,30 2 *", 0},
	{"0 0 31 1,3,5 *", 3},
	{"0 0 31 4,5 *", 1},
	{"0 0 30,31 4,6,9,11 *", 4},
	{"0 0 1 */2 *", 6},
	{"0 0 1 */3 *", 4},
	{"0 0 1 */5 *", 3},
	{"0 0 1 */11 *", 2},
	{"0 0 1 1-12/11 *", 2},
	{"0 0 1 2-12/2 *", 6},
	{"0 0 1 1,4,7,10 *", 4},
	{"0 0 15 6-8 *", 3},
	{"0 0 1 jan *", 1},
	{"0 0 1 JAN *", 1},
	{"0 0 1 Dec *", 1},
	{"0 0 1 jan,jul *", 2},
	{"0 0 1 jan-mar *", 3},
	{"0 0 1 jan-dec/2 *", 6},
	{"0 0 1 1-dec *", 12},
	{"0 0 1 jan-3 *", 3},
	{"0 0 * feb *", 28},
	{"0 0 * 2 *", 28},
	{"*/30 * * mar *", 1488},
	// days of the week
	{"0 0 * * 0", 52},
	{"0 0 * * 7", 52},
	{"0 0 * * 1", 52},
	{"0 0 * * 6", 52},
	{"0 0 * * 0,7", 52},
	{"0 0 * * 0,6", 104},
	{"0 0 * * 6,7", 104},
	{"0 0 * * 1-5", 261},
	{"0 0 * * 5-7", 157},
	{"0 0 * * 1-7", 365},
	{"0 0 * * 0-7", 365},
	{"0 0 * * 0-6", 365},
	{"0 0 * * 7-7", 52},
	{"0 0 * * 6-7", 104},
	{"0 0 * * 0-7/7", 52},
	{"0 0 * * 1-7/2", 209},
	{"0 0 * * 1-7/6", 104},
	{"0 0 * * 1-5/2", 157},
	{"0 0 * * 2-6/2", 156},
	{"0 0 * * */1", 365},
	{"0 0 * * */2", 208},
	{"0 0 * * */3", 156},
	{"0 0 * * */4", 104},
	{"0 0 * * */5", 105},
	{"0 0 * * */6", 104},
	{"0 0 * * */7", 52},
	{"0 0 * * sun", 52},
	{"0 0 * * SUN", 52},
	{"0 0 * * Mon", 52},
	{"0 0 * * mon-fri", 261},
	{"0 0 * * mon,wed,fri", 157},
	{"0 0 * * MON-FRI/2", 157},
	{"0 0 * * sun-sat", 365},
	{"0 0 * * sun-mon", 104},
	{"0 0 * * fri-7", 157},
	{"0 0 * * 1-fri", 261},
	{"0 2 * * 0", 52},
	{"30 2 * * sun", 52},
	{"30 1 * * 7", 52},
	{"*/15 * * * 1", 4992},
	{"0 9 * * 1", 52},
	{"0 9 * * 1-5", 261},
	{"0,30 8-18 * * mon-fri", 5742},
	// both days: either of them, or both after a star
	{"0 9 13 * 5", 64},
	{"30 4 1,15 * 5", 73},
	{"0 0 1 * 0", 63},
	{"0 0 1-7 * 1", 124},
	{"0 0 1-7 * 7", 124},
	{"0 0 31 2 1", 4},
	{"0 0 30 2 5-7", 12},
	{"0 0 1-31 * 1", 365},
	{"0 0 13 * 0-7", 365},
	{"0 0 29 2 0", 4},
	{"0 9 */2 * 1", 27},
	{"0 9 */1 * 1", 52},
	{"0 9 *,13 * 5", 53},
	{"0 9 13,* * 5", 365},
	{"0 9 1-7 * */7", 12},
	{"0 9 1-7 * *", 84},
	{"0 9 8-14 * */2", 48},
	{"0 9 13 * *,5", 12},
	{"0 9 13 * 5,*", 365},
	{"0 9 13 * */5", 2},
	{"0 9 */3 * */3", 55},
	{"0 0 1-7 * */6", 24},
	{"0 0 */10 feb sun", 1},
	{"0 0 29 * */7", 1},
	{"0 0 31 */2 mon", 30},
	{"0 12 */2 1-6 1-5", 66},
	{"30 2 25-31 3 */7", 1},
	{"*/10 2 25-31 10 */7", 6},
	// words
	{"@yearly", 1},
	{"@annually", 1},
	{"@monthly", 12},
	{"@weekly", 52},
	{"@daily", 365},
	{"@midnight", 365},
	{"@hourly", 8760},
}

// crontabYear is the year in which the slots of the table are compared.
const crontabYear = 2027

// crontabZones are zones whose clocks are put forward and back in that year, each in a way of its
// own.
var crontabZones = []string{
	"UTC",
	"Europe/Berlin",       // 2:00 to 3:00, and 3:00 to 2:00
	"Europe/Dublin",       // 1:00 to 2:00; winter is its daylight saving, with an hour less
	"America/New_York",    // 2:00 to 3:00, and 2:00 to 1:00
	"America/Havana",      // 0:00 to 1:00, and 1:00 to 0:00
	"America/Santiago",    // 24:00 to 1:00 in September, and 24:00 to 23:00 in April
	"America/Nuuk",        // 23:00 to 24:00, and 24:00 to 23:00
	"Africa/Casablanca",   // back for Ramadan, and forward after it
	"Africa/Cairo",        // 0:00 to 1:00, and 24:00 to 23:00
	"Australia/Lord_Howe", // half an hour
	"Pacific/Chatham",     // 2:45 to 3:45; 12 h 45 min ahead of UTC
	"Antarctica/Troll",    // two hours
}

// playedZones are all zones with DELAYQ_FULL, as in CI, and else those with the oddest changes.
func playedZones() []string {
	if redistest.Size(10) == 10 {
		return crontabZones
	}
	return []string{"UTC", "America/Santiago", "Africa/Casablanca", "Australia/Lord_Howe"}
}

// A wallMinute is a minute that clocks show, or leave out, at an instant.
type wallMinute struct {
	at                                int64 // Unix ms
	minute, hour, day, month, weekday uint8
	skipped                           bool // the clocks jump over it at this instant
	again                             bool // the clocks have shown it, or a later one, before
}

// wallMinutes returns all minutes of a year in a zone, in their order. The minutes that the clocks
// jump over stand at the time of the jump.
func wallMinutes(t testing.TB, zone string, year int) (list []wallMinute) {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	require.NoError(t, err)
	shown := func(at time.Time) time.Time { // as if it were in UTC
		at = at.In(loc)
		return time.Date(at.Year(), at.Month(), at.Day(), at.Hour(), at.Minute(), 0, 0, time.UTC)
	}
	at := time.Date(year, time.January, 1, 0, 0, 0, 0, loc)
	latest := shown(at).Add(-time.Minute)
	for ; at.In(loc).Year() == year; at = at.Add(time.Minute) {
		wall := shown(at)
		entry := func(w time.Time, skipped bool) wallMinute {
			return wallMinute{at.UnixMilli(), uint8(w.Minute()), uint8(w.Hour()), uint8(w.Day()), uint8(w.Month()), uint8(w.Weekday()), skipped, !w.After(latest)}
		}
		for w := latest.Add(time.Minute); w.Before(wall); w = w.Add(time.Minute) {
			list = append(list, entry(w, true))
		}
		list = append(list, entry(wall, false))
		if wall.After(latest) {
			latest = wall
		}
	}
	return list
}

// A crontabField says which values match a field.
type crontabField []bool

var (
	crontabItem   = regexp.MustCompile(`^(?:\*|(\w+)(?:-(\w+))?)(?:/(\d+))?$`)
	crontabMonths = strings.Fields("- jan feb mar apr may jun jul aug sep oct nov dec")
	crontabDays   = strings.Fields("sun mon tue wed thu fri sat")
)

// newCrontabField asks of each value whether crontab(5) says that it matches.
func newCrontabField(t testing.TB, text string, first, last int, names []string) crontabField {
	t.Helper()
	number := func(text string, otherwise int) int {
		if text == "" {
			return otherwise
		}
		if i := slices.Index(names, strings.ToLower(text)); i >= 0 {
			return i
		}
		return must(strconv.Atoi(text))
	}
	matches := make(crontabField, last+1)
	for item := range strings.SplitSeq(text, ",") {
		part := crontabItem.FindStringSubmatch(item)
		require.NotNil(t, part, "%q", item)
		from, to := number(part[1], first), number(part[1], last)
		to, step := number(part[2], to), number(part[3], 1)
		for v := range matches {
			matches[v] = matches[v] || from <= v && v <= to && (v-from)%step == 0
		}
	}
	return matches
}

// crontabMinutes returns the minutes of a list that a rule of five fields matches.
func crontabMinutes(t testing.TB, rule string, minutes []wallMinute) (list []wallMinute) {
	t.Helper()
	f := strings.Fields(rule)
	require.Len(t, f, 5, rule)
	minute, hour := newCrontabField(t, f[0], 0, 59, nil), newCrontabField(t, f[1], 0, 23, nil)
	day, month := newCrontabField(t, f[2], 1, 31, nil), newCrontabField(t, f[3], 1, 12, crontabMonths)
	weekday := newCrontabField(t, f[4], 0, 7, crontabDays)
	for i := range minutes {
		m := &minutes[i]
		if !minute[m.minute] || !hour[m.hour] || !month[m.month] {
			continue
		}
		byDay, byWeekday := day[m.day], weekday[m.weekday] || m.weekday == 0 && weekday[7]
		if strings.HasPrefix(f[2], "*") || strings.HasPrefix(f[4], "*") {
			if byDay && byWeekday {
				list = append(list, *m)
			}
		} else if byDay || byWeekday {
			list = append(list, *m)
		}
	}
	return list
}

// crontabWords says what crontab(5) says of the words.
var crontabWords = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0", "@daily": "0 0 * * *",
	"@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

// crontabSlots returns the slots of a rule. One for all hours is bound to what the clocks show. Of
// any other, a minute that the clocks jump over comes at once, and one that they repeat does not
// come again.
func crontabSlots(t testing.TB, rule string, minutes []wallMinute) (slots []int64) {
	t.Helper()
	if words := crontabWords[rule]; words != "" {
		rule = words
	}
	allHours := !slices.Contains(newCrontabField(t, strings.Fields(rule)[1], 0, 23, nil), false)
	for _, m := range crontabMinutes(t, rule, minutes) {
		if allHours && m.skipped || !allHours && m.again {
			continue
		}
		if len(slots) == 0 || slots[len(slots)-1] != m.at {
			slots = append(slots, m.at)
		}
	}
	return slots
}

// allSlots returns the slots of a rule from one time to another, without the latter.
func allSlots(t testing.TB, rule, zone string, from, to int64) (slots []int64) {
	t.Helper()
	next := rhythmOf(t, cronSpec(rule, zone), 0, 0)
	for at := must(next(from - 1)); at > 0 && at < to; at = must(next(at)) {
		slots = append(slots, at)
	}
	return slots
}

// Every rule has exactly the slots of crontab(5), over a year and in each of the zones. They are
// found by a walk over all minutes of the year. In zones with daylight saving, rules with very many
// slots are compared for six days around each change of the clocks.
func TestCronIsCrontab(t *testing.T) {
	t.Parallel()
	require.GreaterOrEqual(t, len(crontab), 150)
	require.Len(t, crontabZones, 12)
	for _, line := range crontab {
		require.NoError(t, CheckCron(line.rule))
	}
	for _, zone := range playedZones() {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			year := wallMinutes(t, zone, crontabYear)
			changes := changesOf(year)
			require.Equal(t, zone != "UTC", len(changes) == 2)
			for _, line := range crontab {
				windows := [][]wallMinute{year}
				if zone != "UTC" && line.minutes > 20_000 {
					windows = changes
				}
				for _, minutes := range windows {
					want := crontabSlots(t, line.rule, minutes)
					if zone == "UTC" {
						require.Len(t, want, line.minutes, line.rule)
					}
					got := allSlots(t, line.rule, zone, minutes[0].at, minutes[len(minutes)-1].at+1)
					if !slices.Equal(want, got) {
						require.Fail(t, "other slots", "%q in %s: %s", line.rule, zone, firstDifference(want, got, zone))
					}
				}
			}
		})
	}
}

// changesOf returns the days around each change of the clocks.
func changesOf(year []wallMinute) (windows [][]wallMinute) {
	const around = 3 * 24 * 60
	for i, end := 0, 0; i < len(year); i++ {
		if m := &year[i]; i >= end && (m.skipped || m.again) {
			end = i + around
			windows = append(windows, year[i-around:end])
		}
	}
	return windows
}

func firstDifference(want, got []int64, zone string) string {
	loc := must(time.LoadLocation(zone))
	show := func(list []int64, i int) string {
		if i >= len(list) {
			return "none"
		}
		return time.UnixMilli(list[i]).In(loc).String()
	}
	i := 0
	for i < min(len(want), len(got)) && want[i] == got[i] {
		i++
	}
	return "slot " + strconv.Itoa(i) + " should be " + show(want, i) + " and is " + show(got, i)
}

// A rule whose hours are all hours keeps its interval through both changes of the clocks, wherever
// they move by whole hours.
func TestCronEveryHourKeepsItsInterval(t *testing.T) {
	t.Parallel()
	rules := map[string]time.Duration{
		"* * * * *": time.Minute, "*/5 * * * *": 5 * time.Minute, "*/15 * * * *": 15 * time.Minute, "7-59/15 * * * *": 15 * time.Minute,
		"0,30 * * * *": 30 * time.Minute, "0 * * * *": time.Hour, "1 * * * *": time.Hour, "45 * * * *": time.Hour, "59 0-23 * * *": time.Hour,
		"30 */1 * * *": time.Hour, "15 12-23,0-11 * * *": time.Hour, "@hourly": time.Hour, "*/30 * * * * *": 30 * time.Second,
	}
	for _, zone := range playedZones() {
		year := wallMinutes(t, zone, crontabYear)
		for _, window := range changesOf(year) {
			for rule, every := range rules {
				if zone == "Australia/Lord_Howe" && every > 30*time.Minute {
					continue
				}
				slots := allSlots(t, rule, zone, window[0].at, window[len(window)-1].at)
				require.Greater(t, len(slots), 100)
				for i := 1; i < len(slots); i++ {
					require.Equal(t, every.Milliseconds(), slots[i]-slots[i-1], "%q in %s at %v", rule, zone, time.UnixMilli(slots[i]).UTC())
				}
			}
		}
	}
}

// A daily rule has exactly one slot on each local day, at its own time unless the clocks leave that
// out.
func TestCronDailyHasOneSlotADay(t *testing.T) {
	t.Parallel()
	for _, zone := range playedZones() {
		loc := must(time.LoadLocation(zone))
		year := wallMinutes(t, zone, crontabYear)
		for hour := range 24 {
			for _, minute := range []int{0, 1, 15, 30, 45, 59} {
				slots := allSlots(t, strconv.Itoa(minute)+" "+strconv.Itoa(hour)+" * * *", zone, year[0].at, year[len(year)-1].at+1)
				require.Len(t, slots, 365, "%d:%d in %s", hour, minute, zone)
				for i, at := range slots {
					day := time.Date(crontabYear, time.January, 1+i, hour, minute, 0, 0, time.UTC)
					slot := time.UnixMilli(at).In(loc)
					if slot.Hour() == hour && slot.Minute() == minute {
						require.Equal(t, day.Format(time.DateOnly), slot.Format(time.DateOnly), zone)
						continue
					}
					// It moved to the jump, which ends at midnight if the clocks leave out the end
					// of the day.
					jump := year[slices.IndexFunc(year, func(m wallMinute) bool { return m.skipped })].at
					require.Equal(t, jump, at, "%d:%d in %s on %v", hour, minute, zone, day)
					if midnight := slot.Hour() == 0 && slot.Minute() == 0; !midnight {
						require.Equal(t, day.Format(time.DateOnly), slot.Format(time.DateOnly), zone)
					}
				}
			}
		}
	}
}
