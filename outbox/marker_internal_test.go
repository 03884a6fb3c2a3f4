package outbox

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// While the rows of a plan are kept, no other plan has its series. Plans are sent one after
// another, after any time. A relay that starts knows the last plan with kept rows.
func TestMarkersAreNotSharedWhileRowsAreKept(t *testing.T) {
	type plan struct {
		marker
		sent int64
	}
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		now, span := int64(1e12), time.Minute.Milliseconds()
		var kept []plan
		var last marker
		used := make(map[string]bool)
		for range 500 {
			last = last.next(time.Minute, now)
			for _, p := range kept {
				if now-p.sent <= span {
					require.NotEqual(t, p.series("s"), last.series("s"), "seed %d", seed)
				}
			}
			used[last.series("s")] = true
			now += random.Int64N([]int64{20_000, 20_000, 20_000, 300_000}[random.IntN(4)])
			if random.IntN(5) > 0 { // otherwise all its rows were refused
				kept = append(kept, plan{last, now})
			}
			now += random.Int64N(20_000)
			if random.IntN(10) == 0 { // another relay
				last = marker{}
				if len(kept) > 0 && now-kept[len(kept)-1].sent <= span {
					last = kept[len(kept)-1].marker
				}
			}
		}
		require.Less(t, len(used), 100)
	}
	require.Equal(t, marker{}, marker{span: 1, slot: 2}.next(0, 5))
	require.Equal(t, "s", marker{}.series("s"))
}
