package commit

import (
	"context"
	"sync"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

// A walk carries out operations of a topic wherever its jobs are. A place that is closed and does
// not have a job says elsewhere. Then the operation goes to the next generation. The oldest comes
// first: a job can be in a later one only if all earlier ones are closed to its ID, for good. So
// the first other answer is true, however old the map is. A done job that is kept does not have its
// ID any more: a get that finds one in a closed place goes on, too.
type walk struct {
	all   *Groups
	ctx   context.Context
	topic string
	send  func(place string, list []*Op) // settles them
	asked int                            // number of the last generation that was asked; -1: none
	home  bool                           // the home was asked

	inTurn bool // the places of a generation are asked one after the other

	kept map[*Op][]string // done jobs that gets have found in closed places
}

// elsewhere reports whether a place has said that the job is not there and cannot be.
func (o *Op) elsewhere() bool {
	return o.settled && o.Err == nil && o.Letter == script.LetterElsewhere
}

// key returns the key of the job, as far as the operation knows it.
func (o *Op) key() string {
	if o.Fresh != nil {
		return o.Fresh.Opts.Key
	}
	return ""
}

// carry carries out operations that no place was asked about, or with begun those that the home has
// sent elsewhere.
func (w *walk) carry(list []*Op, begun bool) {
	if w.asked = -1; begun {
		w.asked, w.home = part.Home, true
	}
	defer w.end(list)
	m, fresh := w.all.maps.of(w.topic), false
	for len(list) > 0 {
		g, more := w.next(m)
		if more {
			w.ask(g, list)
			list, fresh = left(list), false
			continue
		}
		if fresh {
			w.nowhere(list)
			return
		}
		var err error
		if m, err = w.all.ReadMap(w.ctx, w.topic); err != nil {
			if m = w.all.maps.of(w.topic); w.asked < 0 && len(m) > 0 {
				continue // it was too old, and is as true as ever
			}
			settleAll(list, script.Unsent(err))
			return
		}
		fresh = true
	}
}

// next returns the oldest generation of the map that was not asked.
func (w *walk) next(m part.Map) (part.Generation, bool) {
	for _, g := range m {
		if g.Number > w.asked {
			return g, true
		}
	}
	return part.Generation{}, false
}

// left returns the operations that must go on.
func left(list []*Op) (rest []*Op) {
	for _, o := range list {
		if o.elsewhere() {
			rest = append(rest, o)
		}
	}
	return rest
}

// ask carries out operations in a generation.
func (w *walk) ask(g part.Generation, list []*Op) {
	w.asked = g.Number
	w.home = w.home || g.Number == part.Home
	by := make(map[string][]*Op)
	var places []string
	add := func(place string, o *Op) {
		if by[place] == nil {
			places = append(places, place)
		}
		by[place] = append(by[place], o)
	}
	names := g.Names(w.topic)
	spread := make(map[*Op][]*Op)
	for _, o := range list {
		w.keep(o, o)
		o.again()
		if !g.ByKey || o.key() != "" || o.Fresh != nil || g.Parts == 1 {
			add(names[g.Index(o.ID, o.key())], o)
			continue
		}
		for _, place := range names { // any of them can have the ID, with some key
			one := o.twin()
			spread[o] = append(spread[o], one)
			add(place, one)
		}
	}
	w.sendAll(places, by)
	for o, twins := range spread {
		o.join(twins)
	}
}

// abreast is how many places of a generation are asked at a time.
const abreast = 16

// sendAll carries out the operations of some places.
func (w *walk) sendAll(places []string, by map[string][]*Op) {
	if len(places) == 1 || w.inTurn {
		for _, place := range places {
			w.send(place, by[place])
		}
		return
	}
	var group sync.WaitGroup
	room := make(chan struct{}, abreast)
	for _, place := range places {
		room <- struct{}{}
		list := by[place]
		contain.Launch(&group, func() {
			defer func() { <-room }()
			w.send(place, list)
		}, func(c *contain.Crash) { cut(list, c) })
	}
	group.Wait()
}

// twin returns an operation that does the same elsewhere.
func (o *Op) twin() *Op {
	one := *o
	one.done, one.sent, one.left = nil, false, false
	if o.Move != nil {
		move := *o.Move
		one.Move = &move
	}
	return &one
}

// join takes the outcome of the one of the twins that has found the job: or of one that has failed,
// or of one that is closed. An unfinished job comes before a done one. If a place is closed to the
// ID, a done one in another place is not the last word.
func (o *Op) join(twins []*Op) {
	best, rank, closed, full := (*Op)(nil), -1, false, false
	for _, one := range twins {
		closed, full = closed || one.elsewhere(), full || one.Full
		now := 1 // absent
		switch {
		case one.Err != nil:
			now = 4
		case one.elsewhere() && one.over():
			now = 3
		case one.elsewhere():
			now = 2
		case one.over():
			now = 5
		case !one.absent():
			now = 6
		}
		if now > rank {
			best, rank = one, now
		}
	}
	if o.take(best); closed && o.over() {
		o.Letter = script.LetterElsewhere
	}
	o.Full = full
}

// take takes the outcome of a twin.
func (o *Op) take(one *Op) {
	done, sent, left := o.done, o.sent, o.left
	*o = *one
	o.done, o.sent, o.left = done, sent, left
}

// absent reports whether the place has said that there is no such job.
func (o *Op) absent() bool {
	return o.Letter == script.LetterGone || o.Kind == Get && noJob(o.Row)
}

// keep remembers the done job that a get has found in a closed place. Later generations can have
// another job with the ID. If none has, this one is the answer. at is the operation or its twin.
func (w *walk) keep(o, at *Op) {
	if !at.elsewhere() || !at.over() {
		return
	}
	if w.kept == nil {
		w.kept = make(map[*Op][]string)
	}
	w.kept[o] = at.Row
}

// end is what remains to be done when the generations have answered.
func (w *walk) end(list []*Op) {
	w.tryHome(list)
	for o, row := range w.kept {
		if o.settled && o.Err == nil && o.absent() {
			o.Row, o.Letter = row, 0
		}
	}
}

// tryHome asks the home for jobs that no generation has, if it was not asked: it has left the map,
// and has the jobs of schedules.
func (w *walk) tryHome(list []*Op) {
	if w.home {
		return
	}
	var absent, twins []*Op
	for _, o := range list {
		if o.Fresh == nil && o.settled && o.Err == nil && o.absent() {
			one := o.twin()
			one.again()
			absent, twins = append(absent, o), append(twins, one)
		}
	}
	if len(twins) == 0 {
		return
	}
	w.send(w.topic, twins)
	for i, one := range twins {
		switch o := absent[i]; {
		case one.elsewhere():
			if w.kept[o] == nil {
				w.keep(o, one)
			}
		case one.Err != nil || !one.absent():
			full := o.Full
			o.take(one)
			o.Full = o.Full || full
		}
	}
}

// nowhere settles operations that no generation has answered. A client of a release without
// partitions does not know the map, and stores jobs at home even if that is closed.
func (w *walk) nowhere(list []*Op) {
	if !w.home {
		var known []*Op
		for _, o := range list {
			if o.Fresh == nil {
				w.keep(o, o)
				o.again()
				known = append(known, o)
			}
		}
		if len(known) > 0 {
			w.send(w.topic, known)
		}
	}
	for _, o := range list {
		switch {
		case !o.elsewhere():
		case o.Fresh != nil:
			o.Settle(errClosed)
		default:
			w.keep(o, o)
			o.Letter = script.LetterGone
		}
	}
}

// settleAll settles operations with an error.
func settleAll(list []*Op, err error) {
	for _, o := range list {
		o.Settle(err)
	}
}

// Do carries out an operation, alone or with others of its place, and returns its error.
func (c *Groups) Do(ctx context.Context, o *Op) error {
	begun := c.maps.of(o.Topic) == nil
	if begun {
		if err := c.doAt(ctx, o.Topic, o); err != nil || !o.elsewhere() {
			return err
		}
	}
	w := walk{all: c, ctx: ctx, topic: o.Topic, send: func(place string, list []*Op) {
		for _, o := range list {
			one := o.twin() // whose caller can leave it
			if err := c.doAt(ctx, place, one); err != nil {
				o.Err, o.At, o.settled = err, place, true
			} else {
				o.take(one)
			}
		}
	}}
	w.carry([]*Op{o}, begun)
	return o.Err
}

func (c *Groups) doAt(ctx context.Context, place string, o *Op) error {
	g := c.For(place, o.Kind)
	defer g.Release()
	return g.Do(ctx, o)
}

// doAll carries out operations of a batch that are about one topic. After a call that Redis does
// not answer it sends no more, because each would wait as long. silent is the error of such a call,
// if there was one earlier in the batch. doAll returns its new value.
func (c *Groups) doAll(ctx context.Context, list []*Op, silent error) error {
	topic := list[0].Topic
	var mu sync.Mutex
	send := func(place string, list []*Op) {
		g := c.For(place, list[0].Kind)
		defer g.Release()
		mu.Lock()
		before := silent
		mu.Unlock()
		if after := g.doAll(ctx, list, before); after != nil {
			mu.Lock()
			silent = after
			mu.Unlock()
		}
	}
	begun := c.maps.of(topic) == nil
	if begun {
		send(topic, list)
		if list = left(list); len(list) == 0 {
			return silent
		}
	}
	w := walk{all: c, ctx: ctx, topic: topic, send: send}
	w.carry(list, begun)
	return silent
}

// placeOf returns the place to which an operation of a batch probably comes: that of the last
// generation. Those that have the same one are sent together, also to earlier generations.
func (c *Groups) placeOf(o *Op) string {
	known := c.maps.known(o.Topic)
	if known == nil {
		return o.Topic
	}
	g := known.Open()
	if g.ByKey && o.Fresh == nil { // all partitions are asked
		return o.Topic
	}
	return g.Name(o.Topic, g.Index(o.ID, o.key()))
}

// An Answer is what a place says of a job.
type Answer byte

// The answers.
const (
	Here      Answer = 'h' // the place has the job
	Gone      Answer = script.LetterGone
	Elsewhere Answer = script.LetterElsewhere
)

// Walk calls ask for the places in which a job can be, until one has it or fails. In a generation
// by key, ask can be called for several places at a time.
func (c *Groups) Walk(ctx context.Context, topic, id string, ask func(ctx context.Context, k *script.Keys) (Answer, error)) (Answer, error) {
	return c.walkFor(ctx, &Op{Kind: Cancel, Topic: topic, ID: id}, ask)
}

// WalkNew is Walk for the places in which a new job can be stored.
func (c *Groups) WalkNew(ctx context.Context, o *Op, ask func(ctx context.Context, k *script.Keys) (Answer, error)) (Answer, error) {
	return c.walkFor(ctx, &Op{Kind: o.Kind, Topic: o.Topic, ID: o.ID, Fresh: o.Fresh}, ask)
}

func (c *Groups) walkFor(ctx context.Context, one *Op, ask func(ctx context.Context, k *script.Keys) (Answer, error)) (Answer, error) {
	w := walk{all: c, ctx: ctx, topic: one.Topic, send: func(place string, list []*Op) {
		for _, o := range list {
			answer, err := ask(ctx, script.NewKeys(c.Prefix, place))
			if o.answer(0, byte(answer)); err != nil {
				o.Err = err
			}
		}
	}}
	begun := c.maps.of(one.Topic) == nil
	list := []*Op{one}
	if begun {
		w.send(one.Topic, list)
		list = left(list)
	}
	w.carry(list, begun)
	return Answer(one.Letter), one.Err
}
