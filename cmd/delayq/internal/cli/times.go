package cli

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq/cmd/delayq/internal/values"
)

// The values of --time.
const (
	timeLocal    = "local"
	timeUTC      = "utc"
	timeRelative = "relative"
	timeUnix     = "unix"
)

var timeStyles = []string{timeLocal, timeUTC, timeRelative, timeUnix}

// now returns the time by Redis's clock, from which due times count. It asks Redis once.
func (a *app) now(ctx context.Context) (time.Time, error) {
	if a.offset == nil {
		rdb, err := a.redis()
		if err != nil {
			return time.Time{}, err
		}
		t, err := rdb.Time(ctx).Result()
		if err != nil {
			return time.Time{}, fmt.Errorf("time: %w", err)
		}
		a.setClock(t)
	}
	return time.Now().Add(*a.offset), nil
}

// setClock tells the time by Redis's clock, as an answer of Redis had it.
func (a *app) setClock(t time.Time) {
	offset := time.Until(t).Round(time.Millisecond)
	a.offset = &offset
}

// when writes a time for people, as --time asks.
func (a *app) when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	switch a.timeStyle {
	case timeUTC:
		return t.UTC().Format("2006-01-02 15:04:05.000Z")
	case timeUnix:
		return fmt.Sprintf("%d.%03d", t.UnixMilli()/1000, t.UnixMilli()%1000)
	case timeRelative:
		return a.ago(t)
	}
	return t.Local().Format("2006-01-02 15:04:05.000")
}

// ago writes how far away a time is.
func (a *app) ago(t time.Time) string {
	now := time.Now()
	if a.offset != nil {
		now = now.Add(*a.offset)
	}
	switch d := t.Sub(now).Round(time.Millisecond); {
	case t.IsZero():
		return "-"
	case d > 0:
		return "in " + span(d)
	case d == 0:
		return "now"
	default:
		return span(-d) + " ago"
	}
}

// span writes a duration with at most two units: 412ms, 38.2s, 4m10s, 3h2m, 3d4h.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	two := func(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
		d = d.Round(small)
		text := strconv.FormatInt(int64(d/large), 10) + largeName
		if rest := d % large / small; rest > 0 {
			text += strconv.FormatInt(int64(rest), 10) + smallName
		}
		return text
	}
	switch {
	case d < 0:
		return "-" + span(-d)
	case d == 0:
		return "0s"
	case d < time.Millisecond:
		return strconv.FormatInt(d.Microseconds(), 10) + "µs"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	case d < time.Minute:
		return strconv.FormatFloat(d.Truncate(100*time.Millisecond).Seconds(), 'f', -1, 64) + "s"
	case d < time.Hour-time.Second/2:
		return two(d, time.Minute, "m", time.Second, "s")
	case d < day-time.Minute/2:
		return two(d, time.Hour, "h", time.Minute, "m")
	}
	return two(d, day, "d", time.Hour, "h")
}

// A duration is the value of a flag.
type duration struct{ d *time.Duration }

func (v *duration) String() string {
	if v.d == nil || *v.d == 0 {
		return ""
	}
	return span(*v.d)
}

func (v *duration) Set(text string) error {
	d, err := values.ParseSpan(text)
	if err != nil {
		return err
	}
	*v.d = d
	return nil
}

func (v *duration) Type() string { return "duration" }

var layouts = []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999", "2006-01-02 15:04", "2006-01-02"}

// instant reads the time that a flag gives: absolute, or relative to now by Redis's clock. The
// layouts without a zone are in local time, and in UTC with --time utc.
func (a *app) instant(ctx context.Context, flag, text string) (time.Time, error) {
	if rest, ok := strings.CutPrefix(text, "@"); ok {
		if s, err := strconv.ParseFloat(rest, 64); err == nil && math.Abs(s) < mostUnix {
			return time.UnixMilli(int64(math.Round(s * 1000))), nil
		}
	}
	zone := time.Local
	if a.timeStyle == timeUTC {
		zone = time.UTC
	}
	for _, layout := range layouts {
		if t, err := time.ParseInLocation(layout, text, zone); err == nil {
			return t, nil
		}
	}
	if at, ok, err := a.dayTime(ctx, text, zone); ok || err != nil {
		return at, err
	}
	rest, ahead := strings.CutPrefix(text, "+")
	d, err := values.ParseSpan(rest)
	if text == "now" {
		d, err = 0, nil
	}
	if err != nil || strings.HasPrefix(rest, "+") || strings.HasPrefix(rest, "-") {
		return time.Time{}, usage("--%s: %q is no time: allowed are 2006-01-02T15:04:05Z, \"2006-01-02 15:04\", 2006-01-02, "+
			"\"tomorrow 9:00\", "+
			"@1136214245 (Unix), now, 24h (ago) and +24h (from now)", flag, text)
	}
	now, err := a.now(ctx)
	if !ahead {
		d = -d
	}
	return now.Add(d), err
}

// mostUnix is a bound of seconds since 1970, in the year 9999.
const mostUnix = 253_402_300_800

// dayTime reads today, tomorrow or yesterday, with or without a time of that day.
func (a *app) dayTime(ctx context.Context, text string, zone *time.Location) (at time.Time, ok bool, err error) {
	word, clock, timed := strings.Cut(text, " ")
	days, ok := map[string]int{"yesterday": -1, "today": 0, "tomorrow": 1}[word]
	if !ok {
		return at, false, nil
	}
	var of time.Time
	if timed {
		if of, err = time.Parse("15:04:05", clock); err != nil {
			if of, err = time.Parse("15:04", clock); err != nil {
				return at, false, nil
			}
		}
	}
	now, err := a.now(ctx)
	if err != nil {
		return at, false, err
	}
	year, month, day := now.In(zone).Date()
	return time.Date(year, month, day+days, of.Hour(), of.Minute(), of.Second(), 0, zone), true, nil
}

// A stamp is a time in JSON: RFC 3339 in UTC with milliseconds. The zero time is left out.
type stamp time.Time

// IsZero reports whether there is no time, for the tag omitzero.
func (s stamp) IsZero() bool { return time.Time(s).IsZero() }

// MarshalText writes the time.
func (s stamp) MarshalText() ([]byte, error) {
	return []byte(time.Time(s).UTC().Format("2006-01-02T15:04:05.000Z07:00")), nil
}

// UnmarshalText reads a time of any zone.
func (s *stamp) UnmarshalText(text []byte) error {
	t, err := time.Parse(time.RFC3339Nano, string(text))
	*s = stamp(t)
	return err
}

// A seconds is a duration in JSON: a number of seconds.
type seconds time.Duration

// MarshalJSON writes the number without an exponent.
func (s seconds) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, time.Duration(s).Seconds(), 'f', -1, 64), nil
}

// UnmarshalJSON reads a number of seconds.
func (s *seconds) UnmarshalJSON(text []byte) error {
	n, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return fmt.Errorf("%s is no number of seconds", text)
	}
	*s = seconds(math.Round(n * float64(time.Second)))
	return nil
}

// exactTime writes a time as the audit has it.
func exactTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
