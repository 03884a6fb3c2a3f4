package gateway

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/delayq/delayq"
)

// A topic is one from which consumers take. It is served as long as they do, and a while longer.
// Gateway.mu guards it.
type topic struct {
	name   string
	who    string   // the name of the token that has begun it
	takers []*taker // that wait for jobs, the first one first
	held   int      // jobs that consumers have
	used   time.Time
	begun  chan struct{} // closed: the server serves it, or err says why not
	err    error
	gone   chan struct{} // not nil: it is being removed; closed when that is done
}

// How long a topic is served that nobody takes from, and how often that is looked at.
const (
	idleTopic  = time.Minute
	reapEvery  = 10 * time.Second
	removeTime = 30 * time.Second
)

// A taker is a take that waits for jobs. Gateway.mu guards it.
type taker struct {
	who   string // the name of its token
	want  int    // jobs that it still waits for
	lease time.Duration
	got   []*lease
	bytes int
	more  chan struct{} // it has got one
}

// serve makes the server serve a topic, if it does not yet.
func (g *Gateway) serve(ctx context.Context, name, who string) error {
	for {
		g.mu.Lock()
		t := g.topics[name]
		switch {
		case t == nil && len(g.topics) >= g.MaxTopics:
			g.mu.Unlock()
			return newProblem(tooMany, "consumers take from %d topics already", g.MaxTopics)
		case t == nil && g.begunLocked(who) >= g.part(g.MaxTopics):
			g.mu.Unlock()
			return g.overShare(who, "topics from which they were the first to take", g.MaxTopics)
		case t == nil:
			t = &topic{name: name, who: who, used: time.Now(), begun: make(chan struct{})}
			g.topics[name] = t
			g.mu.Unlock()
			return g.begin(t)
		}
		t.used = time.Now()
		wait := t.gone
		if wait == nil {
			wait = t.begun
		}
		leaves := t.gone != nil
		g.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
		if !leaves {
			return t.err
		}
	}
}

// begunLocked returns how many topics are served because a token has begun to take from them.
func (g *Gateway) begunLocked(who string) (n int) {
	for _, t := range g.topics {
		if t.who == who {
			n++
		}
	}
	return n
}

// begin gives a topic to the server.
func (g *Gateway) begin(t *topic) error {
	err := g.server.HandlerFunc(t.name, g.handle, library.OnDemand())
	if errors.Is(err, delayq.ErrServerUsed) {
		err = newProblem(stopping, "the gateway is stopping")
	}
	g.mu.Lock()
	if t.err = err; err != nil {
		delete(g.topics, t.name)
	}
	g.mu.Unlock()
	close(t.begun)
	return err
}

// reap removes topics from the server that nobody has taken from for a while.
func (g *Gateway) reap() {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-g.over.Done():
			return
		}
		for _, t := range g.idle() {
			call, cancel := context.WithTimeout(g.over, removeTime)
			err := g.server.Remove(call, t.name)
			cancel()
			if err != nil && g.over.Err() == nil {
				g.Log.Warn("topic removed late", "topic", t.name, "err", err)
			}
			g.mu.Lock()
			delete(g.topics, t.name)
			g.mu.Unlock()
			close(t.gone)
		}
	}
}

// idle marks the topics that are to be removed.
func (g *Gateway) idle() (list []*topic) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.topics {
		if t.held == 0 && len(t.takers) == 0 && t.gone == nil && time.Since(t.used) >= idleTopic && isClosed(t.begun) {
			t.gone = make(chan struct{})
			list = append(list, t)
		}
	}
	return list
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// join adds a taker to a topic, unless consumers have or wait for too many jobs. It reports false
// if the topic is no longer served.
func (g *Gateway) join(name string, k *taker) (bool, error) {
	g.mu.Lock()
	t := g.topics[name]
	own := g.part(g.MaxLeases)
	if s := g.shares[k.who]; s != nil {
		own -= s.leases
	}
	switch room := g.MaxLeases - g.held - g.wanted; {
	case t == nil || t.gone != nil || !isClosed(t.begun):
		g.mu.Unlock()
		return false, nil
	case room < 1:
		g.mu.Unlock()
		return false, newProblem(tooMany, "consumers have or wait for %d jobs", g.MaxLeases)
	case own < 1:
		g.mu.Unlock()
		return false, g.overShare(k.who, "jobs, or wait for them", g.MaxLeases)
	default:
		k.want = min(k.want, room, own)
	}
	t.takers = append(t.takers, k)
	g.wanted += k.want
	g.shareOf(k.who).leases += k.want
	n := k.want
	g.mu.Unlock()
	library.Demand(g.server, name, n)
	return true, nil
}

// leave ends the wait of a taker. It returns the jobs that it has got.
func (g *Gateway) leave(name string, k *taker) []*lease {
	g.mu.Lock()
	n := g.satisfiedLocked(g.topics[name], k)
	got := k.got
	g.mu.Unlock()
	g.withdraw(name, n)
	return got
}

// satisfiedLocked makes a taker wait for no more jobs. It returns how many it waited for.
func (g *Gateway) satisfiedLocked(t *topic, k *taker) (left int) {
	left, k.want = k.want, 0
	g.wanted -= left
	g.shareOf(k.who).leases -= left
	g.freed(k.who)
	t.used = time.Now()
	t.takers = slices.DeleteFunc(t.takers, func(other *taker) bool { return other == k })
	return left
}

// withdraw tells the server that nobody waits for so many jobs any more.
func (g *Gateway) withdraw(name string, n int) {
	if n > 0 {
		library.Demand(g.server, name, -n)
	}
}

// offer gives a job to the taker that has waited the longest. It reports false if there is none.
func (g *Gateway) offer(l *lease) bool {
	g.mu.Lock()
	t := g.topics[l.job.Topic]
	if t == nil || len(t.takers) == 0 {
		g.mu.Unlock()
		return false
	}
	k := t.takers[0]
	k.want--
	g.wanted--
	k.got = append(k.got, l)
	k.bytes += len(l.job.Payload)
	l.given(g, t, k)
	left := 0
	if k.want == 0 || k.bytes >= mostTaken {
		left = g.satisfiedLocked(t, k)
	}
	g.mu.Unlock()
	g.withdraw(t.name, left)
	select {
	case k.more <- struct{}{}:
	default: // it has yet to look
	}
	return true
}
