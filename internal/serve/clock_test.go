package serve

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/run"
)

// stepped is the same instant on a machine whose wall clock was set forward by so many seconds, or
// back: its monotonic reading is left alone. It writes into the first word of a time.Time: a flag,
// 33 bits of seconds, 30 bits of nanoseconds.
func stepped(t time.Time, seconds int64) time.Time {
	word := (*uint64)(unsafe.Pointer(&t))
	*word += uint64(seconds) << 30
	return t
}

// Somebody sets the wall clock of the machine while a server runs, by an hour or by years: what it
// takes for Redis's time, and for the ends of its leases, stays as it was. (E3, E4)
func TestStepOfTheLocalClockChangesNothing(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	received := sent.Add(10 * time.Millisecond)
	const ms = 1_700_000_000_000
	for _, step := range []int64{-3600, 3600, 24 * 3600, -400 * 24 * 3600} {
		later := received.Add(5 * time.Second)
		wrong := stepped(later, step)
		require.Equal(t, step, wrong.Unix()-later.Unix(), "the wall clock is stepped")
		require.Zero(t, wrong.Sub(later), "the monotonic one is not")

		var c link.Clock
		c.Read(ms, sent, received)
		require.True(t, time.UnixMilli(ms+5000).Equal(c.At(wrong)), "jobs would be early or late by the step")
		require.EqualValues(t, ms+5010+5+1, c.Latest(wrong), "counted from the sending")
		require.EqualValues(t, ms+5000-5-1, c.Earliest(wrong), "counted from the arrival")

		// A lease of 8 s that was asked for at sent.
		held := &run.Holdings{}
		r := &run.Run{ID: "x", Until: sent.Add(8 * time.Second)}
		held.Add(r, sent)
		require.Equal(t, []*run.Run{r}, held.Extendable(wrong), "given up too early")
		require.NoError(t, r.Lost)
		require.Empty(t, held.Extendable(stepped(sent.Add(8*time.Second), step)), "kept too long")
		require.ErrorIs(t, r.Lost, run.ErrLeaseLost)
	}
}
