package delayq

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/schedule"
)

// compiled returns the rhythm of a schedule that is nothing but a spec.
func compiled(spec Spec) (schedule.Rhythm, error) {
	d := newDefinition(spec, nil, nil)
	err := d.compile()
	return d.next, err
}

func TestSpecsOfIntervals(t *testing.T) {
	t.Parallel()
	next, err := compiled(Every(time.Nanosecond * 1_000_001)) // rounded up
	require.NoError(t, err)
	require.EqualValues(t, 12, must(next(10)))
	next, err = compiled(Cron(" @every  1h", ""))
	require.NoError(t, err)
	at := time.Date(2026, 5, 13, 12, 34, 56, 0, time.UTC).UnixMilli()
	require.Equal(t, time.Date(2026, 5, 13, 13, 0, 0, 0, time.UTC), msTime(must(next(at))).UTC())
	require.Equal(t, Every(time.Hour), Cron("@every 1h", ""))
	for spec, want := range map[Spec]string{
		Every(10 * time.Second): "every 10s", Cron("0  9 * * 1-5", "Europe/Berlin"): "cron 0 9 * * 1-5 Europe/Berlin",
		OnCalendar("bank-days"): "calendar bank-days", {}: "none",
	} {
		require.Equal(t, want, spec.String())
	}
}

// The error says which field, where it is, and what is wrong with it.
func TestBadCronSaysWhere(t *testing.T) {
	t.Parallel()
	for rule, parts := range map[string][]string{
		"":                         {"want 5 or 6 fields, got 0"},
		"* * * *":                  {"got 4"},
		"* * * * * * *":            {"got 7"},
		"60 * * * *":               {`minute "60" at byte 0`, "59"},
		"0 25 * * *":               {`hour "25" at byte 2`, "23"},
		"0  0   32 * *":            {`day of month "32" at byte 7`, "31"},
		"0 0 1 foo *":              {`month "foo" at byte 6`},
		"0 0 1 1 7":                {`day of week "7" at byte 8`, "6"},
		"61 0 0 1 1 1":             {`second "61" at byte 0`},
		"*/0 * * * *":              {`minute "*/0" at byte 0`, "positive"},
		"5-1 * * * *":              {`minute "5-1" at byte 0`},
		", * * * *":                {`minute "," at byte 0`, "empty"},
		"1 1 1 1 ,":                {`day of week "," at byte 8`},
		"-1 * * * *":               {`minute "-1" at byte 0`},
		"@fortnightly":             {"@fortnightly"},
		"@every":                   {"@every"},
		"@every soon":              {`invalid duration "soon" at byte 7`},
		"@every 10us":              {"at least 1ms"},
		"TZ=UTC":                   {"zone"},
		"CRON_TZ=UTC 0 0 * * *":    {"zone"},
		"0 0 * * \xff":             {"UTF-8"},
		string(make([]byte, 2000)): {"2000 bytes"},
	} {
		_, err := compiled(Cron(rule, "UTC"))
		require.Error(t, err, rule)
		for _, part := range parts {
			require.ErrorContains(t, err, part)
		}
	}
	for _, zone := range []string{"Europe/Atlantis", "Local", "../etc/passwd"} {
		_, err := compiled(Cron("* * * * *", zone))
		require.ErrorContains(t, err, zone)
	}
}

// Whatever is written into a rule, it is an error or has slots that go up.
func FuzzSpec(f *testing.F) {
	for _, rule := range []string{"* * * * *", "TZ=", "@every 1s", ", , , , ,", "*/9 1-5/2 ? jan-mar sun,mon", "0 0 30 2 *"} {
		f.Add(rule, "Europe/Berlin")
	}
	f.Fuzz(func(t *testing.T, rule, zone string) {
		next, err := compiled(Cron(rule, zone))
		if err != nil {
			return
		}
		for at, i := int64(1_700_000_000_000), 0; i < 3; i++ {
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
