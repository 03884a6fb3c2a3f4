package main

import (
	"context"
	"fmt"
	"sync"
)

// sizedPeer stores jobs with payloads of another size.
type sizedPeer struct {
	peer
	size int
	pool sync.Pool
}

// partBytes is how much of the payloads of many jobs is in memory at a time.
const partBytes = 64 << 20

// sized measures with payloads of that many bytes. A warm-up is a tenth of the
// jobs.
func sized(size int, measure func(context.Context, *bench, peer) (sample, error)) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (sample, error) {
		large := *b
		large.sizes.warm = payloadJobs(size)(b.sizes)/10 + 1
		q := &sizedPeer{peer: p, size: size}
		q.pool.New = func() any { return new(randomBytes(size)) }
		return measure(ctx, &large, q)
	}
}

// payloadJobs is the number of jobs with payloads of that size.
func payloadJobs(size int) func(sizes) int {
	return func(s sizes) int { return max(s.payloads/size, 4*callers) }
}

// enqueue implements peer.
func (p *sizedPeer) enqueue(ctx context.Context, topic string, j job) error {
	large := p.pool.Get().(*[]byte)
	defer p.pool.Put(large)
	copy(*large, j.payload)
	j.payload = *large
	return p.peer.enqueue(ctx, topic, j)
}

// enqueueAll implements peer.
func (p *sizedPeer) enqueueAll(ctx context.Context, topic string, jobs []job) error {
	part := min(max(partBytes/p.size, 1), len(jobs))
	payloads := make([]byte, part*p.size)
	copy(payloads, randomBytes(p.size))
	for k := 1; k < part; k *= 2 {
		copy(payloads[k*p.size:], payloads[:k*p.size])
	}
	for len(jobs) > 0 {
		some := make([]job, min(part, len(jobs)))
		for k := range some {
			some[k] = jobs[k]
			some[k].payload = payloads[k*p.size : (k+1)*p.size : (k+1)*p.size]
			copy(some[k].payload, jobs[k].payload)
		}
		if err := p.peer.enqueueAll(ctx, topic, some); err != nil {
			return err
		}
		jobs = jobs[len(some):]
	}
	return nil
}

// payloadRows are the rows with large payloads.
func payloadRows() []row {
	var all []row
	for _, kib := range []int{10, 100} {
		size := kib << 10
		count := payloadJobs(size)
		few := func(s sizes) int { return count(s) / 4 }
		add := func(id, title string, ours, asynq func(context.Context, *bench, peer) (sample, error), bullmq side, targets ...target) {
			all = append(all, row{
				id: fmt.Sprintf("payload/%dKiB/%s", kib, id), title: fmt.Sprintf("payloads of %d KiB: %s", kib, title),
				sides:   []side{delayqProduct.on(sized(size, ours)), asynqProduct.on(sized(size, asynq)), bullmq},
				targets: targets,
			})
		}
		asGood := []target{timesAtLeast(figRate, 1), timesAtMost(figCPU, 1.05)}
		one, many, bulk := enqueueFrom(1, few), enqueueFrom(callers, count), enqueueBulk(count)
		work := workBacklog(callers, count)
		add("enqueue/1", "enqueue, 1 goroutine", one, one, bullmqAdd(1, size, few), asGood...)
		add("enqueue/64", "enqueue, 64 goroutines", many, many, bullmqAdd(callers, size, count), asGood...)
		add("bulk", "enqueue in bulk; asynq: its best", bulk, enqueueBest(count), bullmqAdd(0, size, count), asGood...)
		add("work", "work off a ready backlog, concurrency 64", work, work, bullmqWork(bullmqConcurrency, 0, size, count), timesAtLeast(figRate, 3))
	}
	return all
}
