package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/hibiken/asynq"

	"github.com/delayq/delayq"
)

// callers is the number of goroutines of the rows with single calls.
const callers = 64

// storedID is the ID of a job that was stored before the measurement.
func storedID(i int) string { return "stored-" + strconv.Itoa(i) }

// calls stores n scheduled jobs with IDs, and measures n calls of do from 64
// goroutines.
func (b *bench) calls(ctx context.Context, p peer, n int, do func(ctx context.Context, i int, payload []byte) error) (sample, error) {
	warm := b.sizes.warm
	for _, count := range []int{warm, n} {
		if err := b.reset(ctx, p); err != nil {
			return nil, err
		}
		err := fill(ctx, p, topic, 0, count, func(i int) job { return job{id: storedID(i), in: delay} })
		if err != nil {
			return nil, err
		}
		if count == n {
			break
		}
		if err := inParallel(ctx, callers, warm, do); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	if err := inParallel(ctx, callers, n, do); err != nil {
		return nil, err
	}
	return m.stop(ctx, n, time.Since(m.at))
}

// cancelAll measures single cancels of scheduled jobs.
func cancelAll(ctx context.Context, b *bench, p peer) (sample, error) {
	result, err := b.calls(ctx, p, b.sizes.cancel, func(ctx context.Context, i int, _ []byte) error {
		return p.cancel(ctx, topic, storedID(i))
	})
	if err != nil {
		return nil, err
	}
	return result, b.wantLeft(ctx, p, 0)
}

// applied measures how fast scheduled jobs are cancelled all together, and what
// another client feels meanwhile: the time of single scripts by Redis's own
// slow log, and the time of a PING from another process. cancel cancels all.
func applied(count func(sizes) int, cancel func(context.Context, peer) error) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (sample, error) {
		n := count(b.sizes)
		store := func(count int) error {
			if err := b.reset(ctx, p); err != nil {
				return err
			}
			return fill(ctx, p, topic, 0, count, func(i int) job { return job{id: storedID(i), in: delay} })
		}
		if err := store(b.sizes.warm); err != nil {
			return nil, err
		}
		if err := cancel(ctx, p); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
		if err := store(n); err != nil {
			return nil, err
		}
		result, err := b.feltBy(ctx, n, func() error { return cancel(ctx, p) })
		if err != nil {
			return nil, err
		}
		return result, b.wantLeft(ctx, p, 0)
	}
}

// feltBy measures do, which is about n jobs, with its scripts and the PINGs of
// another process.
func (b *bench) feltBy(ctx context.Context, n int, do func() error) (sample, error) {
	scripts, err := watchScripts(ctx, b.store.admin)
	if err != nil {
		return nil, err
	}
	pings, err := startPinger(ctx, b.store.admin.Options().Addr)
	if err != nil {
		return nil, err
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	err = do()
	took := time.Since(m.at)
	result, stopErr := m.stop(ctx, n, took)
	waits, pingErr := pings()
	longest, slow, scriptErr := scripts()
	if err := errors.Join(err, stopErr, pingErr, scriptErr); err != nil {
		return nil, err
	}
	result[figSlowScripts] = float64(slow)
	result[figLongestScript] = float64(longest) / float64(time.Millisecond)
	result[figPing] = float64(percentile(waits, 99)) / float64(time.Millisecond)
	result[figPingWorst] = float64(waits[len(waits)-1]) / float64(time.Millisecond)
	return result, nil
}

// applyCancel cancels with one Apply.
func applyCancel(ctx context.Context, p peer) error {
	q := delayq.Query{Topic: topic, State: delayq.StateScheduled}
	_, err := p.(*delayqPeer).client.Apply(ctx, q, delayq.Cancel()) // a new client after each reset
	return err
}

// asynqDelete deletes all scheduled tasks with one call.
func asynqDelete(_ context.Context, p peer) error {
	_, err := asynq.NewInspectorFromRedisClient(p.(*asynqPeer).rdb).DeleteAllScheduledTasks(topic)
	return err
}

// bullmqDrain removes all scheduled jobs with one call.
func bullmqDrain(ctx context.Context, b *bench, c *bullmqChild) (sample, error) {
	n := b.sizes.applyFew
	add := request{Do: "add", N: b.sizes.warm, Size: payloadSize, Delay: delay.Milliseconds(), IDs: true}
	drain := request{Do: "drain"}
	if err := c.each(add, drain); err != nil {
		return nil, fmt.Errorf("warm up: %w", err)
	}
	add.N = n
	if _, err := c.do(add); err != nil {
		return nil, err
	}
	result, err := b.feltBy(ctx, n, func() error { return c.each(drain) })
	if err != nil {
		return nil, err
	}
	return result, c.wantLeft(ctx, 0)
}

// mixed measures calls of five kinds, each as likely as any other: Enqueue of a
// new job, and Dequeue, Reschedule, Get and Replace of a random stored one,
// which a Dequeue may have removed before.
func mixed(ctx context.Context, b *bench, p peer) (sample, error) {
	client := func() *delayq.Client { return p.(*delayqPeer).client } // a new one after each reset
	n := b.sizes.mix
	return b.calls(ctx, p, n, func(ctx context.Context, i int, payload []byte) error {
		fillPayload(payload, i, time.Time{})
		c, id := client(), storedID(rand.IntN(n))
		var err error
		switch rand.IntN(5) {
		case 0:
			_, err = c.Enqueue(ctx, topic, "new-"+strconv.Itoa(i), payload, delayq.ProcessIn(delay))
		case 1:
			_, err = c.Dequeue(ctx, topic, id)
		case 2:
			err = c.Reschedule(ctx, topic, id, delayq.ProcessIn(2*delay))
		case 3:
			_, err = c.Get(ctx, topic, id)
		case 4:
			_, err = c.Enqueue(ctx, topic, id, payload, delayq.ProcessIn(delay), delayq.Replace())
		}
		if errors.Is(err, delayq.ErrNotFound) {
			return nil
		}
		return err
	})
}

// unmixed measures nothing but Enqueue of new jobs, with the same jobs stored
// before as for mixed.
func unmixed(ctx context.Context, b *bench, p peer) (sample, error) {
	return b.calls(ctx, p, b.sizes.mix, func(ctx context.Context, i int, payload []byte) error {
		fillPayload(payload, i, time.Time{})
		return p.enqueue(ctx, topic, job{id: "new-" + strconv.Itoa(i), payload: payload, in: delay})
	})
}

// callRows are the rows with single calls other than Enqueue.
func callRows() []row {
	few := func(s sizes) int { return s.applyFew }
	return []row{
		{
			id: "cancel", title: "cancel scheduled jobs, 64 goroutines, single calls",
			sides:   append(both(cancelAll), bullmqSide(bullmqCancel)),
			targets: []target{atLeast(figRate, 150_000), atMost(figCPU, 5)},
		},
		{
			id: "apply", title: "cancel a million scheduled jobs with one Apply: rate, and what others feel",
			sides:   []side{delayqProduct.on(applied(func(s sizes) int { return s.apply }, applyCancel))},
			targets: []target{atLeast(figRate, 100_000), atMost(figPing, 5)},
		},
		{
			id: "apply/few", title: "the same of 100,000; asynq and BullMQ: in one script",
			sides: []side{
				delayqProduct.on(applied(few, applyCancel)), asynqProduct.on(applied(few, asynqDelete)), bullmqSide(bullmqDrain),
			},
			targets: []target{atLeast(figRate, 150_000), atMost(figSlowScripts, 0)},
		},
		{
			id: "mix", title: "five kinds of calls at random, 64 goroutines, against nothing but Enqueue",
			sides: []side{
				product{"mix", delayqProduct.open}.on(mixed),
				product{"enqueue", delayqProduct.open}.on(unmixed),
			},
			targets: []target{timesAtLeast(figRate, 0.7)},
		},
	}
}
