package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// wantLeft returns an error unless the topic holds exactly n unfinished jobs.
func (b *bench) wantLeft(ctx context.Context, p peer, n int) error {
	left, err := p.left(ctx, topic)
	if err != nil {
		return err
	}
	if left != n {
		return fmt.Errorf("%d unfinished jobs in Redis where %d were stored", left, n)
	}
	return nil
}

// warmUp has servers work off a few jobs, and leaves an empty Redis.
func (b *bench) warmUp(ctx context.Context, p peer, concurrency int) error {
	n := b.sizes.warm
	if b.rtt == 0 { // each job may take a round trip
		n = max(n, 4*concurrency)
	}
	t := newTally(n)
	if err := fill(ctx, p, topic, 0, n, ready); err != nil {
		return err
	}
	stop, err := p.work(ctx, workload{topics: []topicWork{{topic, concurrency, t.handle}}})
	if err != nil {
		return err
	}
	_, err = t.wait(ctx)
	if err = errors.Join(err, stop()); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	return b.reset(ctx, p)
}

// workBacklog measures how fast a server works off ready jobs. The clock runs
// from before the server is started to the last handler.
func workBacklog(concurrency int, count func(sizes) int) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (sample, error) {
		t := newTally(count(b.sizes))
		return b.backlog(ctx, p, concurrency, t, t.handle)
	}
}

// backlog stores as many ready jobs as t expects and has handle work them off.
func (b *bench) backlog(ctx context.Context, p peer, concurrency int, t *tally, handle func(delivery)) (_ sample, err error) {
	if err := b.warmUp(ctx, p, concurrency); err != nil {
		return nil, err
	}
	if err := fill(ctx, p, topic, 0, t.n, ready); err != nil {
		return nil, err
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	before, known := ownCPU()
	stop, err := p.work(ctx, workload{topics: []topicWork{{topic, concurrency, handle}}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	result, err := b.finish(ctx, p, m, t, m.at)
	if err != nil {
		return nil, err
	}
	if after, _ := ownCPU(); known {
		result[figProcess] = float64((after - before).Nanoseconds()) / 1000 / float64(t.n)
	}
	return result, nil
}

// finish waits for the end of the jobs of t and reads the meter when Redis
// knows that all have ended. The rate counts from start.
func (b *bench) finish(ctx context.Context, p peer, m *meter, t *tally, start time.Time) (sample, error) {
	last, err := t.wait(ctx)
	if err != nil {
		return nil, err
	}
	if err := settled(ctx, p, topic); err != nil {
		return nil, err
	}
	result, err := m.stop(ctx, t.n, last.Sub(start))
	if err != nil {
		return nil, err
	}
	return result, t.check()
}

// workBusy measures which share of the slots is busy while a server works off
// ready jobs whose handler takes d.
func workBusy(concurrency int, d time.Duration, count func(sizes) int) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (sample, error) {
		t := newTally(count(b.sizes))
		var watch stopwatch
		result, err := b.backlog(ctx, p, concurrency, t, watch.wrap(func(dl delivery) {
			time.Sleep(d)
			t.handle(dl)
		}))
		if err != nil {
			return nil, err
		}
		result[figBusy] = 100 * watch.busy(time.Unix(0, t.last.Load()), concurrency)
		return result, nil
	}
}

// workDue measures how fast jobs that all fall due at the same second are
// worked off by servers that are already waiting. The clock runs from that
// second to the last handler.
func workDue(servers int, count func(sizes) int) func(context.Context, *bench, peer) (sample, error) {
	const concurrency = 64
	return func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		t := newTally(count(b.sizes))
		if err := b.warmUp(ctx, p, concurrency); err != nil {
			return nil, err
		}
		second, err := b.fillDue(ctx, p, t.n, func(_ int, second time.Time) time.Time { return second })
		if err != nil {
			return nil, err
		}
		stop, err := p.work(ctx, workload{topics: []topicWork{{topic, concurrency, t.handle}}, servers: servers})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		if err := until(ctx, second.Add(-meterLead)); err != nil {
			return nil, err
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		return b.finish(ctx, p, m, t, second)
	}
}

// meterLead is how long before a second the meter is started that measures
// what happens from it on.
const meterLead = 100 * time.Millisecond

// lifeDelay is how far in the future the jobs of wholeLife are due.
const lifeDelay = 2 * time.Second

// wholeLife measures delayed jobs from the call that stores them to their end:
// 64 goroutines store one after the other, each job due a little later, while
// a server works off what has fallen due.
func wholeLife(ctx context.Context, b *bench, p peer) (_ sample, err error) {
	const goroutines, concurrency = 64, 64
	t := newTally(b.sizes.life)
	if err := b.warmUp(ctx, p, concurrency); err != nil {
		return nil, err
	}
	stop, err := p.work(ctx, workload{topics: []topicWork{{topic, concurrency, t.handle}}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	err = inParallel(ctx, goroutines, t.n, func(ctx context.Context, i int, payload []byte) error {
		fillPayload(payload, i, time.Time{})
		return p.enqueue(ctx, topic, job{payload: payload, in: lifeDelay})
	})
	if err != nil {
		return nil, err
	}
	result, err := b.finish(ctx, p, m, t, m.at)
	if err != nil {
		return nil, err
	}
	delete(result, figRate) // says only how long the delay was
	return result, nil
}
