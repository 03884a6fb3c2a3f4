package delayq

import (
	"crypto/rand"
	"hash/maphash"
	"time"
)

const (
	// mostCommits is of how many topics a client keeps the state.
	mostCommits = 1000

	// mostRecorded is of how many topics it knows at most that they are in the set of topics.
	mostRecorded = 50_000
)

// commit gives the group commit of a topic. It is to be given back with done.
func (c *Client) commit(topic string) *commit {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.commits[topic]
	if g == nil {
		if len(c.commits) >= c.most {
			c.evict()
			c.evict() // after a time when all were in use
		}
		g = newCommit(c, topic)
		if at := c.recorded[maphash.String(c.seed, topic)]; at != 0 {
			g.recorded = msTime(at)
		}
		c.commits[topic] = g
	}
	c.uses++
	g.used = c.uses
	g.users.Add(1)
	return g
}

// evict forgets one topic that is not in use: of a few, that which has not been used for longest. Used again, the topic has lanes
// of the same names, so that it leaves no more receipts than before, and with greater numbers, so that none of its calls is taken
// for an old one. The name of a lane that was dropped is not used again: then there are new names from here on.
func (c *Client) evict() {
	var idlest *commit
	looked := 0
	for _, g := range c.commits { // from anywhere
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
	delete(c.commits, idlest.keys.topic)
	last, dropped := idlest.lanes.last()
	c.lanesFloor = max(c.lanesFloor, last)
	if dropped {
		c.lanesBase = rand.Text()
	}
}

// remember notes that a topic is in the set of topics.
func (c *Client) remember(topic string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.recorded) >= mostRecorded {
		clear(c.recorded)
	}
	c.recorded[maphash.String(c.seed, topic)] = at.UnixMilli()
}
