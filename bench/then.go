package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/delayq/delayq"
)

// followed is the topic of the jobs that follow others.
const followed = topic + "-then"

// relaying runs a server of two topics: first runs the jobs of topic, and then
// those of followed. The function it returns stops it.
func (p *delayqPeer) relaying(ctx context.Context, first, then delayq.HandlerFunc) (stop func() error) {
	return p.serving(ctx, callers, map[string]delayq.HandlerFunc{topic: first, followed: then})
}

// followUp makes a job that follows the one of a handler.
type followUp func(ctx context.Context, p *delayqPeer, job *delayq.Job) error

func handOver(_ context.Context, _ *delayqPeer, job *delayq.Job) error {
	return job.Then(followed, job.ID, job.Payload)
}

func enqueueNext(ctx context.Context, p *delayqPeer, job *delayq.Job) error {
	_, err := p.client.Enqueue(ctx, followed, job.ID, job.Payload)
	return err
}

// following measures how fast ready jobs are worked off each of which is
// followed by another one, until the last of those has run. Without a followUp,
// both are ready at the start.
func following(label string, next followUp) side {
	return product{label, delayqProduct.open}.on(func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		q, t := p.(*delayqPeer), newTally(b.sizes.stepped)
		if err := b.warmUp(ctx, p, callers); err != nil {
			return nil, err
		}
		if err := fill(ctx, p, topic, 0, t.n, ready); err != nil {
			return nil, err
		}
		if next == nil {
			if err := fill(ctx, p, followed, 0, t.n, ready); err != nil {
				return nil, err
			}
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		stop := q.relaying(ctx, func(ctx context.Context, job *delayq.Job) error {
			if next == nil {
				return nil
			}
			return next(ctx, q, job)
		}, func(_ context.Context, job *delayq.Job) error {
			t.note(payloadIndex(job.Payload))
			return nil
		})
		defer func() { err = errors.Join(err, stop()) }()
		result, err := b.finish(ctx, p, m, t, m.at)
		return result, errors.Join(err, settled(ctx, p, followed))
	})
}

// hopping measures how long it takes from the end of a handler to the start of
// that of the job that follows, one job at a time.
func hopping(label string, next followUp) side {
	return product{label, delayqProduct.open}.on(func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		q := p.(*delayqPeer)
		left, came := make(chan time.Time, 1), make(chan time.Time, 1)
		stop := q.relaying(ctx, func(ctx context.Context, job *delayq.Job) error {
			err := next(ctx, q, job)
			left <- time.Now()
			return err
		}, func(context.Context, *delayq.Job) error {
			came <- time.Now()
			return nil
		})
		defer func() { err = errors.Join(err, stop()) }()
		ctx, cancel := context.WithTimeout(ctx, callPatience)
		defer cancel()
		hop := func() (time.Duration, error) {
			if _, err := q.client.Enqueue(ctx, topic, "", make([]byte, payloadSize)); err != nil {
				return 0, err
			}
			var from time.Time
			for {
				select {
				case from = <-left:
				case at := <-came:
					if from.IsZero() {
						from = <-left
					}
					return at.Sub(from), nil
				case <-ctx.Done():
					return 0, ctx.Err()
				}
			}
		}
		for range min(b.sizes.warm, b.sizes.callOne) {
			if _, err := hop(); err != nil {
				return nil, fmt.Errorf("warm up: %w", err)
			}
		}
		took := make([]time.Duration, b.sizes.callOne)
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		for i := range took {
			if took[i], err = hop(); err != nil {
				return nil, err
			}
		}
		result, err := m.stop(ctx, len(took), time.Since(m.at))
		if err != nil {
			return nil, err
		}
		slices.Sort(took)
		return addTrips(result, took), errors.Join(settled(ctx, p, topic), settled(ctx, p, followed))
	})
}

// thenRows are the rows about jobs that follow others.
func thenRows() []row {
	return []row{
		{
			id: "then/64", title: "work off ready jobs that each hand another one over, concurrency 64 and 64",
			sides:   []side{following("Then", handOver), following("Enqueue", enqueueNext), following("both ready", nil)},
			targets: []target{timesAtMost(figCPU, 1.5)},
		},
		{
			id: "then/1", title: "from the end of a handler to the start of the next one's, 1 job at a time",
			sides:   []side{hopping("Then", handOver), hopping("Enqueue", enqueueNext)},
			targets: []target{atMost(figTripP50, 1)},
		},
	}
}
