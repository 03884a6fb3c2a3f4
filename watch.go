package delayq

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// watchLimit is the most topics that one call asks for.
const watchLimit = 200

// A watch is the tick of the topics of a server that have nothing to do within one: one call asks for all of them how long that is so, so that ten
// topics whose jobs and schedules are far away do not cost ten promotes a second. Each goes on sleeping until its own due time, and to the millisecond
// what the watch has seen counts: so what a lost wake-up left behind is found within a tick as ever. On a cluster each topic ticks for itself, for a
// script must not touch two slots.
type watch struct {
	off atomic.Bool // Redis refuses a call about several topics

	mu     sync.Mutex
	asleep map[*sleeper]bool
}

// A sleeper is one sleep of a topic that leaves its ticks to the watch.
type sleeper struct {
	topic *topicServer
	timer *time.Timer // until its earliest head; or a little more than a tick, after which a topic without news looks for itself
}

func (w *watch) add(one *sleeper) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asleep == nil {
		w.asleep = make(map[*sleeper]bool)
	}
	w.asleep[one] = true
}

func (w *watch) remove(one *sleeper) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.asleep, one)
	one.timer.Stop()
}

func (w *watch) list() []*sleeper {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]*sleeper, 0, len(w.asleep))
	for one := range w.asleep {
		list = append(list, one)
	}
	return list
}

// tell lets a sleep end after wait. One that has ended meanwhile is left alone: that topic has looked for itself since.
func (w *watch) tell(one *sleeper, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asleep[one] {
		one.timer.Reset(wait)
	}
}

// watchLoop looks after the topics that sleep, once a tick. Like those of promoteLoop, its ticks are cut short by up to a tenth.
func (s *Server) watchLoop(ctx context.Context) {
	watched := trouble{name: "watch", log: s.log, outage: s.outage}
	for tick := s.o.tick; sleep(ctx, tick-rand.N(tick/10).Truncate(time.Millisecond)); {
		for some := range slices.Chunk(s.watch.list(), watchLimit) {
			sent := time.Now()
			now, waits, err := s.look(ctx, some)
			received := time.Now()
			switch {
			case ctx.Err() != nil:
				return
			case redis.HasErrorPrefix(err, "CROSSSLOT"): // a cluster behind a proxy, or of one node, and a client that does not know
				s.watch.off.Store(true)
			default:
				watched.note("watch", err)
			}
			for i, one := range some {
				if err != nil {
					s.watch.tell(one, 0) // each looks for itself
					continue
				}
				one.topic.turn(loopPromote)
				one.topic.clock.read(now, sent, received)
				s.watch.tell(one, min(waits[i], s.patience()))
			}
		}
	}
}

// look is one call of the watch script: Redis's clock, and how long each of these topics has nothing to do.
func (s *Server) look(ctx context.Context, some []*sleeper) (now int64, waits []time.Duration, err error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	keys := make([]string, 0, 5*len(some))
	for _, one := range some {
		k := one.topic.keys
		keys = append(keys, k.bucket, k.leases, k.slots, k.handoff, k.waiting)
	}
	r, err := s.call.call(call, watchScript, "", 0, names(keys...))
	if err == nil && len(r.list(2)) != len(some) {
		err = fmt.Errorf("watch: %w", errReply)
	}
	for i := range r.list(2) {
		waits = append(waits, waitOf(r.list(2).number(i)))
	}
	return r.now(), waits, err
}

// patience is how long a topic relies on a watch that says nothing.
func (s *Server) patience() time.Duration { return s.o.tick + s.o.tick/10 }

// watches tells whether topics may leave their ticks to the watch.
func (s *Server) watches() bool {
	_, cluster := s.rdb.(*redis.ClusterClient)
	return !cluster && !s.watch.off.Load()
}

// sleepWatched sleeps until wait is over, or what the watch says instead, or until the topic is woken. It prunes meanwhile.
func (t *topicServer) sleepWatched(ctx context.Context, wait time.Duration, pruned *time.Time) {
	s := t.server
	one := &sleeper{topic: t, timer: time.NewTimer(min(wait, s.patience()))}
	s.watch.add(one)
	defer s.watch.remove(one)
	untilPrune := func() time.Duration {
		wait := min(pruneEvery-t.clock.at(time.Now()).Sub(*pruned), pruneEvery)
		return wait + rand.N(s.o.tick) // not in step with other servers
	}
	prune := time.NewTimer(untilPrune())
	defer prune.Stop()
	for {
		select {
		case <-prune.C:
			t.pruneDue(ctx, pruned)
			prune.Reset(untilPrune())
		case <-one.timer.C:
			return
		case <-t.wake:
			return
		case <-ctx.Done():
			return
		}
	}
}
