package lua_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/settle"
)

// What take answers in a topic with limits, on miniredis and on Redis.
func TestTakeWithinLimits(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		limit := func(l delayq.Limits) {
			_, err := h.tryLimits(l)
			require.NoError(t, err)
		}
		var held []hand.Held
		// take asks for ten jobs with so many free workers, and returns the number of jobs and what
		// the reply says beside them.
		take := func(free int) (jobs int, says string) {
			r, err := h.TryTakeAhead("", 10, free, time.Minute)
			require.NoError(t, err)
			if r.Status() != "ok" {
				return 0, r.Status()
			}
			got := hand.HeldOf(r)
			held = append(held, got...)
			return len(got), r.Text(9)
		}
		want := func(free, jobs int, says string) {
			t.Helper()
			n, said := take(free)
			require.Equal(t, fmt.Sprint(jobs, says), fmt.Sprint(n, said))
		}
		h.Put("+0", hand.Numbered("job", 40)...)
		want(10, 10, "")
		require.NotContains(t, h.Ack(held...), "l")
		held = nil

		limit(delayq.Limits{Running: 4})
		want(3, 3, "free")
		want(0, 0, "busy")
		want(3, 1, "limit")
		want(3, 0, "limit")
		require.Equal(t, "o", h.Ack(held[0]))
		want(3, 1, "limit")
		require.Equal(t, "o", h.Retry(time.Hour, held[1]))
		require.Equal(t, "o", h.Snooze(time.Hour, held[2]))
		require.Equal(t, "o", h.Bury(held[3]))
		want(10, 3, "limit")
		limit(delayq.Limits{Running: 2}) // four are running
		want(10, 0, "limit")
		limit(delayq.Limits{})
		want(10, 10, "")
		require.NotContains(t, h.Ack(held[4:]...), "l")
		held = nil

		limit(delayq.Limits{Running: 100, Rate: delayq.Per(20, time.Hour).Burst(5)})
		want(2, 2, "free")
		want(10, 3, "rate")
		r, err := h.TryTakeAhead("", 10, 10, time.Minute)
		require.NoError(t, err)
		require.Equal(t, "rate", r.Status())
		require.InDelta(t, 3*time.Minute.Microseconds(), r.Number(2), 1e6*30, "the next start")
		again, err := h.Last() // no job is taken, so the request is answered anew
		require.NoError(t, err)
		require.GreaterOrEqual(t, again.Number(2), int64(1))
		limit(delayq.Limits{Rate: delayq.Per(1, time.Microsecond).Burst(1)})
		want(10, 0, "rate") // what the slower rate has left behind is cut down to the new burst
		want(10, 1, "rate")
		limit(delayq.Limits{})
		want(6, 6, "")

		h.Put("+0", "last")
		_, err = h.TryHold(time.Hour)
		require.NoError(t, err)
		want(10, 0, "held")
		_, err = h.TryHold(time.Second) // does not shorten the other one
		require.NoError(t, err)
		r, err = h.TryTake("", 1, time.Minute)
		require.NoError(t, err)
		require.Equal(t, "held", r.Status())
		require.InDelta(t, time.Hour.Milliseconds(), r.Number(2)-r.Now(), 60_000)
		_, err = h.TryHold(0)
		require.NoError(t, err)
		n, _ := take(10)
		require.Positive(t, n)
		last := held[len(held)-1]
		require.Equal(t, "o", h.Letters([]hand.Held{last}, settle.Row{Verb: settle.Hold, Delay: time.Hour, Err: errTest}))
		want(10, 0, "held")
	})
}

// A server that is refused because of the rate gets a start that no other one was promised.
func TestTakePromisesStarts(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		_, err := h.tryLimits(delayq.Limits{Rate: delayq.Per(1, 100*time.Millisecond)})
		require.NoError(t, err)
		h.Put("+0", hand.Numbered("job", 10)...)
		require.Len(t, h.Take(10, time.Minute), 1)
		var before int64
		for i := range 4 {
			r, err := NewHand(t, h.RDB, h.Prefix(), "topic").TryTakeAhead("", 10, 10, time.Minute)
			require.NoError(t, err)
			if r.Status() == "ok" || r.Number(2) <= 50_000 { // a slow machine
				return
			}
			require.Equal(t, "rate", r.Status())
			at := r.Now()*1000 + r.Number(2)
			if i > 0 {
				require.GreaterOrEqual(t, at, before+90_000, "start %d", i)
			}
			before = at
		}
	})
}

// A take that comes a moment before a start is told of that one, however often it asks. The start
// is not lost to it, and no other is promised.
func TestTakeThatIsAMomentEarlyLosesNoStart(t *testing.T) {
	t.Parallel()
	h, r := onEmbedded(t)
	began := time.UnixMilli(1_763_712_345_678)
	r.SetTime(began)
	h.setLimits(delayq.Limits{Rate: delayq.Per(1, 100*time.Millisecond)})
	h.Put("+0", hand.Numbered("job", 10)...)
	require.Len(t, h.Take(10, time.Minute), 1)
	ask := func(at time.Duration) int64 {
		r.SetTime(began.Add(at))
		reply, err := NewHand(t, h.RDB, h.Prefix(), "topic").TryTakeAhead("", 10, 10, time.Minute)
		require.NoError(t, err)
		require.Equal(t, "rate", reply.Status())
		return reply.Number(2)
	}
	require.EqualValues(t, 90_000, ask(10*time.Millisecond))
	require.EqualValues(t, 170_000, ask(30*time.Millisecond), "another server gets the next one")
	require.EqualValues(t, 1000, ask(99*time.Millisecond))
	require.EqualValues(t, 20, ask(99*time.Millisecond+980*time.Microsecond))
	r.SetTime(began.Add(100 * time.Millisecond))
	require.Len(t, h.Take(10, time.Minute), 1)
	require.EqualValues(t, 160_000, ask(140*time.Millisecond), "after the one that was promised at 200 ms")
}

// A take that is sent twice starts no job and uses up no start.
func TestTakeSentTwiceUsesNoStart(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		_, err := h.tryLimits(delayq.Limits{Rate: delayq.Per(10, time.Hour).Burst(5)})
		require.NoError(t, err)
		h.Put("+0", hand.Numbered("job", 10)...)
		r, err := h.TryTakeAhead("5", 2, 10, time.Minute)
		require.NoError(t, err)
		require.Len(t, hand.HeldOf(r), 2)
		tat, err := h.RDB.HGet(t.Context(), h.Keys.Meta, "tat").Result()
		require.NoError(t, err)
		again, err := h.Last()
		require.NoError(t, err)
		require.Equal(t, idsOf(hand.HeldOf(r)), idsOf(hand.HeldOf(again)))
		after, err := h.RDB.HGet(t.Context(), h.Keys.Meta, "tat").Result()
		require.NoError(t, err)
		require.Equal(t, tat, after)
	})
}

// longestRate is the longest period of a rate.
const longestRate = 366 * 24 * time.Hour

// onEmbedded makes a Hand for a topic of an embedded Redis, whose clock can be set.
func onEmbedded(t *testing.T) (*Hand, *embedded.Redis) {
	r := embedded.New()
	t.Cleanup(r.Close)
	rdb := r.Client()
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	return NewHand(t, rdb, redistest.Prefix(t), "topic"), r
}

// What is stored is read again, and texts that no call has written are no limits.
func TestLimitsAreReadAsTheyWereSet(t *testing.T) {
	t.Parallel()
	h, _ := onEmbedded(t)
	c, read := h.client(), func() delayq.Limits { return queuetest.StatsOf(t, h.client().insp, "topic").Limits }
	for _, l := range []delayq.Limits{
		{}, {Running: 5}, {Rate: delayq.Per(100, time.Minute)}, {Running: 1, Rate: delayq.Per(100, time.Minute).Burst(7)},
		{Rate: delayq.Per(100, time.Minute).Burst(99).Strict()}, {Rate: delayq.Per(1, time.Microsecond)}, {Rate: delayq.Per(1, longestRate).Strict()},
	} {
		require.NoError(t, c.SetLimits(t.Context(), "topic", l))
		require.Equal(t, l, read())
	}
	require.NoError(t, c.SetLimits(t.Context(), "topic", delayq.Limits{Rate: delayq.Per(100, time.Minute).Burst(10)}))
	require.Equal(t, delayq.Limits{Rate: delayq.Per(100, time.Minute)}, read())
	for _, text := range []string{"", "5", "a b c d e f", "1 2 3"} {
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Meta, "flow", text).Err())
		require.Equal(t, delayq.Limits{}, read(), text)
	}
	require.Equal(t, "running 5, rate 100 per 1m0s, burst 7, strict", delayq.Limits{Running: 5, Rate: delayq.Per(100, time.Minute).Burst(7).Strict()}.String())
	require.Equal(t, "none", delayq.Rate{}.String())
}

// The next start is known for the largest burst of the slowest rate, too.
func TestNextStartOfTheSlowestRate(t *testing.T) {
	t.Parallel()
	const now, mostStarts = 1_800_000_000_000, 1_000_000
	h, r := onEmbedded(t)
	r.SetTime(time.UnixMilli(now))
	for _, rate := range []delayq.Rate{delayq.Per(mostStarts, longestRate).Burst(mostStarts - 1).Strict(), delayq.Per(1, longestRate), delayq.Per(10, time.Second)} {
		emit := emitOf(t, rate)
		tat := float64(now)*1000 + float64(rate.MaxBurst())*float64(emit)
		want := time.UnixMilli(now).Add(time.Duration(emit) * time.Microsecond)
		flow := flowOf(t, delayq.Limits{Rate: rate})
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Meta, "flow", flow, "tat", fmt.Sprintf("%.0f", tat)).Err())
		require.WithinDuration(t, want, queuetest.StatsOf(t, h.client().insp, "topic").NextStart, 20*time.Millisecond, "%v", rate)
	}
}

// The bound of a strict rate, for all small rates: so many starts in any period, at the most.
func TestStrictRateIsABound(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 12; n++ {
		for burst := 1; burst <= n; burst++ {
			r := delayq.Per(n, 1000*time.Microsecond).Burst(burst).Strict()
			if n > 1 && burst == n {
				require.ErrorIs(t, newClient(redistest.Unused(t), "p").SetLimits(t.Context(), "topic", delayq.Limits{Rate: r}), delayq.ErrInvalid)
				continue
			}
			// The algorithm with starts as early as it allows them.
			emit, tat := emitOf(t, r), int64(0)
			var starts []int64
			for now := int64(0); now < 5000; now++ {
				for at := max(now, tat); now+int64(burst)*emit-at >= emit; at = max(now, tat) {
					tat = at + emit
					starts = append(starts, now)
				}
			}
			for i := range starts {
				j := i
				for j < len(starts) && starts[j] <= starts[i]+1000 {
					j++
				}
				require.LessOrEqual(t, j-i, n, "%v from %d on", r, starts[i])
			}
			require.Greater(t, len(starts), 0)
		}
	}
}

// A field of meta that no release has written is as one that is not there: jobs are taken and given
// back, and a hold can be made.
func TestTakeWithDamagedSettings(t *testing.T) {
	limits := flowOf(t, delayq.Limits{Running: 5, Rate: delayq.Per(10, time.Second)})
	eachHand(t, func(t *testing.T, h *Hand) {
		for i, fields := range []map[string]any{
			{"flow": ""}, {"flow": "x"}, {"flow": "{}"}, {"flow": "1"}, {"flow": "1 1000000 1"}, {"flow": "-1 0 0 0 0 0"},
			{"flow": "0 1000 0 1 1000 0"}, {"flow": limits, "tat": "x"}, {"flow": limits, "tat": ""}, {"hold": "x"}, {"hold": ""},
		} {
			h := NewHand(t, h.RDB, h.Prefix(), fmt.Sprint("topic", i))
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Meta, fields).Err())
			h.Put("+0", "a")
			held := h.Take(1, time.Minute)
			require.Len(t, held, 1, "%v", fields)
			require.Equal(t, "o", h.Letters(held, settle.Row{Verb: settle.Hold, Delay: time.Hour, Err: errTest}), "%v", fields)
			r, err := h.TryTake("", 1, time.Minute)
			require.NoError(t, err)
			require.Equal(t, "held", r.Status(), "%v", fields)
		}
		h.Put("+0", "a", "b")
		_, err := h.tryLimits(delayq.Limits{Rate: delayq.Per(1, time.Hour)})
		require.NoError(t, err)
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Meta, "promise", "x").Err())
		require.Len(t, h.Take(1, time.Minute), 1)
		r, err := h.TryTake("", 1, time.Minute)
		require.NoError(t, err)
		require.Equal(t, "rate", r.Status())
	})
}

// A hold that Redis does not store is an error. A handler's job goes back all the same.
func TestHoldWhenRedisIsFull(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	h := NewHand(t, rdb, redistest.Prefix(t), "topic")
	h.Put("+0", "a")
	held := h.TakeOne("a")
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	err := h.client().Hold(t.Context(), "topic", time.Hour, "")
	require.ErrorContains(t, err, "OOM")
	require.Zero(t, rdb.Exists(t.Context(), h.Keys.Meta).Val())
	require.Equal(t, "o", h.Letters([]hand.Held{held}, settle.Row{Verb: settle.Hold, Delay: time.Hour, Err: errTest}))
	r, err := h.TryTake("", 1, time.Minute)
	require.NoError(t, err)
	require.Equal(t, "held", r.Status())
}

// Redis's clock is set forward and back, by microseconds to days, while jobs wait for their rate,
// of the topic or of their key. While the clock runs, each period has as many starts as the rate
// allows, and after a step starts are held up for no longer than the burst takes. A key that waits
// when the clock is set back needs a repair for that.
func TestRateWithAClockThatSteps(t *testing.T) {
	t.Parallel()
	r := embedded.New()
	defer r.Close()
	rdb := r.Client()
	defer func() { require.NoError(t, rdb.Close()) }()
	rate := delayq.Per(20, time.Second).Burst(4)
	emit, burst := emitOf(t, rate), int64(rate.MaxBurst())
	for name, l := range map[string]delayq.Limits{"of the topic": {Rate: rate}, "of a key": {RatePerKey: rate}} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("%s, seed %d", name, seed), func(t *testing.T) {
				p := rand.New(rand.NewPCG(seed, 16))
				at := int64(1_763_712_345_678_901)
				r.SetTime(time.UnixMicro(at))
				h := NewHand(t, rdb, redistest.Prefix(t), "topic")
				h.setLimits(l)
				for i := range 6 {
					h.putKeyed("k", hand.Numbered(fmt.Sprint(i, "-"), 100)...)
				}
				for range 6 {
					var starts []int64 // since the clock was set
					from := at
					for at < from+3_000_000 {
						r.SetTime(time.UnixMicro(at))
						if n := p.IntN(8); n == 0 {
							h.Promote() // a parked key gets its turn back
						}
						for range h.Take(10, 24*365*time.Hour) {
							starts = append(starts, at)
						}
						at += p.Int64N(40_000)
					}
					for i := range starts {
						allowed := func(j int) int64 { return burst + (starts[j]-starts[i])/emit }
						for j := i; j < len(starts); j++ {
							require.LessOrEqual(t, int64(j-i+1), allowed(j), "starts from %d to %d", starts[i], starts[j])
						}
					}
					require.NotEmpty(t, starts)
					require.LessOrEqual(t, starts[0]-from, burst*emit+400_000, "the first start after the step")
					// Takes are up to 40 ms apart, and a key gets its turn back with the promote
					// after that.
					require.Greater(t, len(starts), 20)
					step := []int64{1, 1000, 1_000_000, 3_600_000_000, 3 * 86_400_000_000}[p.IntN(5)]
					if p.IntN(2) == 0 {
						step = -step
					}
					at += step
					r.SetTime(time.UnixMicro(at))
					if step < 0 && l.RatePerKey != (delayq.Rate{}) {
						h.look(true)
					}
				}
			})
		}
	}
}
