package lua_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/script"
)

// storeAt stores a parcel of a size that a run has handed over at a time.
func storeAt(t *testing.T, h *Hand, target string, number int, at int64, size int) {
	t.Helper()
	one := fmt.Sprintf("%02x%s%014x%013d%s", len(target), target, number, at, strings.Repeat("x", size))
	require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Parcels, redis.Z{Member: one}).Err())
}

// oldest returns the time of the oldest parcel, as inspect finds it.
func oldest(t *testing.T, h *Hand) int64 {
	t.Helper()
	r, err := h.Run(script.Inspect)
	require.NoError(t, err)
	require.Len(t, r, 7)
	return r.Number(5)
}

// inspect tells the time of the oldest parcel among the first ones for 20 targets, in the order of
// their lengths and then of their names.
func TestInspectTellsTheOldestParcel(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		require.Zero(t, oldest(t, h))
		for i := range 25 {
			storeAt(t, h, fmt.Sprintf("t%02d", i), 1, int64(1000-10*i), 1)
			storeAt(t, h, fmt.Sprintf("t%02d", i), 2, 5, 1) // not the first one
		}
		require.EqualValues(t, 810, oldest(t, h), "of the twentieth target")
		storeAt(t, h, "long target", 1, 3, 1)
		require.EqualValues(t, 810, oldest(t, h))
		storeAt(t, h, "z", 1, 7, 1)
		require.EqualValues(t, 7, oldest(t, h), "the shortest target")
	})
}

// A damaged parcel has no time and hides no other one, and twenty of them are as many as targets.
func TestInspectBesideDamagedParcels(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for i, damaged := range []string{"", "no parcel", "06target", "06targetzzz", "00" + strings.Repeat("1", 27), "ff", "zz\x00\xff"} {
			require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Parcels, redis.Z{Member: damaged}).Err())
			require.Zero(t, oldest(t, h), i)
		}
		storeAt(t, h, "target", 1, 9, 1)
		storeAt(t, h, "a", 1, 8, 1)
		require.EqualValues(t, 8, oldest(t, h))
		for i := range 20 {
			require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Parcels, redis.Z{Member: fmt.Sprintf("00%d", i)}).Err())
		}
		require.Zero(t, oldest(t, h), "behind twenty damaged ones")
	})
}

// inspect reads no further parcel once those that it has read have 1 MiB.
func TestInspectReadsFewBigParcels(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for i := range 4 {
			storeAt(t, h, fmt.Sprint("t", i), 1, int64(100-i), 400_000)
		}
		require.EqualValues(t, 98, oldest(t, h), "of the third target")
		storeAt(t, h, "a", 1, 500, 1<<20)
		require.EqualValues(t, 500, oldest(t, h), "of the first target")
	})
}

// The parcels do not change what is said of overdue jobs, nor do these change what is said of the
// parcels.
func TestStatsOfParcelsAndOverdueJobs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		insp := newClient(h.RDB, h.Prefix()).insp
		storeAt(t, h, "target", 1, 1_000_000_000_000, 1)
		h.Push(h.Keys.Ready, "left over")
		list, err := insp.Stats(t.Context(), h.Keys.Topic)
		require.NoError(t, err)
		require.Zero(t, list[0].Overdue)
		require.Zero(t, list[0].OldestOverdue)
		require.EqualValues(t, 1, list[0].Parcels)
		require.True(t, list[0].OldestParcel.Equal(time.UnixMilli(1_000_000_000_000)), list[0].OldestParcel)

		h.Put("+0", "a")
		with, err := insp.Stats(t.Context(), h.Keys.Topic)
		require.NoError(t, err)
		require.EqualValues(t, 1, with[0].Overdue)
		require.NotZero(t, with[0].OldestOverdue)
		require.Equal(t, list[0].OldestParcel, with[0].OldestParcel)
		require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Parcels).Err())
		without, err := insp.Stats(t.Context(), h.Keys.Topic)
		require.NoError(t, err)
		require.Zero(t, without[0].OldestParcel)
		require.Equal(t, with[0].OldestOverdue, without[0].OldestOverdue)
	})
}

// Parcels of a wrong type are named, by the script and by Stats.
func TestInspectBesideAWrongType(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		mend := h.Deface("all:parcels")
		_, err := h.Run(script.Inspect)
		require.Equal(t, script.CodeWrongType, script.Code(err))
		_, err = newClient(h.RDB, h.Prefix()).insp.Stats(t.Context(), h.Keys.Topic)
		require.ErrorContains(t, err, "all:parcels")
		mend()
		require.Zero(t, oldest(t, h))
	})
}
