package delayq

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/await"
	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/friend"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

// A Client enqueues, cancels and changes jobs. To read what a queue holds, use an [Inspector]. A
// Client is safe for concurrent use and need not be closed. If the client or an argument is
// invalid, every method returns an error that wraps [ErrInvalid] and writes nothing.
//
// Concurrent calls about single jobs of a topic are sent to Redis together, each at once if it is
// alone. Its only goroutines send these calls and the parts of a large batch. They exit when
// these have been sent. If Redis does not respond, they wait as long as go-redis does. With
// ContextTimeoutEnabled that is at most 30 s for each call. Otherwise the timeouts and retries of
// rdb apply, and a ReadTimeout of -1 means no limit.
type Client struct {
	access
	rdb     redis.UniversalClient
	o       clientOptions
	err     error // why the client itself is invalid
	scripts script.Caller
	series  script.SeriesPool
	commits *commit.Groups
	waits   *await.Waits
}

// friends has the functions that other packages and modules of this repository call and programs
// cannot. Its methods are in the files of their subjects, and internal/friend leads to them.
type friends struct{}

// access is what a Client has for internal/friend.
type access = friend.Access[friends]

var _ friend.Giver[friends] = &Client{access: access{}}

// NewClient returns a client of the queue in rdb: a *redis.Client (of a Sentinel too) or a
// *redis.ClusterClient. The caller owns rdb and closes it. If rdb or an option is invalid, every
// call returns that error. Contexts interrupt a call in flight only if rdb was created with
// ContextTimeoutEnabled; otherwise the timeouts of rdb apply.
func NewClient(rdb redis.UniversalClient, opts ...ClientOption) *Client {
	c := &Client{rdb: rdb}
	c.o, c.err = newClientOptions(opts)
	err := checkRedis(rdb)
	if err == nil && c.o.replicas > 0 {
		err = checkReplicaWait(rdb, c.o.replicaWait)
	}
	c.err = errors.Join(c.err, err)
	c.o.hooks.trouble = func(why *contain.Crash) { logHook(contain.DefaultLogger(), why) }
	c.scripts = script.Caller{RDB: rdb, Hooks: &c.o.hooks}
	c.commits = commit.New(commit.Wire{
		Redis: rdb, Scripts: c.scripts, Series: &c.series, Prefix: c.o.prefix, Tick: maxTick, Replicas: c.o.replicas, Wait: c.o.replicaWait,
	}, max(1, poolSize(rdb)/2))
	c.waits = await.New(await.Wire{Redis: rdb, Scripts: c.scripts, Prefix: c.o.prefix}, poolSize(rdb)/2)
	return c
}

// checkReplicaWait rejects a wait during which go-redis would give up on the connection and send
// everything again.
func checkReplicaWait(rdb redis.UniversalClient, wait time.Duration) error {
	var limit time.Duration // 0 or less: none
	switch c := rdb.(type) {
	case *redis.Client:
		limit = c.Options().ReadTimeout
	case *redis.ClusterClient:
		limit = c.Options().ReadTimeout
	}
	if limit > 0 && wait >= limit {
		return fmt.Errorf("%w: WaitReplicas: %v must be below the ReadTimeout of the Redis client, %v", ErrInvalid, wait, limit)
	}
	return nil
}

// checkRedis rejects a nil client, even one inside a non-nil interface, and other kinds of clients:
// a server cannot open connections like theirs, and a Ring spreads keys that belong together.
func checkRedis(rdb redis.UniversalClient) error {
	if contain.IsNil(rdb) {
		return fmt.Errorf("%w: nil Redis client", ErrInvalid)
	}
	switch rdb.(type) {
	case *redis.Client, *redis.ClusterClient:
		return nil
	}
	return fmt.Errorf("%w: the Redis client must be a *redis.Client or a *redis.ClusterClient, not a %T", ErrInvalid, rdb)
}

// inspector returns an inspector that reads what the client writes, and calls its hooks.
func (c *Client) inspector() *Inspector {
	return &Inspector{rdb: c.rdb, o: inspectorOptions{prefix: c.o.prefix}, scripts: c.scripts}
}

// poolSize returns the size of the connection pool of rdb, in a cluster that of each node.
func poolSize(rdb redis.UniversalClient) int {
	switch c := rdb.(type) {
	case *redis.Client:
		if c != nil {
			return c.Options().PoolSize
		}
	case *redis.ClusterClient:
		if c != nil {
			return c.Options().PoolSize
		}
	}
	return 0
}

// checkContext rejects a nil context, which would panic further down.
func checkContext(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("%w: nil context", ErrInvalid)
	}
	return nil
}

// usable returns an error if the client itself or a context is invalid.
func (c *Client) usable(ctx context.Context) error {
	var err error
	switch {
	case c == nil:
		err = fmt.Errorf("%w: nil Client", ErrInvalid)
	case c.err != nil:
		err = c.err
	case c.rdb == nil:
		err = fmt.Errorf("%w: zero Client: use NewClient", ErrInvalid)
	}
	if ctx == nil {
		return errors.Join(err, checkContext(ctx))
	}
	return errors.Join(err, checkActor(ctx))
}

// validate joins the complaints about the client, a context, a topic and an ID. Every method calls
// it, or usable, before anything else.
func (c *Client) validate(ctx context.Context, topic, id string) error {
	return errors.Join(c.usable(ctx), checkNames(topic, id))
}

// checkNames joins the complaints about a topic and an ID.
func checkNames(topic, id string) error {
	var errs []error
	if err := script.CheckName("topic", topic); err != nil {
		errs = append(errs, err)
	}
	if err := script.CheckID(id); err != nil {
		errs = append(errs, err)
	}
	return invalid(errs)
}

// Enqueue stores a job and returns once Redis has it. The job is due immediately unless [ProcessAt]
// or [ProcessIn] is given. The ID is unique in its topic, and cancels the job when it is passed to
// [Client.Dequeue]. An empty ID is replaced by a generated one. Limits: an ID has up to 1 KiB of
// any bytes, a payload up to [MaxPayload] of any bytes, a topic up to 255 bytes of UTF-8 without {,
// }, #, * and control characters.
//
// A request that go-redis repeats makes no second job.
//
// Errors: [ErrDuplicate], [ErrInvalid], [ErrNotReplicated], [ErrUnknownOutcome], the context's
// error if it was done before the job was sent, or the error that Redis returned. After
// ErrNotReplicated or ErrUnknownOutcome the job may have been stored. Enqueue then returns the Job
// along with the error, so that you can look it up by ID. After any other error nothing was stored.
func (c *Client) Enqueue(ctx context.Context, topic, id string, payload []byte, opts ...JobOption) (*Job, error) {
	// Clipped, so that options that a hook appends do not end up in the caller's slice.
	e := &enqueueing{job: NewJob{Topic: topic, ID: id, Payload: payload, Options: slices.Clip(opts)}}
	err := c.enqueue(ctx, e, nil)
	if !maybeStored(err) {
		return nil, err
	}
	return storedJob(&e.op, e.job.Payload, err), err
}

// enqueue calls the hooks around an Enqueue.
func (c *Client) enqueue(ctx context.Context, e *enqueueing, ready func() error) error {
	ctx, end := c.begin(ctx, CallEvent{Name: commit.Enqueue.Name, Topic: e.job.Topic, ID: e.job.ID, Jobs: 1})
	err := c.store(ctx, e, ready)
	_ = end.with(CallResult{ID: cmp.Or(e.op.ID, e.job.ID), Err: err})
	return err
}

// store validates a job and stores it. It calls ready, if that is not nil, when the job is about to
// be sent. After an error of ready, it is not.
func (c *Client) store(ctx context.Context, e *enqueueing, ready func() error) error {
	err := c.prepare(ctx, e)
	if err == nil && ready != nil {
		if err = ready(); err != nil {
			e.own.Stored(nil, false)
		}
	}
	if err != nil {
		err = script.Place{Call: "enqueue", Topic: e.job.Topic, Job: e.job.ID}.At(err)
		c.enqueued(ctx, e.job.event(err), nil)
		return err
	}
	err = c.carryOut(ctx, &e.op)
	e.own.Stored(err, maybeStored(err))
	c.enqueued(ctx, e.job.event(err), &e.op)
	return err
}

// An enqueueing is a job on its way to Redis. It is one allocation.
type enqueueing struct {
	job   NewJob // as the hooks have changed it
	opts  jobOptions
	fresh commit.Fresh
	op    commit.Op
	own   *run.Context // of the handler whose own job this one replaces; nil: none
	joins *joining     // a flow of which the job becomes a step; nil: none
}

// maybeStored reports whether a job may be stored after an Enqueue that returned err.
func maybeStored(err error) bool {
	return err == nil || errors.Is(err, ErrNotReplicated) || errors.Is(err, ErrUnknownOutcome)
}

// defaults returns the options of a job of this client that sets none itself.
func (c *Client) defaults() jobOptions {
	if c == nil {
		return defaultJob
	}
	return c.o.job
}

// prepare validates a job and encodes it.
func (c *Client) prepare(ctx context.Context, e *enqueueing) error {
	err := c.seal(ctx, e)
	if err == nil && e.fresh.Replace == commit.ReplaceAny {
		e.own = run.Own(ctx, c.o.prefix, e.op.Topic, e.op.ID)
		e.own.Replace()
	}
	return err
}

// seal is prepare for a job that is not sent now.
func (c *Client) seal(ctx context.Context, e *enqueueing) error {
	if c.usable(ctx) == nil {
		for _, h := range c.o.hooks.enqueue {
			c.o.hooks.guard(func() { h.Enqueue(ctx, &e.job) })
		}
	}
	err := c.validate(ctx, e.job.Topic, e.job.ID)
	e.opts = c.defaults()
	if err = errors.Join(err, e.opts.add(e.job.Options)); err != nil {
		return err
	}
	if n := len(e.job.Payload); n > c.o.maxPayload {
		return fmt.Errorf("%w: payload of %d bytes, at most %d are allowed", ErrInvalid, n, c.o.maxPayload)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.opts.needsID(); err != nil && e.job.ID == "" {
		return err
	}
	if e.joins != nil {
		if err := e.join(); err != nil {
			return err
		}
	}
	when := e.opts.when() + uniqueWord(e.opts.window, c.o.tombs)
	e.fresh = commit.Fresh{Opts: &e.opts.Options, Replace: e.opts.replace, When: when, Nonce: record.NewNonce()}
	e.op = commit.Op{Kind: commit.Enqueue, Topic: e.job.Topic, ID: e.job.ID, Fresh: &e.fresh}
	if e.opts.guard != nil {
		if err := e.guard(); err != nil {
			return err
		}
	}
	if e.op.ID == "" {
		e.op.ID, e.fresh.Unique = newID(), true
	}
	e.fresh.Draft, err = record.NewDraft(e.fresh.Nonce, e.fresh.Opts, e.job.Payload)
	return err
}

// newID returns an ID of 14 letters and digits, which is 70 random bits. Among a hundred million
// live jobs of a topic, two get the same ID with a probability of 1 in 200,000, and then the second
// is refused as a duplicate. One more character costs Redis 16 bytes for each of the two copies of
// an ID.
func newID() string { return rand.Text()[:14] }

// event returns the event of an enqueue of the job that ends with err.
func (j *NewJob) event(err error) EnqueueEvent {
	return EnqueueEvent{Topic: j.Topic, ID: j.ID, PayloadSize: len(j.Payload), Err: err}
}

// enqueued reports the outcome of an enqueue to the hooks. o is nil if nothing was sent.
func (c *Client) enqueued(ctx context.Context, event EnqueueEvent, o *commit.Op) {
	if c == nil || ctx == nil || len(c.o.hooks.enqueued) == 0 {
		return
	}
	if o != nil {
		event.ID = o.ID
		if event.Err == nil {
			event.Due, event.Merged = msTime(o.DueTime()), mergedInto[o.Letter]
		}
	}
	for _, h := range c.o.hooks.enqueued {
		c.o.hooks.guard(func() { h.Enqueued(ctx, event) })
	}
}

// Dequeue cancels a job and returns the state it was in. (It does not take a job, as calls of this
// name do in some other queues.) It cancels an unfinished job in any state. A scheduled or ready
// job never runs. If the job is running, its handler's context is cancelled with cause
// [ErrCancelled] and the handler's result is ignored. A dead job is deleted. The cost does not
// depend on the backlog.
//
// Dequeue returns [ErrNotFound] if there is no such job, for example because it has finished. To
// remove a done job, use [Client.Delete]. With a [Tombstone], no job of this ID can be enqueued for
// a while. With [IfUnchanged] Dequeue can return [ErrChanged].
func (c *Client) Dequeue(ctx context.Context, topic, id string, opts ...DequeueOption) (State, error) {
	ctx, end := c.begin(ctx, CallEvent{Name: commit.Cancel.Name, Topic: topic, ID: id, Jobs: 1})
	o := &commit.Op{Kind: commit.Cancel, Topic: topic, ID: id}
	how := c.cancelOf(opts)
	err := how.guard(o)
	if o.Tomb = how.tomb; err != nil {
		err = o.Place().At(errors.Join(c.validate(ctx, topic, id), err))
	} else {
		err = c.do(ctx, o)
	}
	state := c.dequeued(ctx, o, err)
	return state, end.with(CallResult{State: state, Err: c.auditCancel(ctx, o, state, err)})
}

// dequeued reports the outcome of a cancellation to the hooks. It returns the state in which the
// job was, or none if there was none or nothing is known.
func (c *Client) dequeued(ctx context.Context, o *commit.Op, err error) State {
	event := DequeueEvent{Topic: o.Topic, ID: o.ID, Err: err}
	if err == nil || errors.Is(err, ErrTooManyTombs) { // else the operation can still be on its way
		event.State = states[o.Letter]
	}
	if c == nil || ctx == nil {
		return event.State
	}
	for _, h := range c.o.hooks.dequeued {
		c.o.hooks.guard(func() { h.Dequeued(ctx, event) })
	}
	return event.State
}

// Delete removes a done job, and everything that is kept of it, before its [Retention] is over. It
// leaves an unfinished job of the same ID alone: cancel that with [Client.Dequeue]. Delete returns
// [ErrNotFound] if there is no done job with this ID.
//
// With [IfUnchanged] it can return [ErrChanged].
func (c *Client) Delete(ctx context.Context, topic, id string, opts ...EditOption) error {
	ctx, end := c.begin(ctx, CallEvent{Name: commit.Delete.Name, Topic: topic, ID: id, Jobs: 1})
	o := &commit.Op{Kind: commit.Delete, Topic: topic, ID: id}
	return end.err(c.audit(ctx, o, c.doIf(ctx, o, newEdit(opts))))
}

// Revive moves a dead job back to ready with its full number of retries ([Job.RetriesLeft]) and the
// first delay of its backoff. Its expiry no longer applies. [Job.Attempt] keeps counting up, and
// its errors are kept. Revive returns [ErrNotFound] if there is no dead job with this ID, and
// [ErrChanged] if [IfUnchanged] says so.
func (c *Client) Revive(ctx context.Context, topic, id string, opts ...EditOption) error {
	ctx, end := c.begin(ctx, CallEvent{Name: commit.Revive.Name, Topic: topic, ID: id, Jobs: 1})
	o := &commit.Op{Kind: commit.Revive, Topic: topic, ID: id}
	return end.err(c.audit(ctx, o, c.doIf(ctx, o, newEdit(opts))))
}

// Bury moves a scheduled or ready job to the dead, so that it does not run until it is revived
// ([Client.Revive]). The reason becomes the last entry of [JobInfo.Errors], with the kind
// [KindBuried]; it has at most 1 KiB. No attempt is used up. If a schedule made the job, its run
// has ended and counts as failed.
//
// Bury returns [ErrRunning] if the job is running, [ErrDead] if it is dead, [ErrNotFound] if there
// is no such job, and [ErrChanged] with [IfUnchanged]. The job is unchanged then. [BuriedHook] is
// not called, because servers call it for runs. Cost: O(log(jobs of the topic)).
func (c *Client) Bury(ctx context.Context, topic, id, reason string, opts ...EditOption) error {
	ctx, end := c.begin(ctx, CallEvent{Name: commit.Bury.Name, Topic: topic, ID: id, Jobs: 1})
	o := &commit.Op{Kind: commit.Bury, Topic: topic, ID: id, Reason: strings.ToValidUTF8(reason, "\uFFFD")}
	if err := checkReason(reason); err != nil {
		return end.err(o.Place().At(errors.Join(c.validate(ctx, topic, id), err)))
	}
	return end.err(c.audit(ctx, o, c.doIf(ctx, o, newEdit(opts))))
}

// checkReason returns an error if the reason of a bury is too long.
func checkReason(reason string) error {
	if n := len(reason); n > record.MaxMessage {
		return fmt.Errorf("%w: reason of %d bytes, at most %d are allowed", ErrInvalid, n, record.MaxMessage)
	}
	return nil
}

// doIf is do with the options of an edit.
func (c *Client) doIf(ctx context.Context, o *commit.Op, e *edit) error {
	if err := e.guard(o); err != nil {
		return o.Place().At(errors.Join(c.validate(ctx, o.Topic, o.ID), err))
	}
	return c.do(ctx, o)
}

// do validates an operation and carries it out.
func (c *Client) do(ctx context.Context, o *commit.Op) error {
	err := c.validate(ctx, o.Topic, o.ID)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return o.Place().At(err)
	}
	return c.carryOut(ctx, o)
}

// carryOut carries out an operation, alone or with others of its topic.
func (c *Client) carryOut(ctx context.Context, o *commit.Op) error {
	return outcomeOf(o, c.commits.Do(ctx, o))
}

// one executes a script for a schedule. It returns the new state, and what the script says of how
// it was before.
func (c *Client) one(ctx context.Context, s *script.Script, place script.Place, args ...any) (state State, before string, err error) {
	place.Call = s.Name
	if err := c.validate(ctx, place.Topic, place.Schedule); err != nil {
		return "", "", place.At(err)
	}
	k := script.NewKeys(c.o.prefix, place.Topic)
	series := c.series.Get()
	r, err := c.scripts.Exec(ctx, s, k, k.Receipt(series.ID), 1, append([]any{series.Next(), place.Schedule}, args...)...)
	c.series.Put(series, err)
	if err != nil {
		return "", "", place.At(c.unsure(err))
	}
	if state := r.Text(2); state != "none" {
		return State(state), r.Text(3), nil
	}
	return "", "", place.At(ErrNotFound)
}

// unsure marks an error after which the outcome is unknown.
func (c *Client) unsure(err error) error { return script.Unsure(c.rdb, err) }

// Get returns everything that is known about a job. It finds done jobs during their [Retention].
// Get returns [ErrNotFound] if there is no job with this ID.
func (c *Client) Get(ctx context.Context, topic, id string) (*JobInfo, error) {
	ctx, end := c.begin(ctx, CallEvent{Name: commit.Get.Name, Topic: topic, ID: id, Jobs: 1})
	o := &commit.Op{Kind: commit.Get, Topic: topic, ID: id}
	err := c.do(ctx, o)
	var info *JobInfo
	if err == nil {
		info, err = gotten(o)
	}
	if err = end.err(err); err != nil {
		return nil, err
	}
	return info, nil
}

// gotten returns the job that a get has found.
func gotten(o *commit.Op) (*JobInfo, error) {
	info := readJobInfo(o.Topic, o.ID, -1, func(column int) string { return o.Row[column] })
	if info == nil {
		return nil, o.Place().At(ErrNotFound)
	}
	return info, nil
}
