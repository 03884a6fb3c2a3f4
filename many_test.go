package delayq_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// many stores jobs that are due at once, and gives their IDs.
func (f *fixture) many(name string, n int) (ids []string) {
	f.t.Helper()
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s %02d", name, i))
	}
	for _, id := range ids {
		f.enqueue(id)
	}
	return ids
}

func (f *fixture) push(ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		require.NoError(f.t, f.rdb.RPush(f.t.Context(), f.hand.Key("ready"), id).Err())
	}
}

func idsOf(list []delayq.Held) (ids []string) {
	for _, held := range list {
		ids = append(ids, held.ID)
	}
	return ids
}

// A take of many jobs does not look up each in leases. Left-overs of jobs that are leased, delayed
// or dead, and IDs that stand in ready twice, give no second lease all the same, and the leases
// that there were stay as they were.
func TestTakeOfManyGivesNoSecondLease(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		leased := f.many("leased", 20)
		first := f.hand.Take(20, time.Minute)
		require.Equal(t, leased, idsOf(first))
		dead := f.many("dead", 3)
		for _, held := range f.hand.Take(3, time.Minute) {
			require.Equal(t, "o", f.hand.Bury(held))
		}
		f.enqueue("delayed", delayq.ProcessIn(time.Hour))

		fresh := f.many("fresh", 10)
		f.push(leased...)
		f.push(fresh...)
		f.push(dead...)
		f.push("delayed", "nobody", fresh[0])
		second := f.many("more", 2)
		other := delayq.NewHand(t, f.rdb, f.prefix, "topic")
		require.Equal(t, append(slices.Clone(fresh), second...), idsOf(other.Take(100, time.Minute)))
		require.Empty(t, other.Take(100, time.Minute))
		require.Zero(t, f.rdb.LLen(t.Context(), f.hand.Key("ready")).Val())
		require.Equal(t, strings.Repeat("o", 20), f.hand.Ack(first...))
	})
}

// Only left-overs at the head, many of them: a take finds the jobs behind them.
func TestTakeOfManyLooksBehindLeftOvers(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		leased := f.many("leased", 70)
		first := f.hand.Take(70, time.Minute)
		f.push(leased...)
		fresh := f.many("fresh", 30)
		second := f.hand.Take(20, time.Minute)
		require.Equal(t, fresh[:20], idsOf(second))
		require.Equal(t, strings.Repeat("o", 90), f.hand.Ack(append(first, second...)...))
		require.Equal(t, fresh[20:], idsOf(f.hand.Take(100, time.Minute)))
	})
}

// Many jobs of one take are told together, and each counts for itself: those that were cancelled,
// reclaimed, or leased again by another server are refused, and what has become of them stays.
func TestManyAreSettledEachByItsOwnFence(t *testing.T) {
	for verb, settle := range map[string]func(h *delayq.Hand, held ...delayq.Held) string{
		"ack":    (*delayq.Hand).Ack,
		"return": (*delayq.Hand).Return,
		"bury":   (*delayq.Hand).Bury,
		"again": func(h *delayq.Hand, held ...delayq.Held) string {
			return h.Again(time.Hour, held...)
		},
		"retry": func(h *delayq.Hand, held ...delayq.Held) string {
			return h.Retry(time.Hour, held...)
		},
	} {
		t.Run(verb, func(t *testing.T) {
			eachClient(t, func(t *testing.T, f *fixture) {
				ids := f.many("job", 20)
				held := f.hand.Take(20, time.Minute)
				require.Len(t, held, 20)
				other := delayq.NewHand(t, f.rdb, f.prefix, "topic")

				_, err := f.client.Dequeue(t.Context(), "topic", ids[3])
				require.NoError(t, err)
				for _, i := range []int{7, 11} { // reclaimed, and one of them taken again
					require.NoError(t, f.rdb.ZAdd(t.Context(), f.hand.Key("leases"), zsetMember(ids[i], time.UnixMilli(1))).Err())
				}
				f.hand.Promote()
				again := other.Take(1, time.Minute)
				require.Len(t, again, 1)
				require.Contains(t, []string{ids[7], ids[11]}, again[0].ID)

				want := strings.Split(strings.Repeat("o", 20), "")
				want[3], want[7], want[11] = "g", "l", "l"
				require.Equal(t, strings.Join(want, ""), settle(f.hand, held...))
				require.Equal(t, "o", other.Ack(again...), "whose lease it was not is not touched")
				require.NotContains(t, settle(f.hand, held...), "o", "nothing is settled twice")
				left := ids[7]
				if again[0].ID == left {
					left = ids[11]
				}
				require.Equal(t, delayq.StateReady, f.get(left).State)
			})
		})
	}
}

// Jobs of one take with one end that has been extended for some: the groups are told with several
// fences, and among many other leases of that end.
func TestFewOfManyAreSettled(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		f.many("job", 60)
		held := f.hand.Take(60, time.Minute)
		require.Len(t, held, 60)
		require.Equal(t, strings.Repeat("o", 9), f.hand.Ack(held[:9]...), "a few of many with the same end")
		for i := 9; i < 20; i++ {
			held[i].Fence = "1 " + held[i].Fence + " 2"
		}
		require.Equal(t, strings.Repeat("o", 11), f.hand.Ack(held[9:20]...), "an end out of several")
		for i := 20; i < 30; i++ {
			held[i].Fence = "1"
		}
		require.Equal(t, strings.Repeat("l", 10)+strings.Repeat("o", 30), f.hand.Ack(held[20:]...))
		require.Equal(t, int64(10), f.rdb.HLen(t.Context(), f.hand.Key("pool")).Val())
	})
}
