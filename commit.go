package delayq

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/record"
)

// A chunk is the set of jobs that one script call stores. It has at most chunkJobs jobs, and no
// further job once it has chunkBytes. That bounds how long Redis is busy with it.
const (
	chunkJobs  = 500
	chunkBytes = 1 << 20
)

// flushTimeout bounds a flush for several callers, because no single caller's context applies to
// all. The timeouts of go-redis are usually far shorter.
const flushTimeout = 30 * time.Second

// An enqueueing is one job on its way to Redis.
type enqueueing struct {
	topic, id  string
	nonce      record.Nonce
	head, tail string // of the record
	when       string // due time for the script
	opts       jobOptions
	payload    []byte
	own        *runContext // of the handler whose own job this one replaces

	sent bool          // guarded by commit.mu: it is too late to take it out of pending
	done chan struct{} // receives one value when now and err are set
	now  int64         // Redis's clock when the job was stored
	err  error
}

// due returns when the job is due, once it is stored.
func (e *enqueueing) due() int64 { return e.opts.Due(e.now) }

// job returns the Job for the caller of Enqueue.
func (e *enqueueing) job() *Job {
	job := &Job{
		Topic: e.topic, ID: e.id, Payload: e.payload, Headers: e.opts.Headers, Attempt: 1, Retries: e.opts.Retries(),
		nonce: string(e.nonce[:]),
	}
	if e.now != 0 {
		job.EnqueuedAt, job.Due = msTime(e.now), msTime(e.due())
	}
	return job
}

// A second flush starts beside the first once secondFlush jobs wait, and no fewer than the first
// has taken. Then Redis has work while the reply to the first is on its way. With fewer jobs it
// would only make the flushes smaller.
const (
	mostFlushes = 2
	secondFlush = 16
)

// A commit batches the concurrent Enqueue calls of a topic. Calls that come during a flush wait and
// are sent together in the next one. A lone caller flushes its own job immediately and waits for no
// other.
type commit struct {
	client *Client
	keys   *keys
	words  []any // the arguments that are the same in every call
	// of the flushes: the topic's own, so that each has its receipt here and nowhere else
	series seriesPool

	users atomic.Int64 // callers of Client.commit; incremented under Client.mu only
	used  uint64       // time of the last use, by Client.uses; guarded by Client.mu

	mu       sync.Mutex
	pending  []*enqueueing
	flushes  int       // under way
	latest   int       // number of jobs that the latest of them took
	recorded time.Time // when the topic was added to the set of topics
}

func newCommit(c *Client, topic string) *commit {
	k := newKeys(c.o.prefix, topic)
	return &commit{
		client: c, keys: k,
		series: seriesPool{base: c.seriesBase, floor: c.seriesFloor},
		words:  []any{maxTick.Milliseconds(), controlChannel(c.o.prefix), topic},
	}
}

// done releases a commit that Client.commit has returned.
func (g *commit) done() { g.users.Add(-1) }

// idle reports whether nobody uses the commit. Client.mu must be held.
func (g *commit) idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.users.Load() == 0 && g.flushes == 0 && len(g.pending) == 0
}

// enqueue stores e, alone or with others.
func (g *commit) enqueue(ctx context.Context, e *enqueueing) error {
	g.mu.Lock()
	if g.flushes == 0 {
		g.flushes, g.latest = 1, 1
		g.mu.Unlock()
		defer g.land() // even if a hook of the caller's go-redis client panics
		g.flush(ctx, e)
		return e.err
	}
	g.pending = append(g.pending, e)
	if g.flushes < mostFlushes && len(g.pending) >= max(secondFlush, g.latest) {
		g.flushes++
		g.fly()
	}
	g.mu.Unlock()

	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return g.abandon(ctx, e)
	}
}

// abandon stops waiting for a job after its caller's context is done: a job that was not sent is
// not stored; otherwise the outcome is unknown.
func (g *commit) abandon(ctx context.Context, e *enqueueing) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-e.done:
		return e.err
	default:
	}
	if e.sent {
		return g.at(e, fmt.Errorf("%w: %w", ErrUnknownOutcome, context.Cause(ctx)))
	}
	for i, other := range g.pending {
		if other == e {
			g.pending = append(g.pending[:i], g.pending[i+1:]...)
			break
		}
	}
	return g.at(e, context.Cause(ctx))
}

// at adds the place to an error of one job.
func (g *commit) at(e *enqueueing, err error) error {
	return located{call: "enqueue", topic: g.keys.topic, job: e.id}.at(err)
}

// land ends a lone flush. If other calls have come in the meantime, a goroutine continues for them.
func (g *commit) land() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.pending) > 0 {
		g.fly()
	} else {
		g.flushes--
	}
}

// fly flushes the pending jobs until none is left, in its own goroutine. If a hook of go-redis ends
// the goroutine, the callers of that flush receive an error, and another goroutine continues.
func (g *commit) fly() {
	var list []*enqueueing
	launch(nil, func() {
		for list = g.gather(); len(list) > 0; list = g.gather() {
			g.flushAll(list)
			g.deliver(list)
		}
	}, func(c *crash) {
		cut(list, c)
		g.deliver(list)
		g.land()
	})
}

// flushAll sends a chunk of several callers.
func (g *commit) flushAll(list []*enqueueing) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	for _, e := range list {
		e.err = errCutOff
	}
	series := g.series.get()
	g.series.put(series, g.send(ctx, series, list))
}

// deliver wakes the callers of a flush.
func (g *commit) deliver(list []*enqueueing) {
	for _, e := range list {
		e.done <- struct{}{}
	}
}

// cut sets the outcome of jobs whose call has ended its goroutine: it may have been carried out.
func cut(list []*enqueueing, c *crash) {
	clientLog().Error("enqueue crashed", "topic", list[0].topic, "err", c, "stack", string(c.stack))
	for _, e := range list {
		if errors.Is(e.err, errCutOff) {
			e.err = located{call: "enqueue", topic: e.topic, job: e.id}.at(fmt.Errorf("%w: %w", errCutOff, c))
		}
	}
}

// gather takes the next chunk out of pending. An empty one ends the flush.
func (g *commit) gather() []*enqueueing {
	g.mu.Lock()
	defer g.mu.Unlock()
	list, rest := pick(g.pending)
	g.pending = rest
	for _, e := range list {
		e.sent = true
	}
	if len(list) > 0 {
		g.latest = len(list)
	} else {
		g.pending = nil
		g.flushes--
	}
	return list
}

// A chunk holds the IDs and the size of one call: each ID only once, and within the bounds.
type chunk struct {
	seen        map[string]struct{}
	jobs, bytes int
}

func newChunk(list []*enqueueing) chunk {
	return chunk{seen: make(map[string]struct{}, min(len(list), chunkJobs))}
}

func (c *chunk) full() bool { return c.jobs >= chunkJobs || c.bytes >= chunkBytes }

// add adds e to the chunk, and reports whether its ID was not in it yet.
func (c *chunk) add(e *enqueueing) bool {
	if _, twice := c.seen[e.id]; twice {
		return false
	}
	c.seen[e.id] = struct{}{}
	c.jobs, c.bytes = c.jobs+1, c.bytes+len(e.tail)
	return true
}

// chunkLen returns how many jobs at the front of list one call can take.
func chunkLen(list []*enqueueing) int {
	if len(list) < 2 {
		return len(list)
	}
	c := newChunk(list)
	for i, e := range list {
		if c.full() || !c.add(e) {
			return i
		}
	}
	return len(list)
}

// pickMost is how many pending jobs pick looks at, because behind many jobs of one ID there may be
// others.
const pickMost = 4 * chunkJobs

// pick takes a chunk out of the pending jobs. A job whose ID is already in the chunk stays, and
// later jobs overtake it: the order matters only among jobs of one ID.
func pick(waiting []*enqueueing) (list, rest []*enqueueing) {
	n := chunkLen(waiting)
	list, rest = waiting[:n:n], waiting[n:]
	if len(rest) == 0 {
		return list, rest
	}
	c := newChunk(waiting)
	for _, e := range list {
		c.add(e)
	}
	if c.full() {
		return list, rest
	}
	list = slices.Clone(list)
	var passed []*enqueueing
	for i, e := range rest {
		if c.full() || n+i == pickMost {
			passed = append(passed, rest[i:]...)
			break
		}
		if c.add(e) {
			list = append(list, e)
		} else {
			passed = append(passed, e)
		}
	}
	return list, passed
}

// flush sends the job of a lone caller, on the caller's own goroutine.
func (g *commit) flush(ctx context.Context, e *enqueueing) {
	series := g.series.get()
	g.series.put(series, g.send(ctx, series, []*enqueueing{e}))
}

// send calls the enqueue script once. It sets the outcome of every job in list and returns the
// error of the call itself.
func (g *commit) send(ctx context.Context, series *series, list []*enqueueing) error {
	args := make([]any, 0, 4+4*len(list))
	args = append(append(args, series.next()), g.words...)
	for _, e := range list {
		args = append(args, &e.id, &e.head, &e.tail, &e.when)
	}
	script := enqueueScript
	if slices.ContainsFunc(list, func(e *enqueueing) bool { return e.opts.replace != replaceNone }) {
		script = replaceScript
	}
	r, err := g.client.store(ctx, script, g.keys, series.receipt(g.keys), len(list), args)
	if err != nil && !errors.Is(err, ErrNotReplicated) {
		outcome := g.client.unsure(err)
		for _, e := range list {
			e.err = g.at(e, outcome)
		}
		return err
	}
	g.record(ctx, r.text(4) == "+")
	letters, since := r.text(2), strings.Fields(r.text(3))
	for i, e := range list {
		e.now, e.err = r.now(), g.at(e, err)
		if i < len(letters) && letters[i] != letterStored {
			e.err = g.at(e, e.refused(letters[i], &since))
		}
	}
	return nil
}

// refused returns the error for a letter of the script other than n. since holds the burial times
// of the dead jobs.
func (e *enqueueing) refused(letter byte, since *[]string) error {
	twin := &DuplicateError{Topic: e.topic, ID: e.id}
	switch letter {
	case letterExpired:
		return hopeless(e.opts.Expires(e.now), e.due())
	case letterScheduled:
		twin.State = StateScheduled
	case letterReady:
		twin.State = StateReady
	case letterRunning:
		twin.State = StateRunning
	case letterDead:
		twin.State = StateDead
		if len(*since) > 0 {
			ms, _ := strconv.ParseInt((*since)[0], 10, 64) // the script has written it
			twin.Since, *since = msTime(ms), (*since)[1:]
		}
	}
	return twin
}

// recordEvery is how often a client adds a topic that it uses to the set of topics, because Redis
// may have lost its data.
const recordEvery = time.Minute

// record adds the topic to the set of topics every recordEvery, and immediately if Redis did not
// know the topic. Only Topics reads the set: if the call fails, the next call tries again.
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

// commit returns the group commit of a topic. The caller must release it with done.
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
	delete(c.commits, idlest.keys.topic)
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

// store executes the enqueue script. With WaitReplicas it waits on the same connection until enough
// replicas have the writes.
func (c *Client) store(ctx context.Context, s *script, k *keys, receipt string, jobs int, args []any) (reply, error) {
	if c.o.replicas == 0 {
		return c.scripts.exec(ctx, s, k, receipt, jobs, args...)
	}
	w := &replicaWaiter{client: c, key: k.pool}
	r, err := caller{w, &c.o.hooks}.exec(ctx, s, k, receipt, jobs, args...)
	if err == nil && w.confirmed < int64(c.o.replicas) {
		err = fmt.Errorf("%w: %d of %d within %v", ErrNotReplicated, w.confirmed, c.o.replicas, c.o.replicaWait)
		if w.err != nil {
			err = fmt.Errorf("%w: WAIT: %w", err, w.err)
		}
	}
	return r, err
}
