package await

import (
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/script"
)

const (
	// mostWaiters is how many callers of a client can wait at a time.
	mostWaiters = 10_000

	// lookEvery is the longest time between two looks at a job that somebody waits for.
	lookEvery = 10 * time.Second

	// pollEvery takes its place if no message tells of the end of the job: too many others wait for
	// it, or the client may not subscribe.
	pollEvery = time.Second

	// linger is how long the subscription outlives the last wait.
	linger = 10 * time.Second
)

// errMany is the error of a wait beyond mostWaiters.
var errMany = fmt.Errorf("the client has %d waits, at most %d are allowed", mostWaiters, mostWaiters)

// A Wire is how the calls of a client reach Redis.
type Wire struct {
	Redis   redis.UniversalClient
	Scripts script.Caller
	Prefix  string
}

// Waits are those of a client.
type Waits struct {
	Wire
	name    string // of the client, by which Redis knows who waits
	channel string
	most    int // flights at a time

	mu      sync.Mutex // guards the rest, and all topics, targets and waiters
	topics  map[string]*topic
	count   int           // waiters
	leaves  int           // in all topics
	ready   []*topic      // with rows to send, the longest waiting first
	flights int           // goroutines that send looks
	picking bool          // one of them has yet to gather
	timer   *time.Timer   // of the next look that nothing else causes; nil: not yet made
	wakes   time.Time     // when it fires; zero: it does not
	sub     *subscription // nil: there is none
	deaf    bool          // the client may not subscribe
}

// New returns the waits of a client, which sends at most so many looks at a time. It starts
// nothing.
func New(wire Wire, flights int) *Waits {
	w := &Waits{Wire: wire, most: max(1, min(flights, mostFlights)), topics: make(map[string]*topic)}
	w.name = rand.Text()[:14]
	w.channel = script.ControlChannel(wire.Prefix) + ":" + w.name
	return w
}

// A topic is one with jobs that somebody waits for.
type topic struct {
	keys    *script.Keys
	targets map[string][]*target // by ID
	queue   []*target            // to look at
	leaves  []leave
	leaving map[string]int // leaves on their way, by ID
	flights int
	listed  bool // in Waits.ready
	failing pace
}

// A leave is an incarnation that nobody waits for any more. An empty nonce stands for all of the
// job. An unborn one was not enqueued: no other target has been, or will be, this incarnation.
type leave struct {
	id, nonce string
	unborn    bool
}

// A target is an incarnation of a job that somebody waits for.
type target struct {
	of      *topic
	id      string
	nonce   string // empty: whichever has the ID when Redis is asked for the first time
	waiters []*Waiter
	early   bool   // it is not enqueued yet
	key     string // of one that is early
	asked   bool   // Redis has been asked, and can have registered the client
	told    bool   // it was early, and its waiter has learnt that Redis was asked

	passed map[string]bool // nonces from which it has gone on since something else was found

	queued bool
	flying bool
	again  bool          // during the present look something has happened
	due    time.Time     // of the next look; zero: it is queued or flying
	slack  time.Duration // how much earlier it can be
}

// topicOf returns a topic.
func (w *Waits) topicOf(name string) *topic {
	t := w.topics[name]
	if t == nil {
		t = &topic{keys: script.NewKeys(w.Prefix, name), targets: make(map[string][]*target), leaving: make(map[string]int)}
		w.topics[name] = t
	}
	return t
}

// tidy forgets a topic for which there is nothing to do.
func (w *Waits) tidy(t *topic) {
	if len(t.targets)+len(t.leaves)+t.flights == 0 && !t.listed {
		delete(w.topics, t.keys.Topic)
	}
}

// add makes a target of a topic.
func (t *topic) add(id, nonce string) *target {
	one := &target{of: t, id: id, nonce: nonce}
	t.targets[id] = append(t.targets[id], one)
	return one
}

// drop removes a target.
func (t *topic) drop(one *target) {
	list := t.targets[one.id]
	for i, other := range list {
		if other != one {
			continue
		}
		if list = append(list[:i:i], list[i+1:]...); len(list) == 0 {
			delete(t.targets, one.id)
		} else {
			t.targets[one.id] = list
		}
		break
	}
	one.queued, one.due = false, time.Time{}
}

// bind gives a target its nonce. If there is a target with it, that one gets the waiters, and bind
// returns it.
func (one *target) bind(nonce string) *target {
	if one.nonce == nonce {
		return one
	}
	for _, other := range one.of.targets[one.id] {
		if other.nonce != nonce {
			continue
		}
		for _, waiter := range one.waiters {
			waiter.on = other
		}
		other.waiters = append(other.waiters, one.waiters...)
		other.asked = true
		one.waiters = nil
		one.of.drop(one)
		return other
	}
	one.nonce = nonce
	return one
}

// mark makes a look at a target follow.
func (w *Waits) mark(one *target) {
	switch {
	case one.flying:
		one.again = true
	case !one.queued:
		one.queued, one.due = true, time.Time{}
		one.of.queue = append(one.of.queue, one)
	}
	w.list(one.of)
}

// rest puts the next look at a target off.
func (w *Waits) rest(one *target, polls bool) {
	d := lookEvery
	if polls || w.deaf {
		d = pollEvery
	}
	one.slack = d / 10
	w.restFor(one, d)
}

func (w *Waits) restFor(one *target, d time.Duration) {
	now := time.Now()
	one.due = now.Add(d)
	if !w.wakes.IsZero() && !w.wakes.After(one.due) {
		return
	}
	w.wakes = one.due
	if w.timer == nil {
		w.timer = time.AfterFunc(d, w.sweep)
	} else {
		w.timer.Reset(d)
	}
}

// sweep looks at the targets whose time has come.
func (w *Waits) sweep() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.wakes.IsZero() || w.wakes.After(now) {
		return // the timer was reset while it fired
	}
	w.wakes = time.Time{}
	var next time.Time
	w.each(func(one *target) {
		switch {
		case one.due.IsZero():
		case !one.due.Add(-one.slack).After(now):
			w.mark(one)
		case next.IsZero() || one.due.Before(next):
			next = one.due
		}
	})
	if !next.IsZero() {
		w.wakes = next
		w.timer.Reset(next.Sub(now))
	}
}

// each calls f for all targets. f removes none but its own.
func (w *Waits) each(f func(*target)) {
	for _, t := range w.topics {
		for _, list := range t.targets {
			for _, one := range list {
				f(one)
			}
		}
	}
}

// leave makes Redis forget that the client waits for an incarnation. If there are too many, it
// forgets by itself.
func (w *Waits) leave(t *topic, l leave) {
	if w.leaves >= mostWaiters {
		return
	}
	w.leaves++
	t.leaves = append(t.leaves, l)
	w.list(t)
}

// fail ends all waits.
func (w *Waits) fail(err error) {
	for _, t := range w.topics {
		for _, list := range t.targets {
			for len(list) > 0 {
				one := list[0]
				list = list[1:]
				one.finish(Answer{Err: err})
			}
		}
		w.leaves -= len(t.leaves)
		t.leaves = nil
		w.tidy(t)
	}
}
