package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// asynqPeer is asynq with the set-up in which it does best here:
//
//   - Only the public API a program would use: EnqueueContext, ProcessIn or
//     ProcessAt, a HandlerFunc. Log level error, so that it prints nothing.
//   - Rows that measure a rate let its server look for ready tasks every
//     10 ms and for due ones every 100 ms (its defaults are 1 s and 5 s).
//     Lateness and the idle server are measured with the defaults, because
//     short intervals are what an idle asynq pays for.
//   - Its clients may open asynqPool connections.
//   - One queue per topic. Its concurrency is the server's, over all queues.
type asynqPeer struct {
	store  *store
	rdb    *redis.Client
	client *asynq.Client
}

// asynqPool is the number of connections a client of asynq may open. With many
// goroutines it is faster with more than the ten per core of go-redis.
const asynqPool = 256

// The intervals of a server that is measured for its rate.
const (
	asynqTaskCheck    = 10 * time.Millisecond
	asynqDelayedCheck = 100 * time.Millisecond
)

// asynqProduct is asynq in the table.
var asynqProduct = product{label: "asynq", open: newAsynqPeer}

// asynqGoroutines are the numbers of goroutines whose best rate counts as the
// bulk rate of asynq, which has no call for many jobs.
var asynqGoroutines = []int{1, 64, 512}

// newAsynqPeer connects asynq to s.
func newAsynqPeer(s *store) peer {
	p := &asynqPeer{store: s, rdb: s.client(asynqPool)}
	p.renew()
	return p
}

// forget implements peer. A client adds a queue to the set of all queues only
// once, so after a flush it has to be a new one.
func (p *asynqPeer) forget(context.Context) error {
	p.renew()
	return nil
}

func (p *asynqPeer) renew() { p.client = asynq.NewClientFromRedisClient(p.rdb) }

// enqueue implements peer.
func (p *asynqPeer) enqueue(ctx context.Context, topic string, j job) error {
	opts := make([]asynq.Option, 0, 3)
	opts = append(opts, asynq.Queue(topic))
	switch {
	case !j.at.IsZero():
		opts = append(opts, asynq.ProcessAt(j.at))
	case j.in > 0:
		opts = append(opts, asynq.ProcessIn(j.in))
	}
	if j.id != "" {
		opts = append(opts, asynq.TaskID(j.id))
	}
	_, err := p.client.EnqueueContext(ctx, asynq.NewTask(topic, j.payload), opts...)
	return err
}

// enqueueAll implements peer.
func (p *asynqPeer) enqueueAll(ctx context.Context, topic string, jobs []job) error {
	return inParallel(ctx, 64, len(jobs), func(ctx context.Context, i int, _ []byte) error {
		return p.enqueue(ctx, topic, jobs[i])
	})
}

// cancel implements peer.
func (p *asynqPeer) cancel(_ context.Context, topic, id string) error {
	return asynq.NewInspectorFromRedisClient(p.rdb).DeleteTask(topic, id)
}

// left implements peer.
func (p *asynqPeer) left(_ context.Context, topic string) (int, error) {
	info, err := asynq.NewInspectorFromRedisClient(p.store.admin).GetQueueInfo(topic)
	if err != nil {
		return 0, fmt.Errorf("look at queue %q: %w", topic, err)
	}
	return info.Size, nil
}

// work implements peer.
func (p *asynqPeer) work(_ context.Context, w workload) (func() error, error) {
	var stops []func() error
	stop := func() error {
		var errs []error
		for _, stop := range stops {
			errs = append(errs, stop())
		}
		return errors.Join(errs...)
	}
	for range max(w.servers, 1) {
		one, err := p.startServer(w)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		stops = append(stops, one)
	}
	return stop, nil
}

// startServer starts one server with a client of its own.
func (p *asynqPeer) startServer(w workload) (stop func() error, err error) {
	cfg := asynq.Config{LogLevel: asynq.ErrorLevel, Queues: map[string]int{}}
	if !w.plain {
		cfg.TaskCheckInterval, cfg.DelayedTaskCheckInterval = asynqTaskCheck, asynqDelayedCheck
	}
	handlers := map[string]func(delivery){}
	for _, t := range w.topics {
		cfg.Concurrency += t.concurrency
		cfg.Queues[t.topic] = 1
		handlers[t.topic] = t.handle
	}
	rdb := p.store.serverClient(asynqPool)
	server := asynq.NewServerFromRedisClient(rdb, cfg)
	err = server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		payload := task.Payload()
		handlers[task.Type()](delivery{payload: payload, late: time.Since(payloadDue(payload))})
		return nil
	}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start asynq server: %w", err), rdb.Close())
	}
	return func() error {
		server.Shutdown()
		return rdb.Close()
	}, nil
}

// close implements peer.
func (p *asynqPeer) close() error { return p.rdb.Close() }
