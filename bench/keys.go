package main

import (
	"context"
	"fmt"
	"strconv"
)

// keyedPeer stores jobs with keys, which only delayq has. The jobs of the keys
// are mixed, as those of many tenants are.
type keyedPeer struct {
	peer
	keys int
}

// keyed measures with that many keys.
func keyed(keys int, measure func(context.Context, *bench, peer) (sample, error)) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (sample, error) {
		return measure(ctx, b, &keyedPeer{p, keys})
	}
}

// keyOf is the key of a job by its number.
func keyOf(i, keys int) string { return "tenant-" + strconv.Itoa(i%keys) }

// enqueue implements peer.
func (p *keyedPeer) enqueue(ctx context.Context, topic string, j job) error {
	j.key = keyOf(payloadIndex(j.payload), p.keys)
	return p.peer.enqueue(ctx, topic, j)
}

// enqueueAll implements peer.
func (p *keyedPeer) enqueueAll(ctx context.Context, topic string, jobs []job) error {
	for i := range jobs {
		jobs[i].key = keyOf(payloadIndex(jobs[i].payload), p.keys)
	}
	return p.peer.enqueueAll(ctx, topic, jobs)
}

// keyRows are the rows of jobs with a key, beside tasks of asynq and jobs
// without one.
func keyRows() []row {
	count := func(s sizes) int { return s.keyed }
	var all []row
	for _, keys := range []int{1, 1_000, 100_000} {
		add := func(id, title string, measure func(context.Context, *bench, peer) (sample, error), targets ...target) {
			all = append(all, row{
				id: fmt.Sprintf("keys/%d/%s", keys, id), title: fmt.Sprintf("%s, keys: %s", title, number(float64(keys), 0)),
				sides: []side{
					delayqProduct.on(keyed(keys, measure)),
					product{"asynq, no key", newAsynqPeer}.on(measure),
					product{"no key", newDelayqPeer}.on(measure),
				},
				targets: targets,
			})
		}
		most := 12.0
		if keys == 1 {
			most = 6
		}
		add("enqueue", "enqueue, 64 goroutines, single calls", enqueueFrom(callers, count), timesAtLeast(figRate, 1.2))
		add("work", "work off a ready backlog, concurrency 64", workBacklog(callers, count), atMost(figCPU, most))
	}
	return all
}
