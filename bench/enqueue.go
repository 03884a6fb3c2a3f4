package main

import (
	"context"
	"time"
)

// delay is how far in the future jobs are due that shall only be stored.
const delay = time.Hour

// enqueueFrom measures n single calls that store a delayed job, from that many
// goroutines.
func enqueueFrom(goroutines int, count func(sizes) int) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (sample, error) {
		return b.enqueue(ctx, p, goroutines, count(b.sizes))
	}
}

// enqueue is one measurement of enqueueFrom.
func (b *bench) enqueue(ctx context.Context, p peer, goroutines, n int) (sample, error) {
	one := func(ctx context.Context, i int, payload []byte) error {
		fillPayload(payload, i, time.Time{})
		return p.enqueue(ctx, topic, job{payload: payload, in: delay})
	}
	if err := inParallel(ctx, goroutines, max(min(b.sizes.warm, n), min(4*goroutines, n)), one); err != nil {
		return nil, err
	}
	if err := b.reset(ctx, p); err != nil {
		return nil, err
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	if err := inParallel(ctx, goroutines, n, one); err != nil {
		return nil, err
	}
	result, err := m.stop(ctx, n, time.Since(m.at))
	if err != nil {
		return nil, err
	}
	return result, b.wantLeft(ctx, p, n)
}

// enqueueBulk measures the call that stores many delayed jobs.
func enqueueBulk(count func(sizes) int) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (sample, error) {
		return b.enqueueBulk(ctx, p, count(b.sizes))
	}
}

// enqueueBulk is one measurement of the function enqueueBulk.
func (b *bench) enqueueBulk(ctx context.Context, p peer, n int) (sample, error) {
	later := func(int) job { return job{in: delay} }
	if err := fill(ctx, p, topic, 0, min(b.sizes.warm, n), later); err != nil {
		return nil, err
	}
	if err := b.reset(ctx, p); err != nil {
		return nil, err
	}
	jobs := make([]job, n)
	for i := range jobs {
		jobs[i] = job{in: delay, payload: newPayload()}
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	if err := p.enqueueAll(ctx, topic, jobs); err != nil {
		return nil, err
	}
	result, err := m.stop(ctx, n, time.Since(m.at))
	if err != nil {
		return nil, err
	}
	return result, b.wantLeft(ctx, p, n)
}

// enqueueBest measures single calls from several numbers of goroutines and
// gives the figures of the fastest.
func enqueueBest(count func(sizes) int) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (sample, error) {
		var best sample
		for _, goroutines := range asynqGoroutines {
			if err := b.reset(ctx, p); err != nil {
				return nil, err
			}
			result, err := b.enqueue(ctx, p, goroutines, count(b.sizes)/len(asynqGoroutines)/2)
			if err != nil {
				return nil, err
			}
			if best == nil || result[figRate] > best[figRate] {
				best = result
			}
		}
		return best, nil
	}
}

// memoryPerJob measures what a pending job costs Redis.
func memoryPerJob(ctx context.Context, b *bench, p peer) (sample, error) {
	n := b.sizes.memory
	later := func(int) job { return job{in: delay} }
	if err := fill(ctx, p, topic, 0, b.sizes.warm, later); err != nil { // loads the scripts
		return nil, err
	}
	if err := b.reset(ctx, p); err != nil {
		return nil, err
	}
	empty, err := b.store.memory(ctx)
	if err != nil {
		return nil, err
	}
	if err := fill(ctx, p, topic, 0, n, later); err != nil {
		return nil, err
	}
	full, err := b.store.memory(ctx)
	if err != nil {
		return nil, err
	}
	return sample{figMemory: float64(full-empty) / float64(n)}, b.wantLeft(ctx, p, n)
}
