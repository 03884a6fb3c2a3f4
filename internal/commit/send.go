package commit

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/delayq/delayq/internal/script"
)

// A sending is the operations of one kind that are sent in one call.
type sending struct {
	script.Call
	kind   *Kind
	list   []*Op
	series *script.Series // nil: the script writes nothing
	number string         // of the call in its series
	guess  guess          // of Redis's clock, of an enqueue
	lone   loneWords      // of a script for an operation alone; zero: it is another script
}

// renewed follows the number of a call whose writes replicas confirm. If the call is sent again,
// the script writes the receipt anew, so that WAIT has something to wait for.
const renewed = "/180000"

// prepare makes the call. Each call has a series of its own, because it has a receipt of its own.
func (s *sending) prepare(g *Group, pool *script.SeriesPool) {
	if !s.kind.reads && !s.kind.bare {
		s.series = pool.Get()
		s.number = s.series.Next()
		if (s.kind == Enqueue || s.kind == FlowStart) && g.all.Replicas > 0 && pool.Kept == "" {
			s.number += renewed
		}
	}
	if s.kind == Enqueue && pool.Kept == "" { // a plan has the same words if it is sent again
		s.guess = g.guess()
	}
	if s.kind.lone && len(s.list) == 1 && g.all.Replicas == 0 && s.fillLone(g) {
		return
	}
	which := s.kind.Script
	if s.kind.which != nil {
		which = s.kind.which(s.list)
	}
	s.fill(g, which, s.kind.words(g))
}

// fill makes the call of a script, with the words before those of the jobs.
func (s *sending) fill(g *Group, which *script.Script, words []any) {
	receipt := any("")
	if s.series != nil {
		receipt = s.series.Receipt(g.keys)
	}
	s.Set(g.listOf(which), receipt, len(s.list), 2+len(words)+s.kind.width*len(s.list))
	if s.series != nil {
		s.Add(&s.number)
	}
	s.Add(words...)
	if s.kind.stores {
		s.guess.stampAll(s.list, wholeBytes)
	}
	for _, o := range s.list {
		s.kind.job(&s.Call, o)
	}
	if s.kind.last != nil {
		s.kind.last(&s.Call, s.list)
	}
}

// A load is the sendings of a flight. Most flights have one.
type load struct {
	first sending
	all   []*sending
	calls []*script.Call
	one   struct {
		all  [1]*sending
		call [1]*script.Call
	}
}

// divide makes a sending of each kind of operations.
func (g *Group) divide(pool *script.SeriesPool, list []*Op) *load {
	l := &load{}
	l.all, l.calls = l.one.all[:0], l.one.call[:0]
	for _, kind := range kinds {
		some := list
		if other := func(o *Op) bool { return o.Kind != kind }; slices.ContainsFunc(list, other) {
			if !slices.ContainsFunc(list, func(o *Op) bool { return o.Kind == kind }) {
				continue
			}
			some = slices.DeleteFunc(slices.Clone(list), other)
		}
		s := &l.first
		if len(l.all) > 0 {
			s = &sending{}
		}
		s.kind, s.list = kind, some
		s.prepare(g, pool)
		l.all, l.calls = append(l.all, s), append(l.calls, &s.Call)
		if len(some) == len(list) {
			break
		}
	}
	return l
}

// listOf returns the keys of a script in the topic.
func (g *Group) listOf(s *script.Script) *script.KeyList {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := g.lists[s]
	if list == nil {
		list = g.keys.List(s)
		g.lists[s] = list
	}
	return list
}

// send carries out operations, each about another job: one call for each kind, all of them at the
// same time. It settles them, except those that the scripts have left for another call. failed is
// the first error of a call, and unconfirmed says that its writes may be lost in a failover: those
// of enqueues, and with confirm those of the one call of any kind.
func (g *Group) send(ctx context.Context, pool *script.SeriesPool, list []*Op, confirm bool) (failed, unconfirmed error) {
	list, refused := g.announce(ctx, list)
	if list = g.moveStarts(list); len(list) == 0 {
		return refused, nil
	}
	load := g.divide(pool, list)
	all, calls := load.all, load.calls
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
	sent := time.Now()
	unconfirmed = g.call(ctx, confirm || all[0].kind == Enqueue, calls)
	if pool.Kept == "" { // a plan can have the replies of an earlier time
		g.learn(all, sent)
	}
	if all[0].refill(g) {
		unconfirmed = g.call(ctx, true, calls)
	}
	answered = true
	for _, s := range all {
		failed = cmp.Or(failed, s.Err)
		g.read(ctx, s, unconfirmed)
	}
	return cmp.Or(failed, refused), unconfirmed
}

// learn reads Redis's clock from the replies to calls.
func (g *Group) learn(all []*sending, sent time.Time) {
	received := time.Now()
	for _, s := range all {
		if s.Err == nil && s.Reply.Now() > 0 {
			g.clock.Read(s.Reply.Now(), sent, received)
		}
	}
}

// call makes calls at the same time. With confirm it waits for replicas, if the client does.
func (g *Group) call(ctx context.Context, confirm bool, calls []*script.Call) (unconfirmed error) {
	if confirm && g.all.Replicas > 0 {
		return g.all.store(ctx, calls[0]) // these calls have the commit to themselves
	}
	g.all.Scripts.Do(ctx, calls...)
	return nil
}

// read settles the operations of one call.
func (g *Group) read(ctx context.Context, s *sending, unconfirmed error) {
	if err := s.Err; err != nil {
		if !s.kind.reads {
			err = g.all.unsure(err)
		}
		for _, o := range s.list {
			o.At = g.key.topic // it can have been stored there
			o.Settle(err)
		}
		return
	}
	s.kind.read(g, s.list, s.Reply)
	if s.lone.at != "" {
		s.list[0].EnqueuedAt = s.list[0].Fresh.stamp
	}
	if s.kind.stores && s.Reply.Text(4) == "+" {
		g.Confirm(ctx)
	}
	left := 0
	for _, o := range s.list {
		if o.Unconfirmed, o.At = unconfirmed, g.key.topic; !o.settled && !o.goesOn() {
			left++
		}
	}
	if left == len(s.list) { // or it would go on for ever
		for _, o := range s.list {
			o.Settle(script.ErrReply)
		}
	}
}
