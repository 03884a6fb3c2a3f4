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

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// Reasons why a run must end: causes of the cancellation of its context. The root documents them.
var (
	errLeaseLost = errors.New("delayq: lease lost")
	errReplaced  = fmt.Errorf("delayq: job replaced: %w", errLeaseLost)
	errCancelled = errors.New("delayq: job cancelled")
	errShutdown  = errors.New("delayq: server is shutting down")
	errTimeout   = fmt.Errorf("delayq: job timeout: %w", context.DeadlineExceeded)
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

	ends   atomic.Pointer[runEnd] // functions to be called when the run has ended, the last one first
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
	trace     string // set by setTrace
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

// setTrace sets the traceparent that is kept with the error of the run.
func (c *runContext) setTrace(traceparent string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.run.trace = traceparent
}

// traceParent returns the traceparent that is kept with the error of a run that has begun.
func (r *run) traceParent() string {
	r.ctx.mu.Lock()
	defer r.ctx.mu.Unlock()
	return cmp.Or(r.trace, r.opts.Headers["traceparent"])
}

// inRun reports whether ctx is the context of a handler.
func inRun(ctx context.Context) bool { return ctx.Value(runKey{}) != nil }

// setTrace sets that traceparent in the runs of a handler's context.
func setTrace(ctx context.Context, traceparent string) {
	switch c := ctx.Value(runKey{}).(type) {
	case *runContext:
		c.setTrace(traceparent)
	case *batchContext:
		for _, r := range c.batch.runs {
			r.ctx.setTrace(traceparent)
		}
	}
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

// stored notes the error of that call, and whether it may have replaced the job. A call of unknown
// outcome counts as in flight forever.
func (c *runContext) stored(err error, maybe bool) {
	if c == nil || errors.Is(err, script.ErrUnknown) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.run.replacing--
	c.run.replaced = c.run.replaced || maybe
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
		return errReplaced
	case letter == script.LetterGone && now.Before(r.until) && !r.bereft:
		return errCancelled
	}
	return errLeaseLost
}

// running reports whether the handler has been called and is waited for.
func (r *run) running() bool { return !r.start.IsZero() && !r.returned }

// A taken is a job as a take returns it.
type taken struct {
	topic, id       string
	record          string
	attempts, moved string          // entries of the job; empty: none
	end             record.LeaseEnd // of its lease
	until           time.Time       // local clock: from here on the lease may be over
	sets            int             // how often Redis's clock had been set back
	at              int64           // Redis's clock, in ms
	defaults        *record.Options // of the topic
}

// newRun returns a run of a taken job. The error says why the record cannot be read; the run can be
// settled even then.
func newRun(k taken) (*run, error) {
	r := &run{topic: k.topic, id: k.id, attempt: 1, stored: int32(len(k.record)), fence: record.FenceOf(k.end), until: k.until, sets: k.sets, taken: k.at}
	if k.attempts != "" {
		finished, _ := strconv.Atoi(k.attempts) // HINCRBY wrote it
		r.attempt += finished
	}
	rec, err := record.Decode(k.record)
	if r.nonce = rec.Nonce; err != nil {
		r.nonce = record.NonceOf(k.record)
	}
	r.lease.Store(k.end.Micros())
	m, known := record.DecodeMoved(k.moved)
	if known { // even if the record cannot be read: the job may be put back
		r.past = m.Tally
	}
	if err != nil {
		return r, err
	}
	r.opts, r.size = rec.Options, int32(rec.Size)
	r.opts.Fill(k.defaults)
	r.payload, r.enqueued, r.due = rec.Payload, time.UnixMilli(rec.EnqueuedAt), time.UnixMilli(rec.Due())
	r.expires = rec.Expires()
	if known {
		r.due = time.UnixMilli(m.Due)
	}
	if m.Revived {
		r.expires = 0 // an operator who revives a job wants it to run
	}
	return r, nil
}

// begin makes the run one that is running. Its context is a child of parent. at is now by Redis's
// clock.
func (r *run) begin(parent context.Context, mu *sync.Mutex, k *script.Keys, now, at time.Time) {
	r.ctx = runContext{mu: mu, keys: k, run: r}
	r.ctx.Context, r.cancel = context.WithCancelCause(parent)
	r.began, r.start = now, at
	if taken := time.UnixMilli(r.taken); at.Before(taken) {
		r.start = taken // an older reply of Redis has been read since
	}
	r.late = r.start.Sub(r.due)
	if limit := r.opts.Timeout; limit > 0 {
		r.deadline = now.Add(time.Duration(limit) * time.Millisecond)
	}
}

// An ended is what is known of a run that has ended.
type ended struct {
	run      *run
	outcome  string    // empty: Redis was not told
	finished time.Time // zero: no handler has returned
	err      error
	stack    string // of a panic or of runtime.Goexit
	output   []byte
	next     time.Time // when the job is due again; zero: it is not
}

// A runEnd is a function that is to be called at the end of a run, with those that were added
// before it.
type runEnd struct {
	call   func(ended)
	before *runEnd
}

// addEnd adds a function that is to be called at the end of the run.
func (r *run) addEnd(f func(ended)) {
	for e := (&runEnd{call: f}); ; {
		e.before = r.ends.Load()
		if r.ends.CompareAndSwap(e.before, e) {
			return
		}
	}
}

// takeEnds returns the functions of addEnd, the last one first, and removes them.
func (r *run) takeEnds() *runEnd { return r.ends.Swap(nil) }
