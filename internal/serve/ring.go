package serve

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/script"
)

// A server of many topics does not block on a connection for each of them. The take that finds too
// little puts the server on a list of the topic, in the same call. Whoever puts a job into ready
// takes a name off that list and publishes the topic on the channel of that name: it rings the
// server. So a job wakes one server. A lost ring costs at most a tick, because the watch finds
// topics that have jobs and topics in which the server is not on the list.
//
// A server of few topics blocks, as does a topic whose jobs come from a producer that does not
// ring, one of an earlier release.
const (
	// MostBlocked is the number of topics that a server blocks for: of all if it has no more, else
	// of those that are not rung.
	MostBlocked = 4

	// A topic is not rung if the watch finds jobs in it twice within bypassWindow, although the
	// server was on the list. It then blocks for bypassPeriod.
	BypassWindow = time.Minute
	BypassPeriod = 5 * time.Minute
)

// A ringing is what a topic knows of the rings that wake its first take loop.
type ringing struct {
	used   atomic.Bool // the loop waits for rings, and not by a blocking pop
	listed atomic.Bool // the server waits for a ring, as far as is known
	rung   atomic.Bool // the topic was rung, and no take has followed
	sought atomic.Bool // the watch found jobs although the server waited

	// bypassed is the latest time when the watch found jobs that nobody had rung for. Only the take
	// loop uses it.
	bypassed time.Time
}

// ringChannel returns the channel on which a name is rung.
func ringChannel(prefix, name string) string { return script.ControlChannel(prefix) + ":" + name }

// blocks reports whether a topic waits by a blocking pop.
func (t *Topic) blocks() bool {
	s := t.Server
	if t.gathersAll() { // a pop would return at once while jobs are gathered
		return false
	}
	return !s.blocked.never && s.Topics.len() <= MostBlocked || s.blocked.has(t)
}

// waitingName returns the name under which a topic waits for a ring. It is empty if it blocks.
func (t *Topic) waitingName() string {
	n := t.node.Load()
	if n == nil || t.blocks() {
		return ""
	}
	return n.name
}

// noteWaits notes whether a reply says that the server waits for a ring.
func (k *taker) noteWaits(waits bool) {
	if k.waits = waits; k.name != "" {
		k.topic.taking.ring.listed.Store(waits)
	}
}

// ring makes the topic take, because somebody has put a job into ready.
func (t *Topic) ring() {
	t.taking.ring.listed.Store(false)
	t.taking.ring.rung.Store(true)
	t.Loops.take.Wake()
}

// seek makes the topic take, because the watch says so. It does nothing if the topic is about to
// take anyway.
func (t *Topic) seek() {
	if !t.waitsForRoom() && t.Loops.take.Rests() {
		t.taking.ring.sought.Store(t.taking.ring.listed.Load())
		t.taking.ring.listed.Store(true) // a take that does not wait takes the name off the list
		t.Loops.take.Wake()
	}
}

// restOfPause returns how long a topic that is paused may rest. The watch finds the end of a pause,
// unless the topic blocks.
func (k *taker) restOfPause() time.Duration {
	if k.name == "" {
		return k.topic.Server.Config.Tick
	}
	return loop.Forever
}

// passOn wakes another server if this one was woken, by a ring or by a pop, and cannot take the
// job.
func (t *Topic) passOn(ctx context.Context, rung bool) {
	if rung {
		t.callRing(ctx, 0, CallTimeout)
	}
	t.handBack(ctx, CallTimeout)
}

// keepRing keeps the ring of a server for its next take, after one that Redis has not made.
func (t *Topic) keepRing(rung bool) {
	if rung {
		t.taking.ring.rung.Store(true)
	}
}

// stopWaiting takes the name off the list, and passes on what the server was woken for. No take may
// be in flight, because it could add the name again.
func (t *Topic) stopWaiting(ctx context.Context, name string) {
	until := t.leaveBy()
	if left := time.Until(until); left > 0 {
		t.handBack(ctx, min(left, CallTimeout))
	}
	if left := time.Until(until); name != "" && left > 0 {
		t.callRing(ctx, 1, min(left, CallTimeout))
	}
}

// callRing is one call of the ring script. If it fails, the jobs wait for a tick.
func (t *Topic) callRing(ctx context.Context, leave int, timeout time.Duration) {
	s, n := t.Server, t.node.Load()
	if n == nil {
		return
	}
	// Its error, if any, is in the log.
	_, _ = t.exec(ctx, topicCall{script: script.Ring, timeout: timeout}, script.ControlChannel(s.Config.Prefix), t.Keys.Topic, n.name, leave)
}

// noteBypass notes that the watch has found jobs in a topic that was to be rung. It reports whether
// the topic blocks from now on.
func (t *Topic) noteBypass() (blocks bool) {
	now := time.Now()
	if blocks = now.Sub(t.taking.ring.bypassed) < BypassWindow; blocks {
		t.Server.blocked.add(t, now)
	}
	t.taking.ring.bypassed = now
	return blocks
}

// blockedTopics are the topics of a server of many topics that block, with the end of that.
type blockedTopics struct {
	never bool // they all wait for rings, however few they are

	mu    sync.Mutex
	until map[*Topic]time.Time
}

func (b *blockedTopics) has(t *Topic) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	until, has := b.until[t]
	if has && !time.Now().Before(until) {
		delete(b.until, t)
		has = false
	}
	return has
}

func (b *blockedTopics) remove(t *Topic) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.until, t)
}

// add makes a topic block. If too many do, the one that has done so longest no longer does.
func (b *blockedTopics) add(t *Topic, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until == nil {
		b.until = make(map[*Topic]time.Time)
	}
	if _, has := b.until[t]; !has && len(b.until) >= MostBlocked {
		oldest := t
		for one, until := range b.until {
			if oldest == t || until.Before(b.until[oldest]) {
				oldest = one
			}
		}
		delete(b.until, oldest)
	}
	b.until[t] = now.Add(BypassPeriod)
}
