package lua_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/script"
)

// Servers of this release take jobs ahead while the limits are far away, beside others of v0.1.0,
// and start them late, give them back, or crash. Never more jobs have leases than may run, no more
// than half of them when some are taken ahead, and no more starts are made than the rate allows.
func TestTakenAheadWithinLimits(t *testing.T) {
	t.Parallel()
	var ahead, near int
	for seed := range uint64(16) {
		h, r := onEmbedded(t)
		g := &rateGame{Rand: rand.New(rand.NewPCG(seed, 34)), t: t, h: h, clock: r, now: 1_763_712_345_678_901, starts: map[string][]int64{}}
		g.rate = delayq.Per([]int{2000, 5000, 20_000}[g.IntN(3)], time.Second)
		if g.IntN(3) == 0 {
			g.rate = g.rate.Strict()
		}
		g.at(0)
		g.mixed = g.IntN(2) == 0
		most := 100 + g.IntN(1000)
		limits := delayq.Limits{Rate: g.rate, Running: most}
		switch g.IntN(4) {
		case 0:
			limits.Running, most = 0, 1_000_000
		case 1:
			limits.Rate = delayq.Rate{}
		}
		h.setLimits(limits)
		for range 2 + g.IntN(2) {
			g.servers = append(g.servers, g.server())
			g.servers[len(g.servers)-1].Patience = []int{0, 20, 20, 60}[g.IntN(4)]
		}
		held := make(map[*rateServer][]hand.Held)
		for range 150 {
			g.at(g.Int64N(20_000))
			if g.IntN(20) == 0 {
				g.at(g.Int64N(500_000))
			}
			one := g.servers[g.IntN(len(g.servers))]
			if mine := held[one]; len(mine) > 0 && g.IntN(3) > 0 {
				n := 1 + g.IntN(len(mine))
				end := one.Ack
				if g.IntN(3) == 0 {
					end = one.Return
				}
				require.NotContains(t, end(mine[:n]...), "l")
				held[one] = mine[n:]
				continue
			}
			got, far := g.takeAhead(one)
			held[one] = append(held[one], got...)
			total := 0
			for _, mine := range held {
				total += len(mine)
			}
			require.LessOrEqual(t, total, most)
			if !far {
				near++
				continue
			}
			require.LessOrEqual(t, total, most/2)
			ahead += len(got)
		}
		if limits.Rate == (delayq.Rate{}) {
			continue
		}
		g.judge()
	}
	require.NotZero(t, ahead)
	require.NotZero(t, near)
}

// takeAhead lets a server take jobs. It starts those that it can start at once, and the others at
// any time until their start is counted, or not at all. far says that it may hold jobs ahead.
func (g *rateGame) takeAhead(one *rateServer) (held []hand.Held, far bool) {
	for g.h.RDB.LLen(g.t.Context(), g.h.Keys.Ready).Val() < 500 {
		g.enqueue(false)
	}
	limit := 1 + g.IntN(200)
	free := g.IntN(limit + 1)
	r, err := one.TryTakeSince("", "", limit, script.CallBytes, free, time.Minute, "head")
	require.NoError(g.t, err)
	if r.Status() != "ok" {
		return nil, false
	}
	held, far = hand.HeldOf(r), r.Text(9) == "far"
	switch {
	case !far:
		require.LessOrEqual(g.t, len(held), free)
		g.count(held, r.List(12), false)
		return held, false
	case one.Old != nil || one.Patience == 0:
		require.Fail(g.t, "it does not know such a reply")
	}
	left := r.Number(10)
	require.Empty(g.t, r.List(12))
	for i := range held {
		at := g.now
		if i >= free && left > 0 {
			require.EqualValues(g.t, 1000*one.Patience, left)
			at += g.Int64N(left + 1)
		}
		if i < free || g.IntN(10) > 0 {
			g.starts[""] = append(g.starts[""], at)
		}
	}
	return held, true
}

// A take gets jobs ahead if all that it asks for leaves half of the places and of the starts. It
// gets none if a key can have limits, if its server starts none late, or if one job more is taken.
func TestTakesAheadOnlyFarFromLimits(t *testing.T) {
	t.Parallel()
	const emit = 1000
	rate := delayq.Per(1_000_000/emit, time.Second).Burst(400)
	for _, c := range []struct {
		limits   delayq.Limits
		limit    int
		patience int
		got      int
		bound    string
	}{
		{delayq.Limits{Running: 200}, 100, 20, 100, "far"},
		{delayq.Limits{Running: 200}, 101, 20, 10, "free"},
		{delayq.Limits{Running: 200}, 100, 0, 10, "free"},
		{delayq.Limits{Running: 200, RunningPerKey: 5}, 100, 20, 10, "free"},
		{delayq.Limits{Rate: rate}, 180, 20, 180, "far"},
		{delayq.Limits{Rate: rate}, 181, 20, 10, "free"},
		{delayq.Limits{Rate: rate}, 140, 60, 140, "far"},
		{delayq.Limits{Rate: rate, RatePerKey: rate}, 100, 20, 10, "free"},
		{delayq.Limits{Rate: rate, Running: 300}, 150, 20, 150, "far"},
		{delayq.Limits{Rate: rate, Running: 300}, 151, 20, 10, "free"},
		{delayq.Limits{Rate: delayq.Per(1000, time.Second).Burst(39)}, 11, 20, 10, "free"},
		{delayq.Limits{Rate: delayq.Per(100, time.Second).Burst(1)}, 11, 20, 1, "rate"},
	} {
		h, r := onEmbedded(t)
		now := time.UnixMilli(1_763_712_345_678)
		r.SetTime(now)
		h.setLimits(c.limits)
		h.Put("+0", hand.Numbered("job", 300)...)
		h.Promote()
		h.Patience = c.patience
		reply, err := h.TryTakeAhead("", c.limit, 10, time.Minute)
		require.NoError(t, err)
		require.Len(t, reply.List(3), c.got, "%+v", c)
		require.Equal(t, c.bound, reply.Text(9), "%+v", c)
		if c.bound == "far" && c.limits.Rate != (delayq.Rate{}) {
			micros, err := h.RDB.HGet(t.Context(), h.Keys.Meta, "tat").Int64()
			require.NoError(t, err)
			require.EqualValues(t, 1000*c.patience, reply.Number(10))
			require.Equal(t, now.Add(time.Duration(1000*c.patience+c.got*emit)*time.Microsecond).UnixMicro(), micros)
			require.LessOrEqual(t, micros, now.Add(200*time.Millisecond).UnixMicro())
		} else if c.bound == "far" {
			require.Zero(t, reply.Number(10))
		}
	}
}

// A server whose reply was lost may not have known of the limits. So the reply to its next request,
// and to each after that, says that the jobs have a latest start, if those of the lost reply had.
func TestRepeatedTakeHasItsPatience(t *testing.T) {
	t.Parallel()
	rate := delayq.Per(1000, time.Second).Burst(400)
	for _, c := range []struct {
		limits delayq.Limits
		free   int
		left   int64
	}{
		{delayq.Limits{Rate: rate}, 10, 20_000},
		{delayq.Limits{Rate: rate}, 100, 0},
		{delayq.Limits{Running: 1000}, 10, 0},
		{delayq.Limits{}, 10, 0},
	} {
		h, _ := onEmbedded(t)
		h.setLimits(c.limits)
		h.Put("+0", hand.Numbered("job", 300)...)
		h.Promote()
		h.Patience = 20
		since := h.Series.Next()
		take := func(number string, limit int) script.Reply {
			r, err := h.TryTakeSince(number, since, limit, script.CallBytes, c.free, time.Minute, "head")
			require.NoError(t, err)
			return r
		}
		require.Equal(t, c.left, take(since, 100).Number(10))
		for _, limit := range []int{100, 50, 50} {
			number := h.Series.Next()
			for range 2 {
				again := take(number, limit)
				require.Len(t, again.List(3), limit)
				require.Empty(t, again.Text(9))
				require.Equal(t, c.left, again.Number(10))
			}
		}
	}
}
