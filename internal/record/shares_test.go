package record

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The shares of all places together are no more than the limits, and as much as can be divided.
func TestSharesAreTheWhole(t *testing.T) {
	for _, limits := range []string{
		"100 0 0 0 0 0", "25 1000 10 1000 1000000 0", "0 34 100 30000 1000000 1", "13 0 0 0 0 0 5 0 0 0 0 0",
		"0 0 0 0 0 0", "0 100000 100 10000000 1000000000 0 1 0 0 0 0 0 1 1",
	} {
		for _, n := range []int{1, 2, 3, 12} {
			var whole, sum [6]int64
			_, err := fmt.Sscan(limits, &whole[0], &whole[1], &whole[2], &whole[3], &whole[4], &whole[5])
			require.NoError(t, err)
			for i := range n {
				share, err := ShareOfLimits(limits, i, n)
				require.NoError(t, err)
				var one [6]int64
				_, err = fmt.Sscan(share, &one[0], &one[1], &one[2], &one[3], &one[4], &one[5])
				require.NoError(t, err)
				sum[0], sum[2] = sum[0]+one[0], sum[2]+one[2]
				require.Equal(t, whole[1]*int64(n), one[1], "the time of a start")
				require.Equal(t, whole[3:], one[3:])
				require.Equal(t, strings.Fields(limits)[6:], strings.Fields(share)[6:], "those of keys")
				require.Equal(t, whole[0] > 0, one[0] > 0, "0 is no limit")
			}
			require.Equal(t, whole[0], sum[0])
			if whole[1] > 0 {
				require.Equal(t, max(whole[2], int64(n)), sum[2])
			}
		}
	}
}

// A strict rate stays an upper bound of the starts in any period, even if the burst cannot be
// divided.
func TestSharesOfAStrictRate(t *testing.T) {
	const n, starts, period = 12, 100, 60_000_000
	total := int64(0)
	for i := range n {
		share, err := ShareOfLimits("0 612245 2 100 60000000 1", i, n)
		require.NoError(t, err)
		var running, emit, burst int64
		_, err = fmt.Sscan(share, &running, &emit, &burst)
		require.NoError(t, err)
		total += burst + period/emit
	}
	require.LessOrEqual(t, total, int64(starts))
	require.Greater(t, total, int64(starts*8/10))
}

func TestLimitsThatCannotBeDivided(t *testing.T) {
	for limits, says := range map[string]string{
		"11 0 0 0 0 0":                           "11 running jobs, and 12 partitions",
		"0 10000000 1 12 60000000 1":             "a strict rate of 12 starts",
		"0 31622400000000 1 1 31622400000000 0":  "a start in 8784h0m0s",
		"0 2635200000001 12 12 31622400000000 0": "a start in",
	} {
		_, err := ShareOfLimits(limits, 0, 12)
		require.ErrorIs(t, err, ErrShare, limits)
		require.ErrorContains(t, err, says)
		same, err := ShareOfLimits(limits, 0, 1)
		require.NoError(t, err)
		require.Equal(t, limits, same)
	}
	for _, damaged := range []string{"", "1 2 3", "x 0 0 0 0 0"} {
		same, err := ShareOfLimits(damaged, 0, 12)
		require.NoError(t, err)
		require.Equal(t, damaged, same)
	}
}
