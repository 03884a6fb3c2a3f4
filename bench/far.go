package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// leastPool is the least number of connections of a client that is far away.
const leastPool = 10

// farWarm is the number of jobs of a warm-up there: what has to be opened is
// opened, and one caller needs not more than half a second.
const farWarm = 50

// far measures with a Redis that is a round trip of rtt away: see delay.go. Each
// client has as many connections as there are callers.
func far(p product, rtt time.Duration, callers int, measure func(context.Context, *bench, peer) (sample, error)) side {
	return side{label: p.label, measure: func(ctx context.Context, b *bench) (sample, error) {
		var err error
		way := newDistance(rtt, pause)
		defer way.close()
		away := *b
		away.store = b.store.through(way, max(callers, leastPool))
		away.sizes.warm = farWarm
		if away.rtt, err = roundTrip(ctx, away.store, b.sizes.farPings); err != nil {
			return nil, err
		}
		result, err := p.on(measure).measure(ctx, &away)
		if err != nil {
			return nil, err
		}
		result[figRTT] = milliseconds(away.rtt)
		return result, nil
	}}
}

// farBoth is far on both sides.
func farBoth(rtt time.Duration, callers int, measure func(context.Context, *bench, peer) (sample, error)) []side {
	return []side{far(delayqProduct, rtt, callers, measure), far(asynqProduct, rtt, callers, measure)}
}

// roundTrip is the median time of a PING.
func roundTrip(ctx context.Context, s *store, pings int) (_ time.Duration, err error) {
	const warm = 10
	rdb := s.client(1)
	defer func() { err = errors.Join(err, rdb.Close()) }()
	waits := make([]time.Duration, 0, warm+pings)
	for range warm + pings {
		start := time.Now()
		if err := rdb.Ping(ctx).Err(); err != nil {
			return 0, fmt.Errorf("measure the round trip: %w", err)
		}
		waits = append(waits, time.Since(start))
	}
	waits = waits[warm:]
	slices.Sort(waits)
	return percentile(waits, 50), nil
}

// timedPeer is a peer whose single enqueues are timed.
type timedPeer struct {
	peer
	waits []time.Duration
	calls atomic.Int64
}

// enqueue implements peer.
func (p *timedPeer) enqueue(ctx context.Context, topic string, j job) error {
	start := time.Now()
	err := p.peer.enqueue(ctx, topic, j)
	if i := int(p.calls.Add(1)) - 1; i < len(p.waits) {
		p.waits[i] = time.Since(start)
	}
	return err
}

// forget implements peer. It also forgets the calls of the warm-up.
func (p *timedPeer) forget(ctx context.Context) error {
	p.calls.Store(0)
	return p.peer.forget(ctx)
}

// farEnqueue measures single calls from that many goroutines, for about the
// time of farSpan, and how long one takes.
func farEnqueue(callers int) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (sample, error) {
		n := min(callers*int(b.sizes.farSpan/b.rtt), b.sizes.enqueue)
		n = max(n, 2*callers)
		timed := &timedPeer{peer: p, waits: make([]time.Duration, n)}
		result, err := b.enqueue(ctx, timed, callers, n)
		if err != nil {
			return nil, err
		}
		slices.Sort(timed.waits)
		result[figCallP50] = float64(percentile(timed.waits, 50)) / float64(b.rtt)
		result[figCallP99] = float64(percentile(timed.waits, 99)) / float64(b.rtt)
		result[figCeiling] = 100 * result[figRate] * b.rtt.Seconds() / float64(callers)
		return result, nil
	}
}

// farNow measures how long after the end of its Enqueue a job for now starts,
// one job at a time, on a server that waits for it. asynq has its default
// intervals.
func farNow(count func(sizes) int) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (sample, error) {
		// until the server waits again
		waits, err := startWaits(ctx, p, count(b.sizes), func() time.Duration { return 4 * b.rtt })
		if err != nil {
			return nil, err
		}
		return sample{
			figStartP50: float64(percentile(waits, 50)) / float64(b.rtt),
			figStartP99: float64(percentile(waits, 99)) / float64(b.rtt),
		}, nil
	}
}

// startWaits enqueues jobs for now, one at a time, and returns how long after
// the end of its Enqueue each of n has started, the shortest time first. Before
// each there is a pause.
func startWaits(ctx context.Context, p peer, n int, pause func() time.Duration) (waits []time.Duration, err error) {
	const concurrency = 10
	started := make(chan time.Time, 1)
	stop, err := p.work(ctx, workload{plain: true, topics: []topicWork{{topic, concurrency, func(delivery) {
		started <- time.Now()
	}}}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	payload := newPayload()
	one := func() (time.Duration, error) {
		fillPayload(payload, 0, time.Now())
		if err := p.enqueue(ctx, topic, job{payload: payload}); err != nil {
			return 0, err
		}
		returned := time.Now()
		select {
		case at := <-started:
			return at.Sub(returned), nil
		case <-time.After(patience):
			return 0, fmt.Errorf("a job did not start in %s", patience)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if _, err := one(); err != nil { // the server has started
		return nil, err
	}
	for range n {
		if err := settled(ctx, p, topic); err != nil {
			return nil, err
		}
		if err := sleep(ctx, pause()); err != nil {
			return nil, err
		}
		wait, err := one()
		if err != nil {
			return nil, err
		}
		waits = append(waits, wait)
	}
	slices.Sort(waits)
	return waits, nil
}

// farRows are the rows with a Redis that is far away.
func farRows() []row {
	const near, distant = time.Millisecond, 10 * time.Millisecond
	enqueue := func(callers int, rtt time.Duration, targets ...target) row {
		return row{
			id:      fmt.Sprintf("far/enqueue/%d/%s", callers, rtt),
			title:   fmt.Sprintf("enqueue, goroutines: %d, Redis %s away", callers, rtt),
			sides:   farBoth(rtt, callers, farEnqueue(callers)),
			targets: targets,
		}
	}
	// A job at a time costs asynq a round trip or more, so it gets fewer.
	few := func(count func(sizes) int, part int) func(sizes) int {
		return func(s sizes) int { return max(count(s)/part, 20) }
	}
	backlog := func(s sizes) int { return s.backlog }
	busy := func(slots, jobs int) row {
		count := func(s sizes) int { return s.busyLong * jobs }
		measure := func(count func(sizes) int) func(context.Context, *bench, peer) (sample, error) {
			return workBusy(slots, time.Millisecond, count)
		}
		return row{
			id:    fmt.Sprintf("far/busy/%d", slots),
			title: fmt.Sprintf("a handler that takes 1 ms, concurrency %d, Redis %s away", slots, distant),
			sides: []side{
				far(delayqProduct, distant, 0, measure(count)),
				far(asynqProduct, distant, 0, measure(few(count, 100))),
			},
			targets: []target{atLeast(figBusy, 80)},
		}
	}
	now := func(rtt time.Duration) row {
		return row{
			id:    "far/now/" + rtt.String(),
			title: fmt.Sprintf("from the end of Enqueue to the start of the job, Redis %s away", rtt),
			sides: []side{
				far(delayqProduct, rtt, 0, farNow(func(s sizes) int { return s.farNow })),
				far(asynqProduct, rtt, 0, farNow(func(s sizes) int { return max(s.farNow/20, 1) })),
			},
			targets: []target{atMost(figStartP50, 1.5), atMost(figStartP99, 1.5)},
		}
	}
	oneTrip := atMost(figCallP50, 1.2)
	return []row{
		enqueue(1, near, timesAtLeast(figRate, 1), oneTrip),
		enqueue(64, near, timesAtLeast(figRate, 1.5), oneTrip),
		enqueue(512, near, timesAtLeast(figRate, 3)), // the callers ask for more than Redis can do
		enqueue(1, distant, timesAtLeast(figRate, 1), oneTrip),
		enqueue(64, distant, atLeast(figCeiling, 90), oneTrip),
		enqueue(512, distant, oneTrip),
		{
			id: "far/work", title: fmt.Sprintf("work off a ready backlog, concurrency 64, Redis %s away", near),
			sides: []side{
				far(delayqProduct, near, 0, workBacklog(64, backlog)),
				far(asynqProduct, near, 0, workBacklog(64, few(backlog, 20))),
			},
			targets: []target{atLeast(figRate, 150_000)},
		},
		busy(10, 1), busy(100, 5),
		now(near), now(distant),
	}
}
