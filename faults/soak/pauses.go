package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
)

// What pauses are like: short, for nothing is taken meanwhile.
const (
	between   = 8 * time.Second         // two pauses of one side, at most
	holdLimit = 1500 * time.Millisecond // for a program's; an operator's may be as long
)

// hold pauses topics as programs and operators do, who know nothing of each other. A program pauses
// for a time, through the network of the enqueuers, and may let go earlier; a name whose call had
// an unknown outcome is not used again, because the call may still arrive. An operator pauses
// without an end, past all faults but those of Redis, and goes on asking until Redis has let go.
func (s *Soak) hold(ctx context.Context, n uint64) error {
	r := rand.New(rand.NewPCG(s.Seed, 3000+n)) //nolint:gosec // not for secrets
	topic, operator := topics[n%2], n/2 == 1
	client := rig.NewClient(s.direct, s.rec, delayq.Prefix(prefix))
	if !operator {
		rdb := redis.NewClient(&redis.Options{Addr: s.proxies[enqueuers].Addr(), DialTimeout: time.Second, ReadTimeout: time.Second})
		defer func() { _ = rdb.Close() }()
		client = rig.NewClient(rdb, s.rec, delayq.Prefix(prefix))
	}
	for name := 0; wait(ctx, time.Duration(r.Int64N(int64(between)))); {
		by, period := fmt.Sprintf("app-%d", name), time.Duration(1+r.Int64N(int64(holdLimit)))+time.Millisecond
		if operator {
			by = "ops"
		}
		call, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		err := client.Hold(call, topic, by, map[bool]time.Duration{false: period, true: 0}[operator])
		wait(ctx, time.Duration(r.Int64N(int64(period))))
		switch {
		case operator:
			for err = client.Release(call, topic, by); err != nil && call.Err() == nil; err = client.Release(call, topic, by) {
				wait(call, 100*time.Millisecond)
			}
		case r.IntN(2) == 0:
			err = errors.Join(err, client.Release(call, topic, by))
		}
		cancel()
		switch {
		case operator && err != nil:
			return fmt.Errorf("resume: %w", err)
		case err != nil:
			name++
		}
	}
	return nil
}

// wait waits for d, and tells whether that was before the end of ctx.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
