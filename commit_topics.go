package delayq

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/maphash"
	"time"

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
	if !unknown && since < recordEvery || g.client.rdb.SAdd(ctx, script.TopicsKey(g.client.o.prefix), g.keys.Topic).Err() != nil {
		return
	}
	g.mu.Lock()
	g.recorded = now
	g.mu.Unlock()
	g.client.remember(g.keys.Topic, now)
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
	last, dropped := idlest.series.Last()
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

// RemoveTopic removes an empty topic: its counters, its pauses, all its other keys, and its name
// from [Inspector.Topics]. It returns [ErrNotEmpty] and removes nothing if the topic has jobs, even
// dead or done ones, or schedules, or if a live server handles it. A topic that does not exist is
// removed again. If a job or a schedule is stored at the same time, it is kept, and so is the
// topic.
//
// Servers with a pattern ([Server.Handle]) handle the topics that they have found. They are asked
// by their heartbeats, so a server that started within the last seconds may not be noticed. It
// continues to handle the topic, and records its name again. Receipts of earlier calls expire by
// themselves within 3 minutes, and a server's list of taken jobs expires with their leases.
//
// Cost: O(servers), with one call for 100 of them, and a few calls of O(1).
func (c *Client) RemoveTopic(ctx context.Context, topic string) error {
	ctx, end := c.begin(ctx, CallEvent{Name: "remove topic", Topic: topic})
	place := script.Place{Call: "remove", Topic: topic}
	err := c.validate(ctx, topic, "")
	if err == nil {
		err = c.removeTopic(ctx, topic)
	}
	return end.err(c.acted(ctx, script.Place{Call: "remove topic", Topic: topic}, "", place.At(err)))
}

func (c *Client) removeTopic(ctx context.Context, topic string) error {
	servers, err := c.inspector().Servers(ctx)
	if err != nil {
		return err
	}
	for _, s := range servers {
		if _, handles := s.Topics[topic]; handles {
			return fmt.Errorf("%w: the server %s handles it", ErrNotEmpty, s.ID)
		}
	}
	k := script.NewKeys(c.o.prefix, topic)
	series := c.series.Get()
	r, err := c.scripts.Exec(ctx, script.RemoveTopic, k, k.Receipt(series.ID), 0, series.Next())
	c.series.Put(series, err)
	if err != nil {
		return c.unsure(err)
	}
	var jobs, leases, done, schedules int64
	if n, _ := fmt.Sscan(r.Text(2), &jobs, &leases, &done, &schedules); n > 0 {
		return fmt.Errorf("%w: it has %d unfinished jobs, %d leases, %d done jobs and %d schedules", ErrNotEmpty, jobs, leases, done, schedules)
	}
	// The name is in another slot. Whoever stores a job from now on adds it again, but perhaps
	// before it is removed here.
	if err := c.rdb.SRem(ctx, script.TopicsKey(c.o.prefix), topic).Err(); err != nil {
		return c.unsure(err)
	}
	c.forget(topic)
	for _, key := range []string{k.Stats, k.Schedules} {
		n, err := c.rdb.HLen(ctx, key).Result()
		if err == nil && n > 0 {
			return c.unsure(c.rdb.SAdd(ctx, script.TopicsKey(c.o.prefix), topic).Err())
		}
		if err != nil {
			return c.unsure(err)
		}
	}
	return nil
}

// forget drops what is remembered about a topic that was removed from the set of topics.
func (c *Client) forget(topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.recorded, maphash.String(c.seed, topic))
	for _, waits := range []bool{false, true} {
		if g := c.commits[commitKey{topic, waits}]; g != nil {
			g.mu.Lock()
			g.recorded = time.Time{}
			g.mu.Unlock()
		}
	}
}
