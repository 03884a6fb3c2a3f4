package lua_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
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
