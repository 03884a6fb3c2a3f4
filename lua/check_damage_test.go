package lua_test

import (
	"slices"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
)

// A key of a wrong type is a finding, and what does not need it is looked at all the same. (J11)
func TestCheckGoesOnBesideAWrongType(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		var every []string
		for _, key := range append(h.Keys.Checked(), h.Keys.Ready, h.Keys.Handoff, h.Keys.Stats, h.Keys.Idle) {
			every = append(every, h.Keys.Name(key))
		}
		for _, name := range every {
			h := NewHand(t, h.RDB, redistest.Prefix(t), "topic")
			ward(h)
			require.NoError(t, h.RDB.ZRem(t.Context(), h.Keys.Bucket, "asleep").Err())
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Results, "nobody", "x").Err())
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Attempts, "nobody", "1").Err())
			h.Deface(name)
			before := redistest.Dump(t, h.RDB, h.Prefix())
			want := map[delayq.FindingKind][]string{delayq.FindingWrongType: {name + " "}}
			if name != "done" && name != "results" {
				want[delayq.FindingOrphan] = append(want[delayq.FindingOrphan], "results nobody")
			}
			if name != "pool" && name != "leases" && name != "attempts" {
				want[delayq.FindingOrphan] = append([]string{"attempts nobody"}, want[delayq.FindingOrphan]...)
			}
			switch name {
			case "errors", "done", "results", "stats", "idle", "schedules", "slots", "waiting", "fired", "runs", "rules", "held",
				"parked", "holders", "rates", "all:next", "all:notes", "all:flows":
				want[delayq.FindingNoPlace] = []string{"pool asleep"}
			}
			found, mended := h.look(false)
			require.Equal(t, want, found, name)
			require.Zero(t, mended)
			require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()))
			found, mended = h.look(true)
			require.Equal(t, want, found, name)
			require.Equal(t, len(want[delayq.FindingOrphan])+len(want[delayq.FindingNoPlace]), mended)
			found, _ = h.look(true)
			require.Equal(t, map[delayq.FindingKind][]string{delayq.FindingWrongType: {name + " "}}, found, name)
		}
	})
}

// The pool alone is lost, and its IDs are enqueued anew: a new job that is delayed is not dead
// because the former one was.
func TestCheckForgetsAFormerJob(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "delayed", "due")
		require.Equal(t, "oo", h.Bury(h.Take(2, time.Hour)...))
		require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Pool).Err())
		h.Put("+3600000", "delayed")
		h.Put("+0", "due")
		require.NoError(t, h.RDB.ZIncrBy(t.Context(), h.Keys.Dead, -5, "delayed").Err())
		require.Equal(t, delayq.StateDead, h.info("delayed").State)

		want := map[delayq.FindingKind][]string{delayq.FindingTwoPlaces: {"dead delayed"}}
		before := redistest.Dump(t, h.RDB, h.Prefix())
		found, _ := h.look(false)
		require.Equal(t, want, found)
		require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()))
		found, _ = h.look(true)
		require.Equal(t, want, found)
		require.Equal(t, delayq.StateScheduled, h.info("delayed").State)
		require.Equal(t, 1, h.info("delayed").Attempt)
		require.Empty(t, h.info("delayed").Errors)
		require.Equal(t, delayq.StateDead, h.info("due").State, "nothing tells that it is not")
		found, _ = h.look(true)
		require.Empty(t, found)
	})
}

// What was buried stays so, also if Redis's clock went back by minutes between the enqueueing and
// the burial, and keeps its errors.
func TestCheckBelievesBurialsWhenTheClockGoesBack(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "dead", "tried")
		held := h.Take(2, time.Hour)
		require.Equal(t, "o", h.Bury(held[0]))
		require.Equal(t, "o", h.Retry(time.Hour, held[1]))
		require.NoError(t, h.RDB.ZIncrBy(t.Context(), h.Keys.Dead, -300_000, "dead").Err())
		for _, id := range []string{"dead", "tried"} {
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Errors, id, `31:{"at":1700000000000,"kind":"e"}`).Err())
		}
		before := redistest.Dump(t, h.RDB, h.Prefix())
		found, _ := h.look(true)
		require.Empty(t, found)
		require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()))
	})
}

// However many times are impossible, one check mends them all, in calls that are bounded.
func TestCheckOfManyImpossibleTimes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		const n = 1000 + 7 // more than one call reads
		impossible := func(key string, ids []string) {
			for chunk := range slices.Chunk(ids, 500) {
				list := make([]redis.Z, len(chunk))
				for i, id := range chunk {
					list[i] = redis.Z{Score: 1e14 + float64(i), Member: id}
				}
				require.NoError(t, h.RDB.ZAdd(t.Context(), key, list...).Err())
			}
		}
		h.Put("+3600000", hand.Numbered("late", n)...)
		impossible(h.Keys.Bucket, hand.Numbered("late", n))
		h.Put("+0", hand.Numbered("held", n)...)
		for range n / 500 {
			require.NotContains(t, h.Bury(h.Take(500, time.Hour)...), "l")
		}
		impossible(h.Keys.Dead, hand.Numbered("held", n-7))
		for _, repair := range []bool{false, true} {
			report, err := checkWith(t.Context(), h.client(), "topic", repair)
			require.NoError(t, err)
			require.Equal(t, map[delayq.FindingKind]int{delayq.FindingBadTime: n + n - 7}, report.Found)
		}
		found, _ := h.look(true)
		require.Empty(t, found)
		require.EqualValues(t, n, h.RDB.ZCount(t.Context(), h.Keys.Bucket, "-inf", "9999999999999").Val())
	})
}

// A number that no job can have is no entry.
func TestCheckOfAbsurdBooks(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ward(h)
		for key, value := range map[string]string{
			"asleep": "99999999999999 snooze 0 1 0", "alive": "12 revive 12345678901234 0 1", "alive-snoozed": "12 snooze 0 12345678901234 0",
		} {
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Moved, key, value).Err())
			_, ok := record.DecodeMoved(value)
			require.False(t, ok)
		}
		_, ok := record.DecodeMoved("9999999999999 snooze 0 1 0")
		require.True(t, ok)
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Attempts, "dead", "12345678901234").Err())
		require.NoError(t, h.RDB.ZRem(t.Context(), h.Keys.Bucket, "asleep").Err())
		found, mended := h.look(true)
		require.Equal(t, map[delayq.FindingKind][]string{
			delayq.FindingNoPlace: {"pool asleep"}, delayq.FindingUnreadable: {"attempts dead", "moved alive", "moved alive-snoozed", "moved asleep"},
		}, found)
		require.Equal(t, 5, mended)
		require.Equal(t, delayq.StateReady, h.info("asleep").State, "due as its record says")
	})
}
