package schedule

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
)

// cronRefused holds rules that are refused, and what the error says.
var cronRefused = []struct {
	rule  string
	parts []string
}{
	// Steps with which only one value is left. crontab(5) accepts them silently.
	{"*/60 * * * *", []string{`minute "*/60" at byte 0: the step is too large for 0-59, where the largest is 59`, "write 0, or @every 60m"}},
	{"*/90 * * * *", []string{`minute "*/90" at byte 0`, "largest is 59", "@every 90m"}},
	{"*/120 * * * * *", []string{`second "*/120" at byte 0`, "largest is 59", "@every 120s"}},
	{"*/99999999999 * * * *", []string{`minute "*/99999999999" at byte 0`, "write 0"}},
	{"0-30/45 * * * *", []string{`minute "0-30/45" at byte 0`, "largest is 30", "write 0, or @every 45m"}},
	{"0-59/60 * * * *", []string{"largest is 59"}},
	{"10-20/11 * * * *", []string{"largest is 10", "write 10, or @every 11m"}},
	{"3-3/2 * * * *", []string{"largest is 1", "write 3"}},
	{"0 */24 * * *", []string{`hour "*/24" at byte 2`, "largest is 23", "write 0, or @every 24h"}},
	{"0 */36 * * *", []string{`hour "*/36" at byte 2`, "@every 36h"}},
	{"0 0 */31 * *", []string{`day of month "*/31" at byte 4`, "largest is 30", "write 1, or @every 744h"}},
	{"0 0 */45 * *", []string{`day of month "*/45" at byte 4`, "@every 1080h"}},
	{"0 0 * */12 *", []string{`month "*/12" at byte 6`, "largest is 11", "write 1"}},
	{"0 0 * */13 *", []string{`month "*/13" at byte 6`, "write 1"}},
	{"0 0 * jan-mar/3 *", []string{`month "jan-mar/3" at byte 6`, "largest is 2", "write 1"}},
	{"0 0 * * */8", []string{`day of week "*/8" at byte 8`, "largest is 7", "write 0"}},
	{"0 0 * * 1-7/8", []string{"largest is 6", "write 1"}},

	// Steps without a range.
	{"5/15 * * * *", []string{`minute "5/15" at byte 0: a step needs a range: write 5-59/15`}},
	{"5/70 * * * *", []string{`minute "5/70" at byte 0`, "write 5, or @every 70m"}},
	{"0 2/4 * * *", []string{`hour "2/4" at byte 2`, "write 2-23/4"}},
	{"0 0 * * mon/2", []string{`day of week "mon/2" at byte 8`, "write 1-6/2"}},
	{"*/0 * * * *", []string{`minute "*/0" at byte 0: the step must be a positive number, at most 59`}},
	{"*/-5 * * * *", []string{"positive"}},
	{"*/ * * * *", []string{"positive"}},
	{"*/2/3 * * * *", []string{"positive"}},
	{"*/x * * * *", []string{"positive"}},
	{"0-10/0 * * * *", []string{"positive number, at most 10"}},

	// Values out of range.
	{"60 * * * *", []string{`minute "60" at byte 0: must be a number from 0 to 59: write 0`}},
	{"0 24 * * *", []string{`hour "24" at byte 2: must be a number from 0 to 23: write 0`}},
	{"0 23-24 * * *", []string{`hour "23-24" at byte 2: "24" must be a number from 0 to 23`}},
	{"0  0   32 * *", []string{`day of month "32" at byte 7: must be a number from 1 to 31`}},
	{"0 0 0 * *", []string{`day of month "0" at byte 4`}},
	{"0 0 * 0 *", []string{`month "0" at byte 6: must be a number from 1 to 12 or a name from jan to dec`}},
	{"0 0 * 13 *", []string{`month "13" at byte 6`}},
	{"0 0 * * 8", []string{`day of week "8" at byte 8: must be a number from 0 to 7 or a name from sun to sat`}},
	{"61 0 0 1 1 1", []string{`second "61" at byte 0: must be a number from 0 to 59`}},
	{"99999999999999999999 * * * *", []string{"from 0 to 59"}},
	{"4294967297 * * * *", []string{"from 0 to 59"}}, // 1 if it wraps around

	// Ranges.
	{"5-1 * * * *", []string{`minute "5-1" at byte 0: the range goes backwards: write 5-59,0-1`}},
	{"0 22-5 * * *", []string{"write 22-23,0-5"}},
	{"0 22-4/2 * * *", []string{"write 22,0,2,4"}},
	{"0 0 28-1 * *", []string{"write 28-31,1"}},
	{"0 0 * dec-jan *", []string{"write 12,1"}},
	{"0 0 * * 5-0", []string{"write 5-7"}},
	{"0 0 * * fri-mon", []string{"write 5-7,0-1"}},
	{"0 0 * * 5-2/2", []string{"write 5,0,2"}},
	{"0 0 * * 7-2", []string{"write 7,0-2"}},
	{"1- * * * *", []string{`minute "1-" at byte 0: a range has two ends`}},
	{"-1 * * * *", []string{`minute "-1" at byte 0: a range has two ends`}},
	{"1-5-9 * * * *", []string{"a range has two ends"}},
	{"*-5 * * * *", []string{`write * instead of "*-5"`}},
	{"** * * * *", []string{`minute "**" at byte 0`}},
	{"*5 * * * *", []string{`minute "*5" at byte 0`}},

	// Words, and what other dialects have.
	{"0 0 * foo *", []string{`month "foo" at byte 6`}},
	{"0 0 * January *", []string{`month "January" at byte 6`, "write jan"}},
	{"0 0 * * Sunday", []string{`day of week "Sunday" at byte 8`, "write sun"}},
	{"0 0 * sun *", []string{`month "sun" at byte 6`}},
	{"jan * * * *", []string{`minute "jan" at byte 0`}},
	{"? * * * *", []string{`minute "?" at byte 0: write * instead`}},
	{"0 0 ? * 1", []string{`day of month "?" at byte 4: write * instead`}},
	{"0 0 L * *", []string{`day of month "L" at byte 4`, "use a calendar"}},
	{"0 0 L-3 * *", []string{"use a calendar"}},
	{"0 0 15W * *", []string{`day of month "15W" at byte 4`, "use a calendar"}},
	{"0 0 * * 5L", []string{`day of week "5L" at byte 8`, "use a calendar"}},
	{"0 0 * * 5#3", []string{`day of week "5#3" at byte 8`, "0 9 1-7 * */7"}},
	{"H * * * *", []string{`minute "H" at byte 0`, "write a value"}},
	{"H/5 * * * *", []string{"write a value"}},
	{"0~30 * * * *", []string{"write a value"}},
	{"+5 * * * *", []string{"plus sign"}},
	{"0x5 * * * *", []string{`minute "0x5" at byte 0`}},
	{"1.5 * * * *", []string{`minute "1.5" at byte 0`}},
	{"٣ * * * *", []string{`minute "٣" at byte 0`}},

	// Lists.
	{", * * * *", []string{`minute "," at byte 0: the list is empty`}},
	{"1 1 1 1 ,", []string{`day of week "," at byte 8: the list is empty`}},
	{"1,,2 * * * *", []string{`minute "1,,2" at byte 0: the list has an empty entry`}},
	{",1 * * * *", []string{"empty entry"}},
	{"1, * * * *", []string{"empty entry"}},

	// Days that no month has.
	{"0 0 30 2 *", []string{`day of month "30" at byte 4: month "2" has at most 29 days`, "no future slots", "write 29 or less"}},
	{"0 0 30,31 feb *", []string{`day of month "30,31" at byte 4`, "29"}},
	{"0 0 31 4,6,9,11 *", []string{"has at most 30 days"}},
	{"0 0 31 2-4/2 */2", []string{"has at most 30 days"}},

	// Not five or six fields.
	{"", []string{"want 5 or 6 fields, got 0"}},
	{"* * * *", []string{"want 5 or 6 fields, got 4: minute, hour"}},
	{"* * * * * * *", []string{"want 5 or 6 fields, got 7", "neither a year nor a command"}},
	{"TZ=UTC", []string{"zone"}},
	{"TZ=UTC 0 0 * * *", []string{"zone"}},
	{"CRON_TZ=Europe/Berlin 0 0 * * *", []string{"zone"}},
	{"@reboot", []string{"@reboot is not a time"}},
	{"@Daily", []string{`unknown "@Daily": write @daily`}},
	{"@daily 5", []string{"nothing can follow @daily"}},
	{"@fortnightly", []string{`unknown "@fortnightly": want @yearly`}},
	{"@every", []string{"@every needs a duration"}},
	{"0 0 * * \xff", []string{"UTF-8"}},
}

func TestRefusedCronSaysWhatToWrite(t *testing.T) {
	t.Parallel()
	for _, test := range cronRefused {
		err := CheckCron(test.rule)
		require.Error(t, err, test.rule)
		for _, part := range test.parts {
			require.ErrorContains(t, err, part, test.rule)
		}
		require.NotContains(t, err.Error(), "; ", "%q has one mistake", test.rule)
	}
}

func TestRefusedCronListsAllMistakes(t *testing.T) {
	t.Parallel()
	require.EqualError(t, CheckCron("61,*/90 25 0 13 8"), `minute "61" at byte 0: must be a number from 0 to 59; `+
		`minute "*/90" at byte 3: the step is too large for 0-59, where the largest is 59, and only 0 would match: write 0, or @every 90m as the whole rule; `+
		`hour "25" at byte 8: must be a number from 0 to 23; day of month "0" at byte 11: must be a number from 1 to 31; `+
		`month "13" at byte 13: must be a number from 1 to 12 or a name from jan to dec; `+
		`day of week "8" at byte 16: must be a number from 0 to 7 or a name from sun to sat`)
	require.EqualError(t, CheckCron("0 0 * * 5-0"), `day of week "5-0" at byte 8: the range goes backwards: write 5-7`)
	err := CheckCron(strings.Repeat("99,", 300) + "99 * * * *")
	require.ErrorContains(t, err, "and 281 more")
	require.Less(t, len(err.Error()), 2000)
	require.Less(t, len(CheckCron(strings.Repeat("x", MaxCronLen)+" * * * *").Error()), 200)
}

// What an error says to write is accepted, and has the slots that the refused rule had in earlier
// releases or would have if a range went round.
func TestRefusedCronWrittenOtherwise(t *testing.T) {
	t.Parallel()
	for refused, accepted := range map[string]string{
		"5/15 * * * *": "5-59/15 * * * *", "0 2/4 * * *": "0 2-23/4 * * *", "0 0 * * mon/2": "0 0 * * 1-6/2", "0 0 * * sun/3": "0 0 * * 0-6/3",
		"*/60 * * * *": "0 * * * *", "0 */36 * * *": "0 0 * * *", "0 0 */45 * *": "0 0 1 * *", "0 0 * */13 *": "0 0 * 1 *", "0 0 * * */8": "0 0 * * 0",
		"? 0 ? * ?": "* 0 * * *", "*-5 * * * *": "* * * * *", "*-1-5 * * * *": "* * * * *", "1,,2 * * * *": "1,2 * * * *", "+5 +6 * * *": "5 6 * * *", "3-3/2 * * * *": "3 * * * *",
		"0 0 ? * 1": "0 0 * * 1",
	} {
		require.Error(t, CheckCron(refused), refused)
		require.NoError(t, CheckCron(accepted), accepted)
		stored, _ := parseCron(refused) // by an earlier release
		written, _ := parseCron(accepted)
		require.NotNil(t, stored, refused)
		require.Equal(t, written, stored, refused)
	}
	for _, accepted := range []string{
		"5-59,0-1 * * * *", "0 22-23,0-5 * * *", "0 22,0,2,4 * * *", "0 0 28-31,1 * *", "0 0 * 12,1 *", "0 0 * * 5-7", "0 0 * * 5-7,0-1", "0 0 * * 7,0-2",
		"0 9 1-7 * */7",
	} {
		require.NoError(t, CheckCron(accepted))
	}
}

// In a range that ends with it, the name of Sunday is 7. crontab(5) says nothing of such ranges.
func TestCronRangesEndWithSunday(t *testing.T) {
	t.Parallel()
	for named, numbered := range map[string]string{
		"mon-sun": "1-7", "SAT-SUN": "6-7", "5-sun": "5-7", "mon-sun/2": "1-7/2", "sun-sun": "0", "7-sun": "7", "sun-tue": "0-2", "0-sun": "0",
	} {
		got, mistakes := parseCron("0 0 * * " + named)
		require.Empty(t, mistakes, named)
		want, _ := parseCron("0 0 * * " + numbered)
		require.Equal(t, want, got, named)
	}
}

// Rules with seconds have the slots of a walk over all seconds of a day.
func TestCronSeconds(t *testing.T) {
	t.Parallel()
	day := time.Date(crontabYear, time.March, 14, 0, 0, 0, 0, time.UTC)
	minutes := wallMinutes(t, "UTC", crontabYear)[(day.YearDay()-1)*24*60:][:24*60]
	for _, second := range []string{"*", "0", "59", "*/20", "*/7", "5-15/3,40", "30,0"} {
		for _, rest := range []string{"* * * * *", "*/7 * * * *", "59 23 * * *", "0 0 * * 0", "30 5-7 14 3 *", "* 0 1-7 * */2"} {
			seconds := newCrontabField(t, second, 0, 59, nil)
			var want []int64
			for _, m := range crontabMinutes(t, rest, minutes) {
				for s := range 60 {
					if seconds[s] {
						want = append(want, m.at+int64(s)*1000)
					}
				}
			}
			got := allSlots(t, second+" "+rest, "UTC", day.UnixMilli(), day.AddDate(0, 0, 1).UnixMilli())
			require.Equal(t, want, got, "%s %s", second, rest)
		}
	}
}

// The days that are farthest apart are found, also those of a year that is no leap year.
func TestCronSearchIsLongEnough(t *testing.T) {
	t.Parallel()
	from := time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	end := time.UnixMilli(record.MaxTime)
	for weekday := range 7 {
		rule, _ := parseCron("0 0 29 2 */7")
		require.Equal(t, &cronRule{second: 1, minute: 1, hour: 1, day: 1 << 29, month: 1 << 2, weekday: 1, both: true}, rule)
		rule.weekday = 1 << weekday
		var want, got []time.Time
		for year := from.Year(); year <= end.Year(); year++ {
			if day := time.Date(year, time.February, 29, 0, 0, 0, 0, time.UTC); day.Day() == 29 && int(day.Weekday()) == weekday {
				want = append(want, day)
			}
		}
		for at := rule.next(from); !at.IsZero() && at.Year() <= end.Year(); at = rule.next(at) {
			got = append(got, at)
		}
		require.Equal(t, want, got)
	}
}
