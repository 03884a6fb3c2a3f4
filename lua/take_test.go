package lua_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/redistest"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// store stores jobs whose records have about so many bytes, in ready.
func (h *Hand) store(bytes int, ids ...string) {
	h.T.Helper()
	for _, id := range ids {
		_, err := h.client().Enqueue(h.T.Context(), "topic", id, make([]byte, bytes), delayq.Retry(3))
		require.NoError(h.T, err)
	}
}

// takeSince takes with a bound of so many bytes, as a server that has had no answer since a number.
func (h *Hand) takeSince(number, since string, limit, bytes int) script.Reply {
	h.T.Helper()
	r, err := h.TryTakeSince(number, since, limit, bytes, limit, time.Minute, "head")
	require.NoError(h.T, err)
	return r
}

// A take answers no more bytes than it is asked for, but one job in any case, and says that there
// are more.
func TestTakeIsBoundedInBytes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.store(10_000, "l0", "l1", "l2", "l3", "l4")
		h.store(100_000, "huge-1", "huge-2")
		h.store(10, "s0", "s1", "s2")
		var got [][]string
		for {
			r := h.takeSince("", "", 500, 40_000)
			if r.Status() != "ok" {
				require.Equal(t, "empty", r.Status())
				break
			}
			ids := idsOf(hand.HeldOf(r))
			require.Equal(t, int64(btoi(len(got) < 4)), r.Number(7), "%v", ids)
			got = append(got, ids)
		}
		require.Equal(t, [][]string{
			{"l0", "l1", "l2"}, {"l3", "l4"}, {"huge-1"}, {"huge-2"}, {"s0", "s1", "s2"},
		}, got)
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// What counts for nothing is not read: a large record that is in the bucket, and of which ready has
// a left-over, costs a take nothing.
func TestTakeDoesNotReadLeftOvers(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.store(50_000, "later")
		require.NoError(t, h.client().Reschedule(t.Context(), "topic", "later", delayq.ProcessIn(time.Hour)))
		h.store(20_000, "a", "b")
		r := h.takeSince("", "", 10, 45_000)
		require.Equal(t, []string{"a", "b"}, idsOf(hand.HeldOf(r)))
		require.Zero(t, r.Number(7))
	})
}

// Without a note of how large records are they are small, and with one that cannot be read they are
// measured.
func TestTakeOfATopicWithoutSizes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.store(10_000, "a", "b", "c")
		require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Sizes).Err())
		require.NoError(t, h.RDB.Set(t.Context(), h.Keys.Sizes, "spoilt", 0).Err())
		require.Equal(t, []string{"a", "b"}, idsOf(hand.HeldOf(h.takeSince("", "", 10, 25_000))))
	})
}

// A take of a job of limited retries ends where the slots do, also when records are measured.
func TestTakeOfLargeJobsWaitsForSlots(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.store(10_000, "a", "b", "c")
		r, err := h.TryTakeSince("", "", 10, 50_000, 2, time.Minute, "head")
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b"}, idsOf(hand.HeldOf(r)))
		r, err = h.TryTakeSince("", "", 10, 50_000, 0, time.Minute, "head")
		require.NoError(t, err)
		require.Equal(t, "busy", r.Status())
	})
}

// A server that has had no answer asks for fewer. It gets the first of the jobs with a lease that
// begins now, and the others are where they were, with no attempt used up.
func TestTakeAskedAnew(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a", "b", "c", "d", "e")
		first := hand.HeldOf(h.takeSince("3", "3", 4, script.CallBytes))
		require.Len(t, first, 4)
		_, err := h.TryCancel("b")
		require.NoError(t, err)

		r := h.takeSince("4", "3", 2, script.CallBytes)
		held := hand.HeldOf(r)
		require.Equal(t, []string{"a", "c"}, idsOf(held))
		require.EqualValues(t, 1, r.Number(7), "there are more")
		require.Equal(t, []string{"d", "e"}, h.List(h.Keys.Ready))
		require.Greater(t, record.ParseLeaseEnd(held[0].Fence).Micros(), record.ParseLeaseEnd(first[0].Fence).Micros())
		require.Equal(t, "l", h.Ack(first[0]), "the first lease is over")
		before := redistest.Dump(t, h.RDB, h.Prefix())
		require.Equal(t, r[2:], h.takeSince("4", "3", 2, script.CallBytes)[2:], "the same request once more")
		require.Equal(t, "empty", h.takeSince("3", "3", 4, script.CallBytes).Status(), "the first one comes late")
		require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()))

		r = h.takeSince("5", "3", 1, script.CallBytes)
		held = hand.HeldOf(r)
		require.Equal(t, []string{"a"}, idsOf(held))
		require.Equal(t, []string{"c", "d", "e"}, h.List(h.Keys.Ready))
		require.Equal(t, "o", h.Ack(held...))
		rest := hand.HeldOf(h.takeSince("6", "6", 10, script.CallBytes))
		require.Equal(t, []string{"c", "d", "e"}, idsOf(rest))
		for _, one := range rest {
			require.Empty(t, one.Attempts)
		}
		stats := h.RDB.HGetAll(t.Context(), h.Keys.Stats).Val()
		require.Equal(t, "7", stats["taken"])
		require.Equal(t, "2", stats["returned"])
	})
}

// The repetition is bounded in bytes, too.
func TestTakeAskedAnewForFewerBytes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.store(10_000, "a", "b", "c", "d")
		require.Len(t, hand.HeldOf(h.takeSince("1", "1", 10, script.CallBytes)), 4)
		require.Equal(t, []string{"a", "b"}, idsOf(hand.HeldOf(h.takeSince("2", "1", 10, 25_000))))
		require.Equal(t, []string{"a"}, idsOf(hand.HeldOf(h.takeSince("3", "1", 10, 1))))
		require.Equal(t, []string{"b", "c", "d"}, h.List(h.Keys.Ready))
	})
}

// A take that gives up gives back what was taken, to the head or the tail, and the request before
// it that comes late takes nothing.
func TestTakeThatGivesUp(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a", "b", "c")
		for i, place := range []string{"head", "tail"} {
			number, next := strconv.Itoa(10*i+1), strconv.Itoa(10*i+2)
			require.Len(t, hand.HeldOf(h.takeSince(number, number, 2, script.CallBytes)), 2)
			for range 2 {
				r, err := h.TryTakeSince(next, number, 0, 0, 0, time.Minute, place)
				require.NoError(t, err)
				require.Equal(t, "returned", r.Status())
				require.Equal(t, []string{"a", "b"}, r.List(2).Texts())
			}
			require.Equal(t, map[string]string{"head": "a b c", "tail": "c a b"}[place], strings.Join(h.List(h.Keys.Ready), " "))
			require.Equal(t, "empty", h.takeSince(number, number, 2, script.CallBytes).Status())
		}
		require.False(t, h.RDB.Exists(t.Context(), h.Keys.Leases).Val() == 1)

		// One that arrives before the take that it gives up.
		r, err := h.TryTakeSince("32", "31", 0, 0, 0, time.Minute, "head")
		require.NoError(t, err)
		require.Equal(t, "returned", r.Status())
		require.Equal(t, "empty", h.takeSince("31", "31", 2, script.CallBytes).Status())
		require.Equal(t, []string{"c", "a", "b"}, h.List(h.Keys.Ready))
	})
}

// When no job of the take without an answer is left, the repetition is a take like any other.
func TestTakeAskedAnewForNothing(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a", "b")
		require.Equal(t, []string{"a"}, idsOf(hand.HeldOf(h.takeSince("1", "1", 1, script.CallBytes))))
		_, err := h.TryCancel("a")
		require.NoError(t, err)
		require.Equal(t, []string{"b"}, idsOf(hand.HeldOf(h.takeSince("2", "1", 1, script.CallBytes))))
		require.Equal(t, "empty", h.takeSince("4", "3", 1, script.CallBytes).Status())
		h.Put("+0", "c")
		require.Equal(t, "empty", h.takeSince("3", "3", 1, script.CallBytes).Status(), "it comes after the one that asks anew")
		require.Equal(t, []string{"c"}, h.List(h.Keys.Ready))
	})
}

// Leases are looked at without a change.
func TestExtendThatOnlyLooks(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a", "b", "c")
		held := h.Take(3, time.Minute)
		require.Equal(t, "o", h.Return(held[1]))
		_, err := h.TryCancel("c")
		require.NoError(t, err)
		before := redistest.Dump(t, h.RDB, h.Prefix())
		args := []any{""}
		for _, one := range held {
			args = append(args, one.ID, one.Fence)
		}
		r, err := h.Run(script.Extend, args...)
		require.NoError(t, err)
		require.Equal(t, "olg", r.Text(2))
		require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()))
	})
}
