package commit

import (
	"crypto/rand"
	"hash/maphash"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

const (
	// mostGroups is the number of topics whose state a client keeps.
	mostGroups = 1000

	// mostRecorded is the maximum number of topics that a client remembers as members of the set of
	// topics.
	mostRecorded = 50_000
)

// A groupKey says which calls share flights: those of a topic. Calls that wait for replicas have
// their own flights, so that no other call waits for replicas.
type groupKey struct {
	topic string
	waits bool
}

// A Wire is how the calls of a client reach Redis.
type Wire struct {
	Redis    redis.UniversalClient
	Scripts  script.Caller
	Series   *script.SeriesPool // of calls that share no flight
	Prefix   string
	Tick     time.Duration // how long a server sleeps at most before it looks for due jobs
	Replicas int           // how many must confirm a new job; 0: none
	Wait     time.Duration // for their confirmation
}

// unsure marks an error after which the outcome of a call is unknown.
func (c *Wire) unsure(err error) error { return script.Unsure(c.Redis, err) }

// Groups holds one Group for each topic that a client uses.
type Groups struct {
	Wire
	air   airspace
	yield yielding
	maps  mapped

	mu     sync.Mutex
	groups map[groupKey]*Group
	most   int    // number of topics, while some are unused
	uses   uint64 // number of calls of For
	base   string // for the series of new groups: see evict
	floor  uint64
	clock  link.Clock // of Redis, if it is one for all topics
	// hash of a topic → time it was added to the set of topics, Unix ms
	recorded map[uint64]int64
	seed     maphash.Seed
	owed     map[string]struct{} // topics that a goroutine is adding to the set: see owe
	paying   bool                // there is that goroutine
	late     bool                // Redis has refused some of them, and the log says so
}

// New returns groups with at most so many flights at a time, besides the first one of each topic.
func New(w Wire, flights int) *Groups {
	return &Groups{
		Wire: w, air: airspace{most: flights}, groups: make(map[groupKey]*Group), most: mostGroups, base: newBase(), floor: firstNumber,
		recorded: make(map[uint64]int64), seed: maphash.MakeSeed(), owed: make(map[string]struct{}),
	}
}

// clockOf returns the clock of a new group. The topics of a Cluster are on several nodes.
func (c *Groups) clockOf() *link.Clock {
	if _, one := c.Redis.(*redis.Client); one {
		return &c.clock
	}
	return &link.Clock{}
}

// newBase returns the first part of the names of series: 14 letters and digits, which is 70 random
// bits. Among a million clients that use a topic within the 3 minutes of a receipt, two get the
// same with a probability of 1 in 2 billion. Each call sends it, so it is no longer than that.
func newBase() string { return rand.Text()[:14] }

// For returns the group of the calls of one kind in a topic. The caller must release it.
func (c *Groups) For(topic string, k *Kind) *Group {
	key := groupKey{topic, k == Enqueue && c.Replicas > 0}
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil {
		if len(c.groups) >= c.most {
			c.evict()
			c.evict() // after a time when all were in use
		}
		g = newGroup(c, key)
		if at := c.recorded[maphash.String(c.seed, part.HomeOf(topic))]; at != 0 {
			g.recorded = time.UnixMilli(at)
		}
		c.groups[key] = g
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
func (c *Groups) evict() {
	var idlest *Group
	looked := 0
	for _, g := range c.groups { // in random order
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
	delete(c.groups, idlest.key)
	last, dropped := idlest.series.Last()
	c.floor = max(c.floor, last)
	if dropped {
		c.base = newBase()
	}
}
