package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
)

// patience is how long a caller waits for the end of its job.
const patience = 20 * time.Second

// callScripts are what jobs of callers do. Nobody cancels or replaces them.
var callScripts = []struct {
	steps   []string
	retries int
}{
	{[]string{"steps:40ms"}, -1},
	{[]string{"half:40ms", "steps:80ms"}, -1},
	{[]string{"steps:600ms"}, -1},
	{[]string{"half:40ms"}, 0},
	{[]string{"perm"}, -1},
}

// call enqueues one job after the other and waits for the end of each, by the way of the enqueuers.
func (s *Soak) call(ctx context.Context, n uint64) error {
	r := rand.New(rand.NewPCG(s.Seed, 6000+n)) //nolint:gosec // not for secrets
	rdb := redis.NewClient(&redis.Options{Addr: s.proxies[enqueuers].Addr(), DialTimeout: time.Second, ReadTimeout: time.Second})
	defer func() { _ = rdb.Close() }()
	client := rig.NewClient(rdb, s.rec, delayq.Prefix(prefix))
	for i := 0; ctx.Err() == nil; i++ {
		script := callScripts[r.IntN(len(callScripts))]
		task := &rig.Task{
			Topic: topics[r.IntN(len(topics))], ID: fmt.Sprintf("called-%d-%d", n, i), Steps: script.steps, Retries: script.retries,
			Options: []delayq.JobOption{delayq.Backoff(backoffMin, backoffMax)},
		}
		call, cancel := context.WithTimeout(context.Background(), patience)
		err := client.Await(call, task)
		cancel()
		if err != nil {
			return fmt.Errorf("caller %d: %w", n, err)
		}
		wait(ctx, time.Duration(r.Int64N(int64(2*s.pause()))))
	}
	return nil
}
