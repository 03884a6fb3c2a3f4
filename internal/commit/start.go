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
	send := func(place string, list []*Op) {
		g := c.For(place, Enqueue)
		defer g.Release()
		pool := &script.SeriesPool{Base: series}
		failed, unconfirmed := g.send(ctx, pool, list, true)
		if !o.settled {
			o.Settle(cmp.Or(failed, unconfirmed, error(script.ErrReply)))
		}
	}
	begun := c.maps.of(o.Topic) == nil
	if begun {
		if send(o.Topic, []*Op{o}); !o.elsewhere() {
			return o.Err
		}
	}
	w := walk{all: c, ctx: ctx, topic: o.Topic, send: send}
	w.carry([]*Op{o}, begun)
	return o.Err
}

// A StartedStep is what a start says of a step of the flow.
type StartedStep struct {
	Topic, Definition string
	Waits             int    // for how many steps it waits
	Parcel            string // without its time
}

// StartWords returns what the script reads of all steps. The parcels of those that start at once
// are put together here, so that the script need not read each.
func StartWords(steps []StartedStep) (words []any) {
	var targets []string
	atOnce := make(map[string][]string) // by target
	for i := range steps {
		s := &steps[i]
		if s.Waits > 0 {
			words = append(words, s.Definition, s.Waits, s.Parcel)
			continue
		}
		words = append(words, s.Definition, 0, "")
		if atOnce[s.Topic] == nil {
			targets = append(targets, s.Topic)
		}
		atOnce[s.Topic] = append(atOnce[s.Topic], s.Parcel)
	}
	bundles := 0
	for _, target := range targets {
		for _, text := range bundle(atOnce[target]) {
			words = append(words, target, text)
			bundles++
		}
	}
	return append(words, len(steps), bundles)
}
