package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// loadTopic is the topic of the jobs that run beside those whose lateness is
// measured.
const loadTopic = "load"

// lateness measures how late jobs with random due times start, on peers with
// default intervals: ours by Redis's clock, which is what our due times are
// in, asynq by the wall clock. With load, jobs of another topic that are due
// at once run meanwhile, sizes.loadRate each second. The first due time is lead
// away, in which all jobs are stored.
func lateness(load bool, lead time.Duration) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		const concurrency = 64
		if err := b.warmUp(ctx, p, concurrency); err != nil {
			return nil, err
		}
		t := newTally(b.sizes.lateJobs)
		late := make([]time.Duration, t.n)
		var loaded, early atomic.Int64
		topics := []topicWork{{topic, concurrency, func(d delivery) {
			if i := payloadIndex(d.payload); i >= 0 && i < t.n {
				late[i] = d.late
			}
			if b.store.ours && time.Since(payloadDue(d.payload)) < 0 {
				early.Add(1)
			}
			t.handle(d)
		}}}
		if load {
			topics = append(topics, topicWork{loadTopic, concurrency, func(delivery) { loaded.Add(1) }})
		}
		stop, err := p.work(ctx, workload{topics: topics, plain: true})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		start := time.Now().Add(lead)
		err = fill(ctx, p, topic, 0, t.n, func(int) job {
			return job{at: start.Add(rand.N(b.sizes.lateSpan))}
		})
		if err != nil {
			return nil, err
		}
		if over := time.Since(start); over > 0 {
			b.notef("storing the jobs ended %s after the first were due: do not trust this row", over.Round(time.Millisecond))
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		endLoad := func() (int64, error) { return 0, nil }
		if load {
			endLoad = startLoad(ctx, p, b.sizes.loadRate)
		}
		_, err = t.wait(ctx)
		sent, loadErr := endLoad()
		if err := errors.Join(err, loadErr); err != nil {
			return nil, err
		}
		wall := time.Since(m.at)
		if load {
			if err := settled(ctx, p, loadTopic); err != nil {
				return nil, err
			}
			if got := loaded.Load(); got != sent {
				return nil, fmt.Errorf("%d jobs of load stored, %d handled", sent, got)
			}
		}
		result, err := m.stop(ctx, t.n+int(sent), wall)
		if err != nil {
			return nil, err
		}
		if load {
			result[figLoad] = float64(sent) / wall.Seconds()
		}
		delete(result, figRate) // it is the given one
		addLateness(result, late)
		// What a library says of itself is not enough: on one machine Redis's
		// clock is ours.
		result[figEarly] = max(result[figEarly], float64(early.Load()))
		return result, t.check()
	}
}

// addLateness adds the figures of lateness to result.
func addLateness(result sample, late []time.Duration) {
	slices.Sort(late)
	early, _ := slices.BinarySearch(late, 0)
	result[figEarly] = float64(early)
	result[figFirst] = milliseconds(late[0])
	result[figP50] = milliseconds(percentile(late, 50))
	result[figP99] = milliseconds(percentile(late, 99))
	result[figWorst] = milliseconds(late[len(late)-1])
}

// milliseconds is d in ms.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// startLoad stores jobs that are due at once at a steady rate, until the
// function it returns is called, which says how many were stored.
func startLoad(ctx context.Context, p peer, perSecond int) (end func() (int64, error)) {
	const goroutines = 8
	interval := time.Second * goroutines / time.Duration(perSecond)
	var (
		wg   sync.WaitGroup
		sent atomic.Int64
		errs [goroutines]error
		quit = make(chan struct{})
	)
	for g := range goroutines {
		wg.Go(func() {
			payload := newPayload()
			fillPayload(payload, 0, time.Now())
			// The next time is counted on from the last one, not from now:
			// who was held up catches up.
			next := time.Now().Add(interval * time.Duration(g) / goroutines)
			for {
				select {
				case <-quit:
					return
				case <-time.After(time.Until(next)):
				}
				if errs[g] = p.enqueue(ctx, loadTopic, job{payload: payload}); errs[g] != nil {
					return
				}
				sent.Add(1)
				next = next.Add(interval)
			}
		})
	}
	return func() (int64, error) {
		close(quit)
		wg.Wait()
		if err := firstCause(errs[:]); err != nil {
			return 0, fmt.Errorf("load: %w", err)
		}
		return sent.Load(), nil
	}
}

// idleTopics is the number of topics of an idle server.
const idleTopics = 10

// idle measures how many commands a second a server sends that has ten topics,
// nothing due in any of them, one job far in the future in each.
func idle(ctx context.Context, b *bench, p peer) (_ sample, err error) {
	var works []topicWork
	t := newTally(idleTopics)
	for i := range idleTopics {
		name := fmt.Sprintf("topic-%d", i)
		works = append(works, topicWork{name, 10, t.handle})
		if err := fill(ctx, p, name, i, i+1, ready); err != nil {
			return nil, err
		}
		if err := fill(ctx, p, name, idleTopics, idleTopics+1, func(int) job { return job{in: delay} }); err != nil {
			return nil, err
		}
	}
	stop, err := p.work(ctx, workload{topics: works, plain: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if _, err := t.wait(ctx); err != nil {
		return nil, err
	}
	if err := sleep(ctx, b.sizes.idleSettle); err != nil {
		return nil, err
	}
	result := sample{}
	return result, errors.Join(b.asksWhenIdle(ctx, result), t.check())
}
