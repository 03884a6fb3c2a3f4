package delayq

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	mathrand "math/rand/v2"
	"reflect"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// A Client enqueues, cancels and looks at jobs. It is safe for concurrent use and needs no closing. The only goroutines it starts are those
// that send what concurrent Enqueue calls have gathered, and those of a large batch. They end with the last of it. If Redis does not
// answer, they wait as long as go-redis does: at most 30 s for each call with ContextTimeoutEnabled; else the timeouts and retries of rdb
// count, and with a ReadTimeout of -1 there is no end. All its methods return an error wrapping ErrInvalid, and write nothing, if the client or an argument is unusable.
type Client struct {
	rdb     redis.UniversalClient
	o       clientOptions
	err     error // what is wrong with the client itself
	scripts caller
	series  seriesPool

	mu          sync.Mutex
	commits     map[string]*commit // by topic
	most        int                // how many they are, while not all are in use
	uses        uint64             // calls of commit
	seriesBase  string             // of the series of new commits: see evict
	seriesFloor uint64
	recorded    map[uint64]int64 // hash of a topic → when it was added to the set of topics, Unix ms
	seed        maphash.Seed
}

// NewClient makes a client of the queue that rdb holds: a *redis.Client (also of a Sentinel) or a *redis.ClusterClient. The caller
// owns rdb and closes it. What is wrong with rdb or the options is the error of every call. Prompt cancellation of contexts
// and timeouts are as good as those of rdb: see ContextTimeoutEnabled of go-redis.
func NewClient(rdb redis.UniversalClient, opts ...ClientOption) *Client {
	c := &Client{
		rdb: rdb, commits: make(map[string]*commit), most: mostCommits, seriesBase: rand.Text(), recorded: make(map[uint64]int64), seed: maphash.MakeSeed(),
	}
	c.o, c.err = newClientOptions(opts)
	err := checkRedis(rdb)
	if err == nil && c.o.replicas > 0 {
		err = checkReplicaWait(rdb, c.o.replicaWait)
	}
	c.err = errors.Join(c.err, err)
	c.o.hooks.trouble = func(why *crash) { logHook(clientLog(), why) }
	c.scripts = caller{rdb, &c.o.hooks}
	return c
}

// checkRedis refuses a nil client, also one inside a non-nil interface, and one of another kind: a server cannot make
// connections like its own, and a Ring spreads what belongs together.
func checkRedis(rdb redis.UniversalClient) error {
	if isNil(rdb) {
		return fmt.Errorf("%w: nil Redis client", ErrInvalid)
	}
	switch rdb.(type) {
	case *redis.Client, *redis.ClusterClient:
		return nil
	}
	return fmt.Errorf("%w: the Redis client must be a *redis.Client or a *redis.ClusterClient, not a %T", ErrInvalid, rdb)
}

// checkContext refuses a nil context, which would be a panic further down.
func checkContext(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("%w: nil context", ErrInvalid)
	}
	return nil
}

// usable tells what is wrong with the client itself and with a context.
func (c *Client) usable(ctx context.Context) error {
	var err error
	switch {
	case c == nil:
		err = fmt.Errorf("%w: nil Client", ErrInvalid)
	case c.err != nil:
		err = c.err
	case c.rdb == nil:
		err = fmt.Errorf("%w: zero Client: NewClient makes one", ErrInvalid)
	}
	return errors.Join(err, checkContext(ctx))
}

// ready joins what is wrong with the client, a context, a topic and an ID. Every method calls it, or usable, before anything else.
func (c *Client) validate(ctx context.Context, topic, id string) error {
	var errs []error
	if err := checkName("topic", topic); err != nil {
		errs = append(errs, err)
	}
	if err := checkID(id); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(c.usable(ctx), invalid(errs))
}

// Enqueue stores a job and returns when it is stored. It is due at once unless ProcessAt or ProcessIn say otherwise. The ID is up to
// 1 KiB of arbitrary bytes, unique in its topic, and what Dequeue takes; an empty one is replaced by a generated one. The
// payload is arbitrary bytes, up to MaxPayload. Topics are up to 255 bytes of UTF-8 without {, }, # and control characters.
//
// Enqueue calls that run at the same time travel to Redis together. Errors: ErrDuplicate, ErrInvalid, ErrNotReplicated,
// ErrUnknownOutcome, the context's error if it ended before the job was sent, or what Redis answered; only after
// ErrNotReplicated and ErrUnknownOutcome may the job be stored, and only then is a job returned beside the error: with its ID, so that it can
// be asked for. A request that go-redis repeats makes no second job.
func (c *Client) Enqueue(ctx context.Context, topic, id string, payload []byte, opts ...JobOption) (*Job, error) {
	// Clipped: what a hook appends must not end up in the caller's slice.
	fresh := &NewJob{Topic: topic, ID: id, Payload: payload, Options: slices.Clip(opts)}
	e, err := c.prepare(ctx, fresh)
	if err != nil {
		err = located{call: "enqueue", topic: fresh.Topic, job: fresh.ID}.at(err)
		c.enqueued(ctx, fresh, e, err)
		return nil, err
	}
	e.done = make(chan struct{}, 1)
	g := c.commit(fresh.Topic)
	defer g.done()
	err = g.enqueue(ctx, e)
	e.own.stored(err)
	c.enqueued(ctx, fresh, e, err)
	if !maybeStored(err) {
		return nil, err
	}
	return e.job(), err
}

// maybeStored tells whether a job may be stored after an Enqueue that ended with err.
func maybeStored(err error) bool {
	return err == nil || errors.Is(err, ErrNotReplicated) || errors.Is(err, ErrUnknownOutcome)
}

// defaults is what the jobs of the client say without any option of their own.
func (c *Client) defaults() jobOptions {
	if c == nil {
		return defaultJob
	}
	return c.o.job
}

// prepare checks a job and encodes it.
func (c *Client) prepare(ctx context.Context, fresh *NewJob) (*enqueueing, error) {
	if c.usable(ctx) == nil {
		for _, h := range c.o.hooks.enqueue {
			c.o.hooks.guard(func() { h.Enqueue(ctx, fresh) })
		}
	}
	err := c.validate(ctx, fresh.Topic, fresh.ID)
	o, oerr := c.defaults().with(fresh.Options)
	if err = errors.Join(err, oerr); err != nil {
		return nil, err
	}
	if n := len(fresh.Payload); n > c.o.maxPayload {
		return nil, fmt.Errorf("%w: payload of %d bytes, at most %d are allowed", ErrInvalid, n, c.o.maxPayload)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e := &enqueueing{topic: fresh.Topic, id: fresh.ID, opts: o, payload: fresh.Payload}
	if e.id == "" {
		e.id = newID()
	}
	binary.LittleEndian.PutUint64(e.nonce[:], mathrand.Uint64())
	if e.head, e.tail, err = encodeRecord(e.nonce, &o, fresh.Payload); err != nil {
		return nil, err
	}
	e.when = o.when()
	if o.replace == replaceAny {
		e.own = ownRun(ctx, c.o.prefix, e.topic, e.id)
		e.own.replace()
	}
	return e, nil
}

// newID makes an ID of 14 letters and digits: 70 random bits, so that two of a hundred million live jobs of a topic are the same once in
// 200,000 times (and then the second is refused as a duplicate). One more character costs Redis 16 bytes, each of the two times it holds an ID.
func newID() string { return rand.Text()[:14] }

// enqueued tells the hooks how an enqueueing ended.
func (c *Client) enqueued(ctx context.Context, fresh *NewJob, e *enqueueing, err error) {
	if c == nil || ctx == nil || len(c.o.hooks.enqueued) == 0 {
		return
	}
	event := EnqueueEvent{Topic: fresh.Topic, ID: fresh.ID, PayloadSize: len(fresh.Payload), Err: err}
	if e != nil {
		event.ID = e.id
		if err == nil {
			event.Due = msTime(e.due())
		}
	}
	for _, h := range c.o.hooks.enqueued {
		c.o.hooks.guard(func() { h.Enqueued(ctx, event) })
	}
}

// Dequeue cancels a job that is scheduled, ready, running or dead, and returns the state it was in. A job that was scheduled or ready never runs. Of one
// that was running, the handler's context ends with ErrCancelled, and what the handler returns is ignored. A dead one is
// forgotten. ErrNotFound if there is no such job: it has run, for example. One that is done is for [Client.Delete].
// The cost does not depend on how many jobs wait.
func (c *Client) Dequeue(ctx context.Context, topic, id string) (State, error) {
	state, err := c.one(ctx, cancelScript, located{topic: topic, job: id}, c.channel(), topic)
	if err != nil {
		return "", err
	}
	return state, nil
}

// Delete removes a done job before its Retention is over, with all that is kept of it. A job of the same ID that has
// not ended is left alone: it is for [Client.Dequeue]. ErrNotFound if there is no done job with this ID.
func (c *Client) Delete(ctx context.Context, topic, id string) error {
	_, err := c.one(ctx, deleteScript, located{topic: topic, job: id})
	return err
}

// Reschedule gives a job that is scheduled (for the first time, backing off or snoozed) or ready another due time, by ProcessAt or
// ProcessIn; other options are an error. ErrRunning and ErrDead if it is that, ErrNotFound if there is no such job.
// ErrInvalid if the job expires by that time: it is left as it was.
func (c *Client) Reschedule(ctx context.Context, topic, id string, due JobOption) error {
	place := located{call: rescheduleScript.name, topic: topic, job: id}
	o, err := newJobOptions([]JobOption{due})
	if err == nil && !onlyDue(o) {
		err = fmt.Errorf("%w: Reschedule takes ProcessAt or ProcessIn only", ErrInvalid)
	}
	if err != nil {
		return place.at(errors.Join(c.validate(ctx, topic, id), err))
	}
	var state State
	var known record // of a job that expires
	for range 10 {   // more often it is not replaced in between
		var r reply
		state, r, err = c.ask(ctx, rescheduleScript, place, o.when(), maxTick.Milliseconds(), c.channel(), topic, known.nonce, known.expires())
		if err == nil && state == "beyond" {
			return place.at(hopeless(known.expires(), o.due(r.now())))
		}
		if err != nil || state != "expiring" {
			break
		}
		if known, err = decodeHead(r.text(3), false); err != nil {
			return place.at(err)
		}
		err = place.at(errReply)
	}
	switch {
	case err != nil:
		return err
	case state == StateRunning:
		return place.at(ErrRunning)
	case state == StateDead:
		return place.at(ErrDead)
	}
	return nil
}

// onlyDue tells whether options say nothing but when the job is due.
func onlyDue(o jobOptions) bool {
	o.dueAt, o.dueIn = 0, 0
	return reflect.DeepEqual(o, defaultJob)
}

// Revive puts a dead job back to ready. All its retries and the first delay of its backoff are before it again
// ([Job.RetriesLeft]), and its expiry does not count any more. Job.Attempt goes on counting, and its errors are kept.
// ErrNotFound if there is no dead job with this ID.
func (c *Client) Revive(ctx context.Context, topic, id string) error {
	_, err := c.one(ctx, reviveScript, located{topic: topic, job: id})
	return err
}

// one runs a script that is about one job or schedule and answers with the state it found it in.
func (c *Client) one(ctx context.Context, s *script, place located, args ...any) (State, error) {
	state, _, err := c.ask(ctx, s, place, args...)
	return state, err
}

// ask is one with the whole reply.
func (c *Client) ask(
	ctx context.Context, s *script, place located, args ...any,
) (State, reply, error) {
	place.call = s.name
	topic, id := place.topic, place.job+place.schedule // it is about one of them
	if err := c.validate(ctx, topic, id); err != nil {
		return "", nil, place.at(err)
	}
	k := newKeys(c.o.prefix, topic)
	series := c.series.get()
	r, err := c.scripts.exec(ctx, s, k, k.receipt(series.id), 1, append([]any{series.next(), id}, args...)...)
	c.series.put(series, err)
	if err != nil {
		return "", nil, place.at(c.unsure(err))
	}
	if state := r.text(2); state != "none" {
		return State(state), r, nil
	}
	return "", nil, place.at(ErrNotFound)
}

// unsure marks an error after which the outcome is not known.
func (c *Client) unsure(err error) error {
	if err == nil {
		return nil
	}
	if away(err) {
		reload(c.rdb)
	}
	if certain(err) {
		return err
	}
	return beneath(ErrUnknownOutcome, err)
}

// channel is the control channel: none of a nil Client, which is not refused before its arguments are there.
func (c *Client) channel() string {
	if c == nil {
		return ""
	}
	return controlChannel(c.o.prefix)
}
