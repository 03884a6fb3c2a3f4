package serve

import (
	"context"
	"math"
	"sync"
	"time"
)

// A Horizon is what a server knows after a [Server.Look].
type Horizon struct {
	Topics []string // that it serves, by name
	// Busy says that something has happened during the look, or that a topic waits for a worker:
	// look again.
	Busy bool
	// Next is the next instant, by Redis's clock, at which anything can happen in Topics without a
	// call. Zero: there is none.
	Next time.Time
}

// A Looker wants to look at a server. A hook that is one is given the server before it runs.
type Looker interface {
	Attach(s *Server)
}

// Look makes the server look at everything, whatever it rests for: it sends a heartbeat, finds the
// topics of its patterns, and each topic promotes, fires, prunes and takes at least once. Look
// returns when all have, or when ctx is done. It is for a clock of Redis that does not move by
// itself.
func (s *Server) Look(ctx context.Context) (h Horizon, err error) {
	if err := s.awaitLook(ctx, &s.looks.beat); err != nil {
		return h, err
	}
	if len(s.patterns) > 0 {
		if err := s.awaitLook(ctx, &s.looks.follow); err != nil {
			return h, err
		}
	}
	if err := s.awaitLook(ctx, &s.looks.parts); err != nil { // before the topics: it can find some
		return h, err
	}
	next := int64(math.MaxInt64)
	var alone []*Topic
	for _, t := range s.Topics.all() {
		if t.Loops.take == nil { // not started
			continue
		}
		if t.config.home == nil {
			h.Topics = append(h.Topics, t.Keys.Topic)
		}
		if !t.sharesWorkers() {
			alone = append(alone, t)
			continue
		}
		// One after the other: at the same time, each would claim workers that others miss.
		if err := h.gather(ctx, &next, t); err != nil {
			return h, err
		}
	}
	if err := h.gather(ctx, &next, alone...); err != nil {
		return h, err
	}
	if next < math.MaxInt64 {
		h.Next = time.UnixMicro(next)
	}
	return h, nil
}

// sharesWorkers reports whether the topic has workers of a pool.
func (t *Topic) sharesWorkers() bool {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.Workers.Member != nil
}

// gather makes topics look at everything, and adds what they see.
func (h *Horizon) gather(ctx context.Context, next *int64, topics ...*Topic) error {
	type asked struct {
		topic *Topic
		seen  <-chan sight
	}
	var all []asked
	for _, t := range topics {
		all = append(all, asked{t, t.promoting.look.ask()}, asked{t, t.taking.look.ask()}, asked{t, t.Loops.relaying.look.ask()})
		t.wake()
		t.Loops.take.Wake()
		t.Loops.relay.Wake()
	}
	for _, a := range all {
		select {
		case one := <-a.seen:
			h.Busy = h.Busy || one.busy
			if one.next > 0 {
				*next = min(*next, one.next)
			}
		case <-a.topic.stay.base.Done():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// looks are the requests to the loops of a server that it has one of.
type looks struct{ follow, beat, parts lookout }

// awaitLook makes a loop of the server take a turn, and returns when it has.
func (s *Server) awaitLook(ctx context.Context, l *lookout) error {
	select {
	case <-l.ask():
	case <-s.ending.settled:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// A sight is what a loop has seen of its topic.
type sight struct {
	busy bool  // something has happened
	next int64 // in µs by Redis's clock, when something can happen next; 0: when somebody calls
}

// A lookout is asked to look at everything, and says what it has seen. Its loop takes a request at
// the beginning of a step and answers it at the end.
type lookout struct {
	mu    sync.Mutex
	asked []chan sight
	woken chan struct{} // receives when there is a request, if it is not nil
}

// ask returns a channel that receives what the loop sees next.
func (l *lookout) ask() <-chan sight {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := make(chan sight, 1)
	l.asked = append(l.asked, c)
	l.poke()
	return c
}

// poke wakes the loop, if it waits for that.
func (l *lookout) poke() {
	select {
	case l.woken <- struct{}{}:
	default:
	}
}

// take returns the requests that a step is to answer.
func (l *lookout) take() (asked []chan sight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked, l.asked = l.asked, nil
	return asked
}

// keep puts requests back that the step could not answer.
func (l *lookout) keep(asked []chan sight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, asked...)
}

// answer answers requests.
func answer(asked []chan sight, s sight) {
	for _, c := range asked {
		c <- s
	}
}
