package lua_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// planned returns the IDs of the parcels in a plan.
func planned(t *testing.T, plan script.Reply) (ids []string) {
	t.Helper()
	for _, text := range plan.List(2).Texts() {
		p, err := commit.DecodeParcel(text)
		require.NoError(t, err)
		require.Positive(t, p.At)
		ids = append(ids, p.Row.ID)
	}
	return ids
}

// plan makes or reads the plan for a target.
func plan(t *testing.T, h *Hand, target, tag string) script.Reply {
	t.Helper()
	r, err := h.TryPlan(target, tag, "", 0)
	require.NoError(t, err)
	return r
}

// waiting returns how many parcels there are.
func waiting(t *testing.T, h *Hand) int64 {
	t.Helper()
	n, err := h.RDB.ZCard(t.Context(), h.Keys.Parcels).Result()
	require.NoError(t, err)
	return n
}

// ack and again store what the runs of a call hand over: for those jobs that the call ends, and
// once, though the call is repeated.
func TestHandOverWithTheEnd(t *testing.T) {
	for name, verb := range map[string]settle.Verb{"ack": settle.Ack, "again": settle.Again} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				h.Put("+0", "a", "b", "lost", "gone", "plain")
				held := h.Take(10, time.Minute)
				require.Len(t, held, 5)
				slices.SortFunc(held, func(a, b hand.Held) int { return strings.Compare(a.ID, b.ID) })
				_, err := h.TryEnqueue(true, [2]string{"lost", "+50000"})
				require.NoError(t, err)
				_, err = h.TryCancel("gone")
				require.NoError(t, err)
				row := settle.Row{Verb: verb, Parcels: h.Parcels("target", "1", "2"), Delay: time.Hour}
				r, err := h.Settle(held[:4], row)
				require.NoError(t, err)
				require.Equal(t, "oogl", r.Text(2))
				require.EqualValues(t, 4, waiting(t, h))
				again, err := h.Last()
				require.NoError(t, err)
				require.Equal(t, r.Text(2), again.Text(2))
				require.EqualValues(t, 4, waiting(t, h))
				require.Equal(t, []string{"1", "2", "1", "2"}, planned(t, plan(t, h, "target", "t1")))
				row.Parcels.Text, row.Parcels.Jobs = "", 0
				_, err = h.Settle(held[4:], row)
				require.NoError(t, err)
				require.EqualValues(t, 4, waiting(t, h))
			})
		})
	}
}

// A job with a successor is left to again, which hands over what its run has.
func TestHandOverBesideASuccessor(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a")
		held := h.Take(1, time.Minute)
		_, err := h.TryEnqueue(false, [2]string{"a", "l+50000"})
		require.NoError(t, err)
		row := settle.Row{Verb: settle.Ack, Parcels: h.Parcels("target", "1")}
		r, err := h.Settle(held, row)
		require.NoError(t, err)
		require.Equal(t, "q", r.Text(2))
		require.Zero(t, waiting(t, h))
		r, err = h.Settle(held, row.Left())
		require.NoError(t, err)
		require.Equal(t, "o", r.Text(2))
		require.EqualValues(t, 1, waiting(t, h))
	})
}

// A key of a wrong type keeps the job, and nothing is handed over.
func TestHandOverBesideAWrongType(t *testing.T) {
	for _, verb := range []settle.Verb{settle.Ack, settle.Again} {
		for _, key := range []string{"parcels", "plans"} {
			t.Run(verb.Outcome()+" "+key, func(t *testing.T) {
				eachHand(t, func(t *testing.T, h *Hand) {
					h.Put("+0", "a")
					held := h.Take(1, time.Minute)
					mend := h.Deface(key)
					row := settle.Row{Verb: verb, Parcels: h.Parcels("target", "1")}
					_, err := h.Settle(held, row)
					require.ErrorContains(t, err, "WRONGTYPE")
					mend()
					require.Zero(t, waiting(t, h))
					r, err := h.Settle(held, row)
					require.NoError(t, err)
					require.Empty(t, r.Text(2), "the lease was left")
					require.EqualValues(t, 1, waiting(t, h))
				})
			})
		}
	}
}

// store stores parcels without runs.
func store(t *testing.T, h *Hand, target string, size int, numbers ...int) {
	t.Helper()
	var list []redis.Z
	for _, n := range numbers {
		p := commit.Parcel{Row: commit.Row{ID: fmt.Sprint(n), Record: strings.Repeat("x", size)}}
		list = append(list, redis.Z{Member: fmt.Sprintf("%02x%s%014x%013d%s", len(target), target, n, 1, p.Encode())})
	}
	for some := range slices.Chunk(list, 10_000) {
		require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Parcels, some...).Err())
	}
}

func upTo(n int) (list []int) {
	for i := range n {
		list = append(list, i+1)
	}
	return list
}

// Every relay gets the same plan until it is done, also if there are more parcels by then. It has
// at most 500 parcels and 1 MiB.
func TestParcelPlans(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		store(t, h, "target", 10, upTo(700)...)
		store(t, h, "targeu", 10, 1)
		store(t, h, "t", 10, 1)
		first := plan(t, h, "target", "t1")
		require.Len(t, planned(t, first), 500)
		require.Equal(t, "t1", first.Text(4))
		store(t, h, "target", 10, 701)
		second := plan(t, h, "target", "t2")
		require.Equal(t, first[2:], second[2:])
		r, err := h.TryDone("target", first, `{"x":1}`)
		require.NoError(t, err)
		require.EqualValues(t, 500, r.Number(2))
		require.EqualValues(t, 1, r.Number(3))
		r, err = h.TryDone("target", first, `{"x":1}`)
		require.NoError(t, err)
		require.Zero(t, r.Number(2), "it is over")
		require.Equal(t, "1", h.RDB.HGet(t.Context(), h.Keys.Stats, "undelivered").Val())
		require.EqualValues(t, 1, h.RDB.LLen(t.Context(), h.Keys.Undelivered).Val())
		next := plan(t, h, "target", "t3")
		require.Len(t, planned(t, next), 201)
		require.Equal(t, "t3", next.Text(4))
		require.Less(t, first.Text(3), next.Text(3), "numbers grow")
		passed, err := h.TryPlan("target", "t4", "t3", 9_000_000_000_000)
		require.NoError(t, err)
		require.Equal(t, "9000000000001", passed.Text(3))
		require.Equal(t, next[2], passed[2])
		late, err := h.TryPlan("target", "t5", "t3", 0)
		require.NoError(t, err)
		require.Equal(t, passed[2:], late[2:], "another relay has made it anew")
		for _, over := range []script.Reply{first, next} {
			r, err = h.TryDone("target", over, `{"x":1}`)
			require.NoError(t, err)
			require.Zero(t, r.Number(2), "another plan is open")
		}
		require.EqualValues(t, 203, waiting(t, h))
		r, err = h.TryDone("target", passed)
		require.NoError(t, err)
		require.EqualValues(t, 201, r.Number(2))
		require.Zero(t, r.Number(3))
		require.Empty(t, planned(t, plan(t, h, "target", "t6")))
		require.EqualValues(t, 2, waiting(t, h))

		store(t, h, "large", 400<<10, upTo(5)...)
		require.Len(t, planned(t, plan(t, h, "large", "t7")), 2)
		store(t, h, "huge", 3<<20, upTo(2)...)
		require.Len(t, planned(t, plan(t, h, "huge", "t8")), 1)
	})
}

// Targets are listed by twenty.
func TestTargetsOfParcels(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		want := map[string]bool{}
		for i := range 50 {
			target := strings.Repeat("x", i%7) + fmt.Sprint(i)
			want[target] = true
			store(t, h, target, 1, 1, 2, 3)
		}
		require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Parcels, redis.Z{Member: "no parcel"}).Err())
		got, cursor := map[string]bool{}, ""
		for range 4 {
			r, err := h.TryPlan("", "", cursor, 0)
			require.NoError(t, err)
			for _, target := range r.List(2).Texts() {
				require.False(t, got[target], target)
				got[target], cursor = true, target
			}
		}
		require.Equal(t, want, got)
	})
}

// However many parcels there are, a call costs the same.
func TestParcelCallsDoNotGrow(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	cost := map[int]string{}
	require.NoError(t, queuetest.LoadScripts(t.Context(), rdb))
	for _, n := range []int{1000, 100_000} {
		h := NewHand(t, rdb, fmt.Sprint("p", n), "topic")
		store(t, h, "target", 10, upTo(n)...)
		require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
		plan(t, h, "", "")
		r := plan(t, h, "target", "t")
		_, err := h.TryDone("target", r)
		require.NoError(t, err)
		cost[n] = fmt.Sprint(commandsOf(t, rdb))
	}
	require.Equal(t, cost[1000], cost[100_000])
}
