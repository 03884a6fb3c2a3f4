package serve

import (
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

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

		var c Clock
		c.Read(ms, sent, received)
		require.True(t, time.UnixMilli(ms+5000).Equal(c.At(wrong)), "jobs would be early or late by the step")
		require.EqualValues(t, ms+5010+5+1, c.Latest(wrong), "counted from the sending")
		require.EqualValues(t, ms+5000-5-1, c.earliest(wrong), "counted from the arrival")

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

// What a clock says of Redis's is true: whatever the delays on the way, though the two do not go at
// quite the same rate, and after Redis's was set. The lower bound never falls unless Redis's clock
// was set back.
func TestClockBounds(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	begin := time.Now()
	for game := range 200 {
		rate := 1 + (2*r.Float64()-1)/rateError
		offset := time.Duration(r.Int64N(int64(time.Hour)))
		local := time.Duration(0)
		redis := func(local time.Duration) time.Duration { return offset + time.Duration(float64(local)*rate) }
		var c Clock
		var last int64
		slow := time.Duration(1 + r.Int64N(int64(500*time.Millisecond)))
		for range 300 {
			sent := local
			asked := sent + time.Duration(r.Int64N(int64(slow)))
			received := asked + time.Duration(r.Int64N(int64(slow)))
			c.Read(redis(asked).Milliseconds(), begin.Add(sent), begin.Add(received))
			local = received + time.Duration(r.Int64N(int64(2*time.Second)))
			at, truth := begin.Add(local), redis(local).Milliseconds()
			require.LessOrEqual(t, c.earliest(at), truth, "game %d", game)
			require.GreaterOrEqual(t, c.Latest(at), truth, "game %d", game)
			require.GreaterOrEqual(t, c.earliest(at), last, "game %d: it falls", game)
			require.LessOrEqual(t, c.Latest(at)-c.earliest(at), 4*slow.Milliseconds()+20, "game %d: of no use", game)
			last = c.earliest(at)
		}
		require.Zero(t, c.setsBack())
		for _, step := range []time.Duration{-time.Minute, time.Minute} {
			offset += step
			c.Read(redis(local).Milliseconds(), begin.Add(local), begin.Add(local+slow))
			local += slow
			truth := redis(local).Milliseconds()
			require.LessOrEqual(t, c.earliest(begin.Add(local)), truth, "after a step of %v", step)
			require.GreaterOrEqual(t, c.Latest(begin.Add(local)), truth, "after a step of %v", step)
			require.InDelta(t, truth, c.At(begin.Add(local)).UnixMilli(), float64(slow.Milliseconds())+2)
		}
		require.Equal(t, 1, c.setsBack(), "set back once")
	}
}
