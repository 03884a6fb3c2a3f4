package delayq

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// watchLimit is the most topics that one call asks for.
const watchLimit = 200

// A watch is the tick of the topics of a server in which nothing is delayed, leased or scheduled: one command asks for all of them whether that has
// changed, so that ten idle topics do not cost ten promotes a second. What a lost wake-up left behind is found within a tick as ever. On a cluster
// each topic ticks for itself, for a command must not touch two slots.
type watch struct {
	off atomic.Bool // Redis refuses a command about several topics

	mu     sync.Mutex
	asleep []*topicServer
}

func (w *watch) add(t *topicServer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asleep = append(w.asleep, t)
}

func (w *watch) remove(t *topicServer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asleep = slices.DeleteFunc(w.asleep, func(other *topicServer) bool { return other == t })
}

func (w *watch) list() []*topicServer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asleep)
}

// watchLoop looks after the topics that sleep, once a tick. Like those of promoteLoop, its ticks are cut short by up to a tenth.
func (s *Server) watchLoop(ctx context.Context) {
	watched := trouble{name: "watch", log: s.log, outage: s.outage}
	for tick := s.o.tick; sleep(ctx, tick-rand.N(tick/10).Truncate(time.Millisecond)); {
		for some := range slices.Chunk(s.watch.list(), watchLimit) {
			var keys []string
			for _, t := range some {
				k := t.keys
				keys = append(keys, k.bucket, k.leases, k.handoff, k.slots, k.waiting)
			}
			call, cancel := context.WithTimeout(ctx, callTimeout)
			n, err := s.calls.Exists(call, keys...).Result()
			cancel()
			switch {
			case ctx.Err() != nil:
				return
			case redis.HasErrorPrefix(err, "CROSSSLOT"): // a cluster behind a proxy, or of one node, and a client that does not know
				s.watch.off.Store(true)
			default:
				watched.note("watch", err)
			}
			for _, t := range some {
				if err != nil || n > 0 {
					nudge(t.wake) // each looks for itself
				} else {
					t.turn(loopPromote)
				}
			}
		}
	}
}

// watches tells whether topics may leave their ticks to the watch.
func (s *Server) watches() bool {
	_, cluster := s.rdb.(*redis.ClusterClient)
	return !cluster && !s.watch.off.Load()
}

// sleepIdle sleeps until the topic is woken, by a message or by the watch, and prunes meanwhile.
func (t *topicServer) sleepIdle(ctx context.Context, pruned *time.Time) {
	t.server.watch.add(t)
	defer t.server.watch.remove(t)
	for ctx.Err() == nil {
		wait := min(pruneEvery-t.clock.at(time.Now()).Sub(*pruned), pruneEvery)
		timer := time.NewTimer(wait + rand.N(t.server.o.tick)) // not in step with other servers
		select {
		case <-timer.C:
			t.pruneDue(ctx, pruned)
		case <-t.wake:
			timer.Stop()
			return
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}
