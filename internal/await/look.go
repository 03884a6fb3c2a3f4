package await

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

const (
	// mostFlights bounds the looks of a client on their way, and perTopic those of a topic.
	mostFlights = 8
	perTopic    = 4

	// another is how many targets must wait until a further look at jobs of a topic is sent before
	// Redis has answered the last one.
	another = 16

	// mostRows is how many jobs one call of the script answers at most.
	mostRows = 100

	// lookTimeout bounds a look. The timeouts of go-redis are usually shorter.
	lookTimeout = 10 * time.Second
)

type pace = loop.Pace

// verbs of the rows of the script.
const (
	verbLook  = "+"
	verbLeave = "-"
)

// list makes flights send the rows of a topic.
func (w *Waits) list(t *topic) {
	rows := len(t.queue) + len(t.leaves)
	if rows > 0 && !t.listed && (t.flights == 0 || t.flights < perTopic && rows >= another) {
		t.listed = true
		w.ready = append(w.ready, t)
	}
	if len(w.ready) > 0 && !w.picking && w.flights < w.most {
		w.picking = true
		w.flights++
		w.fly()
	}
}

// A flight is one call of the script.
type flight struct {
	of     *topic
	looks  []*target
	early  []bool // of looks: the job was not enqueued yet
	leaves []leave
	args   []any
	landed bool
}

// fly sends looks in a goroutine of its own until there are none to send.
func (w *Waits) fly() {
	var last *flight
	contain.Launch(nil, func() {
		for first := true; ; first = false {
			if last = w.pick(first); last == nil {
				return
			}
			w.send(last)
		}
	}, func(c *contain.Crash) { // a hook of the caller's go-redis client has ended the goroutine
		w.mu.Lock()
		defer w.mu.Unlock()
		w.flights--
		if last != nil && !last.landed {
			w.land(last, nil, fmt.Errorf("%w: %w", script.ErrCut, c))
		}
	})
}

// pick gathers the rows of the next flight. Without any, the flights of its goroutine are over.
func (w *Waits) pick(first bool) *flight {
	w.mu.Lock()
	defer w.mu.Unlock()
	if first {
		w.picking = false
	}
	for len(w.ready) > 0 {
		t := w.ready[0]
		w.ready[0] = nil
		w.ready = w.ready[1:]
		t.listed = false
		f := w.gather(t)
		if len(f.looks)+len(f.leaves) > 0 {
			t.flights++
			w.list(t)
			return f
		}
		w.tidy(t)
	}
	w.ready = nil
	w.flights--
	return nil
}

// gather takes rows of a topic. While a leave is on its way, no look at the job is: it could come
// first, and then Redis would forget that the client waits. For the same reason the client does not
// leave a job while another target has its ID: that one can have gone on as the incarnation in
// Redis. None has gone on as an unborn one.
func (w *Waits) gather(t *topic) *flight {
	f := &flight{of: t}
	for len(t.leaves) > 0 && len(f.leaves) < mostRows/2 {
		l := t.leaves[0]
		t.leaves = t.leaves[1:]
		w.leaves--
		if !l.unborn && len(t.targets[l.id]) > 0 {
			continue
		}
		f.leaves = append(f.leaves, l)
		if !l.unborn {
			t.leaving[l.id]++
		}
	}
	var later []*target
	for i, one := range t.queue {
		if len(f.leaves)+len(f.looks) == mostRows {
			later = append(later, t.queue[i:]...)
			break
		}
		switch {
		case !one.queued: // removed meanwhile
		case t.leaving[one.id] > 0:
			later = append(later, one)
		default:
			one.queued, one.flying, one.asked, one.again = false, true, true, false
			f.looks, f.early = append(f.looks, one), append(f.early, one.early)
		}
	}
	t.queue = later
	f.args = append(make([]any, 0, 1+3*(len(f.leaves)+len(f.looks))), w.name)
	for _, l := range f.leaves {
		f.args = append(f.args, l.id, l.nonce, verbLeave)
	}
	for _, one := range f.looks {
		f.args = append(f.args, one.id, one.nonce, verbLook+one.key)
	}
	return f
}

// send makes the call.
func (w *Waits) send(f *flight) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	r, err := w.Scripts.Exec(ctx, script.Wait, f.of.keys, "", len(f.looks)+len(f.leaves), f.args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.land(f, r.List(2), err)
}

// land reads the answers to a flight.
func (w *Waits) land(f *flight, answers script.Reply, err error) {
	f.landed = true
	t := f.of
	t.flights--
	for _, l := range f.leaves {
		if l.unborn {
			continue
		}
		if t.leaving[l.id]--; t.leaving[l.id] == 0 {
			delete(t.leaving, l.id)
		}
	}
	for _, one := range f.looks {
		one.flying = false
	}
	switch {
	case err != nil:
		w.failed(f, err)
	case len(answers) == 0:
		w.failed(f, script.ErrReply)
	default:
		t.failing.Reset()
		w.answered(f, answers)
	}
	w.list(t)
	w.tidy(t)
}

// failed follows up a flight that Redis has not answered, or has refused. While Redis is away, the
// waits go on, but for those of jobs that are not enqueued because of that. Once a job may be on
// its way to Redis, a look must not decide what its caller learns of it.
func (w *Waits) failed(f *flight, err error) {
	if errors.Is(err, redis.ErrClosed) {
		w.fail(err)
		return
	}
	again := script.Away(err) && !errors.Is(err, script.ErrCut)
	var wait time.Duration
	if again {
		link.Reload(w.Redis)
		wait = f.of.failing.Next()
	}
	for i, one := range f.looks {
		switch {
		case len(one.waiters) == 0:
			w.abandon(one)
		case again && (!f.early[i] || one.told):
			for _, waiter := range one.waiters {
				waiter.trouble = err
			}
			one.again, one.slack = false, wait/10
			w.restFor(one, wait)
		default:
			one.finish(Answer{Err: err})
		}
	}
}

// answered reads the answers to the first rows of a flight.
func (w *Waits) answered(f *flight, answers script.Reply) {
	n := len(f.leaves)
	for _, l := range f.leaves[min(n, len(answers)):] {
		w.leave(f.of, l)
	}
	for i, one := range f.looks {
		if n+i >= len(answers) {
			if len(one.waiters) == 0 {
				w.abandon(one)
			} else {
				w.mark(one)
			}
			continue
		}
		w.read(one, answers.Text(n+i), f.early[i])
	}
}

// read reads the answer to one look. early says that the job was not enqueued when it was sent.
func (w *Waits) read(one *target, text string, early bool) {
	a, polls, next := decode(text, early)
	if !one.follows(next) {
		a, next = Answer{Kind: Gone}, ""
	}
	switch {
	case a.Kind == Gone, a.Err != nil:
		a.Nonce = one.nonce
	case a.Kind == Kept && one.nonce == "": // others can wait for the end of this very incarnation
		one.finish(a)
		return
	case a.Kind == Kept:
		a.Kind = Ended
	}
	if a.Nonce != "" {
		again := one.again
		if one = one.bind(cmp.Or(next, a.Nonce)); again {
			w.mark(one)
		}
	}
	switch {
	case len(one.waiters) == 0:
		if !one.flying {
			w.abandon(one)
		}
		return
	case next != "":
		w.mark(one)
		return
	case a.Err != nil || a.Kind > Early:
		one.finish(a)
		return
	}
	one.told = one.told || a.Kind == Early
	for _, waiter := range one.waiters {
		waiter.trouble = nil
		if a.Kind == Lives {
			waiter.state = text[1+record.NonceLen]
		}
		if waiter.notes || a.Kind == Early {
			waiter.tell(a)
		}
	}
	switch {
	case one.again:
		w.mark(one)
	case !one.flying && !one.queued:
		w.rest(one, polls)
	}
}

// mostHops bounds how many incarnations follow one another between two looks that find something
// else. Outcomes are kept for a minute.
const mostHops = 10_000

// follows reports whether a target can go on as the incarnation with a nonce. Damaged outcomes can
// lead round in a circle.
func (one *target) follows(next string) bool {
	if next == "" {
		one.passed = nil
		return true
	}
	if one.passed == nil {
		one.passed = make(map[string]bool)
	}
	one.passed[one.nonce] = true
	return !one.passed[next] && len(one.passed) <= mostHops
}

// decode reads an answer of the script. polls says that no message will tell of the end, and next
// is the nonce of the incarnation that goes on for the one that has ended.
func decode(text string, early bool) (a Answer, polls bool, next string) {
	const front = 1 + record.NonceLen
	bad := Answer{Err: script.ErrReply}
	if text == "" {
		return bad, false, ""
	}
	switch letter := text[0]; letter {
	case 'l', 'v':
		if len(text) <= front {
			return bad, false, ""
		}
		return Answer{Kind: Lives, Nonce: text[1:front], Note: text[front+1:]}, letter == 'v', ""
	case 'e', 'k':
		if len(text) <= front {
			return bad, false, ""
		}
		part := strings.SplitN(text[front:], " ", 3)
		if len(part) < 3 || len(part[0]) != 1 {
			return bad, false, ""
		}
		at, err := strconv.ParseInt(part[1], 10, 64)
		if err != nil {
			return bad, false, ""
		}
		a = Answer{Kind: Ended, Nonce: text[1:front], Outcome: part[0][0], At: at, Rest: part[2]}
		if a.Outcome == Followed {
			if next = a.Rest; len(next) != record.NonceLen || next == a.Nonce {
				return bad, false, ""
			}
		}
		if letter == 'k' {
			a.Kind = Kept
		}
		return a, false, next
	case 'p', 'h', 'P', 'H':
		if early {
			return Answer{Kind: Early}, letter == 'P' || letter == 'H', ""
		}
		return Answer{Kind: Gone}, false, ""
	case 'g':
		return Answer{Kind: None}, false, ""
	case 'A':
		if !early { // it was enqueued here
			return Answer{Kind: Gone}, false, ""
		}
		return Answer{Kind: Elsewhere}, false, ""
	case 'a':
		return Answer{Kind: Elsewhere}, false, ""
	}
	return bad, false, ""
}

// The letters of outcomes.
const (
	Done      byte = 'o'
	Dead      byte = 'd'
	Cancelled byte = 'c'
	Expired   byte = 'x'
	Replaced  byte = 'r'
	Followed  byte = 'f' // another incarnation goes on for it: it is never the outcome of an Answer
)
