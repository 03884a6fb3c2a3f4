package delayq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"
)

// A run is one taken job, from the take until Redis knows how it ended.
type run struct {
	id      string // the job's own fields belong to the handler, which may change them
	nonce   string
	job     *Job
	own     Job        // what job points to
	opts    jobOptions // zero if the record cannot be read
	said    jobOptions // the same without the Defaults of the handler
	expires int64      // Redis's time from which the job is dropped instead of started; 0: never
	size    int        // of the payload
	stored  int        // bytes of the record
	attempt int        // from 1
	past    tally
	lease   atomic.Int64 // the fence that the handler sees, in µs

	scheduled bool // the job is one of a schedule

	ctx    runContext // of the handler
	cancel context.CancelCauseFunc

	// What follows is guarded by topicServer.mu.
	fence    string    // the end of the lease in ms that Redis has; several, with spaces between, while it is not known which of them
	extended string    // the end that an extension without an answer yet may have set
	until    time.Time // our own clock: from here on the lease may be over
	ends     int64     // the latest end in µs that Redis is known to have given the lease
	sets     int       // how often Redis's clock had been set back by then
	deadline time.Time // our own clock: the end of Timeout; the lease is not extended beyond it
	taken    time.Time // when the lease was given, by Redis's clock
	start    time.Time // when the handler was called, by Redis's clock; zero: not yet
	began    time.Time // the same by our own clock
	returned bool      // the handler has returned, or will not be waited for
	telling  bool      // a call that settles the job is under way
	bereft   bool      // Redis has lost data of the topic since the take
	lost     error     // why the job no longer belongs to this server

	replacing int  // calls of the handler that replace its own job, under way or of unknown outcome
	replaced  bool // one of them was carried out
}

// A runContext is the context of a handler. It says whose it is.
type runContext struct {
	context.Context
	topic *topicServer
	run   *run
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

// ownRun gives the context of the handler that calls if the job of that ID is its own, else nil.
func ownRun(ctx context.Context, prefix, topic, id string) *runContext {
	c, _ := ctx.Value(runKey{}).(*runContext)
	if c == nil || c.run.id != id || c.topic.keys.topic != topic || c.topic.server.o.prefix != prefix {
		return nil
	}
	return c
}

// replace notes that a call that replaces the handler's own job is under way: it is not to end the
// handler's context.
func (c *runContext) replace() {
	if c == nil {
		return
	}
	c.topic.mu.Lock()
	defer c.topic.mu.Unlock()
	c.run.replacing++
}

// stored notes how that call has ended. One of unknown outcome counts as under way for good.
func (c *runContext) stored(err error) {
	if c == nil || errors.Is(err, ErrUnknownOutcome) {
		return
	}
	c.topic.mu.Lock()
	defer c.topic.mu.Unlock()
	c.run.replacing--
	c.run.replaced = c.run.replaced || maybeStored(err)
}

// ownDoing reports whether the handler itself has replaced the job, if that has a new owner. With
// an outcome that is not known, a lease that may be over counts as lost.
func (r *run) ownDoing(now time.Time) bool {
	return r.replaced || r.replacing > 0 && now.Before(r.until)
}

// why is the reason why a job that is gone (letter g) or has another lease or none (l) no longer
// belongs to its run. Without an announcement, Redis does not tell a job that was replaced by
// somebody else from one whose lease was over.
func (r *run) why(letter byte, now time.Time) error {
	switch {
	case r.ownDoing(now):
		return ErrReplaced
	case letter == letterGone && now.Before(r.until) && !r.bereft:
		return ErrCancelled
	}
	return ErrLeaseLost
}

// running tells whether the handler has been called and is waited for.
func (r *run) running() bool { return !r.start.IsZero() && !r.returned }

// fences is what a settling script may find as the end of the lease.
func (r *run) fences() string {
	if r.extended != "" {
		return r.fence + " " + r.extended
	}
	return r.fence
}

// newRun makes a run of what take answered. The error says why the record cannot be read; the run can be settled all the same.
func (t *topicServer) newRun(id, raw, fence string, leaseEnd int64, until time.Time, tried, changed string) (*run, error) {
	r := &run{id: id, attempt: 1, stored: len(raw), fence: fence, until: until, ends: leaseEnd, sets: t.clock.sets()}
	if tried != "" {
		finished, _ := strconv.Atoi(tried) // HINCRBY wrote it
		r.attempt += finished
	}
	r.job = &r.own
	r.nonce = nonceOf(raw)
	r.job.Topic, r.job.ID, r.job.Attempt, r.job.nonce = t.keys.topic, id, r.attempt, r.nonce
	r.lease.Store(leaseEnd)
	r.job.fence = &r.lease
	m, known := parseMoved(changed)
	if known { // also if the record cannot be read: it may be put back
		r.past = m.tally
		r.job.Snoozes, r.job.spent = m.snoozes, m.spent
	}
	rec, err := decodeRecord(raw)
	if err != nil {
		return r, err
	}
	r.opts, r.said, r.size = rec.opts, rec.opts, rec.size
	if r.scheduled = ofSchedule(raw); r.scheduled {
		r.job.scheduledFor(id)
	}
	r.opts.fill(&t.defaults)
	r.job.Payload, r.job.Headers, r.job.Retries = rec.payload, rec.opts.headers, r.opts.retries()
	r.job.EnqueuedAt, r.job.Due = msTime(rec.enqueuedAt), msTime(rec.due)
	r.expires = rec.expires()
	if known {
		r.job.Due = msTime(m.due)
	}
	if m.revived {
		r.expires = 0 // who revives a job means it to run
	}
	return r, nil
}
