package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq"
)

// callPatience is how long all calls of a row may take together.
const callPatience = 10 * time.Minute

// handling runs a server whose handler gets jobs, and not only their payloads.
// The function it returns stops it.
func (p *delayqPeer) handling(ctx context.Context, concurrency int, handle delayq.HandlerFunc) (stop func() error) {
	return p.serving(ctx, concurrency, map[string]delayq.HandlerFunc{topic: handle})
}

// serving is handling with a handler for each of some topics.
func (p *delayqPeer) serving(ctx context.Context, concurrency int, handlers map[string]delayq.HandlerFunc) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	rdb := p.store.serverClient(0)
	server := delayq.NewServer(rdb, delayqPrefix, delayq.Logger(quiet()))
	for topic, handle := range handlers {
		server.HandlerFunc(topic, handle, delayq.Concurrency(concurrency))
	}
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(server.Run(ctx), rdb.Close()) }()
	return func() error {
		cancel()
		if err := <-ended; err != nil {
			return fmt.Errorf("run delayq server: %w", err)
		}
		return nil
	}
}

// calling measures Call from that many goroutines: from the call to the result,
// which is the payload.
func calling(goroutines int, count func(sizes) int) side {
	return delayqProduct.on(func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		q := p.(*delayqPeer)
		stop := q.handling(ctx, callers, func(_ context.Context, job *delayq.Job) error { return job.SetOutput(job.Payload) })
		defer func() { err = errors.Join(err, stop()) }()
		ctx, cancel := context.WithTimeout(ctx, callPatience)
		defer cancel()
		n := count(b.sizes)
		took := make([]time.Duration, n)
		call := func(ctx context.Context, i int, payload []byte) error {
			fillPayload(payload, i, time.Time{})
			began := time.Now()
			got, err := q.client.Call(ctx, topic, "", payload)
			if err == nil && string(got.Output) != string(payload) {
				err = fmt.Errorf("an output of %d bytes instead of the payload", len(got.Output))
			}
			took[i] = time.Since(began)
			return err
		}
		if err := inParallel(ctx, goroutines, min(b.sizes.warm, n), call); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		if err := inParallel(ctx, goroutines, n, call); err != nil {
			return nil, err
		}
		result, err := m.stop(ctx, n, time.Since(m.at))
		if err != nil {
			return nil, err
		}
		slices.Sort(took)
		return addTrips(result, took), b.wantLeft(ctx, p, 0)
	})
}

// addTrips adds the times of calls, the shortest first.
func addTrips(result sample, took []time.Duration) sample {
	result[figTripP50], result[figTripP99] = milliseconds(percentile(took, 50)), milliseconds(percentile(took, 99))
	return result
}

// bullmqCalling measures add and waitUntilFinished.
func bullmqCalling(callers int, count func(sizes) int) side {
	return bullmqSide(func(ctx context.Context, b *bench, c *bullmqChild) (sample, error) {
		n := count(b.sizes)
		call := request{Do: "call", Callers: callers, N: min(b.sizes.warm, n), Size: payloadSize}
		if err := c.each(request{Do: "answer", Concurrency: 64}, call); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		call.N = n
		got, err := c.do(call)
		if err != nil {
			return nil, err
		}
		result, err := m.stop(ctx, n, time.Since(m.at))
		if err != nil {
			return nil, err
		}
		return addTrips(result, spansOf(got.Waits)), c.wantLeft(ctx, 0)
	})
}

// stepping measures how fast ready jobs are worked off whose handlers make that
// many steps.
func stepping(label string, steps int) side {
	return product{label, delayqProduct.open}.on(func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		t := newTally(b.sizes.stepped)
		if err := b.warmUp(ctx, p, callers); err != nil {
			return nil, err
		}
		if err := fill(ctx, p, topic, 0, t.n, ready); err != nil {
			return nil, err
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		nothing := func(context.Context, string) (int, error) { return 0, nil }
		stop := p.(*delayqPeer).handling(ctx, callers, func(ctx context.Context, job *delayq.Job) error {
			for i := range steps {
				if _, err := delayq.Step(ctx, job, strconv.Itoa(i), nothing); err != nil {
					return err
				}
			}
			t.note(payloadIndex(job.Payload))
			return nil
		})
		defer func() { err = errors.Join(err, stop()) }()
		return b.finish(ctx, p, m, t, m.at)
	})
}

// reporters is how many jobs run in the row about progress, and reportEvery how
// often each of them says how far it has come.
const (
	reporters   = 500
	reportEvery = 100 * time.Millisecond
)

// progressing measures what Redis does for jobs that run, and that say how far
// they have come or do not: a job of the figures is a job that has run for a
// second.
func progressing(label string, says bool) side {
	return product{label, delayqProduct.open}.on(func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		if err := fill(ctx, p, topic, 0, reporters, ready); err != nil {
			return nil, err
		}
		var begun sync.WaitGroup
		begun.Add(reporters)
		over := make(chan struct{})
		stop := p.(*delayqPeer).handling(ctx, reporters, func(_ context.Context, job *delayq.Job) error {
			begun.Done()
			tick := time.NewTicker(reportEvery)
			defer tick.Stop()
			for i := int64(1); ; i++ {
				if says {
					if err := job.Progress(i, 1000, "part "+strconv.FormatInt(i, 10)); err != nil {
						return err
					}
				}
				select {
				case <-tick.C:
				case <-over:
					return nil
				}
			}
		})
		ended := sync.OnceFunc(func() { close(over) })
		defer func() {
			ended()
			err = errors.Join(err, stop())
		}()
		begun.Wait()
		if err := sleep(ctx, 2*time.Second); err != nil { // until all is steady
			return nil, err
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		if err := sleep(ctx, b.sizes.progressSpan); err != nil {
			return nil, err
		}
		took := time.Since(m.at)
		result, err := m.stop(ctx, int(reporters*took.Seconds()), took)
		delete(result, figRate) // it is the given one
		ended()
		return result, errors.Join(err, settled(ctx, p, topic))
	})
}

// besideNotes measures work/64 in a topic with that many further jobs, which
// are due in an hour and have a step each.
func besideNotes(label string, others int) side {
	return product{label, delayqProduct.open}.on(func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		q, t := p.(*delayqPeer), newTally(b.sizes.stepped)
		if err := b.warmUp(ctx, p, callers); err != nil {
			return nil, err
		}
		if err := q.noted(ctx, others); err != nil {
			return nil, err
		}
		if err := fill(ctx, p, topic, 0, t.n, ready); err != nil {
			return nil, err
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		stop, err := p.work(ctx, workload{topics: []topicWork{{topic, callers, t.handle}}})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		last, err := t.wait(ctx)
		if err != nil {
			return nil, err
		}
		err = untilNone(ctx, topic, func() (int, error) {
			left, err := p.left(ctx, topic)
			return left - others, err
		})
		if err != nil {
			return nil, err
		}
		result, err := m.stop(ctx, t.n, last.Sub(m.at))
		return result, errors.Join(err, t.check())
	})
}

// noted leaves jobs with a step, which are due in an hour.
func (p *delayqPeer) noted(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}
	if err := fill(ctx, p, topic, 0, n, ready); err != nil {
		return err
	}
	var left atomic.Int64
	left.Store(int64(n))
	all := make(chan struct{})
	stop := p.handling(ctx, callers, func(ctx context.Context, job *delayq.Job) error {
		_, err := delayq.Step(ctx, job, "step", func(context.Context, string) (int, error) { return 0, nil })
		if err != nil {
			return err
		}
		if left.Add(-1) == 0 {
			close(all)
		}
		return delayq.Snooze(delay)
	})
	select {
	case <-all:
	case <-time.After(patience):
		return errors.Join(errors.New("not all jobs have made their step"), stop())
	}
	return stop()
}

// resultRows are the rows about results, steps and progress.
func resultRows() []row {
	const others = 1000
	one := func(s sizes) int { return s.callOne }
	many := func(s sizes) int { return s.calls }
	return []row{
		{
			id: "call/1", title: "enqueue a job and wait for its result, 1 caller; BullMQ: waitUntilFinished",
			sides:   []side{calling(1, one), bullmqCalling(1, one)},
			targets: []target{atMost(figTripP50, 2)},
		},
		{
			id: "call/64", title: "the same, 64 callers",
			sides:   []side{calling(64, many), bullmqCalling(64, many)},
			targets: []target{timesAtLeast(figRate, 1)},
		},
		{
			id: "call/step", title: "work off ready jobs that make a step each, concurrency 64",
			sides:   []side{stepping("1 step", 1), stepping("none", 0), stepping("10 steps", 10)},
			targets: []target{timesAtMost(figCPU, 5)},
		},
		{
			id: "call/progress", title: "500 jobs that run, and say 10 times a second how far they are; per job and second",
			sides:   []side{progressing("progress", true), progressing("none", false)},
			targets: []target{atMost(figCPU, 20)},
		},
		{
			id: "call/beside", title: "work off a ready backlog beside 1,000 jobs that have made a step, concurrency 64",
			sides:   []side{besideNotes("with notes", others), besideNotes("without", 0)},
			targets: []target{timesAtMost(figCPU, 1.3)},
		},
	}
}
