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

// watchLimit is the most topics that one call covers.
const watchLimit = 200

// A watch is the shared tick of a server's topics that have nothing to do within one tick. One call
// asks for all of them how long that remains so. So ten topics whose jobs and schedules are far in
// the future do not cost ten promotes a second. Each topic sleeps until its own due time, to the
// millisecond. The tick only corrects that time, so the effects of a lost wake-up are still found
// within a tick. On a cluster each topic has its own tick, because a script must not access two
// slots.
type watch struct {
	off atomic.Bool // Redis rejects a call about several topics

	mu     sync.Mutex
	asleep map[*sleeper]bool
}

// A sleeper is one sleep of a topic that leaves its ticks to the watch.
type sleeper struct {
	topic *topicServer
	// The timer runs until the earliest head, but only a little more than a tick. After that, a
	// topic without news checks for itself.
	timer *time.Timer
	at    time.Time     // when the watch last reported,
	head  time.Duration // and how long it then was until the earliest head
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

// tell makes a sleep end when its head is due: after wait, by the reply to a call that was sent at
// sent. A delayed reply does not postpone the known head, if both can be the same. A sleep that has
// ended is left alone, because its topic has checked for itself since.
func (w *watch) tell(one *sleeper, sent time.Time, wait, patience time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.asleep[one] {
		return
	}
	now := time.Now()
	if known := one.head - now.Sub(one.at); wait-now.Sub(sent) <= known && known < wait {
		wait = known
	}
	one.at, one.head = now, wait
	one.timer.Reset(min(wait, patience))
}

// watchLoop checks the sleeping topics once a tick. Like those of promoteLoop, its ticks are
// shortened by up to a tenth. A tick is measured from the start of one check to the start of the
// next, because topics rely on that, however slow Redis is and however many calls a check takes.
func (s *Server) watchLoop(ctx context.Context) {
	watched := trouble{name: "watch", log: s.log, outage: s.outage}
	tick, took := s.o.tick, time.Duration(0)
	for sleep(ctx, max(tick-rand.N(tick/10).Truncate(time.Millisecond)-took, tick/2)) {
		began := time.Now()
		asleep := s.watch.list()
		errs := make(chan error, len(asleep)/watchLimit+1)
		calls := 0
		for some := range slices.Chunk(asleep, watchLimit) {
			calls++
			launch(nil, func() { errs <- s.watchSome(ctx, some) }, func(c *crash) { errs <- c })
		}
		var err error
		for range calls {
			if one := <-errs; one != nil {
				err = one
			}
		}
		if ctx.Err() != nil {
			return
		}
		if calls > 0 && !s.watch.off.Load() {
			watched.note("watch", err)
		}
		took = time.Since(began)
	}
}

// watchSome passes the results of one call to the topics that it covers.
func (s *Server) watchSome(ctx context.Context, some []*sleeper) error {
	sent := time.Now()
	now, waits, err := s.look(ctx, some)
	received := time.Now()
	if ctx.Err() != nil {
		return nil
	}
	// a cluster behind a proxy, or of one node, with a client that does not know it
	if redis.HasErrorPrefix(err, "CROSSSLOT") {
		s.watch.off.Store(true)
	}
	for i, one := range some {
		if err != nil {
			s.watch.tell(one, received, 0, 0) // each checks for itself
			continue
		}
		one.topic.turn(loopPromote)
		one.topic.clock.read(now, sent, received)
		s.watch.tell(one, sent, waits[i], s.patience())
	}
	return err
}

// look is one call of the idle script. It returns Redis's clock, and how long each of these topics
// has nothing to do.
func (s *Server) look(ctx context.Context, some []*sleeper) (now int64, waits []time.Duration, err error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	keys := make([]any, 0, 5*len(some))
	for _, one := range some {
		k := one.topic.keys
		keys = append(keys, k.bucket, k.leases, k.slots, k.handoff, k.waiting)
	}
	r, err := s.scripts.call(call, idleScript, "", 0, keys)
	if err == nil && len(r.list(2)) != len(some) {
		err = fmt.Errorf("watch: %w", errReply)
	}
	for i := range r.list(2) {
		waits = append(waits, waitOf(r.list(2).number(i)))
	}
	return r.now(), waits, err
}

// patience returns how long a topic relies on a watch that reports nothing.
func (s *Server) patience() time.Duration { return s.o.tick + s.o.tick/10 }

// watches reports whether topics can leave their ticks to the watch.
func (s *Server) watches() bool {
	_, cluster := s.rdb.(*redis.ClusterClient)
	return !cluster && !s.watch.off.Load()
}

// sleepWatched sleeps until wait is over, or as long as the watch says, or until the topic is
// woken. It prunes in the meantime, and returns if there is more to prune.
func (t *topicServer) sleepWatched(ctx context.Context, wait time.Duration, pruned *time.Time) {
	s := t.server
	one := &sleeper{topic: t, timer: time.NewTimer(min(wait, s.patience())), at: time.Now(), head: wait}
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
			if t.pruneDue(ctx, pruned) {
				return // the promote loop continues it
			}
			prune.Reset(untilPrune())
		case <-one.timer.C:
			return
		case <-t.wakeups.promote:
			return
		case <-ctx.Done():
			return
		}
	}
}
