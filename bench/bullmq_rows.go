package main

import (
	"context"
	"fmt"
	"time"
)

// How BullMQ does best here: one worker in one process, with this concurrency
// for handlers that do nothing.
const bullmqConcurrency = 256

// bullmqAdd measures n calls that store a delayed job, or calls that store many
// if there are no callers.
func bullmqAdd(callers, size int, count func(sizes) int) side {
	return bullmqSide(func(ctx context.Context, b *bench, c *bullmqChild) (sample, error) {
		n := count(b.sizes)
		add := request{Do: "add", Callers: callers, Size: size, Delay: delay.Milliseconds()}
		if err := c.warm(ctx, b, add, max(min(b.sizes.warm, n), callers)); err != nil {
			return nil, err
		}
		add.N = n
		result, err := c.metered(ctx, b, add)
		if err != nil {
			return nil, err
		}
		return result, c.wantLeft(ctx, n)
	})
}

// warm has the child do r for n jobs, and leaves an empty Redis.
func (c *bullmqChild) warm(ctx context.Context, b *bench, r request, n int) error {
	r.N = n
	if _, err := c.do(r); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	return b.store.flush(ctx)
}

// metered measures r from the request to the answer.
func (c *bullmqChild) metered(ctx context.Context, b *bench, r request) (sample, error) {
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	if _, err := c.do(r); err != nil {
		return nil, err
	}
	return m.stop(ctx, r.N, time.Since(m.at))
}

// wantLeft returns an error unless the topic holds exactly n unfinished jobs.
func (c *bullmqChild) wantLeft(ctx context.Context, n int) error {
	left, err := c.left(ctx, topic)
	if err == nil && left != n {
		err = fmt.Errorf("bullmq: %d unfinished jobs in Redis where %d were stored", left, n)
	}
	return err
}

// warmWork stores and works off a few jobs, and leaves an empty Redis.
func (c *bullmqChild) warmWork(ctx context.Context, b *bench, size int) error {
	n := b.sizes.warm
	err := c.each(
		request{Do: "add", N: n, Size: size},
		request{Do: "work", Topics: []string{topic}, N: n, Concurrency: bullmqConcurrency},
		request{Do: "wait"}, request{Do: "stop"},
	)
	if err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	return b.store.flush(ctx)
}

// ran waits for the end of all jobs and reads the meter. The rate counts from
// start.
func (c *bullmqChild) ran(ctx context.Context, m *meter, n int, start time.Time) (sample, error) {
	got, err := c.do(request{Do: "wait"})
	if err != nil {
		return nil, err
	}
	if err := c.settled(ctx, topic); err != nil {
		return nil, err
	}
	result, err := m.stop(ctx, n, instantOf(got.Last).Sub(start))
	if err != nil {
		return nil, err
	}
	if got.Doubled > 0 || got.Strange > 0 {
		return nil, fmt.Errorf("bullmq: %d jobs came twice, %d deliveries were of no job of this row", got.Doubled, got.Strange)
	}
	return result, nil
}

// settled waits until the topic has no unfinished job.
func (c *bullmqChild) settled(ctx context.Context, topic string) error {
	return untilNone(ctx, topic, func() (int, error) { return c.left(ctx, topic) })
}

// bullmqWork measures how fast ready jobs are worked off by handlers that take
// that long, from before the worker is started to the last handler.
func bullmqWork(concurrency int, takes time.Duration, size int, count func(sizes) int) side {
	return bullmqSide(func(ctx context.Context, b *bench, c *bullmqChild) (sample, error) {
		n := count(b.sizes)
		if err := c.warmWork(ctx, b, size); err != nil {
			return nil, err
		}
		if _, err := c.do(request{Do: "add", N: n, Size: size}); err != nil {
			return nil, err
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		_, err = c.do(request{Do: "work", Topics: []string{topic}, N: n, Concurrency: concurrency, Takes: milliseconds(takes)})
		if err != nil {
			return nil, err
		}
		result, err := c.ran(ctx, m, n, m.at)
		if err != nil {
			return nil, err
		}
		if takes > 0 { // Node's timers are late, so the share is that of the time asked for
			result[figBusy] = 100 * result[figRate] * takes.Seconds() / float64(concurrency)
		}
		_, err = c.do(request{Do: "stop"})
		return result, err
	})
}

// bullmqDue is workDue.
func bullmqDue(count func(sizes) int) side {
	return bullmqSide(func(ctx context.Context, b *bench, c *bullmqChild) (sample, error) {
		n := count(b.sizes)
		if err := c.warmWork(ctx, b, payloadSize); err != nil {
			return nil, err
		}
		second, err := b.dueSecond(n, func(n int, second time.Time) error {
			if err := b.store.flush(ctx); err != nil {
				return err
			}
			_, err := c.do(request{Do: "add", N: n, Size: payloadSize, At: instant(second)})
			return err
		})
		if err != nil {
			return nil, err
		}
		_, err = c.do(request{Do: "work", Topics: []string{topic}, N: n, Concurrency: bullmqConcurrency})
		if err != nil {
			return nil, err
		}
		if err := until(ctx, second.Add(-meterLead)); err != nil {
			return nil, err
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		return c.ran(ctx, m, n, second)
	})
}

// bullmqLife is wholeLife.
func bullmqLife(ctx context.Context, b *bench, c *bullmqChild) (sample, error) {
	const goroutines = 64
	n := b.sizes.life
	if err := c.warmWork(ctx, b, payloadSize); err != nil {
		return nil, err
	}
	_, err := c.do(request{Do: "work", Topics: []string{topic}, N: n, Concurrency: bullmqConcurrency})
	if err != nil {
		return nil, err
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	_, err = c.do(request{Do: "add", Callers: goroutines, N: n, Size: payloadSize, Delay: lifeDelay.Milliseconds()})
	if err != nil {
		return nil, err
	}
	result, err := c.ran(ctx, m, n, m.at)
	delete(result, figRate) // says only how long the delay was
	return result, err
}

// bullmqMemory is memoryPerJob.
func bullmqMemory(ctx context.Context, b *bench, c *bullmqChild) (sample, error) {
	n := b.sizes.memory
	add := request{Do: "add", Size: payloadSize, Delay: delay.Milliseconds()}
	if err := c.warm(ctx, b, add, b.sizes.warm); err != nil { // loads the scripts
		return nil, err
	}
	empty, err := b.store.memory(ctx)
	if err != nil {
		return nil, err
	}
	add.N = n
	if _, err := c.do(add); err != nil {
		return nil, err
	}
	full, err := b.store.memory(ctx)
	if err != nil {
		return nil, err
	}
	return sample{figMemory: float64(full-empty) / float64(n)}, c.wantLeft(ctx, n)
}

// bullmqLate is lateness. Due times are in ms, by the wall clock.
func bullmqLate(load bool) side {
	return bullmqSide(func(ctx context.Context, b *bench, c *bullmqChild) (sample, error) {
		const concurrency = 64
		n := b.sizes.lateJobs
		if err := c.warmWork(ctx, b, payloadSize); err != nil {
			return nil, err
		}
		topics := []string{topic}
		if load {
			topics = append(topics, loadTopic)
		}
		span := b.sizes.lateSpan.Milliseconds()
		err := c.each(
			request{Do: "work", Topics: topics, N: n, Concurrency: concurrency},
			request{Do: "add", N: n, Size: payloadSize, At: instant(time.Now().Add(time.Second)), Span: span},
		)
		if err != nil {
			return nil, err
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		var sent reply
		if load {
			err = c.each(
				request{Do: "load", Topic: loadTopic, Rate: b.sizes.loadRate, Size: payloadSize},
				request{Do: "wait"},
			)
			if err == nil {
				sent, err = c.do(request{Do: "endload"})
			}
		} else {
			_, err = c.do(request{Do: "wait"})
		}
		if err != nil {
			return nil, err
		}
		wall := time.Since(m.at)
		if err := c.settled(ctx, topics[len(topics)-1]); err != nil {
			return nil, err
		}
		result, err := m.stop(ctx, n+sent.Sent, wall)
		if err != nil {
			return nil, err
		}
		delete(result, figRate) // it is the given one
		if load {
			result[figLoad] = float64(sent.Sent) / wall.Seconds()
		}
		seen, err := c.do(request{Do: "seen"})
		addLateness(result, spansOf(seen.Late))
		return result, err
	})
}

// bullmqIdle is idle.
func bullmqIdle(ctx context.Context, b *bench, c *bullmqChild) (sample, error) {
	var topics []string
	for i := range idleTopics {
		name := fmt.Sprintf("topic-%d", i)
		topics = append(topics, name)
		err := c.each(
			request{Do: "add", Topic: name, N: 1, Size: payloadSize},
			request{Do: "add", Topic: name, N: 1, Size: payloadSize, Delay: delay.Milliseconds()},
		)
		if err != nil {
			return nil, err
		}
	}
	err := c.each(request{Do: "work", Topics: topics, N: 1, Concurrency: topicSlots}, request{Do: "wait"})
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, b.sizes.idleSettle); err != nil {
		return nil, err
	}
	result := sample{}
	err = b.asksWhenIdle(ctx, result)
	for _, figure := range []string{figConns, figIdleCommands, figIdleBytes} { // of others' connections
		delete(result, figure)
	}
	return result, err
}

// bullmqCancel measures single removals of scheduled jobs.
func bullmqCancel(ctx context.Context, b *bench, c *bullmqChild) (sample, error) {
	n := b.sizes.cancel
	for _, count := range []int{b.sizes.warm, n} {
		add := request{Do: "add", N: count, Size: payloadSize, Delay: delay.Milliseconds(), IDs: true}
		if _, err := c.do(add); err != nil {
			return nil, err
		}
		if count == n {
			break
		}
		if err := c.warm(ctx, b, request{Do: "remove", Callers: callers}, count); err != nil {
			return nil, err
		}
	}
	result, err := c.metered(ctx, b, request{Do: "remove", Callers: callers, N: n})
	if err != nil {
		return nil, err
	}
	return result, c.wantLeft(ctx, 0)
}
