package loop

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
)

// The default backoff, in ms.
const (
	defaultMin int64 = 2000
	defaultMax       = defaultMin << 11
)

// (M1)
func TestBackoffTable(t *testing.T) {
	// The table of the doc comment of backoff.
	for attempt, want := range map[int]time.Duration{
		1: 2 * time.Second, 2: 4 * time.Second, 3: 8 * time.Second, 4: 16 * time.Second, 5: 32 * time.Second, 6: 64 * time.Second,
		7: 128 * time.Second, 8: 256 * time.Second, 9: 512 * time.Second, 10: 1024 * time.Second, 11: 2048 * time.Second,
		12: 4096 * time.Second, 13: 4096 * time.Second, 1000: 4096 * time.Second, math.MaxInt32: 4096 * time.Second,
	} {
		least, most := time.Duration(math.MaxInt64), time.Duration(0)
		for range 500 {
			d := Backoff(attempt, defaultMin, defaultMax)
			least, most = min(least, d), max(most, d)
		}
		require.GreaterOrEqual(t, least, want, "attempt %d", attempt)
		require.LessOrEqual(t, most, want+want/5, "attempt %d", attempt)
		// With 500 draws the ends are met to within a tenth of the jitter, but for once in 10^22
		// runs.
		require.Less(t, least, want+want/50, "attempt %d", attempt)
		require.Greater(t, most, want+want/5-want/50, "attempt %d", attempt)
	}
}

// Whatever the attempt and the bounds: base ≤ d ≤ 1.2 × limit, the steps never fall, and nothing
// overflows. (M1)
func TestBackoffProperty(t *testing.T) {
	const longest = int64(record.MaxDelay)
	for range 20_000 {
		limit := 1 + rand.Int64N(longest)
		if rand.IntN(2) == 0 {
			limit = 1 + rand.Int64N(100_000)
		}
		first := 1 + rand.Int64N(limit)
		attempt := 1 + rand.IntN(80)
		if rand.IntN(4) == 0 {
			attempt = 1 + rand.IntN(1<<31)
		}
		d := Backoff(attempt, first, limit)
		require.GreaterOrEqual(t, d.Milliseconds(), first, "backoff(%d, %d, %d)", attempt, first, limit)
		require.LessOrEqual(t, float64(d.Milliseconds()), 1.2*float64(limit), "backoff(%d, %d, %d)", attempt, first, limit)

		// Without its jitter a step is the least of what can come out: that of the next attempt is
		// no smaller, and up to the limit it doubles.
		step := func(attempt int) int64 {
			least := int64(math.MaxInt64)
			for range 3 {
				d := Backoff(attempt, first, limit).Milliseconds()
				least = min(least, d)
			}
			return least
		}
		require.GreaterOrEqual(t, step(attempt+1)*6, step(attempt)*5, "backoff(%d…, %d, %d)", attempt, first, limit)
	}
	for _, attempt := range []int{62, 63, 64, 65, 127, 128, math.MaxInt32, math.MaxInt32 + 1} {
		require.Equal(t, time.Millisecond, Backoff(attempt, 1, 1))
		require.GreaterOrEqual(t, Backoff(attempt, longest, longest), time.Duration(longest)*time.Millisecond)
	}
	// What can only come from a record that was not written by Enqueue.
	for _, attempt := range []int{math.MinInt, -1, 0} {
		require.GreaterOrEqual(t, Backoff(attempt, 100, 1000), 100*time.Millisecond)
	}
}

// Ten thousand jobs that fail together do not come back together: their delays are spread evenly
// over the fifth that is added. The bound of the χ² of 20 bins is exceeded by chance once in some
// 10^9 runs. (G10)
func TestRetriesOfOneMomentSpread(t *testing.T) {
	t.Parallel()
	const draws, bins = 10_000, 20
	for _, attempt := range []int{1, 5, 12, 40} {
		step := Backoff(attempt, defaultMin, defaultMin<<11) // only its size
		base := min(defaultMin<<min(attempt-1, 11), defaultMax)
		require.GreaterOrEqual(t, step.Milliseconds(), base)
		var count [bins]float64
		for range draws {
			extra := Backoff(attempt, defaultMin, defaultMax).Milliseconds() - base
			count[min(extra*bins/(base/5+1), bins-1)]++
		}
		chi := 0.0
		for _, n := range count {
			chi += (n - draws/bins) * (n - draws/bins) / (draws / bins)
		}
		require.Less(t, chi, 85.0, "attempt %d: %v", attempt, count)
	}
}

func TestPace(t *testing.T) {
	var p Pace
	for _, want := range []time.Duration{50, 100, 200, 400, 800, 1000, 1000, 1000} {
		got := p.Next()
		require.GreaterOrEqual(t, got, want*time.Millisecond)
		require.LessOrEqual(t, got, want*time.Millisecond*6/5)
	}
	p.Reset()
	require.LessOrEqual(t, p.Next(), 60*time.Millisecond)
}
