package commit

import (
	"cmp"
	"context"
	"slices"

	"github.com/delayq/delayq/internal/script"
)

// A sending is the operations of one kind that are sent in one call.
type sending struct {
	*script.Call
	kind   *Kind
	list   []*Op
	series *script.Series // nil: the script writes nothing
}

// sendings divides operations by kind. Each call has a series of its own, because it has a receipt
// of its own.
func (g *Group) sendings(pool *script.SeriesPool, list []*Op) []*sending {
	var all []*sending
	for _, kind := range kinds {
		some := list
		if other := func(o *Op) bool { return o.Kind != kind }; slices.ContainsFunc(list, other) {
			if !slices.ContainsFunc(list, func(o *Op) bool { return o.Kind == kind }) {
				continue
			}
			some = slices.DeleteFunc(slices.Clone(list), other)
		}
		s := &sending{kind: kind, list: some}
		args, receipt := make([]any, 0, 6+4*len(some)), ""
		if !kind.reads {
			s.series = pool.Get()
			args = append(args, s.series.Next())
			receipt = s.series.Receipt(g.keys)
		}
		args = append(args, kind.words(g)...)
		for _, o := range some {
			if kind.job == nil {
				args = append(args, &o.ID)
			} else {
				args = kind.job(args, o)
			}
		}
		which := kind.Script
		if kind.which != nil {
			which = kind.which(some)
		}
		s.Call = script.NewCall(which, g.keys.Topic, len(some), g.keys.Of(which, receipt), args)
		all = append(all, s)
		if len(some) == len(list) {
			break
		}
	}
	return all
}

// send carries out operations, each about another job: one call for each kind, all of them at the
// same time. It settles them, except those that the scripts have left for another call. failed is
// the first error of a call, and unconfirmed says that its writes may be lost in a failover.
func (g *Group) send(ctx context.Context, pool *script.SeriesPool, list []*Op) (failed, unconfirmed error) {
	all := g.sendings(pool, list)
	answered := false
	defer func() {
		for _, s := range all {
			if s.series == nil {
				continue
			}
			err := script.ErrCutOff // a hook of the caller's go-redis client has ended the goroutine
			if answered {
				err = cmp.Or(s.Err, unconfirmed)
			}
			pool.Put(s.series, err)
		}
	}()
	calls := make([]*script.Call, len(all))
	for i, s := range all {
		calls[i] = s.Call
	}
	if all[0].kind == Enqueue && g.all.Replicas > 0 {
		unconfirmed = g.all.store(ctx, calls[0]) // these calls have the commit to themselves
	} else {
		g.all.Scripts.Do(ctx, calls...)
	}
	answered = true
	for _, s := range all {
		failed = cmp.Or(failed, s.Err)
		g.read(ctx, s, unconfirmed)
	}
	return failed, unconfirmed
}

// read settles the operations of one call.
func (g *Group) read(ctx context.Context, s *sending, unconfirmed error) {
	if err := s.Err; err != nil {
		if !s.kind.reads {
			err = g.all.unsure(err)
		}
		for _, o := range s.list {
			o.Settle(err)
		}
		return
	}
	s.kind.read(g, s.list, s.Reply)
	if s.kind == Enqueue {
		g.Record(ctx, s.Reply.Text(4) == "+")
	}
	left := 0
	for _, o := range s.list {
		if o.Unconfirmed = unconfirmed; !o.settled && (o.Move == nil || o.Move.asked == 0) {
			left++
		}
	}
	if left == len(s.list) { // or it would go on for ever
		for _, o := range s.list {
			o.Settle(script.ErrReply)
		}
	}
}
