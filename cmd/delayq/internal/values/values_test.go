package values

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A number that is too large is an error, and not another number.
func TestLargeNumbersAreErrors(t *testing.T) {
	for _, text := range []string{"9999999999h", "999999999999999999d", "2562048h", "106752d", "15251w", strings.Repeat("9", 400) + "w"} {
		d, err := ParseSpan(text)
		require.Error(t, err, "%s: %v", text, d)
	}
	for text, want := range map[string]time.Duration{"106751d": 106751 * 24 * time.Hour, "1w2d": 9 * 24 * time.Hour, "1.5d": 36 * time.Hour, "-1d": -24 * time.Hour} {
		d, err := ParseSpan(text)
		require.NoError(t, err, text)
		require.Equal(t, want, d)
	}
	for _, text := range []string{"99999999999999999999/1m", "1/99999999999d", "0/1m", "1/0s", "-1/1m", "1/-1m"} {
		_, _, err := ParseRate(text)
		require.Error(t, err, text)
	}
	for _, text := range []string{"99999999999999999999", "1e3", ""} {
		_, err := ParseRetry(text)
		require.Error(t, err, text)
		_, err = ParseMissed("catch_up=" + text)
		require.Error(t, err, text)
	}
}

// Any text is a duration of the same length as its digits say, or an error.
func FuzzSpan(f *testing.F) {
	for _, text := range []string{"1w2d", "90s", "1.5d", "106752d", "1dd", "d", "-1d", "1e3d", "0.00000000000000001w"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseSpan(text)
		if err == nil && !strings.HasPrefix(text, "-") && d < 0 || d == math.MinInt64 {
			t.Fatalf("%q: %v", text, d)
		}
		_, _, _ = ParseRate(text)
	})
}
