package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
)

// delayqPeer is delayq through its public API: Enqueue, EnqueueBatch, Dequeue
// and a Server with a HandlerFunc. Nothing is set but the concurrency; log
// level error, so that it prints nothing.
type delayqPeer struct {
	store  *store
	rdb    *redis.Client
	client *delayq.Client
	hooks  []delayq.Hook // of the client and the servers
}

// delayqProduct is delayq in the table.
var delayqProduct = product{label: "delayq", open: newDelayqPeer}

// delayqPrefix is what the keys begin with.
const delayqPrefix = delayq.PrefixOption("bench")

// newDelayqPeer connects delayq to s.
func newDelayqPeer(s *store) peer { return openDelayq(s) }

// openDelayq connects delayq with hooks to s.
func openDelayq(s *store, hooks ...delayq.Hook) peer {
	p := &delayqPeer{store: s, rdb: s.client(0), hooks: hooks}
	p.renew()
	return p
}

// forget implements peer.
func (p *delayqPeer) forget(context.Context) error {
	p.renew()
	return nil
}

func (p *delayqPeer) renew() {
	p.client = delayq.NewClient(p.rdb, delayqPrefix, delayq.Hooks(p.hooks...))
}

// jobOptions are the options of j; nil if it has none.
func jobOptions(j job) []delayq.JobOption {
	var due delayq.JobOption
	switch {
	case !j.at.IsZero():
		due = delayq.ProcessAt(j.at)
	case j.in > 0:
		due = delayq.ProcessIn(j.in)
	}
	switch {
	case due == nil && j.key == "":
		return nil
	case due == nil:
		return []delayq.JobOption{delayq.Key(j.key)}
	case j.key == "":
		return []delayq.JobOption{due}
	default:
		return []delayq.JobOption{due, delayq.Key(j.key)}
	}
}

// enqueue implements peer.
func (p *delayqPeer) enqueue(ctx context.Context, topic string, j job) error {
	_, err := p.client.Enqueue(ctx, topic, j.id, j.payload, jobOptions(j)...)
	return err
}

// enqueueAll implements peer.
func (p *delayqPeer) enqueueAll(ctx context.Context, topic string, jobs []job) error {
	batch := make([]delayq.NewJob, len(jobs))
	for i, j := range jobs {
		batch[i] = delayq.NewJob{Topic: topic, ID: j.id, Payload: j.payload, Options: jobOptions(j)}
	}
	_, err := p.client.EnqueueBatch(ctx, batch)
	return err
}

// cancel implements peer.
func (p *delayqPeer) cancel(ctx context.Context, topic, id string) error {
	_, err := p.client.Dequeue(ctx, topic, id)
	return err
}

// left implements peer. It counts the records, which costs Redis next to nothing while a row runs.
func (p *delayqPeer) left(ctx context.Context, topic string) (int, error) {
	n, err := p.store.admin.HLen(ctx, string(delayqPrefix)+":{"+topic+"}:pool").Result()
	if err != nil {
		return 0, fmt.Errorf("count the jobs of topic %q: %w", topic, err)
	}
	return int(n), nil
}

// work implements peer.
func (p *delayqPeer) work(ctx context.Context, w workload) (func() error, error) {
	ctx, cancel := context.WithCancel(ctx)
	errs := make([]error, max(w.servers, 1))
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = p.serve(ctx, w) })
	}
	return func() error {
		cancel()
		wg.Wait()
		return errors.Join(errs...)
	}, nil
}

// takeCounter is a hook that counts takes.
type takeCounter struct{ takes *atomic.Int64 }

// Script implements delayq.ScriptHook.
func (c takeCounter) Script(e delayq.ScriptEvent) {
	if e.Name == "take" {
		c.takes.Add(1)
	}
}

// quiet logs errors only.
func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

// serve runs one server with a client of its own until ctx is done.
func (p *delayqPeer) serve(ctx context.Context, w workload) error {
	rdb := p.store.serverClient(0)
	opts := []delayq.ServerOption{delayqPrefix, delayq.Logger(quiet()), delayq.Hooks(p.hooks...)}
	if w.takes != nil {
		opts = append(opts, delayq.Hooks(takeCounter{w.takes}))
	}
	server := delayq.NewServer(rdb, opts...)
	for _, t := range w.topics {
		server.HandlerFunc(t.topic, func(_ context.Context, job *delayq.Job) error {
			t.handle(delivery{payload: job.Payload, late: job.Lateness()})
			return nil
		}, delayq.Concurrency(t.concurrency))
	}
	if err := errors.Join(server.Run(ctx), rdb.Close()); err != nil {
		return fmt.Errorf("run delayq server: %w", err)
	}
	return nil
}

// close implements peer.
func (p *delayqPeer) close() error { return p.rdb.Close() }
