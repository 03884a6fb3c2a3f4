package await

import (
	"context"
	"time"
)

// A Waiter waits for the end of a job. Its caller must call End.
type Waiter struct {
	all   *Waits
	woken chan struct{}
	notes bool

	// The following fields are guarded by all.mu.

	on      *target // nil: it has its last answer
	ended   bool
	answer  Answer
	unread  bool
	state   byte  // of the job at the last look that has found it; 0: none has
	trouble error // why the last look has failed
}

// An Answer is what a look has shown.
type Answer struct {
	Kind  Kind
	Err   error  // why no more can be known; the rest is not set
	Nonce string // of the incarnation that lives or has ended
	Note  string // of one that lives; empty: there is none

	Outcome byte  // of one that has ended: a letter of the outcomes that the wait script knows
	At      int64 // when it has ended, by Redis's clock, in ms
	Rest    string
}

// A Kind says what a look has shown.
type Kind int

// The kinds of answers. Those after Early are the last ones of their waiters.
const (
	Lives Kind = iota
	Early      // it is not enqueued yet, and Redis knows that the client waits, or it looks often
	Ended
	None // no job has the ID
	Gone // the incarnation is gone, and nothing says how it has ended

	Elsewhere // no job has the ID, and none can: the topic is a closed place of one with partitions
	Kept      // as Elsewhere, but of a done job that is kept: it has ended, and has had the ID
)

// Begin makes a waiter for a job that has an ID now. notes says that it wants to know each note.
func (w *Waits) Begin(topic, id string, notes bool) (*Waiter, error) {
	return w.begin(topic, id, "", "", notes, false)
}

// BeginEarly is Begin for an incarnation that is about to be enqueued. The first answer is Early,
// or has an error if Redis could not be asked. Then Expect must be called.
func (w *Waits) BeginEarly(topic, id, key, nonce string, notes bool) (*Waiter, error) {
	return w.begin(topic, id, key, nonce, notes, true)
}

// BeginUnsure is Begin for an incarnation that was enqueued, if it is there. A look that does not
// find it is the last one.
func (w *Waits) BeginUnsure(topic, id, nonce string, notes bool) (*Waiter, error) {
	return w.begin(topic, id, "", nonce, notes, false)
}

func (w *Waits) begin(topic, id, key, nonce string, notes, early bool) (*Waiter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count >= mostWaiters {
		return nil, errMany
	}
	w.count++
	one := w.topicOf(topic).add(id, nonce)
	one.early, one.key = early, key
	waiter := &Waiter{all: w, woken: make(chan struct{}, 1), notes: notes, on: one}
	one.waiters = []*Waiter{waiter}
	w.mark(one)
	w.listen()
	return waiter, nil
}

// Expect says that the incarnation is enqueued, or, if unsure, that nobody knows. A look at it that
// does not find it is the last one.
func (r *Waiter) Expect(unsure bool) {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	if r.on == nil {
		return
	}
	r.on.early = false
	if unsure {
		r.all.mark(r.on)
	}
}

// Next waits for news of the job. Without notes, only the end is news.
func (r *Waiter) Next(ctx context.Context) (Answer, error) {
	for {
		select {
		case <-r.woken:
		case <-ctx.Done():
			if a, ok := r.take(); ok {
				return a, a.Err
			}
			return Answer{}, ctx.Err()
		}
		if a, ok := r.take(); ok {
			return a, a.Err
		}
	}
}

// take returns an answer that is not read yet.
func (r *Waiter) take() (Answer, bool) {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	unread := r.unread
	r.unread = false
	return r.answer, unread
}

// Seen returns the letter of the state in which the job was when it was last seen, or 0, and why
// the last look has failed.
func (r *Waiter) Seen() (state byte, trouble error) {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	return r.state, r.trouble
}

// End ends the wait.
func (r *Waiter) End() {
	w := r.all
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.ended {
		return
	}
	r.ended = true
	if one := r.on; one != nil {
		r.on = nil
		for i, other := range one.waiters {
			if other == r {
				one.waiters = append(one.waiters[:i:i], one.waiters[i+1:]...)
				break
			}
		}
		if len(one.waiters) == 0 && !one.flying {
			w.abandon(one)
		}
	}
	if w.count--; w.count == 0 && w.sub != nil {
		w.sub.idle = time.AfterFunc(linger, w.sub.close)
	}
}

// abandon removes a target that nobody waits for.
func (w *Waits) abandon(one *target) {
	t := one.of
	t.drop(one)
	if one.asked {
		w.leave(t, leave{one.id, one.nonce, one.early})
	}
	w.tidy(t)
}

// tell gives a waiter an answer.
func (r *Waiter) tell(a Answer) {
	r.answer, r.unread = a, true
	select {
	case r.woken <- struct{}{}:
	default:
	}
}

// finish gives all waiters of a target their last answer, and removes it.
func (one *target) finish(a Answer) {
	for _, waiter := range one.waiters {
		waiter.on = nil
		waiter.tell(a)
	}
	one.waiters = nil
	one.of.drop(one)
}
