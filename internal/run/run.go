// What is known of a taken job. Its handler is called in internal/serve/worker.go.

package run

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
	ErrLeaseLost = errors.New("delayq: lease lost")
	ErrReplaced  = fmt.Errorf("delayq: job replaced: %w", ErrLeaseLost)
	ErrCancelled = errors.New("delayq: job cancelled")
	ErrShutdown  = errors.New("delayq: server is shutting down")
	ErrTimeout   = fmt.Errorf("delayq: job timeout: %w", context.DeadlineExceeded)
)

// A Run is one taken job, from the take until Redis has its outcome.
type Run struct {
	Topic, ID string // that of a job in a partition is its home
	Nonce     string
	Payload   []byte
	Enqueued  time.Time
	Due       time.Time
	// With the handler's Defaults. If the record cannot be read, no more than the key is known.
	Options record.Options
	// Redis's time from which the job is dropped instead of started; 0: never
	Expires int64
	Size    int32 // of the payload, in bytes
	Stored  int32 // of the record, in bytes
	Attempt int   // from 1
	Past    record.Tally
	Lease   atomic.Int64 // the fence that the handler sees, in µs
	Output  Output
	Noted   Noted
	Hands   Handover

	ends   atomic.Pointer[End] // functions to be called when the run has ended, the last one first
	Ctx    Context             // of the handler
	Cancel context.CancelCauseFunc
	Batch  *Batch // that the run belongs to; nil: none

	// The following fields are guarded by the mutex of the topic.

	Fence record.Fence
	Until time.Time // local clock: from here on the lease may be over
	sets  int       // how often Redis's clock had been set back when the lease was given
	// Local clock: the end of Timeout. The lease is not extended beyond it.
	Deadline time.Time
	taken    int64     // when the job was taken, by Redis's clock, in ms
	From     time.Time // local clock: when its rates let it start; zero: at once
	By       time.Time // local clock: when it must have started, as its start is counted; zero: never
	Start    time.Time // when the handler was called, by Redis's clock; zero: not yet
	Began    time.Time // the same by the local clock
	Lateness time.Duration
	Returned bool // the handler has returned, or is no longer waited for
	Settling bool // a call that settles the job is in flight
	// Of a handler that is no longer waited for: Redis knows that it may still run, and it has
	// returned before that.
	GivenBack, Over bool
	Bereft          bool // Redis has lost data of the topic since the take
	// Calls of the handler that replace its own job: one was executed, or that many are in flight
	// or of unknown outcome.
	Replaced  bool
	replacing int32
	Lost      error  // why the job no longer belongs to this server
	trace     string // set by SetTrace
}

// A Context is the context of a handler, or of one job of a batch. It identifies the run.
type Context struct {
	context.Context
	mu   *sync.Mutex  // that guards the run
	keys *script.Keys // of the topic
	run  *Run
}

type runKey struct{}

func (c *Context) Value(key any) any {
	if key == (runKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// String keeps fmt from looking into the run.
func (c *Context) String() string { return fmt.Sprintf("%v.Handler", c.Context) }

// setTrace sets the traceparent that is kept with the error of the run.
func (c *Context) setTrace(traceparent string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.run.trace = traceparent
}

// TraceParent returns the traceparent that is kept with the error of a run that has begun.
func (r *Run) TraceParent() string {
	r.Ctx.mu.Lock()
	defer r.Ctx.mu.Unlock()
	return cmp.Or(r.trace, r.Options.Headers["traceparent"])
}

// In reports whether ctx is the context of a handler.
func In(ctx context.Context) bool { return ctx.Value(runKey{}) != nil }

// servesKey is the key of a function that reports whether the server of a handler serves a topic.
type servesKey struct{}

// Serving returns the parent of the contexts of all handlers of a server of the queue with that
// prefix, for Served.
func Serving(ctx context.Context, prefix string, serves func(topic string) bool) context.Context {
	return context.WithValue(ctx, servesKey{}, func(of, topic string) bool { return of == prefix && serves(topic) })
}

// Served reports whether ctx is the context of a handler whose server serves a topic of the queue
// with that prefix.
func Served(ctx context.Context, prefix, topic string) bool {
	if !In(ctx) {
		return false
	}
	serves, known := ctx.Value(servesKey{}).(func(of, topic string) bool)
	return known && serves(prefix, topic)
}

// Guarded reports whether ctx is the context of a handler whose runs that mutex guards.
func Guarded(ctx context.Context, mu *sync.Mutex) bool {
	switch c := ctx.Value(runKey{}).(type) {
	case *Context:
		return c.mu == mu
	case *batchContext:
		return c.batch.Runs[0].Ctx.mu == mu
	}
	return false
}

// setTrace sets that traceparent in the runs of a handler's context.
func SetTrace(ctx context.Context, traceparent string) {
	switch c := ctx.Value(runKey{}).(type) {
	case *Context:
		c.setTrace(traceparent)
	case *batchContext:
		for _, r := range c.batch.Runs {
			r.Ctx.setTrace(traceparent)
		}
	}
}

// Own returns the context of the calling handler if the job with that ID is its own, else nil.
func Own(ctx context.Context, prefix, topic, id string) *Context {
	var c *Context
	switch of := ctx.Value(runKey{}).(type) {
	case *Context:
		c = of
	case *batchContext:
		c = of.of(id)
	}
	if c == nil || c.run.ID != id || c.run.Topic != topic || c.keys.Prefix() != prefix {
		return nil
	}
	return c
}

// Replace notes that a call that replaces the handler's own job is in flight. The call must not
// cancel the handler's context.
func (c *Context) Replace() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.run.replacing++
}

// Stored notes the error of that call, and whether it may have replaced the job. A call of unknown
// outcome counts as in flight forever.
func (c *Context) Stored(err error, maybe bool) {
	if c == nil || errors.Is(err, script.ErrUnknown) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.run.replacing--
	c.run.Replaced = c.run.Replaced || maybe
}

// ownDoing reports whether the handler itself replaced the job, if the job has a new owner. If the
// outcome of the handler's call is unknown, a lease that may be over counts as lost.
func (r *Run) ownDoing(now time.Time) bool {
	return r.Replaced || r.replacing > 0 && now.Before(r.Until)
}

// Why returns the reason why a job no longer belongs to its run. The letter is LetterGone if the
// job does not exist, and LetterLost if it has another lease or none. Without a control message, a
// job that another caller replaced looks like one whose lease ran out.
func (r *Run) Why(letter byte, now time.Time) error {
	switch {
	case r.ownDoing(now):
		return ErrReplaced
	case letter == script.LetterGone && now.Before(r.Until) && !r.Bereft:
		return ErrCancelled
	}
	return ErrLeaseLost
}

// running reports whether the handler has been called and is waited for.
func (r *Run) running() bool { return !r.Start.IsZero() && !r.Returned }

// A Taken is a job as a take returns it.
type Taken struct {
	Topic, ID       string
	Record          string
	Attempts, Moved string          // entries of the job; empty: none
	End             record.LeaseEnd // of its lease
	Until           time.Time       // local clock: from here on the lease may be over
	SetBacks        int             // how often Redis's clock had been set back
	At              int64           // Redis's clock, in ms
	Defaults        *record.Options // of the topic
	Noter           Noter           // nil: what the run notes stays with it
}

// New returns a run of a taken job. The error says why the record cannot be read; the run can be
// settled even then.
func New(k Taken) (*Run, error) {
	r := &Run{Topic: k.Topic, ID: k.ID, Attempt: 1, Stored: int32(len(k.Record)), Fence: record.FenceOf(k.End), Until: k.Until, sets: k.SetBacks, taken: k.At}
	if k.Attempts != "" {
		finished, _ := strconv.Atoi(k.Attempts) // HINCRBY wrote it
		r.Attempt += finished
	}
	rec, err := record.Decode(k.Record)
	if r.Nonce = rec.Nonce; err != nil {
		r.Nonce = record.NonceOf(k.Record)
	}
	r.Lease.Store(k.End.Micros())
	r.Noted.of(r, k.Noter)
	m, known := record.DecodeMoved(k.Moved)
	if known { // even if the record cannot be read: the job may be put back
		r.Past = m.Tally
	}
	if err != nil {
		// What waits for the end of the run: jobs of its key, and a slot of its schedule.
		r.Options.Key, r.Options.Scheduled = rec.Options.Key, rec.Options.Scheduled
		return r, err
	}
	r.Options, r.Size = rec.Options, int32(rec.Size)
	r.Options.Fill(k.Defaults)
	r.Payload, r.Enqueued, r.Due = rec.Payload, time.UnixMilli(rec.EnqueuedAt), time.UnixMilli(rec.Due())
	r.Expires = rec.Expires()
	if known {
		r.Due = time.UnixMilli(m.Due)
	}
	if m.Revived {
		r.Expires = 0 // an operator who revives a job wants it to run
	}
	return r, nil
}

// Begin makes the run one that is running. Its context is a child of parent. at is now by Redis's
// clock.
func (r *Run) Begin(parent context.Context, mu *sync.Mutex, k *script.Keys, now, at time.Time) {
	r.Ctx = Context{mu: mu, keys: k, run: r}
	r.Ctx.Context, r.Cancel = context.WithCancelCause(parent)
	r.Began, r.Start = now, at
	if taken := time.UnixMilli(r.taken); at.Before(taken) {
		r.Start = taken // an older reply of Redis has been read since
	}
	r.Lateness = r.Start.Sub(r.Due)
	if limit := r.Options.Timeout; limit > 0 {
		r.Deadline = now.Add(time.Duration(limit) * time.Millisecond)
	}
}

// An Ended is what is known of a run that has ended.
type Ended struct {
	Run      *Run
	Outcome  string    // empty: Redis was not told
	Finished time.Time // zero: no handler has returned
	Err      error
	Stack    string // of a panic or of runtime.Goexit
	Output   []byte
	Next     time.Time // when the job is due again; zero: it is not
}

// An End is a function that is to be called at the end of a run, with those that were added
// before it.
type End struct {
	Call   func(Ended)
	Before *End
}

// AddEnd adds a function that is to be called at the end of the run.
func (r *Run) AddEnd(f func(Ended)) {
	for e := (&End{Call: f}); ; {
		e.Before = r.ends.Load()
		if r.ends.CompareAndSwap(e.Before, e) {
			return
		}
	}
}

// TakeEnds returns the functions of AddEnd, the last one first, and removes them.
func (r *Run) TakeEnds() *End { return r.ends.Swap(nil) }
