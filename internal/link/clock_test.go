package link

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// maxDrift bounds, in ms, what clocks of different rates differ by in TestClockBounds.
const maxDrift = 1000

// The bounds of a clock that runs are of use once replies over some time agree. One that stands
// still has none.
func TestClockThatRuns(t *testing.T) {
	t.Parallel()
	const steady = 100 * time.Millisecond
	begin := time.Now()
	var runs, stands Clock
	for i := range 1000 {
		at := time.Duration(i) * time.Millisecond
		local := begin.Add(at)
		runs.Read(1_700_000_000_000+at.Milliseconds(), local, local)
		stands.Read(1_700_000_000_000, local, local)
		least, most, ok := runs.Bounds(local.Add(7*time.Millisecond), time.Second, steady)
		require.Equal(t, at >= steady, ok)
		if ok {
			require.Equal(t, 1_700_000_000_000+at.Milliseconds()+7, least)
			require.Equal(t, least, most, "replies that take no time leave no doubt")
		}
		_, _, ok = stands.Bounds(local, time.Second, steady)
		require.False(t, ok)
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
			require.LessOrEqual(t, c.Earliest(at), truth, "game %d", game)
			require.GreaterOrEqual(t, c.Latest(at), truth, "game %d", game)
			require.GreaterOrEqual(t, c.Earliest(at), last, "game %d: it falls", game)
			require.LessOrEqual(t, c.Latest(at)-c.Earliest(at), 4*slow.Milliseconds()+20, "game %d: of no use", game)
			last = c.Earliest(at)
			least, most, ok := c.Bounds(at, time.Minute, 0)
			require.True(t, ok)
			require.LessOrEqual(t, least, truth+maxDrift, "game %d", game)
			require.GreaterOrEqual(t, most, truth-maxDrift, "game %d", game)
			_, _, ok = c.Bounds(begin.Add(received+time.Second+1), time.Second, 0)
			require.False(t, ok, "no reply for too long")
		}
		require.Zero(t, c.SetsBack())
		for _, step := range []time.Duration{-time.Minute, time.Minute} {
			offset += step
			c.Read(redis(local).Milliseconds(), begin.Add(local), begin.Add(local+slow))
			local += slow
			truth := redis(local).Milliseconds()
			require.LessOrEqual(t, c.Earliest(begin.Add(local)), truth, "after a step of %v", step)
			require.GreaterOrEqual(t, c.Latest(begin.Add(local)), truth, "after a step of %v", step)
			require.InDelta(t, truth, c.At(begin.Add(local)).UnixMilli(), float64(slow.Milliseconds())+2)
		}
		require.Equal(t, 1, c.SetsBack(), "set back once")
	}
}
