package delayq

import (
	"context"
	"crypto/rand"
	"hash/maphash"
	"time"
)

// recordEvery is how often a client adds a topic that it uses to the set of topics, because Redis
// may have lost its data.
const recordEvery = time.Minute

// record adds the topic to the set of topics every recordEvery, and immediately if Redis did not
// know the topic. Only lists of topics and servers with patterns read the set: if the call fails,
// the next call tries again.
func (g *commit) record(ctx context.Context, unknown bool) {
	now := time.Now()
	g.mu.Lock()
	since := now.Sub(g.recorded)
	g.mu.Unlock()
	if !unknown && since < recordEvery || g.client.rdb.SAdd(ctx, topicsKey(g.client.o.prefix), g.keys.topic).Err() != nil {
		return
	}
	g.mu.Lock()
	g.recorded = now
	g.mu.Unlock()
	g.client.remember(g.keys.topic, now)
}

const (
	// mostCommits is the number of topics whose state a client keeps.
	mostCommits = 1000

	// mostRecorded is the maximum number of topics that a client remembers as members of the set of
	// topics.
	mostRecorded = 50_000
)

// A commitKey says which calls share flights: those of a topic. Calls that wait for replicas have
// their own flights, so that no other call waits for replicas.
type commitKey struct {
	topic string
	waits bool
}

// commit returns the group commit of the calls of one kind in a topic. The caller must release it
// with done.
func (c *Client) commit(topic string, k *kind) *commit {
	key := commitKey{topic, k == enqueueKind && c.o.replicas > 0}
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.commits[key]
	if g == nil {
		if len(c.commits) >= c.most {
			c.evict()
			c.evict() // after a time when all were in use
		}
		g = newCommit(c, key)
		if at := c.recorded[maphash.String(c.seed, topic)]; at != 0 {
			g.recorded = msTime(at)
		}
		c.commits[key] = g
	}
	c.uses++
	g.used = c.uses
	g.users.Add(1)
	return g
}

// evict drops one topic that is not in use: the least recently used of a few. When the topic is
// used again, its series have the same names, so that it leaves no more receipts than before. Their
// numbers are greater, so that no call is taken for an old one. The name of a dropped series is not
// used again: after one, all series get new names.
func (c *Client) evict() {
	var idlest *commit
	looked := 0
	for _, g := range c.commits { // in random order
		if g.idle() && (idlest == nil || g.used < idlest.used) {
			idlest = g
		}
		if looked++; looked == 8 {
			break
		}
	}
	if idlest == nil {
		return
	}
	delete(c.commits, idlest.key)
	last, dropped := idlest.series.last()
	c.seriesFloor = max(c.seriesFloor, last)
	if dropped {
		c.seriesBase = rand.Text()
	}
}

// remember records that a topic is in the set of topics.
func (c *Client) remember(topic string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.recorded) >= mostRecorded {
		clear(c.recorded)
	}
	c.recorded[maphash.String(c.seed, topic)] = at.UnixMilli()
}
