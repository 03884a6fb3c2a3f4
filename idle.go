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

// idleLimit is the most topics that one call covers.
const idleLimit = 200

// An idleTick is the shared tick of a server's topics that have nothing to do within one tick. One
// call asks for all of them how long that remains so. So ten topics whose jobs and schedules are
// far in the future do not cost ten promotes a second. Each topic sleeps until its own due time, to
// the millisecond. The tick only corrects that time, so the effects of a lost wake-up are still
// found within a tick. On a cluster each topic has its own tick, because a script must not access
// two slots.
type idleTick struct {
	off atomic.Bool // Redis rejects a call about several topics

	mu     sync.Mutex
	asleep map[*sleeper]bool
}

// A sleeper is one sleep of a topic that leaves its ticks to the idleTick.
type sleeper struct {
	topic *topicServer
	// The timer runs until the earliest head, but only a little more than a tick. After that, a
	// topic without news checks for itself.
	timer *time.Timer
	at    time.Time     // when the idleTick last reported,
	head  time.Duration // and how long it then was until the earliest head
}

func (i *idleTick) add(one *sleeper) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.asleep == nil {
		i.asleep = make(map[*sleeper]bool)
	}
	i.asleep[one] = true
}

func (i *idleTick) remove(one *sleeper) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.asleep, one)
	one.timer.Stop()
}

func (i *idleTick) list() []*sleeper {
	i.mu.Lock()
	defer i.mu.Unlock()
	list := make([]*sleeper, 0, len(i.asleep))
	for one := range i.asleep {
		list = append(list, one)
	}
	return list
}

// update makes a sleep end when its head is due: after wait, by the reply to a call that was sent
// at sent. A delayed reply does not postpone the known head, if both can be the same. A sleep that
// has ended is left alone, because its topic has checked for itself since.
func (i *idleTick) update(one *sleeper, sent time.Time, wait, patience time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.asleep[one] {
		return
	}
	now := time.Now()
	if known := one.head - now.Sub(one.at); wait-now.Sub(sent) <= known && known < wait {
		wait = known
	}
	one.at, one.head = now, wait
	one.timer.Reset(min(wait, patience))
}

// idleLoop checks the sleeping topics once a tick. Like those of promoteLoop, its ticks are
// shortened by up to a tenth. A tick is measured from the start of one check to the start of the
// next, because topics rely on that, however slow Redis is and however many calls a check takes.
func (s *Server) idleLoop(ctx context.Context) {
	asked := trouble{name: "idle", log: s.log, outage: s.outage}
	tick, took := s.o.tick, time.Duration(0)
	for sleep(ctx, max(tick-rand.N(tick/10).Truncate(time.Millisecond)-took, tick/2)) {
		began := time.Now()
		asleep := s.idle.list()
		errs := make(chan error, len(asleep)/idleLimit+1)
		calls := 0
		for some := range slices.Chunk(asleep, idleLimit) {
			calls++
			launch(nil, func() { errs <- s.askIdle(ctx, some) }, func(c *crash) { errs <- c })
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
		if calls > 0 && !s.idle.off.Load() {
			asked.note("idle", err)
		}
		took = time.Since(began)
	}
}

// askIdle passes the results of one call to the topics that it covers.
func (s *Server) askIdle(ctx context.Context, some []*sleeper) error {
	sent := time.Now()
	now, waits, err := s.idleCall(ctx, some)
	received := time.Now()
	if ctx.Err() != nil {
		return nil
	}
	// a cluster behind a proxy, or of one node, with a client that does not know it
	if redisCode(err) == codeCrossSlot {
		s.idle.off.Store(true)
	}
	for i, one := range some {
		if err != nil {
			s.idle.update(one, received, 0, 0) // each checks for itself
			continue
		}
		one.topic.turn(loopPromote)
		one.topic.clock.read(now, sent, received)
		s.idle.update(one, sent, waits[i], s.patience())
	}
	return err
}

// idleCall is one call of the idle script. It returns Redis's clock, and how long each of these
// topics has nothing to do.
func (s *Server) idleCall(ctx context.Context, some []*sleeper) (now int64, waits []time.Duration, err error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	keys := make([]any, 0, 5*len(some))
	for _, one := range some {
		k := one.topic.keys
		keys = append(keys, k.bucket, k.leases, k.slots, k.handoff, k.waiting)
	}
	r, err := s.scripts.call(call, idleScript, "", 0, keys)
	if err == nil && len(r.list(2)) != len(some) {
		err = fmt.Errorf("idle: %w", errReply)
	}
	for i := range r.list(2) {
		waits = append(waits, waitOf(r.list(2).number(i)))
	}
	return r.now(), waits, err
}

// patience returns how long a topic relies on an idleTick that reports nothing.
func (s *Server) patience() time.Duration { return s.o.tick + s.o.tick/10 }

// sharesTick reports whether topics can leave their ticks to the idleTick.
func (s *Server) sharesTick() bool {
	_, cluster := s.rdb.(*redis.ClusterClient)
	return !cluster && !s.idle.off.Load()
}

// sleepIdle sleeps until wait is over, or as long as the idleTick says, or until the topic is
// woken. It prunes in the meantime, and returns if there is more to prune.
func (t *topicServer) sleepIdle(ctx context.Context, wait time.Duration, pruned *time.Time) {
	s := t.server
	one := &sleeper{topic: t, timer: time.NewTimer(min(wait, s.patience())), at: time.Now(), head: wait}
	s.idle.add(one)
	defer s.idle.remove(one)
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
