package main

import (
	"context"
	"time"

	"github.com/delayq/delayq"
)

// wideLimits are limits that are in force and never reached.
var wideLimits = delayq.Limits{Running: 1_000_000, Rate: delayq.Per(1_000_000, time.Second)}

// limitedProduct is delayq in topics with limits.
var limitedProduct = product{"limits", func(s *store) peer { return &limitedPeer{openDelayq(s).(*delayqPeer)} }}

// limitedPeer is delayq that sets limits of each topic before it works on it.
type limitedPeer struct{ *delayqPeer }

// work implements peer.
func (p *limitedPeer) work(ctx context.Context, w workload) (func() error, error) {
	for _, t := range w.topics {
		if err := p.client.SetLimits(ctx, t.topic, wideLimits); err != nil {
			return nil, err
		}
	}
	return p.delayqPeer.work(ctx, w)
}

// limitRows are what limits of a topic cost that are in force and never reached.
func limitRows() []row {
	sides := func(measure func(context.Context, *bench, peer) (sample, error)) []side {
		return []side{limitedProduct.on(measure), product{"no limits", newDelayqPeer}.on(measure)}
	}
	return []row{
		{
			id: "limits", title: "a topic with a limit and a rate, a handler that takes 10 ms, concurrency 64",
			sides:   sides(workBusy(64, 10*time.Millisecond, func(s sizes) int { return s.busyLong })),
			targets: []target{timesAtMost(figCPU, 1.1)},
		},
		{
			id: "limits/1ms", title: "a topic with a limit and a rate, a handler that takes 1 ms, concurrency 64",
			sides:   sides(workBusy(64, time.Millisecond, func(s sizes) int { return s.busyShort })),
			targets: []target{timesAtLeast(figRate, 1)},
		},
		{
			id: "limits/0", title: "a topic with a limit and a rate, no-op handler, concurrency 64",
			sides:   sides(workBacklog(64, func(s sizes) int { return s.backlog })),
			targets: []target{timesAtLeast(figRate, 0.7), timesAtMost(figCPU, 1.1)},
		},
	}
}
