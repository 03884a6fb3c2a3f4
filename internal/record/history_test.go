package record

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSumsThereAndBack(t *testing.T) {
	t.Parallel()
	var s [SeriesCount]int64
	require.Empty(t, EncodeSums(SeriesNames, s[:]))
	for i := range s {
		s[i] = int64(i * 1_000_000_007 % 97)
	}
	got := map[string]int64{}
	DecodeSums("12 "+EncodeSums(SeriesNames, s[:]), 12, func(name string, n int64) { got[name] = n })
	want := map[string]int64{}
	for i, n := range s {
		if n > 0 {
			want[SeriesNames[i]] = n
		}
	}
	require.Equal(t, want, got)
	for _, damaged := range []string{"", "x", "13 acked 1", "012 acked 1", "12acked 1", "12 acked", "12 acked -1", "12 acked 1e3", "12 acked "} {
		DecodeSums(damaged, 12, func(name string, n int64) { t.Errorf("%q: %s %d", damaged, name, n) })
	}
}
