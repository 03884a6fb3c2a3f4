package main

import (
	"context"
	"strconv"
	"time"

	"github.com/delayq/delayq"
)

// each measures single calls of do from 64 goroutines, beside as many stored
// jobs with IDs.
func each(do func(ctx context.Context, c *delayq.Client, i int, payload []byte) error) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (sample, error) {
		return b.calls(ctx, p, b.sizes.mix, func(ctx context.Context, i int, payload []byte) error {
			fillPayload(payload, i, time.Time{})
			return do(ctx, p.(*delayqPeer).client, i, payload) // a new client after each reset
		})
	}
}

// enqueueWith measures Enqueue with options, of new IDs or of those that have a
// job.
func enqueueWith(fresh bool, opts ...delayq.JobOption) func(context.Context, *bench, peer) (sample, error) {
	return each(func(ctx context.Context, c *delayq.Client, i int, payload []byte) error {
		id := storedID(i)
		if fresh {
			id = "new-" + strconv.Itoa(i)
		}
		_, err := c.Enqueue(ctx, topic, id, payload, opts...)
		return err
	})
}

// cancelWith measures Dequeue with options.
func cancelWith(opts ...delayq.DequeueOption) func(context.Context, *bench, peer) (sample, error) {
	return each(func(ctx context.Context, c *delayq.Client, i int, _ []byte) error {
		_, err := c.Dequeue(ctx, topic, storedID(i), opts...)
		return err
	})
}

// optionRows are the rows of what one ID can be told. Each side is compared
// with the second one, the plain call.
func optionRows() []row {
	in := delayq.ProcessIn(delay)
	on := func(label string, measure func(context.Context, *bench, peer) (sample, error)) side {
		return product{label, delayqProduct.open}.on(measure)
	}
	plan := make([]time.Time, 4)
	for i := range plan {
		plan[i] = time.Now().Add(time.Duration(i+23) * 24 * time.Hour)
	}
	return []row{
		{
			id: "options/new", title: "enqueue a job with an ID of its own, 64 goroutines, single calls",
			sides: []side{
				on("UniqueFor", enqueueWith(true, in, delayq.UniqueFor(delay))),
				on("plain", enqueueWith(true, in)),
				on("Debounce", enqueueWith(true, delayq.Debounce(delay, 2*delay))),
				on("Latest", enqueueWith(true, in, delayq.Latest())),
				on("ProcessAtEach", enqueueWith(true, delayq.ProcessAtEach(plan...))),
			},
			targets: []target{timesAtMost(figCPU, 2)},
		},
		{
			id: "options/again", title: "enqueue a job whose ID has a scheduled one, 64 goroutines, single calls",
			sides: []side{
				on("Debounce", enqueueWith(false, delayq.Debounce(delay, 2*delay))),
				on("Replace", enqueueWith(false, in, delayq.Replace())),
				on("Latest", enqueueWith(false, in, delayq.Latest())),
				on("UnlessRunning", enqueueWith(false, in, delayq.Replace(), delayq.UnlessRunning())),
			},
			targets: []target{timesAtMost(figCPU, 2)},
		},
		{
			id: "options/cancel", title: "cancel a scheduled job, 64 goroutines, single calls",
			sides: []side{
				on("Tombstone", cancelWith(delayq.Tombstone(delay))),
				on("plain", cancelWith()),
			},
			targets: []target{timesAtMost(figCPU, 2)},
		},
	}
}
