package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
)

const (
	largestPayload     = 64 << 20    // the most that a client can be set to
	largestTimeout     = time.Minute // of a call with one
	largestConcurrency = 10
	largestReaders     = 2 // connections of the plain reads
)

// patient is a side whose clients wait for large replies.
func patient(s side) side {
	measure := s.measure
	s.measure = func(ctx context.Context, b *bench) (sample, error) {
		opt := &b.store.opt
		read, write := opt.ReadTimeout, opt.WriteTimeout
		defer func() { opt.ReadTimeout, opt.WriteTimeout = read, write }()
		opt.ReadTimeout, opt.WriteTimeout = largestTimeout, largestTimeout
		return measure(ctx, b)
	}
	return s
}

// workLargest measures how fast a server works off ready jobs with the largest
// payloads.
func workLargest(ctx context.Context, b *bench, p peer) (_ sample, err error) {
	q, t := p.(*delayqPeer), newTally(b.sizes.largest)
	client := delayq.NewClient(q.rdb, delayqPrefix, delayq.MaxPayload(largestPayload))
	payload := randomBytes(largestPayload)
	for i := range t.n {
		fillPayload(payload, i, time.Time{})
		if _, err := client.Enqueue(ctx, topic, "", payload); err != nil {
			return nil, err
		}
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	stop := q.handling(ctx, largestConcurrency, func(_ context.Context, job *delayq.Job) error {
		t.handle(delivery{payload: job.Payload})
		return nil
	})
	defer func() { err = errors.Join(err, stop()) }()
	return b.finish(ctx, p, m, t, m.at)
}

// readLargest measures how fast two connections read as many strings of that
// size by a script.
func readLargest(ctx context.Context, b *bench) (_ sample, err error) {
	rdb := b.store.client(0)
	defer func() { err = errors.Join(err, rdb.Close(), b.store.flush(context.WithoutCancel(ctx))) }()
	t := newTally(b.sizes.largest)
	payload := randomBytes(largestPayload)
	for i := range t.n {
		fillPayload(payload, i, time.Time{})
		if err := rdb.HSet(ctx, topic, i, payload).Err(); err != nil {
			return nil, fmt.Errorf("store a string: %w", err)
		}
	}
	read := redis.NewScript("return redis.call('HGET', KEYS[1], ARGV[1])")
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	var reading sync.WaitGroup
	failed := make([]error, largestReaders)
	for r := range largestReaders {
		reading.Go(func() {
			for i := r; i < t.n && failed[r] == nil; i += largestReaders {
				text, err := read.Run(ctx, rdb, []string{topic}, i).Text()
				if failed[r] = err; err == nil {
					t.handle(delivery{payload: []byte(text[:payloadSize])}) // not all of it is copied
				}
			}
		})
	}
	reading.Wait()
	if err := errors.Join(failed...); err != nil {
		return nil, fmt.Errorf("read a string: %w", err)
	}
	last, err := t.wait(ctx)
	if err = errors.Join(err, t.check()); err != nil {
		return nil, err
	}
	return m.stop(ctx, t.n, last.Sub(m.at))
}

// largestRows is the row with the largest payloads. Beside it are reads of as
// many bytes without a queue.
func largestRows() []row {
	return []row{{
		id: "payload/64MiB/work", title: "payloads of 64 MiB: work off a ready backlog; beside it: plain reads by a script",
		sides:   []side{patient(delayqProduct.on(workLargest)), patient(side{label: "plain reads", measure: readLargest})},
		targets: []target{timesAtLeast(figRate, 0.8), timesAtMost(figBytes, 1.1)},
	}}
}
