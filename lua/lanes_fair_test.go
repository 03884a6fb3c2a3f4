package lua_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/delayq/delayq/internal/hand"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
)

// putKeyed enqueues jobs of a key that are due now.
func (h *Hand) putKeyed(key string, ids ...string) {
	h.T.Helper()
	for len(ids) > 0 {
		var args []any
		n := min(len(ids), 500)
		for _, id := range ids[:n] {
			head, tail := h.keyedRecord("+0", key, 0)
			args = append(args, id, head, tail, "+0")
		}
		r, err := h.TrySend(false, args)
		require.NoError(h.T, err)
		require.Empty(h.T, r.Text(2), "all are stored")
		ids = ids[n:]
	}
}

// sizesOfTakes are the numbers of jobs that the takes of these tests ask for.
var sizesOfTakes = []int{1, 10}

// A hundred tenants have ten jobs each, all enqueued after the backlog of one tenant. They need not
// wait for that backlog.
func TestLanesDoNotWaitForABacklog(t *testing.T) {
	for _, n := range append(sizesOfTakes, 64) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				backlog := max(1500, redistest.Size(5000))
				if n == 10 && !strings.HasSuffix(t.Name(), "miniredis") {
					backlog = redistest.Size(100_000)
				}
				h.putKeyed("whale", hand.Numbered("whale", backlog)...)
				for tenant := range 100 {
					h.putKeyed(fmt.Sprint("tenant-", tenant), hand.Numbered(fmt.Sprint("of ", tenant, " "), 10)...)
				}
				starts, left := 0, 1000
				for left > 0 {
					held := h.Take(n, time.Minute)
					require.NotEmpty(t, held)
					for _, one := range held {
						if starts++; strings.HasPrefix(one.ID, "of ") {
							left--
						}
					}
					require.Equal(t, strings.Repeat("o", len(held)), h.Ack(held...))
					require.LessOrEqual(t, starts, 1100, "%d jobs of the tenants still wait", left)
				}
			})
		})
	}
}

// A stream that has one ready job at a time gets its share beside fifty tenants with a backlog,
// whether its jobs have a key or not.
func TestLanesGiveAStreamItsShare(t *testing.T) {
	for _, key := range []string{"stream", ""} {
		for _, n := range sizesOfTakes {
			t.Run(fmt.Sprintf("%q by %d", key, n), func(t *testing.T) {
				eachHand(t, func(t *testing.T, h *Hand) {
					starts := 1000
					for tenant := range 50 {
						h.putKeyed(fmt.Sprint("tenant-", tenant), hand.Numbered(fmt.Sprint("of ", tenant, " "), starts/45+20)...)
					}
					next := func(i int) {
						if id := fmt.Sprint("stream ", i); key == "" {
							h.Put("+0", id)
						} else {
							h.putKeyed(key, id)
						}
					}
					next(0)
					total, own := 0, 0
					for total < starts {
						held := h.Take(n, time.Minute)
						require.NotEmpty(t, held)
						for _, one := range held {
							if total++; strings.HasPrefix(one.ID, "stream") {
								own++
								next(own)
							}
						}
						require.Equal(t, strings.Repeat("o", len(held)), h.Ack(held...))
					}
					require.InEpsilon(t, float64(total)/51, own, 0.1)
				})
			})
		}
	}
}

// Every place has a number of its own, however many jobs get new places in one call, and later
// calls give higher ones.
func TestNumbersOfPlacesAreGivenOnce(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		const size = 10 // hexadecimal digits of a number, before 8 of the head start and the nonce
		numbers := func(ids ...string) (list []string) {
			for _, id := range ids {
				place := h.RDB.HGet(t.Context(), h.Keys.Keyed, id).Val()
				list = append(list, place[len(place)-16-size:len(place)-16])
			}
			return list
		}
		h.putKeyed("k", "a", "b", "c", "d")
		held := h.Take(4, time.Minute)
		require.Len(t, held, 4)
		before := numbers("a", "b", "c", "d")
		h.Retry(time.Hour, held[:3]...)
		h.putKeyed("k", "e", "f")
		h.Snooze(time.Hour, held[3])
		h.putKeyed("k", "g")
		all := append(before, numbers("a", "b", "c", "e", "f", "d", "g")...)
		for i := range all[1:] {
			require.Less(t, all[i], all[i+1], "%q", all)
		}
	})
}
