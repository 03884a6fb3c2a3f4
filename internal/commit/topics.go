package commit

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

// The set of topics is all that servers with patterns know of new topics. A topic that is not in it
// has jobs that nobody runs. So a name is added before its first job is stored: a name without jobs
// does no harm. The set is in another slot of a Cluster than the topic, so no script can do both.

// recordEvery is how often a client adds a topic that it uses to the set of topics, because Redis
// may have lost its data.
const recordEvery = time.Minute

// errUnrecorded is in the error of a call whose jobs were not sent because the name of their topic
// could not be stored.
var errUnrecorded = errors.New("the name of the topic was not stored")

// Announce adds the topic to the set of topics before something is stored in it, unless this client
// has done so before. If it returns an error, nothing may be stored. A topic that was added before
// is in the set unless Redis has lost data. So no call waits for it again: after recordEvery the
// client adds it in the background.
func (g *Group) Announce(ctx context.Context) error {
	now := time.Now()
	g.mu.Lock()
	last := g.recorded
	g.mu.Unlock()
	switch {
	case last.IsZero():
		if err := g.all.add(ctx, part.HomeOf(g.keys.Topic)); err != nil {
			return fmt.Errorf("%w: %w", errUnrecorded, script.Unsent(err))
		}
	case now.Sub(last) < recordEvery:
		return nil
	default:
		g.all.owe(part.HomeOf(g.keys.Topic), nil)
	}
	g.noteRecorded(now)
	return nil
}

// Confirm adds the topic to the set of topics after Redis has stored something in it and said that
// it did not know the topic: it has lost its data, or somebody has removed the topic since it was
// announced. Confirm does this even if the caller's context has ended. If Redis does not take the
// name, the client adds it in the background.
func (g *Group) Confirm(ctx context.Context) {
	now := time.Now()
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTimeout)
	defer cancel()
	if err := g.all.add(call, part.HomeOf(g.keys.Topic)); err != nil {
		g.all.owe(part.HomeOf(g.keys.Topic), err)
	}
	g.noteRecorded(now)
}

// confirmTimeout is how long a call waits for a name that it stores after its jobs.
const confirmTimeout = 3 * time.Second

func (g *Group) noteRecorded(at time.Time) {
	g.mu.Lock()
	g.recorded = at
	g.mu.Unlock()
	g.all.remember(part.HomeOf(g.keys.Topic), at)
}

// announce announces the topic if some operations store jobs. If that fails, it settles them and
// returns the others.
func (g *Group) announce(ctx context.Context, list []*Op) (rest []*Op, failed error) {
	stores := func(o *Op) bool { return o.Kind.stores }
	if !slices.ContainsFunc(list, stores) {
		return list, nil
	}
	if failed = g.Announce(ctx); failed == nil {
		return list, nil
	}
	for _, o := range list {
		if stores(o) {
			o.Settle(failed)
		} else {
			rest = append(rest, o)
		}
	}
	return rest, failed
}

// add adds topics to the set of topics.
func (c *Groups) add(ctx context.Context, topics ...any) error {
	key := script.TopicsKey(c.Prefix)
	err := c.Redis.SAdd(ctx, key, topics...).Err()
	if err == nil {
		return nil
	}
	if script.Away(err) {
		link.Reload(c.Redis)
	}
	return script.Hinted(c.Scripts.Blame(ctx, err, key))
}

// owe adds a topic to the set of topics in the background, again and again until Redis has it or
// its client is closed. why is the error of the first attempt; nil: there was none.
func (c *Groups) owe(topic string, why error) {
	c.mu.Lock()
	c.owed[topic] = struct{}{}
	fresh, idle := why != nil && !c.late, !c.paying
	c.late, c.paying = c.late || fresh, true
	c.mu.Unlock()
	if fresh { // one line for an outage
		contain.DefaultLogger().Error("topic not recorded", "topic", topic, "err", why)
	}
	if idle {
		contain.Launch(nil, c.pay, func(crash *contain.Crash) {
			contain.DefaultLogger().Error("topic not recorded", "err", crash, "stack", string(crash.Stack))
			c.mu.Lock()
			defer c.mu.Unlock()
			c.paying, c.late = false, false
		})
	}
}

// pay adds the topics that are owed, until none is left.
func (c *Groups) pay() {
	for slow := new(loop.Pace); ; {
		topics, late := c.debts()
		if late {
			loop.Sleep(context.Background(), slow.Next())
			topics, _ = c.debts() // some may have been removed
		}
		if len(topics) == 0 {
			return
		}
		call, cancel := context.WithTimeout(context.Background(), confirmTimeout)
		err := contain.Alone(func() error { return c.add(call, topics...) }) // hooks of the user's client
		cancel()
		c.paid(topics, err)
	}
}

// paid notes the outcome of an attempt to add topics.
func (c *Groups) paid(topics []any, err error) {
	closed := errors.Is(err, redis.ErrClosed)
	c.mu.Lock()
	before := c.late
	c.late = err != nil && !closed
	if !c.late {
		for _, topic := range topics {
			delete(c.owed, topic.(string))
		}
	}
	c.mu.Unlock()
	switch {
	case err == nil && before:
		contain.DefaultLogger().Info("topic recorded", "count", len(topics))
	case err != nil && before == closed: // the first error, or the last one
		contain.DefaultLogger().Error("topic not recorded", "count", len(topics), "err", err)
	}
}

// debts returns the topics that are owed, and reports whether Redis has refused some. If there are
// none, the next one has a new goroutine.
func (c *Groups) debts() (topics []any, late bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	topics = make([]any, 0, len(c.owed))
	for topic := range c.owed {
		topics = append(topics, topic)
	}
	c.paying = len(topics) > 0
	c.late = c.late && c.paying
	return topics, c.late
}

// remember records that a topic is in the set of topics.
func (c *Groups) remember(topic string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.recorded) >= mostRecorded {
		clear(c.recorded)
	}
	c.recorded[maphash.String(c.seed, topic)] = at.UnixMilli()
}

// Forget drops what is remembered about a topic that was removed from the set of topics.
func (c *Groups) Forget(topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.recorded, maphash.String(c.seed, topic))
	delete(c.owed, topic)
	for key, g := range c.groups {
		if part.HomeOf(key.topic) == topic {
			g.mu.Lock()
			g.recorded = time.Time{}
			g.mu.Unlock()
		}
	}
}
