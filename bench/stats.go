package main

import (
	"cmp"
	"slices"
	"time"
)

// median returns the middle of values, the mean of the two middle ones when
// their number is even, and 0 when there are none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// summary returns one sample for those of all rounds: of each figure the
// median over the samples that have it, or the largest if it is one of which
// a single bad round counts.
func summary(samples []sample) sample {
	values := map[string][]float64{}
	for _, s := range samples {
		for figure, v := range s {
			values[figure] = append(values[figure], v)
		}
	}
	result := sample{}
	for figure, vs := range values {
		if slices.Contains(worstCounts, figure) {
			result[figure] = slices.Max(vs)
		} else {
			result[figure] = median(vs)
		}
	}
	return result
}

// ratios divides each figure of ours by the same of theirs. A figure that
// theirs has not, or has as zero, has no ratio.
func ratios(ours, theirs sample) sample {
	result := sample{}
	for figure, v := range ours {
		if other := theirs[figure]; other != 0 {
			result[figure] = v / other
		}
	}
	return result
}

// percentile returns the smallest of the sorted values that at least p percent
// of them do not exceed (nearest rank), and the zero value when there are none.
func percentile[T cmp.Ordered](sorted []T, p int) T {
	if len(sorted) == 0 {
		var none T
		return none
	}
	rank := (len(sorted)*p + 99) / 100
	return sorted[max(rank, 1)-1]
}

// correctOmission adds the requests that were not made because an earlier one
// was slow. Somebody who asks every interval and waits for each answer sees one
// slow answer where steady visitors would have seen many, the later ones
// waiting a little less each. (Gil Tene's correction, as in HdrHistogram.)
func correctOmission(waits []time.Duration, interval time.Duration) []time.Duration {
	corrected := slices.Clone(waits)
	for _, w := range waits {
		for missed := w - interval; missed >= interval; missed -= interval {
			corrected = append(corrected, missed)
		}
	}
	return corrected
}
