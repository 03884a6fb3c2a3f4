package lua_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/settle"
)

// The number of the last parcel is lost or damaged. The job ends, its waiter is told so, and the
// new parcel has a number above those that are there.
func TestHandOverBesideADamagedCount(t *testing.T) {
	for _, count := range []string{"x", "", "-1", "1.5", "99999999999999999999", "nan"} {
		for _, verb := range []settle.Verb{settle.Ack, settle.Again} {
			t.Run(verb.Outcome()+" "+count, func(t *testing.T) {
				eachHand(t, func(t *testing.T, h *Hand) {
					me := h.ear("me")
					h.Put("+0", "a", "b")
					held := h.Take(2, 0)
					nonce := me.waits(held[1].ID)
					row := settle.Row{Verb: verb, Parcels: h.Parcels("target", "1", "2")}
					settled := func(one hand.Held) {
						r, err := h.Settle([]hand.Held{one}, row)
						require.NoError(t, err)
						require.Empty(t, r.Text(2))
					}
					settled(held[0])
					require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Plans, "#", count).Err())
					h.Hasten(1)
					row.Parcels = h.Parcels("target", "3")
					settled(held[1])
					require.Equal(t, []string{"1", "2", "3"}, planned(t, plan(t, h, "target", "t")))
					if verb == settle.Ack {
						require.Equal(t, "o", me.outcome(held[1].ID, nonce)[:1])
					}
				})
			})
		}
	}
}

// The number of the last plan, or the plan, is damaged: the next plan is a new one, which can end.
func TestPlanBesideADamagedNumber(t *testing.T) {
	for field, values := range map[string][]string{
		"##":     {"x", "nan", "inf", "1e30", "-1", "99999999999999999999"},
		"target": {"x", "1 t g", "1 t 1", "99999999999999999999 t 00000000000001", "1e3 t 00000000000001"},
	} {
		for _, value := range values {
			t.Run(field+" "+value, func(t *testing.T) {
				eachHand(t, func(t *testing.T, h *Hand) {
					store(t, h, "target", 10, 1, 2)
					require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Plans, field, value).Err())
					r := plan(t, h, "target", "new")
					require.Equal(t, []string{"1", "2"}, planned(t, r))
					require.Equal(t, "new", r.Text(4))
					require.Regexp(t, `^\d{13}$`, r.Text(3))
					done, err := h.TryDone("target", r)
					require.NoError(t, err)
					require.EqualValues(t, 2, done.Number(2))
				})
			})
		}
	}
}

// Damaged parcels are moved aside with a reason, and their neighbours are delivered once.
func TestDamagedParcels(t *testing.T) {
	number, at := fmt.Sprintf("%014x", 1), fmt.Sprintf("%013d", 1)
	for _, damaged := range []string{
		"06target12 4", "06target", "06targetzzz", "00" + number + at + "1x", "", "0", "no parcel", "ff", "0Atarget", "+6target" + number + at,
		"06target" + strings.ToUpper(fmt.Sprintf("%014x", 0xabc)) + at, "06target" + number + "1 2", "06target\x00\xff",
	} {
		t.Run(damaged, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				store(t, h, "a", 10, 1)
				store(t, h, "target", 10, 1, 2)
				store(t, h, "z target", 10, 1)
				require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Parcels, redis.Z{Member: damaged}).Err())
				times := map[string]int{}
				for i := range 3 {
					for _, target := range plan(t, h, "", "").List(2).Texts() {
						r := plan(t, h, target, fmt.Sprint("t", i))
						times[target] += len(planned(t, r))
						done, err := h.TryDone(target, r)
						require.NoError(t, err)
						require.EqualValues(t, len(r.List(2)), done.Number(2), target)
					}
				}
				require.Equal(t, map[string]int{"a": 1, "target": 2, "z target": 1}, times)
				require.Zero(t, waiting(t, h))
				list := h.RDB.LRange(t.Context(), h.Keys.Undelivered, 0, -1).Val()
				require.Len(t, list, 1)
				require.Contains(t, list[0], "the parcel is damaged")
				require.Equal(t, "1", h.RDB.HGet(t.Context(), h.Keys.Stats, "undelivered").Val())
			})
		})
	}
}

// However many are damaged, a call moves 500, the list keeps 100, and an open plan stays as it is.
func TestManyDamagedParcels(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		store(t, h, "target", 10, 1, 2)
		open := plan(t, h, "target", "open")
		var list []redis.Z
		for i := range 1200 {
			list = append(list, redis.Z{Member: fmt.Sprintf("06target%013d-%d", 0, i)})
		}
		require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Parcels, list...).Err())
		for _, left := range []int64{702, 202} {
			require.Empty(t, plan(t, h, "target", "other").List(2))
			require.Equal(t, left, waiting(t, h))
		}
		require.Equal(t, open[2:], plan(t, h, "target", "other")[2:])
		require.EqualValues(t, 100, h.RDB.LLen(t.Context(), h.Keys.Undelivered).Val())
		require.Equal(t, "1200", h.RDB.HGet(t.Context(), h.Keys.Stats, "undelivered").Val())
	})
}

// A list of one target has its plan, if that is wanted.
func TestPlanOfTheOnlyTarget(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		require.Len(t, plan(t, h, "", "t0"), 3, "there is none")
		store(t, h, "target", 10, 1, 2)
		require.Len(t, plan(t, h, "", ""), 3)
		r := plan(t, h, "", "t1")
		require.Equal(t, []string{"target"}, r.List(2).Texts())
		require.Equal(t, plan(t, h, "target", "t2")[2:], r[3:])
		require.Equal(t, "t1", r.Text(5))
		store(t, h, "other", 10, 1)
		require.Len(t, plan(t, h, "", "t3"), 3, "there are two")
	})
}
