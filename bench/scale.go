package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"
)

// The steps whose cost is followed while the backlog grows.
const (
	stepEnqueue = "enqueue, one delay" // at the far end of the backlog, as from a topic where all jobs wait equally long
	stepScatter = "enqueue, any delay" // anywhere in the backlog
	stepRun     = "promote, take, ack"
	stepCancel  = "cancel"
)

// scaleSteps are all of them, in the order of a job's life.
var scaleSteps = []string{stepEnqueue, stepScatter, stepRun, stepCancel}

// figGrowth is how many times the step costs at the largest backlog what it
// costs at the smallest.
func figGrowth(step string) string { return "growth: " + step }

// figCost is the Redis CPU of the step per job, in µs, with that many pending.
func figCost(step string, pending int) string { return fmt.Sprintf("%s @ %d", step, pending) }

// scale measures what a job costs Redis while ever more jobs are pending. The
// jobs that are measured come and go; the rest is due in a day or two.
func scale(ctx context.Context, b *bench, p peer) (sample, error) {
	if err := b.warmUp(ctx, p, 64); err != nil {
		return nil, err
	}
	g := growing{bench: b, peer: p}
	result := sample{}
	for _, size := range b.sizes.scale {
		if err := g.grow(ctx, size-len(g.pending), anyDelay); err != nil {
			return nil, err
		}
		costs, err := g.measure(ctx)
		if err != nil {
			return nil, fmt.Errorf("with %d pending: %w", size, err)
		}
		for step, cost := range costs {
			result[figCost(step, size)] = cost
		}
	}
	smallest, largest := b.sizes.scale[0], b.sizes.scale[len(b.sizes.scale)-1]
	for _, step := range scaleSteps {
		result[figGrowth(step)] = result[figCost(step, largest)] / result[figCost(step, smallest)]
	}
	return result, b.wantLeft(ctx, p, largest)
}

// growing is a topic with many pending jobs.
type growing struct {
	bench   *bench
	peer    peer
	pending []int // numbers of the pending jobs, in no order
	next    int   // number of the next job
}

// id is the ID of a pending job.
func (g *growing) id(number int) string { return "pending-" + strconv.Itoa(number) }

// The delays of pending jobs.
const day = 24 * time.Hour

func anyDelay() time.Duration { return day + rand.N(day) }
func oneDelay() time.Duration { return 2 * day }

// grow stores n more jobs with these delays.
func (g *growing) grow(ctx context.Context, n int, delay func() time.Duration) error {
	err := fill(ctx, g.peer, topic, g.next, g.next+n, func(i int) job {
		return job{id: g.id(i), in: delay()}
	})
	if err != nil {
		return err
	}
	for i := range n {
		g.pending = append(g.pending, g.next+i)
	}
	g.next += n
	return nil
}

// shrink cancels n of the pending jobs, whichever.
func (g *growing) shrink(ctx context.Context, n int) error {
	last := len(g.pending) - 1
	for i := range n {
		k := rand.IntN(last - i + 1)
		g.pending[k], g.pending[last-i] = g.pending[last-i], g.pending[k]
	}
	gone := g.pending[len(g.pending)-n:]
	g.pending = g.pending[:len(g.pending)-n]
	return inParallel(ctx, 64, n, func(ctx context.Context, i int, _ []byte) error {
		return g.peer.cancel(ctx, topic, g.id(gone[i]))
	})
}

// run stores n jobs that are due soon and returns what it costs Redis when
// they are.
func (g *growing) run(ctx context.Context, n int) (cost time.Duration, err error) {
	const lead = 500 * time.Millisecond
	t := newTally(n)
	due := time.Now().Add(lead)
	if err := fill(ctx, g.peer, topic, 0, n, func(int) job { return job{at: due} }); err != nil {
		return 0, err
	}
	stop, err := g.peer.work(ctx, workload{topics: []topicWork{{topic, 64, t.handle}}})
	if err != nil {
		return 0, err
	}
	if err := until(ctx, due.Add(-lead/10)); err != nil {
		return 0, errors.Join(err, stop())
	}
	return g.cost(ctx, func() error {
		_, err := t.wait(ctx)
		// The stop returns when the last acks are in Redis, so it belongs to the cost.
		return errors.Join(err, stop(), t.check())
	})
}

// cost returns the Redis CPU that do uses.
func (g *growing) cost(ctx context.Context, do func() error) (time.Duration, error) {
	before, err := g.bench.store.cpu(ctx)
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := g.bench.store.cpu(ctx)
	return after - before, err
}

// measure returns what each step costs per job in µs with the jobs that are
// pending now, and leaves as many.
func (g *growing) measure(ctx context.Context) (map[string]float64, error) {
	n, cycles := g.bench.sizes.scaleJobs, g.bench.sizes.scaleCycles
	costs := map[string]float64{}
	for range cycles {
		for _, step := range scaleSteps {
			cost, err := g.step(ctx, step, n)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", step, err)
			}
			costs[step] += float64(cost.Nanoseconds()) / 1000 / float64(n*cycles)
		}
		if err := g.shrink(ctx, n); err != nil { // two steps stored as many, one cancelled
			return nil, err
		}
	}
	return costs, nil
}

// step takes n jobs through a step and returns what that costs Redis.
func (g *growing) step(ctx context.Context, step string, n int) (time.Duration, error) {
	switch step {
	case stepEnqueue:
		return g.cost(ctx, func() error { return g.grow(ctx, n, oneDelay) })
	case stepScatter:
		return g.cost(ctx, func() error { return g.grow(ctx, n, anyDelay) })
	case stepRun:
		return g.run(ctx, n)
	case stepCancel:
		return g.cost(ctx, func() error { return g.shrink(ctx, n) })
	default:
		return 0, fmt.Errorf("unknown step %q", step)
	}
}
