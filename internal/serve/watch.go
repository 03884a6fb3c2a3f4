package serve

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/script"
)

// WatchLimit is the most topics that one call covers.
const WatchLimit = 200

// A watch is the shared tick of a server's topics. Once a tick, one call for up to 200 topics asks
// two things.
//
// How long does a topic have nothing to do? So ten topics whose jobs and schedules are far in the
// future do not cost ten promotes a second. Each topic rests until its own due time, to the
// millisecond. The tick only corrects that time, so the effects of a lost wake-up are still found
// within a tick.
//
// Are there jobs in a topic that waits for a ring, or would it not be rung? See ring.go.
//
// On a Cluster, a call goes to one node, with the topics of all its slots.
type watch struct {
	off atomic.Bool   // Redis rejects a call about several topics
	now chan struct{} // receives a token when the next look is due at once

	mu     sync.Mutex
	asleep map[*Topic]*nap
}

// A nap is one rest of a topic that leaves its ticks to the watch. It lasts until the earliest
// head, but only a little more than a tick. After that, a topic without news checks for itself.
type nap struct {
	at    time.Time     // when the watch last reported,
	head  time.Duration // and how long it then was until the earliest head
	until time.Time     // the end
}

// add lets a topic rest whose earliest head is due after wait. It returns how long.
func (w *watch) add(t *Topic, wait time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asleep == nil {
		w.asleep = make(map[*Topic]*nap)
	}
	now, rest := time.Now(), min(wait, t.Server.patience())
	w.asleep[t] = &nap{at: now, head: wait, until: now.Add(rest)}
	return rest
}

// left returns how long a topic may still rest. It is 0 if the topic does not rest.
func (w *watch) left(t *Topic) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.asleep[t]; n != nil {
		return max(0, time.Until(n.until))
	}
	return 0
}

// remove reports whether the topic has rested.
func (w *watch) remove(t *Topic) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, asleep := w.asleep[t]
	delete(w.asleep, t)
	return asleep
}

// watched is a topic and its nap, if it rests.
type watched struct {
	topic *Topic
	nap   *nap
}

// watched returns the topics that rest or wait for a ring, by node.
func (s *Server) watched() map[*Node][]watched {
	all := s.Topics.all()
	by := make(map[*Node][]watched)
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	for _, t := range all {
		one := watched{t, s.watch.asleep[t]}
		if n := t.node.Load(); n != nil && (one.nap != nil || t.taking.ring.used.Load()) {
			by[n] = append(by[n], one)
		}
	}
	return by
}

// update makes a nap end when its head is due: after wait, by the reply to a call that was sent at
// sent. A delayed reply does not postpone the known head, if both can be the same. A nap that has
// ended is left alone, because its topic has checked for itself since.
func (w *watch) update(one watched, sent time.Time, wait, patience time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := one.nap
	if n == nil || w.asleep[one.topic] != n {
		return
	}
	now := time.Now()
	if known := n.head - now.Sub(n.at); wait-now.Sub(sent) <= known && known < wait {
		wait = known
	}
	n.at, n.head, n.until = now, wait, now.Add(min(wait, patience))
	one.topic.Loops.promote.RestUntil(n.until)
}

// watchLoop looks at the topics once a tick. Like those of the promote loops, its ticks are
// shortened by up to a tenth. A tick is measured from the start of one look to the start of the
// next, because topics rely on that, however slow Redis is and however many calls a look takes.
func (s *Server) watchLoop(ctx context.Context) {
	asked := trouble{name: "watch", log: s.Log, outage: s.outage}
	tick, took := s.Config.Tick, time.Duration(0)
	for {
		rest := max(tick-rand.N(tick/10).Truncate(time.Millisecond)-took, tick/2)
		loop.SignOf(ctx).Rest(rest)
		timer := time.NewTimer(rest)
		select {
		case <-timer.C:
		case <-s.watch.now:
		case <-ctx.Done():
		}
		timer.Stop()
		loop.SignOf(ctx).Turn()
		if ctx.Err() != nil {
			return
		}
		began := time.Now()
		s.moveTopics(ctx)
		calls, err := s.eachNode(ctx, s.watched(), s.look)
		if ctx.Err() != nil {
			return
		}
		if calls > 0 && !s.watch.off.Load() {
			asked.note("watch", err)
		}
		took = time.Since(began)
	}
}

// eachNode makes calls about topics side by side, each for at most WatchLimit topics of one node.
// It returns their number and one of their errors.
func (s *Server) eachNode(
	ctx context.Context, by map[*Node][]watched, call func(ctx context.Context, n *Node, some []watched) error,
) (calls int, err error) {
	for _, list := range by {
		calls += (len(list) + WatchLimit - 1) / WatchLimit
	}
	signs := loop.SignOf(ctx).Split(calls)
	defer loop.SignOf(ctx).Join()
	errs, next := make(chan error), 0
	for n, list := range by {
		for some := range slices.Chunk(list, WatchLimit) {
			g := signs[next]
			next++
			contain.Launch(nil, func() {
				err := call(loop.Signed(ctx, g), n, some)
				g.Wait()
				errs <- err
			}, func(c *contain.Crash) {
				g.Wait()
				errs <- c
			})
		}
	}
	for range calls {
		if one := <-errs; one != nil {
			err = one
		}
	}
	return calls, err
}

// look passes the results of one call to the topics that it covers.
func (s *Server) look(ctx context.Context, n *Node, some []watched) error {
	sent := time.Now()
	now, waits, marks, err := s.watchCall(ctx, n, some)
	received := time.Now()
	if ctx.Err() != nil {
		return nil
	}
	// a cluster behind a proxy, or of one node, with a client that does not know it
	if script.Code(err) == script.CodeCrossSlot {
		s.watch.off.Store(true)
	}
	for i, one := range some {
		if err != nil {
			s.watch.update(one, received, 0, 0) // each checks for itself
			if s.watch.off.Load() && one.topic.taking.ring.used.Load() {
				one.topic.seek()
			}
			continue
		}
		t := one.topic
		if t.clock.Read(now, sent, received); one.nap != nil {
			t.turn(TurnPromote)
		}
		if marks[i] == markElsewhere {
			s.watch.update(one, received, 0, 0)
			if t.taking.ring.used.Load() {
				t.seek()
			}
			continue
		}
		s.watch.update(one, sent, waits[i], s.patience())
		if t.taking.ring.used.Load() {
			t.turn(turnTake)
			if marks[i] == markTake {
				t.seek()
			}
		}
	}
	return err
}

// Marks of a topic in the replies of watch and survey.
const (
	markTake      = 't' // the server should take
	markNone      = '-' // nothing is to be done
	markElsewhere = 'm' // another node of the cluster serves the topic
)

// watchCall is one call of the watch script. It returns Redis's clock, and for each of these topics
// how long it has nothing to do and a mark.
func (s *Server) watchCall(ctx context.Context, n *Node, some []watched) (now int64, waits []time.Duration, marks string, err error) {
	keys := make([]any, 0, 13*len(some))
	for _, one := range some {
		k := one.topic.Keys
		keys = append(keys, k.Bucket, k.Leases, k.Slots, k.Handoff, k.Waiting, k.Ready, k.Turn, k.Idle, k.Meta, k.Held, k.Parked, k.Holders, k.Parcels)
	}
	r, err := s.askNode(ctx, n, script.Watch, keys, n.name)
	if err == nil && (len(r.List(2)) != len(some) || len(r.Text(3)) != len(some)) {
		err = fmt.Errorf("watch: %w", script.ErrReply)
	}
	for i := range r.List(2) {
		waits = append(waits, waitOf(r.List(2).Number(i)))
	}
	return r.Now(), waits, r.Text(3), err
}

// askNode executes a script that reads several topics. A node of a cluster gets their keys as
// arguments, because declared keys must be of one slot.
func (s *Server) askNode(ctx context.Context, n *Node, script *script.Script, keys []any, args ...any) (script.Reply, error) {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	if g := loop.SignOf(ctx); !n.Only { // the client of a cluster's node has no SignHook
		g.Call(call)
		defer g.Called()
	}
	if n.Only {
		return n.Scripts.Call(call, script, "", 0, keys, args...)
	}
	return n.Scripts.Call(call, script, "", 0, nil, append(args, keys...)...)
}

// patience returns how long a topic relies on a watch that reports nothing.
func (s *Server) patience() time.Duration { return s.Config.Tick + s.Config.Tick/10 }

// sharesTick reports whether topics can leave their ticks to the watch.
func (s *Server) sharesTick() bool { return !s.watch.off.Load() }
