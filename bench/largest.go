package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
)

const (
	largestPayload = 64 << 20    // the most that a client can be set to
	largestTimeout = time.Minute // of a call with one
	largestReaders = 2           // connections of the plain reads
)

// patient opens a counted client that waits for large replies.
func (s *store) patient() *redis.Client {
	opt := s.opt
	opt.ReadTimeout, opt.WriteTimeout = largestTimeout, largestTimeout
	return redis.NewClient(&opt)
}

// workLargest measures how fast a server works off ready jobs with the largest
// payloads.
func workLargest(ctx context.Context, b *bench, _ peer) (_ sample, err error) {
	rdb := b.store.patient()
	defer func() { err = errors.Join(err, rdb.Close()) }()
	t := newTally(b.sizes.largest)
	client := delayq.NewClient(rdb, delayqPrefix, delayq.MaxPayload(largestPayload))
	payload := randomBytes(largestPayload)
	for i := range t.n {
		fillPayload(payload, i, time.Time{})
		if _, err := client.Enqueue(ctx, topic, strconv.Itoa(i), payload); err != nil {
			return nil, err
		}
	}
	server := delayq.NewServer(rdb, delayqPrefix, delayq.Logger(quiet()))
	if err := server.HandlerFunc(topic, func(_ context.Context, job *delayq.Job) error {
		t.handle(delivery{payload: job.Payload})
		return nil
	}); err != nil {
		return nil, err
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(ctx)
	var failed error
	var running sync.WaitGroup
	running.Go(func() { failed = server.Run(run) })
	last, err := t.wait(ctx)
	cancel()
	running.Wait()
	if err = errors.Join(err, failed, t.check()); err != nil {
		return nil, err
	}
	return m.stop(ctx, t.n, last.Sub(m.at))
}

// readLargest measures how fast two connections read as many strings of that
// size by a script.
func readLargest(ctx context.Context, b *bench) (_ sample, err error) {
	rdb := b.store.patient()
	defer func() { err = errors.Join(err, rdb.Del(context.WithoutCancel(ctx), topic).Err(), rdb.Close()) }()
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
					t.handle(delivery{payload: []byte(text)})
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
		sides:   []side{delayqProduct.on(workLargest), {label: "plain reads", measure: readLargest}},
		targets: []target{timesAtLeast(figRate, 0.8), timesAtMost(figBytes, 1.1)},
	}}
}
