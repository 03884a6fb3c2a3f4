package main

import (
	"context"
	"errors"
	"fmt"
)

// onAOF measures with a Redis of our own that has an append-only file and that
// appendfsync.
func onAOF(p product, fsync string, measure func(context.Context, *bench, peer) (sample, error)) side {
	return side{label: p.label, measure: func(ctx context.Context, b *bench) (_ sample, err error) {
		durable := *b
		durable.store, err = openStore(ctx, "", "--appendonly", "yes", "--appendfsync", fsync)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, durable.store.close()) }()
		return p.on(measure).measure(ctx, &durable)
	}}
}

// aofRows are the rows with a Redis that keeps what it is told.
func aofRows() []row {
	const concurrency = 64
	var all []row
	for _, fsync := range []string{"everysec", "always"} {
		count := func(s sizes) int { return s.aof }
		asynqCount := count
		if fsync == "always" { // asynq waits for the disk twice with every job
			asynqCount = func(s sizes) int { return max(s.aof/20, 100) }
		}
		all = append(all, row{
			id:    "aof/" + fsync + "/enqueue",
			title: fmt.Sprintf("enqueue, %d goroutines, appendfsync %s", callers, fsync),
			sides: []side{
				onAOF(delayqProduct, fsync, enqueueFrom(callers, count)),
				onAOF(asynqProduct, fsync, enqueueFrom(callers, count)),
			},
			targets: []target{timesAtLeast(figRate, 1)},
		}, row{
			id:    "aof/" + fsync + "/work",
			title: fmt.Sprintf("work off a ready backlog, concurrency %d, appendfsync %s", concurrency, fsync),
			sides: []side{
				onAOF(delayqProduct, fsync, workBacklog(concurrency, count)),
				onAOF(asynqProduct, fsync, workBacklog(concurrency, asynqCount)),
			},
			targets: []target{timesAtLeast(figRate, 1)},
		})
	}
	return all
}
