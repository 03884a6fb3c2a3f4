package commit

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/script"
)

// flushTimeout bounds a flight for several callers, because no single caller's context applies to
// all. The timeouts of go-redis are usually far shorter.
const flushTimeout = 30 * time.Second

// A Group gathers the concurrent calls about single jobs of a topic. Calls that come while as many
// flights are in the air as pay off (see flights) wait, and are sent together in the next one. A
// lone caller sends its own call immediately and waits for no other.
type Group struct {
	all   *Groups // of the same client
	key   groupKey
	keys  *script.Keys
	words []any // arguments that are the same in every call: tick, channel and topic
	// of the flights: the topic's own, so that each has its receipt here and nowhere else
	series script.SeriesPool

	users atomic.Int64 // callers of Groups.For; incremented under Groups.mu only
	used  uint64       // time of the last use, by Groups.uses; guarded by Groups.mu
	clock *link.Clock  // of the Redis that has the topic

	mu       sync.Mutex
	pending  []*Op
	flights  flights
	gets     int       // how many jobs one call of get can probably return, less than their number; 0: any
	recorded time.Time // when the topic was added to the set of topics

	lists map[*script.Script]*script.KeyList // of the scripts that were called
}

func newGroup(c *Groups, key groupKey) *Group {
	base := c.base
	if key.waits {
		base += "w" // the names of both groups' receipts differ
	}
	return &Group{
		all: c, key: key, keys: script.NewKeys(c.Prefix, key.topic),
		series:  script.SeriesPool{Base: base, Floor: c.floor},
		lists:   make(map[*script.Script]*script.KeyList),
		words:   []any{c.Tick.Milliseconds(), script.ControlChannel(c.Prefix), key.topic},
		flights: flights{most: c.air.most}, clock: c.clockOf(),
	}
}

// Release ends the use of a group that For has returned.
func (g *Group) Release() { g.users.Add(-1) }

// idle reports whether nobody uses the group. Groups.mu must be held.
func (g *Group) idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.users.Load() == 0 && g.flights.up == 0 && len(g.pending) == 0
}

// Do carries out an operation, alone or with others, and returns its error.
func (g *Group) Do(ctx context.Context, o *Op) error {
	g.mu.Lock()
	if g.flights.up == 0 {
		g.all.air.enter()
		g.flights.start()
		air := g.flights.gathered(1)
		g.mu.Unlock()
		took := unmeasured
		defer func() { g.land(1, air, took) }() // even if a hook of the caller's go-redis client panics
		for took = g.flush(ctx, []*Op{o}); !o.settled; {
			if cause := context.Cause(ctx); cause != nil {
				o.Settle(cause)
			} else {
				g.flush(ctx, []*Op{o})
			}
		}
		return o.Err
	}
	o.done = make(chan struct{}, 1)
	g.pending = append(g.pending, o)
	if g.flights.wants(len(g.pending)) && g.all.air.allows() {
		g.flights.start()
		g.fly()
	}
	g.mu.Unlock()

	select {
	case <-o.done:
		return o.Err
	case <-ctx.Done():
		return g.abandon(ctx, o)
	}
}

// abandon stops waiting for an operation after its caller's context is done: one that was not sent
// is not carried out; otherwise the outcome is unknown.
func (g *Group) abandon(ctx context.Context, o *Op) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-o.done:
		return o.Err
	default:
	}
	cause := context.Cause(ctx)
	if o.sent {
		o.left = true
		return o.Place().At(o.unsure(cause))
	}
	if i := slices.Index(g.pending, o); i >= 0 {
		g.pending = slices.Delete(g.pending, i, i+1)
	}
	return o.Place().At(cause)
}

// land ends the flight of a lone caller, or one that has crashed. If other calls have come in the
// meantime, a goroutine continues for them.
func (g *Group) land(calls, air int, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended(calls, air, took)
	if len(g.pending) > 0 {
		g.fly()
	} else {
		g.flights.gathered(0)
		g.all.air.leave()
	}
}

// unmeasured is the time of a flight that Redis has not answered.
const unmeasured time.Duration = -1

// ended counts a flight that is over. g.mu must be held.
func (g *Group) ended(calls, air int, took time.Duration) {
	g.flights.ended(calls)
	if took != unmeasured {
		g.flights.measured(time.Now(), took, air)
	}
}

// fly sends the pending operations until none is left, in its own goroutine. If a hook of go-redis
// ends the goroutine, the callers of that flight receive an error, and another goroutine continues.
func (g *Group) fly() {
	var list []*Op
	var air int
	contain.Launch(nil, func() {
		for list, air = g.gather(); len(list) > 0; list, air = g.gather() {
			took := g.flushAll(list)
			deliver(list)
			g.mu.Lock()
			g.ended(len(list), air, took)
			g.putBack(list)
			g.mu.Unlock()
		}
	}, func(c *contain.Crash) {
		cut(list, c)
		deliver(list)
		g.land(len(list), air, unmeasured)
	})
}

// flushAll sends a chunk of several callers, and returns how long that took.
func (g *Group) flushAll(list []*Op) time.Duration {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	return g.flush(ctx, list)
}

// flush sends a chunk on series of the topic, and returns how long that took.
func (g *Group) flush(ctx context.Context, list []*Op) time.Duration {
	began := time.Now()
	if failed, unconfirmed := g.send(ctx, &g.series, list, false); failed != nil || unconfirmed != nil {
		return unmeasured
	}
	return time.Since(began)
}

// deliver wakes the callers of settled operations.
func deliver(list []*Op) {
	for _, o := range list {
		if o.settled {
			o.done <- struct{}{}
		}
	}
}

// putBack puts the operations that are not settled before those that wait. g.mu must be held.
func (g *Group) putBack(list []*Op) {
	var again []*Op
	for _, o := range list {
		if o.sent = false; !o.settled && !o.left {
			again = append(again, o)
		}
	}
	if again != nil {
		g.pending = append(again, g.pending...)
	}
}

// cut settles operations whose call has ended its goroutine.
func cut(list []*Op, c *contain.Crash) {
	contain.DefaultLogger().Error("call crashed", "topic", list[0].Topic, "err", c, "stack", string(c.Stack))
	for _, o := range list {
		if !o.settled {
			o.Settle(o.unsure(fmt.Errorf("%w: %w", script.ErrCut, c)))
		}
	}
}

// gather takes the next chunk out of pending, after a yield if that pays. An empty chunk ends the
// flight. air is the number of operations on their way, with those of the chunk.
func (g *Group) gather() (list []*Op, air int) {
	began := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	yields := g.all.yield.pays(began, len(g.pending))
	if yields {
		g.mu.Unlock()
		runtime.Gosched()
		g.mu.Lock()
	}
	list, g.pending = pick(g.pending, g.gets)
	for _, o := range list {
		o.sent = true
	}
	if len(list) == 0 {
		g.pending = nil
		g.all.air.leave()
	}
	if yields {
		now := time.Now()
		g.all.yield.yielded(now, now.Sub(began), len(list))
	}
	return list, g.flights.gathered(len(list))
}

// covered learns how many of the jobs that a call of get asked for its reply has room for. IDs
// beyond that are sent in vain.
func (g *Group) covered(got, asked int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if got < asked {
		g.gets = 2 * max(got, 1)
	} else if g.gets > 0 && asked >= g.gets {
		g.gets *= 2
		if g.gets >= ChunkJobs {
			g.gets = 0
		}
	}
}

// The bounds of the operations that are sent together. A flight has at most ChunkJobs, and no
// further one once it has chunkBytes of new jobs. That bounds how long Redis is busy with it.
const (
	ChunkJobs  = 500
	chunkBytes = 1 << 20
)

// A chunk holds the IDs and the size of one flight: each ID only once, and within the bounds.
type chunk struct {
	seen        map[string]struct{}
	jobs, bytes int
	gets        int // how many more jobs a get can ask for
}

func newChunk(list []*Op, gets int) chunk {
	if gets == 0 {
		gets = ChunkJobs
	}
	return chunk{seen: make(map[string]struct{}, min(len(list), ChunkJobs)), gets: gets}
}

func (c *chunk) full() bool { return c.jobs >= ChunkJobs || c.bytes >= chunkBytes }

// add adds o to the chunk, and reports whether it has. Once it has refused an operation, it refuses
// later ones about the same job.
func (c *chunk) add(o *Op) bool {
	if _, twice := c.seen[o.ID]; twice {
		return false
	}
	c.seen[o.ID] = struct{}{}
	if o.Kind == Get {
		if c.gets == 0 {
			return false
		}
		c.gets--
	}
	c.jobs, c.bytes = c.jobs+1, c.bytes+o.size()
	return true
}

// chunkLen returns how many operations at the front of list can be sent together, and gets of them
// at most can be those of a get; 0: any number.
func chunkLen(list []*Op, gets int) int {
	if len(list) < 2 {
		return len(list)
	}
	c := newChunk(list, gets)
	for i, o := range list {
		if c.full() || !c.add(o) {
			return i
		}
	}
	return len(list)
}

// pickMost is how many pending operations pick looks at, because behind many about one ID there may
// be others.
const pickMost = 4 * ChunkJobs

// pick takes a chunk out of the pending operations. An operation whose ID is already in the chunk
// stays, and later ones overtake it: the order matters only among operations about one ID.
func pick(waiting []*Op, gets int) (list, rest []*Op) {
	n := chunkLen(waiting, gets)
	list, rest = waiting[:n:n], waiting[n:]
	if len(rest) == 0 {
		return list, rest
	}
	c := newChunk(waiting, gets)
	for _, o := range list {
		c.add(o)
	}
	if c.full() {
		return list, rest
	}
	list = slices.Clone(list)
	var passed []*Op
	for i, o := range rest {
		if c.full() || n+i == pickMost {
			passed = append(passed, rest[i:]...)
			break
		}
		if c.add(o) {
			list = append(list, o)
		} else {
			passed = append(passed, o)
		}
	}
	return list, passed
}
