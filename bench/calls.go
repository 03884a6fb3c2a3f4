package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

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

// applied measures how fast an Apply cancels scheduled jobs, and what another
// client feels meanwhile: the time of single scripts by Redis's own slow log,
// and the time of a PING from another process.
func applied(ctx context.Context, b *bench, p peer) (sample, error) {
	n := b.sizes.apply
	store := func(count int) error {
		if err := b.reset(ctx, p); err != nil {
			return err
		}
		return fill(ctx, p, topic, 0, count, func(i int) job { return job{id: storedID(i), in: delay} })
	}
	cancelled := func(want int) error {
		q := delayq.Query{Topic: topic, State: delayq.StateScheduled}
		sum, err := p.(*delayqPeer).client.Apply(ctx, q, delayq.Cancel()) // a new client after each reset
		if err == nil && sum.Done != int64(want) {
			err = fmt.Errorf("cancelled %d of %d jobs", sum.Done, want)
		}
		return err
	}
	if err := store(b.sizes.warm); err != nil {
		return nil, err
	}
	if err := cancelled(b.sizes.warm); err != nil {
		return nil, fmt.Errorf("warm up: %w", err)
	}
	if err := store(n); err != nil {
		return nil, err
	}
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
	err = cancelled(n)
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
	return result, b.wantLeft(ctx, p, 0)
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
	return []row{
		{
			id: "cancel", title: "cancel scheduled jobs, 64 goroutines, single calls",
			sides:   append(both(cancelAll), bullmqSide(bullmqCancel)),
			targets: []target{atLeast(figRate, 150_000), atMost(figCPU, 5)},
		},
		{
			id: "apply", title: "cancel a million scheduled jobs with one Apply: rate, and what others feel",
			sides:   []side{delayqProduct.on(applied)},
			targets: []target{atLeast(figRate, 100_000), atMost(figPing, 5)},
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
