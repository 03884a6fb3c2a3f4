package main

import (
	"context"
	"errors"
	"strconv"
	"time"
)

// laneRow is what lanes cost: jobs that are all due at the same second, by the number of their
// keys, beside jobs without a key and in the same run. The jobs of the keys are mixed, as those of
// many tenants are. With the most keys, each job has one of its own. Redis's time for the enqueues
// is not in it.
func laneRow() row {
	return row{
		id: "lanes", title: "jobs with a key, all due at the same second (100,000), concurrency 64",
		sides: []side{
			laned("1,000 keys", newDelayqPeer, 1_000),
			laned("no key", newDelayqPeer, 0),
			laned("1 key", newDelayqPeer, 1),
			laned("million keys", newDelayqPeer, mostKeys),
			laned("asynq, no key", newAsynqPeer, 0),
		},
		targets: []target{atMost(figCPU, 14), atMost(figSlowScripts, 0)},
	}
}

// mostKeys is as many keys as there are in sizes.
const mostKeys = -1

// laned measures the work of jobs that have so many keys; 0: they have none.
func laned(label string, open func(*store) peer, keys int) side {
	return product{label, open}.on(func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		const concurrency = 64
		n, keys := b.sizes.due, keys
		if keys == mostKeys {
			n, keys = b.sizes.laneKeys, b.sizes.laneKeys
		}
		t := newTally(n)
		if err := b.warmUp(ctx, p, concurrency); err != nil {
			return nil, err
		}
		second, err := b.fillDueWith(ctx, p, t.n, func(i int, second time.Time) job {
			j := job{at: second}
			if keys > 0 {
				j.key = "tenant-" + strconv.Itoa(i%keys)
			}
			return j
		})
		if err != nil {
			return nil, err
		}
		stop, err := p.work(ctx, workload{topics: []topicWork{{topic, concurrency, t.handle}}})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		if err := until(ctx, second.Add(-meterLead)); err != nil {
			return nil, err
		}
		scripts, err := watchScripts(ctx, b.store.admin)
		if err != nil {
			return nil, err
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		result, err := b.finish(ctx, p, m, t, second)
		longest, slow, scriptErr := scripts()
		if err := errors.Join(err, scriptErr); err != nil {
			return nil, err
		}
		result[figSlowScripts], result[figLongestScript] = float64(slow), milliseconds(longest)
		return result, nil
	})
}
