package commit

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/redistest"
)

// A landing is flights of one kind that were measured one after the other.
type landing struct {
	flights int
	took    time.Duration
	air     int
	after   time.Duration // since the last one
}

func TestFlightsFollowTheLink(t *testing.T) {
	t.Parallel()
	const us, ms = time.Microsecond, time.Millisecond
	tests := map[string]struct {
		most     int
		landings []landing
		want     int
	}{
		"nothing is known":               {want: 1},
		"loopback":                       {landings: []landing{{flights: 9, took: 70 * us, air: 1}}, want: 1},
		"loopback, many callers":         {landings: []landing{{flights: 9, took: 900 * us, air: 250}}, want: 1},
		"slow Redis after a quick start": {landings: []landing{{2, 90 * us, 1, 0}, {999, 5 * ms, 10, ms}}, want: 1},
		"0.3 ms":                         {landings: []landing{{flights: 9, took: 330 * us, air: 2}}, want: 3},
		"1 ms":                           {landings: []landing{{flights: 9, took: 1100 * us, air: 20}}, want: 10},
		"10 ms":                          {landings: []landing{{flights: 1, took: 10 * ms, air: 1}}, want: MostFlights},
		"10 ms with a small pool":        {most: 5, landings: []landing{{flights: 9, took: 10 * ms, air: 1}}, want: 5},
		"the pool has one connection":    {most: 1, landings: []landing{{flights: 9, took: 10 * ms, air: 1}}, want: 1},
		"a large pool":                   {most: 500, landings: []landing{{flights: 9, took: time.Second, air: 1}}, want: MostFlights},
		"connecting took long":           {landings: []landing{{2, 30 * ms, 1, 0}, {30, 100 * us, 1, ms}}, want: 1},
		"one is late":                    {landings: []landing{{9, 100 * us, 1, ms}, {1, 50 * ms, 1, ms}}, want: 1},
		"the way becomes shorter":        {landings: []landing{{9, 10 * ms, 1, ms}, {30, 250 * us, 1, ms}}, want: 2},
		"the way becomes longer": {
			landings: []landing{{9, 100 * us, 1, ms}, {150, 10 * ms, 1, ms}, {1, 10 * ms, 1, 40 * time.Second}, {1, 10 * ms, 1, 40 * time.Second}},
			want:     MostFlights,
		},
		"the shortest is remembered": {
			landings: []landing{{9, 100 * us, 1, ms}, {150, 10 * ms, 1, ms}, {1, 10 * ms, 1, 35 * time.Second}},
			want:     1,
		},
		"after a long rest only the latest counts": {
			landings: []landing{{9, 100 * us, 1, ms}, {150, 10 * ms, 1, ms}, {1, 10 * ms, 1, time.Hour}},
			want:     MostFlights,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := flights{most: test.most}
			now := time.Unix(1e9, 0)
			for _, l := range test.landings {
				for range l.flights {
					now = now.Add(l.after)
					f.measured(now, l.took, l.air)
				}
			}
			require.Equal(t, test.want, f.width())
		})
	}
}

func TestFlightsStart(t *testing.T) {
	t.Parallel()
	near := flights{latest: 1}
	far := flights{latest: 1}
	far.measured(time.Unix(1e9, 0), time.Second, 1)
	for _, f := range []*flights{&near, &far} {
		f.start()
		require.False(t, f.wants(1000), "it has yet to gather")
		require.Equal(t, 3, f.gathered(3))
	}
	require.False(t, near.wants(SecondFlight-1))
	require.True(t, near.wants(SecondFlight))
	near.latest = 100
	require.False(t, near.wants(99), "a second one would only be smaller")
	require.True(t, near.wants(100))
	near.start()
	require.Equal(t, 103, near.gathered(100))
	require.False(t, near.wants(1000), "two are up")

	for up := 1; up < MostFlights; up++ {
		require.Equal(t, up, far.up)
		require.True(t, far.wants(1))
		far.start()
		far.gathered(1)
	}
	require.False(t, far.wants(1000))
	far.ended(1)
	require.False(t, far.wants(1000), "the one that has landed gathers them")
	far.gathered(0)
	require.Equal(t, MostFlights-1, far.up)
	require.Equal(t, 3+MostFlights-1-1, far.air)
	require.True(t, far.wants(1))
}

func TestYieldIsGuarded(t *testing.T) {
	t.Parallel()
	var y yielding
	now := time.Unix(1e9, 0)
	require.True(t, y.pays(now, 0))
	require.True(t, y.pays(now, enough-1))
	require.False(t, y.pays(now, enough))
	y.yielded(now, 200*time.Microsecond, 0)
	y.yielded(now, 1700*time.Microsecond, 500)
	require.True(t, y.pays(now, 0), "many callers came in that time")
	y.yielded(now, 10*time.Millisecond, 500)
	require.False(t, y.pays(now.Add(time.Second-1), 0))
	require.True(t, y.pays(now.Add(time.Second), 0))
}

// A distance is a hook through which each call of scripts takes time, and which notes how many are
// on their way at most.
type distance struct {
	roundTrip time.Duration

	mu         sync.Mutex
	up, upMost int
}

func (d *distance) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *distance) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer d.travel(cmd)()
		return next(ctx, cmd)
	}
}

func (d *distance) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer d.travel(cmds[0])()
		return next(ctx, cmds)
	}
}

// travel starts a request, and returns a function that ends it.
func (d *distance) travel(cmd redis.Cmder) func() {
	if !scripted(cmd) { // of a new connection
		return func() {}
	}
	d.mu.Lock()
	d.up++
	d.upMost = max(d.upMost, d.up)
	d.mu.Unlock()
	return func() {
		time.Sleep(d.roundTrip)
		d.mu.Lock()
		d.up--
		d.mu.Unlock()
	}
}

// far runs a test with a client in a bubble, 10 ms from a Redis, with so many connections.
func far(t *testing.T, connections int, test func(t *testing.T, c *caller, d *distance)) {
	t.Helper()
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		o := *rdb.Options()
		o.PoolSize = connections
		own := redis.NewClient(&o)
		defer func() { require.NoError(t, own.Close()) }()
		d := &distance{roundTrip: 10 * time.Millisecond}
		own.AddHook(d)
		test(t, newCaller(own, "delayq"), d)
	})
}

// enqueueOften has callers that start a millisecond apart and enqueue one job after the other. It
// returns how long the last calls of all callers took.
func enqueueOften(t *testing.T, c *caller, topic string, callers, calls int) (last []time.Duration) {
	t.Helper()
	for range 3 { // then the client knows the distance
		require.NoError(t, c.do(t.Context(), job{}.store(t, topic, rand.Text())))
	}
	last = make([]time.Duration, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * time.Millisecond)
			for range calls {
				began := time.Now()
				if err := c.do(t.Context(), job{}.store(t, topic, rand.Text())); err != nil {
					t.Error(err)
				}
				last[i] = time.Since(began)
			}
		})
	}
	wg.Wait()
	return last
}

// Far from Redis no caller waits for a flight that it has missed: each call takes one round trip.
func TestCommitFarFromRedis(t *testing.T) {
	far(t, 2*MostFlights, func(t *testing.T, c *caller, d *distance) {
		for _, took := range enqueueOften(t, c, "topic", 10, 20) {
			require.Equal(t, d.roundTrip, took)
		}
		require.Equal(t, 10, d.upMost)
	})
}

// The flights of all topics together leave half of the pool to other calls.
func TestFlightsOfAllTopicsShareThePool(t *testing.T) {
	far(t, 8, func(t *testing.T, c *caller, d *distance) {
		enqueueOften(t, c, "topic", 10, 20)
		require.Equal(t, 4, d.upMost)
		d.upMost = 0
		var wg sync.WaitGroup
		for i := range 3 { // each is under way at any time: the first flight of a topic always starts
			wg.Go(func() { enqueueOften(t, c, fmt.Sprint("topic", i), 10, 20) })
		}
		wg.Wait()
		require.LessOrEqual(t, d.upMost, 4+2)
		synctest.Wait()
		require.Zero(t, c.air.up.Load())
	})
}
