package delayq

import (
	"context"
	"crypto/rand"
	"hash/maphash"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/script"
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
	if !unknown && since < recordEvery || g.all.rdb.SAdd(ctx, script.TopicsKey(g.all.prefix), g.keys.Topic).Err() != nil {
		return
	}
	g.mu.Lock()
	g.recorded = now
	g.mu.Unlock()
	g.all.remember(g.keys.Topic, now)
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

// A wire is how commits reach Redis.
type wire struct {
	rdb      redis.UniversalClient
	scripts  script.Caller
	series   *script.SeriesPool // of calls that share no flight
	prefix   string
	tick     time.Duration // how long servers sleep at most
	replicas int           // how many must confirm a new job; 0: none
	wait     time.Duration // for their confirmation
}

// unsure marks an error after which the outcome of a call is unknown.
func (c *wire) unsure(err error) error { return script.Unsure(c.rdb, err) }

// commits are those of the topics that a client uses.
type commits struct {
	wire
	air   airspace
	yield yielding

	mu     sync.Mutex
	topics map[commitKey]*commit
	most   int    // number of topics, while some are unused
	uses   uint64 // number of calls of of
	base   string // for the series of new commits: see evict
	floor  uint64
	// hash of a topic → time it was added to the set of topics, Unix ms
	recorded map[uint64]int64
	seed     maphash.Seed
}

// newCommits returns commits with at most so many flights at a time, besides the first one of each
// topic.
func newCommits(w wire, flights int) *commits {
	return &commits{
		wire: w, air: airspace{most: flights}, topics: make(map[commitKey]*commit), most: mostCommits, base: rand.Text(),
		recorded: make(map[uint64]int64), seed: maphash.MakeSeed(),
	}
}

// of returns the commit of the calls of one kind in a topic. The caller must release it with done.
func (c *commits) of(topic string, k *kind) *commit {
	key := commitKey{topic, k == enqueueKind && c.replicas > 0}
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.topics[key]
	if g == nil {
		if len(c.topics) >= c.most {
			c.evict()
			c.evict() // after a time when all were in use
		}
		g = newCommit(c, key)
		if at := c.recorded[maphash.String(c.seed, topic)]; at != 0 {
			g.recorded = time.UnixMilli(at)
		}
		c.topics[key] = g
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
func (c *commits) evict() {
	var idlest *commit
	looked := 0
	for _, g := range c.topics { // in random order
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
	delete(c.topics, idlest.key)
	last, dropped := idlest.series.Last()
	c.floor = max(c.floor, last)
	if dropped {
		c.base = rand.Text()
	}
}

// remember records that a topic is in the set of topics.
func (c *commits) remember(topic string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.recorded) >= mostRecorded {
		clear(c.recorded)
	}
	c.recorded[maphash.String(c.seed, topic)] = at.UnixMilli()
}

// forget drops what is remembered about a topic that was removed from the set of topics.
func (c *commits) forget(topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.recorded, maphash.String(c.seed, topic))
	for _, waits := range []bool{false, true} {
		if g := c.topics[commitKey{topic, waits}]; g != nil {
			g.mu.Lock()
			g.recorded = time.Time{}
			g.mu.Unlock()
		}
	}
}
