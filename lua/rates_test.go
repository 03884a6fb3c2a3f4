package lua_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A rateGame plays servers that take the jobs of a topic with a rate, or with one of each key.
type rateGame struct {
	*rand.Rand
	t       *testing.T
	h       *Hand
	clock   *embedded.Redis
	now     int64 // Redis's clock, µs
	rate    delayq.Rate
	mixed   bool // some servers are of v0.1.0
	servers []*rateServer
	starts  map[string][]int64 // by key, when they were counted
	jobs    int
}

type rateServer struct {
	*Hand
	next  int64  // when it takes again
	since string // number of the take whose reply was lost
}

// firstTake is the take script of v0.1.0, which cuts a tat that is ahead of the bucket.
var firstTake = allOfFirst(script.Take)

// allOfFirst has scripts of v0.1.0 in the place of the present ones.
func allOfFirst(present ...*script.Script) map[string]*script.Script {
	list := make(map[string]*script.Script, len(present))
	for _, one := range present {
		list[one.Name] = ofFirst(one)
	}
	return list
}

// ofFirst is a script of v0.1.0.
func ofFirst(present *script.Script) *script.Script {
	text, err := os.ReadFile("testdata/v0.1.0/" + present.Name + ".lua")
	if err != nil {
		panic(err)
	}
	return present.Released(string(text))
}

// Whatever servers there are, of this release and of v0.1.0, whenever they take, stop or crash, and
// whatever replies are lost: never more starts are counted than a rate allows, of a topic and of
// each key.
func TestRatesAreBounds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		h, r := onEmbedded(t)
		g := &rateGame{Rand: rand.New(rand.NewPCG(seed, 33)), t: t, h: h, clock: r, now: 1_763_712_345_678_901, starts: map[string][]int64{}}
		starts := []int{1, 3, 10, 50, 200, 1000, 5000}[g.IntN(7)]
		g.rate = delayq.Per(starts, []time.Duration{50 * time.Millisecond, time.Second, 10 * time.Second}[g.IntN(3)])
		if g.IntN(4) > 0 {
			g.rate = g.rate.Burst(1 + g.IntN(min(starts, []int{1, 5, 100}[g.IntN(3)])))
		}
		if starts > 1 && g.rate.MaxBurst() < starts && g.IntN(3) == 0 {
			g.rate = g.rate.Strict()
		}
		g.at(0)
		keyed := g.IntN(2) == 0
		g.mixed = g.IntN(2) == 0
		limits := delayq.Limits{Rate: g.rate}
		if keyed {
			limits = delayq.Limits{RatePerKey: g.rate}
		}
		if err := h.client().SetLimits(t.Context(), "topic", limits); errors.Is(err, delayq.ErrInvalid) {
			continue // too fast for whole µs
		}
		for range 1 + g.IntN(3) {
			g.servers = append(g.servers, g.server())
		}
		for range 120 {
			g.step(keyed)
		}
		g.judge()
	}
}

func (g *rateGame) server() *rateServer {
	h := NewHand(g.t, g.h.RDB, g.h.Prefix(), "topic")
	h.Spaced = min(1, g.IntN(5))
	if g.mixed && g.IntN(2) == 0 {
		h.Old = firstTake
	}
	return &rateServer{Hand: h}
}

// at moves Redis's clock.
func (g *rateGame) at(us int64) {
	g.now += us
	g.clock.SetTime(time.UnixMicro(g.now))
}

// step lets one of the servers take: the one that is to be next, a moment before or after its time,
// or any other one.
func (g *rateGame) step(keyed bool) {
	first := slices.MinFunc(g.servers, func(a, b *rateServer) int { return int(a.next - b.next) })
	g.at(max(0, first.next-g.now+g.Int64N(2000)-500))
	if g.IntN(10) == 0 {
		first = g.servers[g.IntN(len(g.servers))]
	}
	if g.IntN(40) == 0 {
		*first = *g.server() // the other one has crashed
	}
	if g.IntN(50) == 0 {
		g.at(g.Int64N(1_000_000))
	}
	for len(g.h.RDB.HKeys(g.t.Context(), g.h.Keys.Pool).Val()) < 400 {
		g.enqueue(keyed)
	}
	g.h.Promote()
	number := first.Series.Next()
	r, err := first.TryTakeSince(number, first.since, 100, script.CallBytes, 1+g.IntN(100), time.Minute, "head")
	require.NoError(g.t, err)
	told := int64(1000)
	switch r.Status() {
	case "rate":
		told = r.Number(2)
	case "held":
		require.NotNil(g.t, first.Old)
		told = max(1000, 1000*r.Number(2)-g.now)
	case "ok":
		told = r.Number(10)
		held := hand.HeldOf(r)
		if first.since == "" { // otherwise they were counted before
			g.count(held, r.List(12), keyed)
		}
		first.since = ""
		if g.IntN(20) == 0 {
			first.since = number
		} else {
			require.NotContains(g.t, first.Ack(held...), "l")
		}
	}
	first.next = g.now + max(told, 1000)
}

func (g *rateGame) enqueue(keyed bool) {
	ids := make([]string, 200)
	for i := range ids {
		g.jobs++
		ids[i] = fmt.Sprint(g.jobs)
	}
	if !keyed {
		g.h.Put("+0", ids...)
		return
	}
	g.h.putKeyed(fmt.Sprint("key-", g.IntN(3)), ids...)
}

// count notes the starts of a take.
func (g *rateGame) count(held []hand.Held, starts script.Reply, keyed bool) {
	last := map[string]int64{}
	for i, one := range held {
		key, at := "", g.now
		if keyed {
			rec, err := record.Decode(one.Record)
			require.NoError(g.t, err)
			key = rec.Options.Key
		}
		if len(starts) > 0 {
			require.Len(g.t, starts, len(held))
			at += starts.Number(i)
		}
		require.GreaterOrEqual(g.t, at, last[key], "in order")
		require.LessOrEqual(g.t, at, g.now+15_000)
		last[key] = at
		g.starts[key] = append(g.starts[key], at)
	}
}

// judge requires that no starts were closer than the rate allows.
func (g *rateGame) judge() {
	emit, burst := emitOf(g.t, g.rate), g.rate.MaxBurst()
	require.NotEmpty(g.t, g.starts)
	for key, starts := range g.starts {
		slices.Sort(starts)
		for i, from := range starts {
			for j := i + burst; j < min(len(starts), i+burst+300); j++ {
				require.GreaterOrEqual(g.t, starts[j]-from, int64(j-i-burst+1)*emit, "%v: starts %d to %d of key %q", g.rate, i, j, key)
			}
			if g.rate.IsStrict() && i+g.rate.Starts() < len(starts) {
				require.Greater(g.t, starts[i+g.rate.Starts()]-from, g.rate.Period().Microseconds(), "%v: starts from %d of key %q", g.rate, i, key)
			}
		}
	}
}

// Jobs that start one after the other do so too if the reply of their take was lost. Their starts
// are not counted again.
func TestLaterStartsAfterALostReply(t *testing.T) {
	t.Parallel()
	h, r := onEmbedded(t)
	now := time.UnixMilli(1_763_712_345_678)
	r.SetTime(now)
	h.Spaced = 1
	h.setLimits(delayq.Limits{Rate: delayq.Per(1000, time.Second).Burst(2)})
	h.Put("+0", hand.Numbered("job", 20)...)
	starts := func(reply script.Reply, err error) (us []int64) {
		require.NoError(t, err)
		require.Equal(t, "ok", reply.Status())
		for i := range reply.List(12) {
			us = append(us, reply.List(12).Number(i))
		}
		return us
	}
	number := h.Series.Next()
	take := func(number, since string, limit int) (script.Reply, error) {
		return h.TryTakeSince(number, since, limit, script.CallBytes, 10, time.Minute, "head")
	}
	want := []int64{0, 0, 1000, 2000, 3000}
	require.Equal(t, want, starts(take(number, "", 5)))
	require.Equal(t, want, starts(h.Last()))
	tat := h.RDB.HGet(t.Context(), h.Keys.Meta, "tat").Val()
	r.SetTime(now.Add(time.Second))
	require.Equal(t, want[:4], starts(take(h.Series.Next(), number, 4)), "the last one goes back")
	require.Equal(t, tat, h.RDB.HGet(t.Context(), h.Keys.Meta, "tat").Val())
	h.Spaced = 0
	require.Empty(t, starts(take(h.Series.Next(), "", 5)), "a server that cannot wait gets those of now")
}

// A key's start that waits for the rate of the topic is counted at its time, so the next one comes
// no earlier than the rate of the key allows.
func TestRatesOfKeysCountLaterStarts(t *testing.T) {
	t.Parallel()
	h, r := onEmbedded(t)
	now := time.UnixMilli(1_763_712_345_678)
	r.SetTime(now)
	h.Spaced = 1
	h.setLimits(delayq.Limits{Rate: delayq.Per(1000, time.Second).Burst(1), RatePerKey: delayq.Per(20, time.Second).Burst(1)})
	const keys, emit = 10, 50_000
	for i := range keys {
		h.putKeyed(fmt.Sprint("key-", i), fmt.Sprint("a", i))
	}
	h.putKeyed("key-9", "b9", "c9")
	last := map[string]int64{}
	for us := int64(0); us < 3*emit; us += 1000 {
		r.SetTime(now.Add(time.Duration(us) * time.Microsecond))
		h.Promote()
		reply, err := h.TryTakeAhead("", 20, 20, time.Minute)
		require.NoError(t, err)
		if reply.Status() != "ok" {
			continue
		}
		held := hand.HeldOf(reply)
		for i, one := range held {
			at, key := us, one.ID[1:]
			if starts := reply.List(12); len(starts) > 0 {
				at += starts.Number(i)
			}
			if before, ran := last[key]; ran {
				require.GreaterOrEqual(t, at-before, int64(emit), "key %s", key)
			}
			last[key] = at
		}
		if len(held) > 0 {
			require.NotContains(t, h.Ack(held...), "l")
		}
	}
	require.Len(t, last, keys)
}

// Servers of v0.1.0 take beside one of this release that takes starts ahead. Together they make all
// starts of the rate, and none twice. When the other one stops, those of v0.1.0 make them.
func TestRatesBesideTheFirstRelease(t *testing.T) {
	t.Parallel()
	for _, rate := range []delayq.Rate{
		delayq.Per(1000, time.Second).Burst(1), delayq.Per(1000, time.Second).Burst(5), delayq.Per(100, time.Second).Burst(1),
		delayq.Per(1000, time.Second).Burst(1).Strict(), delayq.Per(40, time.Second).Burst(1),
	} {
		h, r := onEmbedded(t)
		g := &rateGame{Rand: rand.New(rand.NewPCG(1, 33)), t: t, h: h, clock: r, now: 1_763_712_345_678_901, rate: rate, starts: map[string][]int64{}}
		g.at(0)
		h.setLimits(delayq.Limits{Rate: rate})
		for i := range 4 {
			one := g.server()
			one.Spaced, one.Old = 1, firstTake
			if i == 0 {
				one.Old = nil
			}
			g.servers = append(g.servers, one)
		}
		emit := emitOf(t, rate)
		began := g.now
		for g.now < began+1_000_000 {
			g.play(20)
		}
		made := len(g.starts[""])
		require.GreaterOrEqual(t, int64(made), 97*(g.now-began)/emit/100, "%v", rate)
		require.LessOrEqual(t, int64(made), (g.now-began+15_000)/emit+int64(rate.MaxBurst())+1, "%v", rate)
		g.servers = g.servers[1:]
		for began = g.now; g.now < began+1_000_000; {
			g.play(20)
		}
		require.Greater(t, len(g.starts[""])-made, made/2, "%v", rate)
		g.judge()
	}
}

// When Redis's clock is set back, the hold for servers of v0.1.0 goes with the next take.
func TestHoldForTheFirstReleaseEndsWithTheClock(t *testing.T) {
	t.Parallel()
	h, r := onEmbedded(t)
	began := time.UnixMilli(1_763_712_345_678)
	r.SetTime(began)
	h.Spaced = 1
	h.setLimits(delayq.Limits{Rate: delayq.Per(1000, time.Second).Burst(1)})
	h.Put("+0", hand.Numbered("job", 50)...)
	require.NotEmpty(t, h.Take(10, time.Minute))
	held := func() string { return h.RDB.HGet(t.Context(), h.Keys.Meta, "hold").Val() }
	require.Equal(t, fmt.Sprint(began.UnixMilli()+9), held())
	r.SetTime(began.Add(-time.Hour))
	_, err := h.TryTake("", 1, time.Minute)
	require.NoError(t, err)
	require.NotEqual(t, fmt.Sprint(began.UnixMilli()+9), held())
}

// play lets the server take that is the next one, when it was told to.
func (g *rateGame) play(workers int) {
	first := slices.MinFunc(g.servers, func(a, b *rateServer) int { return int(a.next - b.next) })
	g.at(max(0, first.next-g.now))
	if g.h.RDB.LLen(g.t.Context(), g.h.Keys.Ready).Val() < 100 {
		g.enqueue(false)
	}
	r, err := first.TryTakeAhead("", workers, workers, time.Minute)
	require.NoError(g.t, err)
	told := int64(1000)
	switch r.Status() {
	case "rate":
		told = r.Number(2)
	case "held":
		told = 1000*r.Number(2) - g.now
	case "ok":
		told = r.Number(10)
		held := hand.HeldOf(r)
		g.count(held, r.List(12), false)
		require.NotContains(g.t, first.Ack(held...), "l")
	}
	first.next = g.now + max(told, 100)
}

// A repair leaves a key parked whose next starts have been counted already.
func TestRepairOfKeysWithLaterStarts(t *testing.T) {
	t.Parallel()
	h, r := onEmbedded(t)
	r.SetTime(time.UnixMilli(1_763_712_345_678))
	h.Spaced = 1
	h.setLimits(delayq.Limits{RatePerKey: delayq.Per(1000, time.Second).Burst(1)})
	h.putKeyed("a", hand.Numbered("job", 30)...)
	require.NotEmpty(t, h.Take(20, time.Minute))
	require.Empty(t, h.Take(20, time.Minute))
	require.Equal(t, []string{"a"}, h.parkedKeys())
	found, _ := h.look(true)
	require.Empty(t, found)
	require.Equal(t, []string{"a"}, h.parkedKeys())
}
