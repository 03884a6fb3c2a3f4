package lua_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/script"
)

// A sweep that begins anew goes on where the one before has ended, so that no number of steps is
// too large for a relay.
func TestSweepsGoOn(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for _, mode := range []string{"f", "d", "e"} {
			f := &hand.Flow{ID: "last" + mode, Name: "1234567" + mode, Flags: "g", Deadline: "+3600000"}
			_, err := h.TryStart(f)
			require.NoError(t, err)
			for part := range 2 {
				var steps []hand.FlowStep
				for i := range 450 {
					steps = append(steps, hand.FlowStep{Topic: "a", ID: strconv.Itoa(part*450 + i)})
				}
				_, err = h.TryAdd(f, false, steps...)
				require.NoError(t, err)
			}
			calls := 0
			for next := int64(0); next >= 0; calls++ {
				require.Less(t, calls, 4)
				r, err := h.TrySweep(f.ID, f.Name, mode, 0)
				require.NoError(t, err)
				next = r.Number(2)
			}
			require.Equal(t, 4, calls)
			require.False(t, h.RDB.HExists(t.Context(), h.Key("steps"), f.Name+"#").Val())
		}
	})
}

// inspect counts the open flows that have a failed step past half of the time to their deadline.
func TestInspectCountsFlowsAtRisk(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		risky := func() int64 {
			r, err := h.Run(script.Inspect)
			require.NoError(t, err)
			return r.Number(6)
		}
		now := h.RDB.Time(t.Context()).Val().UnixMilli()
		// due sets the deadline of a flow so that a share of its time has passed.
		due := func(id string, share float64) {
			fields := strings.Fields(h.RDB.HGet(t.Context(), h.Keys.Flows, id).Val()[8:])
			fields[6] = strconv.FormatInt(now-1_000_000, 10)
			value := h.RDB.HGet(t.Context(), h.Keys.Flows, id).Val()[:8] + strings.Join(fields, " ")
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Flows, id, value).Err())
			at := float64(now-1_000_000) + 1_000_000/share
			require.NoError(t, h.RDB.ZAddXX(t.Context(), h.Keys.Bucket, redis.Z{Score: at, Member: id}).Err())
		}
		start := func(id, flags string, ends ...string) {
			f := newFlow([]string{"a"}, nil, nil, nil)
			f.ID, f.Flags = id, flags
			require.NoError(t, just(h.TryStart(f)))
			for n, end := range ends {
				ends[n] = arrived(f, n, end)
			}
			if len(ends) > 0 {
				require.NoError(t, just(h.TryArrive("1000000001", h.Keys.Receipt(id), ends...)))
			}
		}
		start("fine", "i", "o2:{}")
		start("new", "i", "dwhy")
		start("failed", "-", "dwhy")
		start("complete", "i", "dwhy", "dwhy", "o2:{}")
		start("risky", "i", "dwhy", "o2:{}")
		require.Zero(t, risky())
		for _, id := range []string{"fine", "failed", "complete", "risky"} {
			due(id, 0.51)
		}
		due("new", 0.49)
		require.EqualValues(t, 1, risky())
		due("new", 0.6)
		require.EqualValues(t, 2, risky())
		require.NoError(t, h.RDB.ZRem(t.Context(), h.Keys.Bucket, "risky").Err())
		require.EqualValues(t, 2, risky(), "its deadline has come")
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Flows, "damaged", "x").Err())
		require.EqualValues(t, 2, risky())

		for i := range 2000 {
			id := fmt.Sprint("many", i)
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Flows, id, "12345678o i 3 2 1 0 1000 -").Err())
		}
		require.Greater(t, risky(), int64(400))
		require.LessOrEqual(t, risky(), int64(500), "no more are looked at")
	})
}
