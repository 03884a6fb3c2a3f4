package record

import (
	"strconv"
	"time"
)

// Upper bounds of the histograms of lateness and run time. The last bucket has none. They are those
// of the module prom.
var (
	LatenessBounds = []time.Duration{
		time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
		100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
		10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour,
	}
	RunTimeBounds = []time.Duration{
		time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
		100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
		10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour,
	}
)

// The series of a history: the outcomes, the buckets of lateness and the buckets of run time.
const (
	OutcomeCount = 11
	FirstLate    = OutcomeCount
	FirstRan     = FirstLate + 19
	SeriesCount  = FirstRan + 18
)

// SeriesNames are the names of the series in Redis.
var SeriesNames = func() []string {
	names := make([]string, 0, SeriesCount)
	names = append(names, Outcomes...)
	for i := range len(LatenessBounds) + 1 {
		names = append(names, "late"+strconv.Itoa(i))
	}
	for i := range len(RunTimeBounds) + 1 {
		names = append(names, "ran"+strconv.Itoa(i))
	}
	return names
}()

// BucketOf returns the first bucket whose bound is not below d, or the one after the last bound.
func BucketOf(bounds []time.Duration, d time.Duration) int {
	for i, bound := range bounds {
		if d <= bound {
			return i
		}
	}
	return len(bounds)
}
