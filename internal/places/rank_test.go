package places

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A search finds the entry that a walk has passed last, from both ends, whatever its score is and
// however many have the same one.
func TestSearchByRank(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		rng := rand.New(rand.NewPCG(1, 2))
		s := Search{Scripts: script.Caller{RDB: rdb, Only: new(script.ReadOnly)}, From: "-inf", To: "+inf"}
		var all []Mark
		for i := range 4 {
			at := []Ref{{}, {1, 0}, {1, 1}, {2, 0}}[i]
			zset := fmt.Sprintf("%s:{t%d}:bucket", prefix, i)
			s.Zsets, s.Places = append(s.Zsets, zset), append(s.Places, at)
			for n := range i * 10 {
				score := []float64{1, 7, 1_700_000_000_000, 1_700_000_000_001, 9_999_999_999_999}[rng.IntN(5)]
				require.NoError(t, rdb.ZAdd(ctx, zset, redis.Z{Score: score, Member: fmt.Sprintf("%03d", n)}).Err())
				all = append(all, newMark(fmt.Sprintf("%.0f", score), at, fmt.Sprintf("%03d", n)))
			}
		}
		slices.SortFunc(all, Mark.Compare)
		for _, bounds := range [][2]string{{"-inf", "+inf"}, {"7", "1700000000001"}} {
			s.From, s.To = bounds[0], bounds[1]
			some := slices.Clone(all)
			if s.From == "7" {
				some = slices.DeleteFunc(some, func(m Mark) bool { return m.score < 7 || m.score >= 1_700_000_000_001 })
			}
			for _, passed := range []int{1, 2, 9, len(some) / 2, len(some) - 1} {
				got, over, err := s.Passed(ctx, int64(passed), false)
				require.NoError(t, err)
				require.False(t, over)
				require.Equal(t, some[passed-1], got, passed)
				got, over, err = s.Passed(ctx, int64(passed), true)
				require.NoError(t, err)
				require.False(t, over)
				require.Equal(t, some[len(some)-passed], got, passed)
			}
			_, over, err := s.Passed(ctx, int64(len(some)), false)
			require.NoError(t, err)
			require.True(t, over)
		}
	})
}
