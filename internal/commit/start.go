package commit

import (
	"cmp"
	"context"

	"github.com/delayq/delayq/internal/script"
)

// FlowStart is the kind of calls that store the last step of a flow, and start the flow with it.
var FlowStart = &Kind{
	Name: "start flow", Script: script.FlowStart, read: readEnqueued, stores: true, alone: true,
	words: func(g *Group) []any { return g.words },
	width: 4, job: addFresh, last: func(c *script.Call, list []*Op) { c.Add(list[0].Flow.Words...) },
}

// Start carries out a start. series is the name of the series of the call: with the same name it is
// the same call, so that it is carried out once within the time that receipts are kept.
func (c *Groups) Start(ctx context.Context, o *Op, series string) error {
	g := c.For(o.Topic, Enqueue)
	defer g.Release()
	pool := &script.SeriesPool{Base: series}
	failed, unconfirmed := g.send(ctx, pool, []*Op{o}, true)
	if !o.settled {
		o.Settle(cmp.Or(failed, unconfirmed, error(script.ErrReply)))
	}
	return o.Err
}
