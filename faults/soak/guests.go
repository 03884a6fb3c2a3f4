package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/check"
	"github.com/delayq/delayq/faults/rig"
)

// Guests are topics that come and go: each enqueuer begins a new one after some jobs, all workers
// serve them by a pattern, and an operator removes those that are empty. No job of theirs dies.
const (
	guests      = "guest."
	guestTasks  = 1000            // of one enqueuer, of all topics, until its next guest comes
	betweenLeft = 3 * time.Second // two removals, at most
)

// gathered is a topic whose batches have the jobs of one key. Most of its keys never come again, as
// do some of those of topics with limits.
const gathered = "gathered"

var window = delayq.GatherWindow{Wait: 100 * time.Millisecond, ByKey: true}

// once is what names of keys that never come again begin with, and onceLeft how many of them may be
// left in a structure of a topic at the end.
const (
	once     = "once-"
	onceLeft = 200
)

func isGuest(topic string) bool { return strings.HasPrefix(topic, guests) }

// come notes a guest.
func (s *Soak) come(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.guests, topic) {
		s.guests = append(s.guests, topic)
	}
}

// came returns the guests so far.
func (s *Soak) came() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.guests)
}

// leave removes guests, as an operator does who looks for empty topics. Jobs of a guest can come
// later, and then it is there again.
func (s *Soak) leave(ctx context.Context) error {
	r := rand.New(rand.NewPCG(s.Seed, 5000)) //nolint:gosec // not for secrets
	client := delayq.NewClient(s.direct, delayq.Prefix(prefix))
	for wait(ctx, time.Duration(r.Int64N(int64(betweenLeft)))) {
		if list := s.came(); len(list) > 0 {
			call, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			err := client.RemoveTopic(call, list[r.IntN(len(list))])
			cancel()
			if errors.Is(err, delayq.ErrInvalid) {
				return err
			}
		}
	}
	return nil
}

// left removes all guests, which have no jobs any more, and looks for what is left of them and of
// keys that never came again.
func (s *Soak) left(ctx context.Context) (violations []check.Violation, err error) {
	client := delayq.NewClient(s.direct, delayq.Prefix(prefix))
	bad := func(topic, format string, args ...any) {
		violations = append(violations, check.Violation{Rule: "I12", Topic: topic, Text: fmt.Sprintf(format, args...)})
	}
	for _, topic := range s.came() {
		if err := client.RemoveTopic(ctx, topic); err != nil {
			bad(topic, "a guest cannot be removed: %v", err)
		}
	}
	names, err := delayq.NewInspector(s.direct, delayq.Prefix(prefix)).Topics(ctx)
	if err != nil {
		return nil, err
	}
	for _, topic := range names {
		if isGuest(topic) {
			bad(topic, "a guest that was removed has a name")
		}
	}
	state, err := check.Read(ctx, s.direct, prefix)
	if err != nil {
		return nil, err
	}
	for topic, t := range state.Topics {
		if isGuest(topic) {
			for _, part := range slices.Concat(slices.Collect(maps.Keys(t.Types)), slices.Collect(maps.Keys(t.Keys))) {
				if !strings.HasPrefix(part, "receipt:") && !strings.HasPrefix(part, "taken:") {
					bad(topic, "%s is left of a guest that was removed", part)
				}
			}
		}
		for part, names := range map[string]map[string]float64{
			"turn": t.Turn, "held": t.Held, "parked": t.Parked, "holders": t.Holders, "rates": t.Rates, "lags": t.Lags,
		} {
			n := 0
			for name := range names {
				if strings.Contains(name, once) {
					n++
				}
			}
			if n > onceLeft {
				bad(topic, "%d keys that never came again are left in %s", n, part)
			}
		}
	}
	return violations, nil
}

// guest returns the guest of an enqueuer, which changes after guestTasks tasks.
func (e *enqueuer) guest() string {
	topic := fmt.Sprintf("%s%d-%d", guests, e.n, e.made/guestTasks)
	e.come(topic)
	return topic
}

// key returns the key of a task, one that never comes again now and then.
func (e *enqueuer) key(t *rig.Task) string {
	if rare := t.Topic == gathered || t.Topic == limited || t.Topic == ordered; rare && e.r.IntN(4) == 0 {
		return fmt.Sprintf("%s%d-%d", once, e.n, e.made)
	}
	return keys[e.r.IntN(len(keys))]
}
