package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq"
)

// scheduleLead is from where schedules are set to their first slot. All of them
// must have been set by then.
func scheduleLead(s sizes) time.Duration { return max(s.every/2, 500*time.Millisecond) }

// setSchedules sets n schedules with one call. The first slots are at start, or
// spread over the span that follows it.
func setSchedules(ctx context.Context, p peer, n int, every time.Duration, start time.Time, span time.Duration) error {
	batch, payload := make([]delayq.NewSchedule, n), newPayload()
	for i := range batch {
		first := start.Add(span * time.Duration(i) / time.Duration(n))
		batch[i] = delayq.NewSchedule{
			Topic: topic, Name: "s" + strconv.Itoa(i), Spec: delayq.Every(every), Payload: payload,
			Options: []delayq.ScheduleOption{delayq.StartAt(first)},
		}
	}
	_, err := p.(*delayqPeer).client.ScheduleBatch(ctx, batch)
	return err
}

// setSchedulesAlone is the same with single calls from 64 goroutines.
func setSchedulesAlone(ctx context.Context, p peer, n int, every time.Duration, start time.Time, span time.Duration) error {
	client, payload := p.(*delayqPeer).client, newPayload()
	return inParallel(ctx, callers, n, func(ctx context.Context, i int, _ []byte) error {
		first := start.Add(span * time.Duration(i) / time.Duration(n))
		return client.Schedule(ctx, topic, "s"+strconv.Itoa(i), delayq.Every(every), payload, delayq.StartAt(first))
	})
}

// slots measures what the slots of many schedules cost Redis, and how late
// their jobs start. The slots of a period are at one time, or spread over it.
func slots(spread bool) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		const concurrency = 64
		if err := b.warmUp(ctx, p, concurrency); err != nil {
			return nil, err
		}
		n := b.sizes.schedules * b.sizes.periods
		late := make([]atomic.Int64, n)
		var count atomic.Int64
		done := make(chan time.Time, 1)
		stop, err := p.work(ctx, workload{plain: true, topics: []topicWork{{topic, concurrency, func(d delivery) {
			i := int(count.Add(1)) - 1
			if i < n {
				late[i].Store(int64(d.late))
			}
			if i == n-1 {
				done <- time.Now()
			}
		}}}})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		start := time.Now().Add(scheduleLead(b.sizes)).Truncate(time.Millisecond)
		if err := setSchedules(ctx, p, b.sizes.schedules, b.sizes.every, start, spanOf(b.sizes, spread)); err != nil {
			return nil, err
		}
		return b.fired(ctx, start, n, func() ([]time.Duration, error) {
			select {
			case <-done:
			case <-time.After(b.sizes.every*time.Duration(b.sizes.periods) + patience):
				return nil, fmt.Errorf("%d of %d jobs of schedules have run", count.Load(), n)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			all := make([]time.Duration, n)
			for i := range late {
				all[i] = time.Duration(late[i].Load())
			}
			return all, nil
		})
	}
}

// spanOf is what the slots of a period are spread over.
func spanOf(s sizes, spread bool) time.Duration {
	if spread {
		return s.every
	}
	return 0
}

// fired measures n jobs of schedules that have been set, from the first slot to
// the last start. wait waits for that and says how late they were.
func (b *bench) fired(ctx context.Context, start time.Time, n int, wait func() ([]time.Duration, error)) (sample, error) {
	if over := time.Since(start); over > 0 {
		b.notef("setting the schedules ended %s after the first slot: do not trust this row", over.Round(time.Millisecond))
	}
	if err := until(ctx, start); err != nil {
		return nil, err
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	late, err := wait()
	if err != nil {
		return nil, err
	}
	result, err := m.stop(ctx, n, time.Since(m.at))
	if err != nil {
		return nil, err
	}
	result[figRedis] = result[figRate] * result[figCPU] / 1e4
	delete(result, figRate) // it is the given one
	addLateness(result, late)
	return result, nil
}

// bullmqSlots is slots.
func bullmqSlots(spread bool) side {
	return bullmqSide(func(ctx context.Context, b *bench, c *bullmqChild) (sample, error) {
		const concurrency = 64
		if err := c.warmWork(ctx, b, payloadSize); err != nil {
			return nil, err
		}
		n := b.sizes.schedules * b.sizes.periods
		_, err := c.do(request{Do: "work", Topics: []string{topic}, N: n, Concurrency: concurrency, Slots: true})
		if err != nil {
			return nil, err
		}
		start := time.Now().Add(scheduleLead(b.sizes)).Truncate(time.Millisecond)
		if _, err := c.do(scheduleRequest(b.sizes, start, spanOf(b.sizes, spread))); err != nil {
			return nil, err
		}
		return b.fired(ctx, start, n, func() ([]time.Duration, error) {
			if _, err := c.do(request{Do: "wait"}); err != nil {
				return nil, err
			}
			seen, err := c.do(request{Do: "seen"})
			return spansOf(seen.Late[:min(n, len(seen.Late))]), err
		})
	})
}

// scheduleRequest sets schedules from 64 callers.
func scheduleRequest(s sizes, start time.Time, span time.Duration) request {
	return request{
		Do: "schedule", Callers: callers, N: s.schedules, Size: payloadSize,
		Every: s.every.Milliseconds(), At: instant(start), Span: span.Milliseconds(),
	}
}

// setter sets schedules, as setSchedules does.
type setter = func(ctx context.Context, p peer, n int, every time.Duration, start time.Time, span time.Duration) error

// settingSchedules measures how fast schedules are set.
func settingSchedules(with setter) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (sample, error) {
		n := b.sizes.schedules
		set := func(n int) error { return with(ctx, p, n, delay, time.Now().Add(delay), delay) }
		if err := set(min(b.sizes.warm, n)); err != nil {
			return nil, err
		}
		if err := b.reset(ctx, p); err != nil {
			return nil, err
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		if err := set(n); err != nil {
			return nil, err
		}
		return m.stop(ctx, n, time.Since(m.at))
	}
}

// bullmqSetting is settingSchedules.
func bullmqSetting(ctx context.Context, b *bench, c *bullmqChild) (sample, error) {
	set := scheduleRequest(b.sizes, time.Now().Add(delay), delay)
	set.Every = delay.Milliseconds()
	if err := c.warm(ctx, b, set, min(b.sizes.warm, b.sizes.schedules)); err != nil {
		return nil, err
	}
	return c.metered(ctx, b, set)
}

// checked measures a check of a topic with many schedules and no job: its
// longest script.
func checked(ctx context.Context, b *bench, p peer) (sample, error) {
	n := b.sizes.schedules
	if err := setSchedules(ctx, p, n, delay, time.Now().Add(delay), delay); err != nil {
		return nil, err
	}
	scripts, err := watchScripts(ctx, b.store.admin)
	if err != nil {
		return nil, err
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	found, err := inspector(p).Check(ctx, topic)
	took := time.Since(m.at)
	longest, slow, scriptErr := scripts()
	if err := errors.Join(err, scriptErr); err != nil {
		return nil, err
	}
	if len(found.Found) > 0 {
		return nil, fmt.Errorf("a check of sound schedules has found %v", found.Found)
	}
	result, err := m.stop(ctx, n, took)
	if err != nil {
		return nil, err
	}
	result[figSlowScripts], result[figLongestScript] = float64(slow), milliseconds(longest)
	return result, nil
}

// scheduleRows are the rows with many schedules. asynq's scheduler keeps its
// schedules in one process.
func scheduleRows() []row {
	slice := []target{atMost(figCPU, 100), atMost(figP99, 5), atMost(figEarly, 0)}
	return []row{
		{
			id: "schedules/spread", title: "schedules (10,000) that fire every 10 s, spread over them",
			sides:   []side{delayqProduct.on(slots(true)), bullmqSlots(true)},
			targets: slice,
		},
		{
			id: "schedules/slot", title: "the same, all in one slot",
			sides:   []side{delayqProduct.on(slots(false)), bullmqSlots(false)},
			targets: []target{timesAtMost(figCPU, 1), timesAtMost(figP99, 1), atMost(figEarly, 0)},
		},
		{
			id: "schedules/set", title: "setting schedules (10,000) with one call, beside single ones",
			sides:   []side{delayqProduct.on(settingSchedules(setSchedules)), bullmqSide(bullmqSetting)},
			targets: []target{timesAtLeast(figRate, 2)},
		},
		{
			id: "schedules/set/64", title: "setting schedules (10,000) with single calls, 64 goroutines",
			sides:   []side{delayqProduct.on(settingSchedules(setSchedulesAlone)), bullmqSide(bullmqSetting)},
			targets: []target{timesAtLeast(figRate, 1)},
		},
		{
			id: "schedules/check", title: "a check of a topic with schedules (10,000)",
			sides:   []side{delayqProduct.on(checked)},
			targets: []target{atMost(figLongestScript, 2)},
		},
	}
}
