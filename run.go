package delayq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A run is one taken job, from the take until Redis has its outcome.
type run struct {
	topic, id string
	nonce     string
	payload   []byte
	enqueued  time.Time
	due       time.Time
	// With the handler's Defaults; zero if the record cannot be read.
	opts record.Options
	// Redis's time from which the job is dropped instead of started; 0: never
	expires int64
	size    int32 // of the payload, in bytes
	stored  int32 // of the record, in bytes
	attempt int   // from 1
	past    record.Tally
	lease   atomic.Int64 // the fence that the handler sees, in µs
	output  attachment

	ends   atomic.Pointer[runEnd] // the functions that the RunHooks have returned, the last one first
	ctx    runContext             // of the handler
	cancel context.CancelCauseFunc
	batch  *batchRun // that the run belongs to; nil: none

	// The following fields are guarded by topicServer.mu.

	fence record.Fence
	until time.Time // local clock: from here on the lease may be over
	sets  int       // how often Redis's clock had been set back when the lease was given
	// Local clock: the end of Timeout. The lease is not extended beyond it.
	deadline time.Time
	taken    int64     // when the job was taken, by Redis's clock, in ms
	start    time.Time // when the handler was called, by Redis's clock; zero: not yet
	began    time.Time // the same by the local clock
	late     time.Duration
	returned bool // the handler has returned, or is no longer waited for
	settling bool // a call that settles the job is in flight
	bereft   bool // Redis has lost data of the topic since the take
	// Calls of the handler that replace its own job: one was executed, or that many are in flight
	// or of unknown outcome.
	replaced  bool
	replacing int32
	lost      error  // why the job no longer belongs to this server
	trace     string // set by SetTraceParent
}

// A runContext is the context of a handler, or of one job of a batch. It identifies the run.
type runContext struct {
	context.Context
	mu   *sync.Mutex  // that guards the run
	keys *script.Keys // of the topic
	run  *run
}

type runKey struct{}

func (c *runContext) Value(key any) any {
	if key == (runKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// String keeps fmt from looking into the run.
func (c *runContext) String() string { return fmt.Sprintf("%v.Handler", c.Context) }

// maxTraceParent is the maximum length of a trace parent. Version 00 of the format has 55 bytes.
const maxTraceParent = 255

// SetTraceParent sets the traceparent (of W3C Trace Context) that is kept with the error of the
// present run if it fails: see [AttemptError]. Without it, the header traceparent of the job is
// kept. It has at most 255 bytes of UTF-8, and Redis is not called. With the context of a batch, it
// does so for each job of the batch; with that of [Job.Context], only for that job.
//
// SetTraceParent returns [ErrInvalid] if ctx is not the context of a handler, or if traceparent is
// too long or not UTF-8.
func SetTraceParent(ctx context.Context, traceparent string) error {
	if err := checkContext(ctx); err != nil {
		return fmt.Errorf("set trace parent: %w", err)
	}
	of := ctx.Value(runKey{})
	switch n := len(traceparent); {
	case of == nil:
		return fmt.Errorf("set trace parent: %w: not the context of a handler", ErrInvalid)
	case n > maxTraceParent:
		return fmt.Errorf("set trace parent: %w: %d bytes, at most %d are allowed", ErrInvalid, n, maxTraceParent)
	case !utf8.ValidString(traceparent):
		return fmt.Errorf("set trace parent: %w: %q is not UTF-8", ErrInvalid, traceparent)
	}
	switch c := of.(type) {
	case *runContext:
		c.setTrace(traceparent)
	case *batchContext:
		for _, r := range c.batch.runs {
			r.ctx.setTrace(traceparent)
		}
	}
	return nil
}

func (c *runContext) setTrace(traceparent string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.run.trace = traceparent
}

// traceOf returns the traceparent that is kept with the error of a run.
func (t *topicServer) traceOf(r *run) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return cmp.Or(r.trace, r.opts.Headers["traceparent"])
}

// ownRun returns the context of the calling handler if the job with that ID is its own, else nil.
func ownRun(ctx context.Context, prefix, topic, id string) *runContext {
	var c *runContext
	switch of := ctx.Value(runKey{}).(type) {
	case *runContext:
		c = of
	case *batchContext:
		c = of.of(id)
	}
	if c == nil || c.run.id != id || c.keys.Topic != topic || c.keys.Prefix() != prefix {
		return nil
	}
	return c
}

// replace notes that a call that replaces the handler's own job is in flight. The call must not
// cancel the handler's context.
func (c *runContext) replace() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.run.replacing++
}

// stored notes the outcome of that call. A call of unknown outcome counts as in flight forever.
func (c *runContext) stored(err error) {
	if c == nil || errors.Is(err, ErrUnknownOutcome) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.run.replacing--
	c.run.replaced = c.run.replaced || maybeStored(err)
}

// ownDoing reports whether the handler itself replaced the job, if the job has a new owner. If the
// outcome of the handler's call is unknown, a lease that may be over counts as lost.
func (r *run) ownDoing(now time.Time) bool {
	return r.replaced || r.replacing > 0 && now.Before(r.until)
}

// why returns the reason why a job no longer belongs to its run. The letter is letterGone if the
// job does not exist, and letterLost if it has another lease or none. Without a control message, a
// job that another caller replaced looks like one whose lease ran out.
func (r *run) why(letter byte, now time.Time) error {
	switch {
	case r.ownDoing(now):
		return ErrReplaced
	case letter == script.LetterGone && now.Before(r.until) && !r.bereft:
		return ErrCancelled
	}
	return ErrLeaseLost
}

// running reports whether the handler has been called and is waited for.
func (r *run) running() bool { return !r.start.IsZero() && !r.returned }

// newRun returns a run of a job from the reply of take. The error says why the record cannot be
// read; the run can be settled even then.
func (t *topicServer) newRun(id, raw string, end record.LeaseEnd, until time.Time, tried, changed string) (*run, error) {
	r := &run{topic: t.keys.Topic, id: id, attempt: 1, stored: int32(len(raw)), fence: record.FenceOf(end), until: until, sets: t.clock.sets()}
	if tried != "" {
		finished, _ := strconv.Atoi(tried) // HINCRBY wrote it
		r.attempt += finished
	}
	rec, err := record.Decode(raw)
	if r.nonce = rec.Nonce; err != nil {
		r.nonce = record.NonceOf(raw)
	}
	r.lease.Store(end.Micros())
	m, known := record.DecodeMoved(changed)
	if known { // even if the record cannot be read: the job may be put back
		r.past = m.Tally
	}
	if err != nil {
		return r, err
	}
	r.opts, r.size = rec.Options, int32(rec.Size)
	r.opts.Fill(&t.defaults)
	r.payload, r.enqueued, r.due = rec.Payload, msTime(rec.EnqueuedAt), msTime(rec.Due())
	r.expires = rec.Expires()
	if known {
		r.due = msTime(m.Due)
	}
	if m.Revived {
		r.expires = 0 // an operator who revives a job wants it to run
	}
	return r, nil
}

// newJob returns the job of a run that begins. Its fields belong to the handler.
func (r *run) newJob() *Job {
	job := &Job{
		Topic: r.topic, ID: r.id, Payload: r.payload, Headers: r.opts.Headers, Key: r.opts.Key, Attempt: r.attempt,
		Retries: r.opts.Retries(), Snoozes: r.past.Snoozes, EnqueuedAt: r.enqueued, Due: r.due, StartedAt: r.start,
		nonce: r.nonce, spent: r.past.Spent, fence: &r.lease, output: &r.output,
	}
	if r.opts.Scheduled {
		job.scheduledFor(r.id)
	}
	return job
}
