package delayq

import (
	"context"
	"sync"
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
	// mostBlocked is the number of topics that a server blocks for: of all if it has no more, else
	// of those that are not rung.
	mostBlocked = 4

	// A topic is not rung if the watch finds jobs in it twice within bypassWindow, although the
	// server was on the list. It then blocks for bypassPeriod.
	bypassWindow = time.Minute
	bypassPeriod = 5 * time.Minute
)

// ringChannel returns the channel on which a name is rung.
func ringChannel(prefix, name string) string { return script.ControlChannel(prefix) + ":" + name }

// blocks reports whether a topic waits by a blocking pop.
func (t *topicServer) blocks() bool {
	s := t.server
	if t.gathersAll() { // a pop would return at once while jobs are gathered
		return false
	}
	return !s.alwaysRings && s.topics.len() <= mostBlocked || s.blocked.has(t)
}

// waitingName returns the name under which a topic waits for a ring. It is empty if it blocks.
func (t *topicServer) waitingName() string {
	n := t.node.Load()
	if n == nil || t.blocks() {
		return ""
	}
	return n.name
}

// noteWaits notes whether a reply says that the server waits for a ring.
func (k *taker) noteWaits(waits bool) {
	if k.waits = waits; k.name != "" {
		k.topic.listed.Store(waits)
	}
}

// ring makes the topic take, because somebody has put a job into ready.
func (t *topicServer) ring() {
	t.listed.Store(false)
	t.rung.Store(true)
	t.loops.take.Wake()
}

// seek makes the topic take, because the watch says so. It does nothing if the topic is about to
// take anyway.
func (t *topicServer) seek() {
	if !t.waitsForRoom() && t.loops.take.Rests() {
		t.sought.Store(t.listed.Load())
		t.listed.Store(true) // a take that does not wait takes the name off the list
		t.loops.take.Wake()
	}
}

// restOfPause returns how long a topic that is paused may rest. The watch finds the end of a pause,
// unless the topic blocks.
func (k *taker) restOfPause() time.Duration {
	if k.name == "" {
		return k.topic.server.config.tick
	}
	return loop.Forever
}

// passOn rings another server if this one was rung and cannot take the job.
func (t *topicServer) passOn(ctx context.Context, rung bool) {
	if rung {
		t.callRing(ctx, 0, callTimeout)
	}
}

// stopWaiting takes the name off the list, and passes on what the server was rung for. No take may
// be in flight, because it could add the name again.
func (t *topicServer) stopWaiting(ctx context.Context, name string) {
	if left := time.Until(t.leaveBy()); name != "" && left > 0 {
		t.callRing(ctx, 1, min(left, callTimeout))
	}
}

// callRing is one call of the ring script. If it fails, the jobs wait for a tick.
func (t *topicServer) callRing(ctx context.Context, leave int, timeout time.Duration) {
	s, n := t.server, t.node.Load()
	if n == nil {
		return
	}
	// Its error, if any, is in the log.
	_, _ = t.exec(ctx, topicCall{script: script.Ring, timeout: timeout}, script.ControlChannel(s.config.prefix), t.keys.Topic, n.name, leave)
}

// noteBypass notes that the watch has found jobs in a topic that was to be rung. It reports whether
// the topic blocks from now on.
func (t *topicServer) noteBypass() (blocks bool) {
	now := time.Now()
	if blocks = now.Sub(t.bypassed) < bypassWindow; blocks {
		t.server.blocked.add(t, now)
	}
	t.bypassed = now
	return blocks
}

// blockedTopics are the topics of a server of many topics that block, with the end of that.
type blockedTopics struct {
	mu    sync.Mutex
	until map[*topicServer]time.Time
}

func (b *blockedTopics) has(t *topicServer) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	until, has := b.until[t]
	if has && !time.Now().Before(until) {
		delete(b.until, t)
		has = false
	}
	return has
}

func (b *blockedTopics) remove(t *topicServer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.until, t)
}

// add makes a topic block. If too many do, the one that has done so longest no longer does.
func (b *blockedTopics) add(t *topicServer, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until == nil {
		b.until = make(map[*topicServer]time.Time)
	}
	if _, has := b.until[t]; !has && len(b.until) >= mostBlocked {
		oldest := t
		for one, until := range b.until {
			if oldest == t || until.Before(b.until[oldest]) {
				oldest = one
			}
		}
		delete(b.until, oldest)
	}
	b.until[t] = now.Add(bypassPeriod)
}
